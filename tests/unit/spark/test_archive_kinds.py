"""The column `type` of an archive: made of the properties that are archived."""

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from whimbrel.spark.archive_backend import having
from whimbrel.store.columns.kinds import kinds

MAPS = [[("a", "1")], [], [("TRAN_MSG", "true"), ("a", "2")], [("__SHARDINGKEY", "g")], [("a", "3")]]


@pytest.mark.parametrize("first", range(len(MAPS)))
def test_rows_are_told_by_their_own_properties_in_any_slice(first: int) -> None:
    wanted = ["NORMAL", "NORMAL", "TRANSACTION", "FIFO", "NORMAL"][first:]
    column = pa.array(MAPS, pa.map_(pa.string(), pa.string())).slice(first)
    assert kinds(pa.array(["t"] * len(column)), having(column)).to_pylist() == wanted
    assert set(kinds(pa.array(["%DLQ%g"] * len(column)), having(column)).to_pylist()) == {"DEAD_LETTER"}
