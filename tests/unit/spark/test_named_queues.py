"""Queues and positions that a person names: what is not there is refused with what is."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("pyspark")

from whimbrel.spark.backend import Backend
from whimbrel.spark.before import BACKENDS
from whimbrel.spark.offsets import Key
from whimbrel.spark.options import OptionError, SourceOptions, parse
from whimbrel.spark.planning import Extent
from whimbrel.spark.source import TopicReader

HERE = {
    ("orders", "broker-a", 0): Extent(5, 40),
    ("orders", "broker-a", 1): Extent(0, 0),
    ("orders", "broker-a", 2): Extent(0, 7),
    ("orders", "broker-b", 0): Extent(0, 9),
}
BASE = {"servers": "127.0.0.1:8081"}


@dataclass(frozen=True)
class Standing(Backend):
    """Queues as they stand, and what masters say of their ends."""

    has_physical_offsets = False
    shows_empty_queues = True
    selects_by_time = False
    extents: dict[Key, Extent]
    away: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[Key, int | None] = field(default_factory=dict)

    @classmethod
    def describe(
        cls,
        options: SourceOptions,
        *,
        first_contact: bool = False,
        whole: bool = True,
        known: Collection[str] = (),
    ) -> "Standing":
        """Return the queues that are read."""
        return cls({key: extent for key, extent in HERE.items() if options.reads_queue(key[0], key[2])})

    def confirmed_end(self, key: Key) -> int | None:
        return self.ends.get(key, self.extents[key].end)

    def offsets_by_time(self, keys: Any, at_ms: int) -> dict[Key, int]:
        return {}

    def plan(self, ranges: Any, request: Any) -> list[Any]:
        return []


class SeenBySome(Standing):
    """Queues as a store or an archive shows them: those that have messages."""

    shows_empty_queues = False


def begin(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kind: type[Backend] = Standing) -> Backend:
    """Begin a query whose queues stand as in HERE."""
    monkeypatch.setitem(BACKENDS, "servers", kind)
    reader = TopicReader.__new__(TopicReader)
    reader.options = parse(BASE | {"subscribe": "orders"} | given, streaming=False)
    return reader.begin()


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("positions", "sentence"),
    [
        ('{"bills": {"broker-a": {"0": 1}}}', "this query reads no topic bills; it reads orders"),
        ('{"orders": {"broker-x": {"0": 1}}}', "orders has no broker broker-x, or it is not read; it has"),
        ('{"orders": {"broker-a": {"9": 1}}}', "no queue 9 on broker-a, or it is not read; it has queues 0"),
        ('{"orders": {"broker-a": {"9": -1}}}', "orders has no queue 9 on broker-a"),
        (
            '{"orders": {"broker-a": {"0": 41}}}',
            "queue 0 of broker-a does not reach to offset 41: it holds 5 to 39, and the next one is 40",
        ),
        ('{"orders": {"broker-a": {"1": 3}}}', "it is empty, and the next one is 0"),
    ],
)  # fmt: skip
def test_a_position_that_is_not_there_is_refused_with_what_is(
    monkeypatch: pytest.MonkeyPatch, name: str, positions: str, sentence: str
) -> None:
    with pytest.raises(OptionError) as caught:
        begin(monkeypatch, {name: positions})
    assert str(caught.value).startswith(f"option {name}: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "positions",
    [
        '{"orders": {"broker-a": {"0": 40}}}',  # the end
        '{"orders": {"broker-a": {"0": 2}}}',  # removed by retention, which failOnDataLoss is about
        '{"orders": {"broker-a": {"0": -1, "1": -2}, "broker-b": {"0": 9}}}',
    ],
)
def test_positions_up_to_the_end_are_taken(monkeypatch: pytest.MonkeyPatch, positions: str) -> None:
    begin(monkeypatch, {"startingOffsets": positions})
    begin(monkeypatch, {"endingOffsets": positions})


def test_the_master_is_asked_before_an_offset_counts_as_beyond_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ahead(Standing):
        def confirmed_end(self, key: Key) -> int | None:
            return 50

    class Silent(Standing):
        def confirmed_end(self, key: Key) -> int | None:
            return None

    at_45 = {"startingOffsets": '{"orders": {"broker-a": {"0": 45}}}'}
    begin(monkeypatch, at_45, Ahead)
    begin(monkeypatch, at_45, Silent)
    with pytest.raises(OptionError, match="the next one is 50"):
        begin(monkeypatch, {"startingOffsets": '{"orders": {"broker-a": {"0": 51}}}'}, Ahead)


def test_queues_that_are_gone_are_passed_over_when_data_loss_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"startingOffsets": '{"orders": {"broker-x": {"0": 5}}}', "failOnDataLoss": "false"}
    begin(monkeypatch, given)


def test_a_range_ends_behind_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "startingOffsets": '{"orders": {"broker-a": {"0": 20}}}',
        "endingOffsets": '{"orders": {"broker-a": {"0": 10}}}',
    }
    with pytest.raises(OptionError, match="from 20 to 10 is not a range"):
        begin(monkeypatch, given)


def test_queues_of_a_broker_that_does_not_answer_are_not_called_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Partly(Standing):
        @classmethod
        def describe(
            cls,
            options: SourceOptions,
            *,
            first_contact: bool = False,
            whole: bool = True,
            known: Collection[str] = (),
        ) -> "Partly":
            return cls(Standing.describe(options).extents, {"broker-c": "it does not answer"})

    with pytest.raises(OptionError, match="broker broker-c of orders does not answer now"):
        begin(monkeypatch, {"startingOffsets": '{"orders": {"broker-c": {"0": 5}}}'}, Partly)
    begin(monkeypatch, {"subscribe": "", "assign": '{"orders": [7]}'}, Partly)  # it may have it


def test_assigned_queues_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, {"subscribe": "", "assign": '{"orders": [0, 2]}'})
    with pytest.raises(OptionError) as caught:
        begin(monkeypatch, {"subscribe": "", "assign": '{"orders": [0, 9]}'})
    assert str(caught.value) == (
        "option assign: orders has no queue 9; it has queues 0 to 2 on broker-a, queue 0 on broker-b"
    )


def test_a_queue_that_a_store_or_archive_does_not_show_may_be_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(monkeypatch, {"subscribe": "", "assign": '{"orders": [0, 3]}'}, SeenBySome)
    begin(monkeypatch, {"startingOffsets": '{"orders": {"broker-a": {"3": 0}}}'}, SeenBySome)
    with pytest.raises(OptionError, match="no queue 3 on broker-a"):
        begin(monkeypatch, {"startingOffsets": '{"orders": {"broker-a": {"3": 1}}}'}, SeenBySome)


def test_times_that_win_over_positions_make_them_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"startingOffsets": '{"orders": {"broker-x": {"0": 5}}}', "startingTimestamp": "5"}
    begin(monkeypatch, given)
