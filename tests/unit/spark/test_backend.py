"""The interface of what records are read from: complete for every place, and its tasks can be pickled."""

import pickle
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("pyspark")

from support.store import goldens
from support.store.archives import write_batch
from whimbrel.spark.archiving.folder import Folder
from whimbrel.spark.backend import Backend, ReadRequest, ReadTask
from whimbrel.spark.before import BACKENDS
from whimbrel.spark.broker_backend import BrokerBackend
from whimbrel.spark.options import Place, SourceOptions, parse
from whimbrel.spark.planning import Extent, ending_positions, ranges_between, starting_positions

COLUMNS = ("topic", "queueId", "queueOffset", "body")


def tasks_of(backend: Backend, options: SourceOptions) -> list[ReadTask]:
    """Return the tasks that read everything."""
    start = starting_positions(options.starting, backend.extents)
    end = ending_positions(options.ending, backend.extents)
    ranges = ranges_between(start, end, backend.extents, fail_on_data_loss=True)
    request = ReadRequest(columns=COLUMNS, options=options, task_bytes=1 << 16)
    return list(backend.plan(ranges, request))


def rows(task: ReadTask) -> list[dict[str, Any]]:
    return [row for batch in task.read() for row in batch.to_pylist()]


def test_every_place_has_a_backend() -> None:
    assert set(BACKENDS) == set(get_args(Place))
    for backend in BACKENDS.values():
        assert not getattr(backend, "__abstractmethods__", None)


@pytest.mark.parametrize("pattern", [".*", ""])
def test_tasks_of_a_store_read_the_same_when_they_were_pickled(pattern: str) -> None:
    given = {"store": str(goldens.golden("v493-basic"))} | ({"subscribePattern": pattern} if pattern else {})
    options = parse(given, streaming=False)
    backend = BACKENDS[options.place].describe(options)
    assert backend.selects_by_time is not bool(pattern)
    assert backend.has_physical_offsets
    tasks = tasks_of(backend, options)
    assert any(rows(task) for task in tasks)
    for task in tasks:
        assert rows(pickle.loads(pickle.dumps(task))) == rows(task)
    for key, extent in backend.extents.items():
        assert backend.confirmed_end(key) == extent.end


def test_tasks_of_an_archive_read_the_same_when_they_were_pickled(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "archive")
    folder.create()
    write_batch(folder, "q1", 0, [("orders", 0, 0, 10), ("orders", 1, 5, 8)], tasks=2)
    options = parse({"archive": str(folder.root)}, streaming=False)
    backend = BACKENDS[options.place].describe(options)
    assert backend.selects_by_time
    assert {key[2]: (extent.first, extent.end) for key, extent in backend.extents.items()} == {
        0: (0, 10),
        1: (5, 8),
    }
    found = [row for task in tasks_of(backend, options) for row in rows(pickle.loads(pickle.dumps(task)))]
    assert sorted((row["queueId"], row["queueOffset"]) for row in found) == [
        *((0, offset) for offset in range(10)),
        *((1, offset) for offset in range(5, 8)),
    ]


def test_tasks_of_brokers_can_be_pickled_and_leave_physical_offsets_to_spark() -> None:
    options = parse({"servers": "127.0.0.1:8081", "subscribe": "orders"}, streaming=False)
    backend = BrokerBackend(
        options, {("orders", "broker-a", 0): Extent(0, 10)}, {"broker-a": ("127.0.0.1:8091",)}
    )
    assert not backend.has_physical_offsets
    assert not backend.selects_by_time
    (task,) = tasks_of(backend, options)
    assert pickle.loads(pickle.dumps(task)) == task
