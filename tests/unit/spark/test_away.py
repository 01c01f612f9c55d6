"""What can't be asked is never left out in silence: brokers that are away, slaves that lag or hold less."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from support.cluster.statuses import registered
from support.store.column_records import record
from whimbrel.errors import BeyondConfirmed, CorruptRecord, RangeGone, Unavailable, WhimbrelError
from whimbrel.model.cluster import AbsentGroup, BrokerStatus, Cluster
from whimbrel.model.message import MessageType
from whimbrel.rpc.api.bulk_calls import BrokerQueues, QueueOffsets, RecordFrame, TopicQueues
from whimbrel.spark import broker_backend, nameservers
from whimbrel.spark.archive_backend import ArchiveTask, FileSplit
from whimbrel.spark.broker_backend import BrokerBackend, BrokerTask, read_range
from whimbrel.spark.brokers import Brokers, NoBroker, QueuesSeen
from whimbrel.spark.offsets import Key, awaited_in, from_checkpoint
from whimbrel.spark.options import OptionError, parse
from whimbrel.spark.planning import DataLoss, Extent, Incomplete, NotThere, OffsetRange
from whimbrel.spark.push_down import UNRESTRICTED
from whimbrel.spark.source import BatchReader, StreamReader, checked_columns, default_columns
from whimbrel.store.columns import schema_of

SERVER = "127.0.0.1:8081"
MASTER, SLAVE, OTHER = "127.0.0.1:9000", "127.0.0.1:9001", "127.0.0.1:9010"
FAST = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "0"}


def member(name: str, number: int, address: str) -> BrokerStatus:
    return registered(number, name, address=address, topic_count=1)


def standing(name: str, end: int, topic: str = "orders") -> BrokerQueues:
    queue = QueueOffsets(queue_id=0, min_offset=0, max_offset=end, confirmed_offset=end)
    return BrokerQueues(
        broker_name=name,
        broker_id=0,
        role="master",
        topics=(
            TopicQueues(
                name=topic, message_type=MessageType.NORMAL, permission=6, system=False, queues=(queue,)
            ),
        ),
        log_begin=0,
        log_written=0,
        log_confirmed=0,
        log_file_size=1024,
    )


class Scene:
    """What nameserver and brokers answer; a broker without an answer does not."""

    def __init__(self) -> None:
        self.members = [member("a", 0, MASTER), member("a", 1, SLAVE), member("b", 0, OTHER)]
        self.absent: tuple[AbsentGroup, ...] = ()
        self.settled = True
        self.answers = {MASTER: standing("a", 10), SLAVE: standing("a", 7), OTHER: standing("b", 5)}

    def cluster(self, *_: object) -> Cluster:
        return Cluster(tuple(self.members), self.settled, (), self.absent, frozenset({"f"}))

    def describe(self, addresses: Any) -> BrokerQueues:
        failure: WhimbrelError = Unavailable("nobody")
        for address in addresses:
            if address in self.answers:
                return self.answers[address]
            failure = Unavailable(f"{address}: connection refused")
        raise failure

    def leave(self, name: str, *topics: str) -> None:
        """Have a group leave, which had some topics."""
        self.members = [each for each in self.members if each.broker_name != name]
        self.absent += (AbsentGroup(cluster="C", broker_name=name, renewed_at=0.0, topics=frozenset(topics)),)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    found = Scene()
    monkeypatch.setattr(nameservers, "describe_any", found.cluster)
    monkeypatch.setattr(Brokers, "describe_queues", lambda _, addresses: found.describe(addresses))
    return found


def extents(*, whole: bool = True, known: tuple[str, ...] = (), **options: Any) -> QueuesSeen:
    given = {"servers": SERVER, "subscribe": "orders", **FAST, **options}
    return Brokers(parse(given)).extents(first_contact=False, whole=whole, known=known)


def ends(seen: QueuesSeen) -> dict[str, int]:
    return {broker: extent.end for (_, broker, _), extent in seen.extents.items()}


@pytest.mark.parametrize("read_from", ["any", "slave", "master"])
def test_the_master_says_where_queues_end(scene: Scene, read_from: str) -> None:
    scene.members = scene.members[:2]
    assert ends(extents(readFrom=read_from)) == {"a": 10}


def test_a_slave_alone_knows_no_end_for_who_reads_everything(scene: Scene) -> None:
    del scene.answers[MASTER]
    with pytest.raises(Incomplete, match=r"a: its master does not answer .*: slaves may lag"):
        extents()
    assert ends(extents(allowPartial="true")) == {"a": 7, "b": 5}
    assert ends(extents(whole=False)) == {"a": 7, "b": 5}
    assert ends(extents(subscribe="other", whole=False, known=("x",))) == {}


def test_a_slave_alone_that_never_had_the_topic_is_not_missed(scene: Scene) -> None:
    del scene.answers[MASTER]
    scene.answers[SLAVE] = standing("a", 7, "another")
    assert ends(extents()) == {"b": 5}


def test_a_group_that_hangs_is_named_with_what_to_do(scene: Scene) -> None:
    del scene.answers[OTHER]
    with pytest.raises(
        Incomplete, match=r"b: no member of it answers.*Start it.*broker forget b.*allowPartial"
    ):
        extents()
    assert ends(extents(allowPartial="true")) == {"a": 10}
    seen = extents(whole=False)
    assert (ends(seen), list(seen.away)) == ({"a": 10}, ["b"])


@pytest.mark.parametrize(
    ("had", "options", "missed"),
    [
        (("orders",), {}, True),
        (("payments",), {}, False),
        (("orders",), {"subscribe": "", "subscribePattern": "ord.*"}, True),
        (("payments", "b", "C", "%RETRY%g"), {"subscribe": "", "subscribePattern": "ord.*|b|C|.*g"}, False),
        (("orders",), {"subscribe": "", "assign": '{"orders": [0]}'}, True),
    ],
)
def test_a_group_that_is_gone_is_missed_for_the_topics_that_it_had(
    scene: Scene, had: tuple[str, ...], options: dict[str, Any], missed: bool
) -> None:
    scene.leave("b", *had)
    if missed:
        with pytest.raises(Incomplete, match="b: no member of it is registered since 1970-01-01T00:00:00Z"):
            extents(**options)
    else:
        assert ends(extents(**options)) == {"a": 10}


def test_a_group_with_too_many_topics_to_remember_may_have_had_any(scene: Scene) -> None:
    scene.members = scene.members[:2]
    scene.absent = (AbsentGroup(cluster="C", broker_name="b", renewed_at=None, topics=None),)
    with pytest.raises(Incomplete, match="b: no member of it is registered"):
        extents()


def test_a_nameserver_that_has_just_started_may_miss_somebody(scene: Scene) -> None:
    scene.settled = False
    with pytest.raises(Incomplete, match="the nameserver has just started"):
        extents()
    assert ends(extents(whole=False)) == {"a": 10, "b": 5}
    with pytest.raises(Incomplete):  # where a stream begins is not guessed
        Brokers(parse({"servers": SERVER, "subscribe": "orders", **FAST})).extents(
            first_contact=True, whole=False
        )


def test_a_topic_that_only_an_absent_group_had_is_waited_for_by_streams_alone(scene: Scene) -> None:
    scene.leave("b", "only")
    seen = extents(whole=False, subscribe="only")
    assert (seen.extents, list(seen.away)) == ({}, ["b"])
    with pytest.raises(Incomplete):
        extents(subscribe="only")
    scene.absent = ()
    assert list(extents(whole=False, subscribe="only", known=("b",)).away) == ["b"]  # by its checkpoint
    with pytest.raises(Incomplete, match="b: it is not registered"):
        extents(known=("b",))
    assert ends(extents(known=("a", "f"))) == {"a": 10}  # one that was let go of is not waited for
    with pytest.raises(NotThere, match="no broker has the topic only"):
        extents(whole=False, subscribe="only")


def test_another_nameserver_may_know_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = AbsentGroup(cluster="C", broker_name="b", renewed_at=None)
    answers = {
        "one:1": Cluster((member("a", 0, MASTER),), True, (), (absent,)),
        "two:1": Cluster((member("b", 0, OTHER),), True),
    }
    monkeypatch.setattr(nameservers, "describe_cluster", lambda server, timeout_s: answers[server])
    found = nameservers.describe_any(["one:1", "two:1"], 1.0)
    assert [each.broker_name for each in found.brokers] == ["a", "b"]
    assert found.absent == ()


WANTED = OffsetRange("orders", "a", 0, 0, 10, 1.0)


def reading(monkeypatch: pytest.MonkeyPatch, has: dict[str, tuple[int, int]], **options: str) -> list[str]:
    """Read WANTED from members that hold ranges of it; return who served which part."""
    served: list[str] = []

    def frames(address: str, wanted: OffsetRange, at: int, _: object) -> Iterator[RecordFrame]:
        first, end = has[address]
        if at < first:
            raise RangeGone(f"{at} is gone, {first} is the first")
        if at >= end:
            raise BeyondConfirmed(f"{at} is not confirmed")
        yield RecordFrame(
            records=b"",
            next_offset=min(end, wanted.end),
            confirmed_offset=end,
            min_offset=first,
            max_offset=end,
        )
        served.append(f"{address[-1]}: {at} to {min(end, wanted.end)}")

    monkeypatch.setattr(broker_backend, "frames", frames)
    chosen = parse({"servers": SERVER, "subscribe": "orders", **FAST, **options})
    task = BrokerTask((WANTED,), {"a": tuple(has)}, ("queueOffset",), chosen)
    monkeypatch.setattr(Brokers, "addresses", lambda _: {"a": tuple(has)})
    assert list(read_range(task, WANTED)) == []
    return served


def test_a_slave_that_lags_serves_what_it_has_and_the_master_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reading(monkeypatch, {SLAVE: (0, 7), MASTER: (0, 10)}) == ["1: 0 to 7", "0: 7 to 10"]
    with pytest.raises(NoBroker, match="can't be read at 7: 7 is not confirmed"):
        reading(monkeypatch, {SLAVE: (0, 7)})


def test_what_one_member_does_not_hold_any_more_another_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading(monkeypatch, {SLAVE: (4, 10), MASTER: (0, 10)}) == ["0: 0 to 10"]
    with pytest.raises(DataLoss, match="0 is gone"):
        reading(monkeypatch, {SLAVE: (4, 10), MASTER: (2, 10)})


A0, B0, B1 = ("orders", "a", 0), ("orders", "b", 0), ("orders", "b", 1)


def stream(monkeypatch: pytest.MonkeyPatch, **options: str) -> tuple[StreamReader, dict[str, Any]]:
    """Return the reader of a stream, and what tells it where queues stand: `extents` and `away`."""
    from pyspark.sql.types import LongType, StructField, StructType

    now: dict[str, Any] = {"extents": {}, "away": {}}

    def describe(options: Any, **_: object) -> BrokerBackend:
        return BrokerBackend(options, dict(now["extents"]), {}, dict(now["away"]))

    monkeypatch.setattr(BrokerBackend, "describe", describe)
    given = {"servers": SERVER, "subscribe": "orders", **FAST, **options}
    schema = StructType([StructField("queueOffset", LongType())])
    return StreamReader(schema, parse(given, streaming=True)), now


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> dict[Key, tuple[int, int]]:
    tasks: list[Any] = list(reader.partitions(start, end))
    return {each.key: (each.start, each.end) for task in tasks for each in task.task.ranges}


def next_end(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_latest_of_a_group_that_was_away_at_the_begin_is_its_end_when_it_is_first_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, now = stream(monkeypatch)
    now["extents"], now["away"] = {A0: Extent(0, 10)}, {"b": "it is away"}
    begin = reader.initialOffset()
    assert (from_checkpoint(begin), awaited_in(begin)) == ({A0: 10}, frozenset("b"))
    assert next_end(reader, begin) == begin
    now["extents"], now["away"] = {A0: Extent(0, 11), B0: Extent(0, 500)}, {}
    first = next_end(reader, begin)
    assert (from_checkpoint(first), awaited_in(first)) == ({A0: 11, B0: 500}, frozenset())
    assert planned(reader, begin, first) == {A0: (10, 11)}
    now["extents"] |= {B0: Extent(0, 502), B1: Extent(0, 3)}  # a queue that was added since is new
    second = next_end(reader, first)
    assert planned(reader, first, second) == {B0: (500, 502), B1: (0, 3)}


def test_a_group_whose_master_is_away_is_awaited_for_latest_and_read_at_once_for_earliest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, now = stream(monkeypatch)
    now["extents"], now["away"] = {A0: Extent(0, 10), B0: Extent(0, 7)}, {"b": "slaves may lag"}
    begin = reader.initialOffset()
    assert from_checkpoint(begin) == {A0: 10}
    assert next_end(reader, begin) == begin
    reader, now = stream(monkeypatch, startingOffsets="earliest")
    now["extents"], now["away"] = {A0: Extent(0, 10), B0: Extent(0, 7)}, {"b": "slaves may lag"}
    begin = reader.initialOffset()
    assert planned(reader, begin, next_end(reader, begin)) == {A0: (0, 10), B0: (0, 7)}


def test_a_stream_tells_once_who_is_away_and_reports_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, now = stream(monkeypatch, startingOffsets="earliest")
    now["extents"] = {A0: Extent(0, 10), B0: Extent(0, 7)}
    begin = next_end(reader, reader.initialOffset())
    now["extents"], now["away"] = {A0: Extent(0, 10)}, {"b": "it is away"}
    assert next_end(reader, begin) == next_end(reader, begin) == begin
    assert caplog.messages == ["queues of brokers that are away wait for them: b: it is away"]
    reported = reader.reportLatestOffset()
    assert reported is not None and reported["away"] == {"b": "it is away"}
    now["away"] = {}
    next_end(reader, begin)
    assert caplog.messages[1:] == ["no broker is away any more"]


def test_a_batch_with_allow_partial_says_once_what_is_left_out(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    scene.leave("b", "orders")
    given = {"servers": SERVER, "subscribe": "orders", **FAST}
    schema = StructType([StructField("queueOffset", LongType())])
    with pytest.raises(Incomplete):
        BatchReader(schema, parse(given)).partitions()
    caplog.clear()
    (task,) = BatchReader(schema, parse({**given, "allowPartial": "true"})).partitions()
    assert [each.end for each in cast(Any, task).task.ranges] == [10]
    (told,) = [line for line in caplog.messages if "not all there is" in line]
    assert "b: no member of it is registered" in told


ZLIB = 0x301  # the system flag of a body that is compressed by it
BAD = (
    record(0, body=b"good", queue_offset=0)
    + record(1, body=b"no compressed body", sys_flag=ZLIB, queue_offset=1)
    + record(2, body=b"good", queue_offset=2)
)


def read_bad(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], **options: str
) -> list[dict[str, Any]]:
    """Read BAD from one member, once: it is asked no second time."""
    asked: list[str] = []

    def frames(address: str, *_: object) -> Iterator[RecordFrame]:
        asked.append(address)
        yield RecordFrame(records=BAD, next_offset=3, confirmed_offset=3, min_offset=0, max_offset=3)

    monkeypatch.setattr(broker_backend, "frames", frames)
    chosen = parse({"servers": SERVER, "subscribe": "orders", **FAST, **options})
    wanted = OffsetRange("orders", "a", 0, 0, 3, 1.0)
    task = BrokerTask((wanted,), {"a": (SLAVE, MASTER)}, columns, chosen)
    rows = [row for batch in read_range(task, wanted) for row in batch.to_pylist()]
    assert asked == [SLAVE]
    return rows


def test_a_body_that_does_not_decompress_fails_at_once_or_is_never_called_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = r"orders, queue 0 of a: the record at 1: .*onCorrupt=flag .*onCorrupt=skip .*decompress=false"
    with pytest.raises(CorruptRecord, match=text):
        read_bad(monkeypatch, ("body",))
    flagged = read_bad(monkeypatch, ("body", "bodyOk"), onCorrupt="flag")
    assert [tuple(row.values()) for row in flagged] == [
        (b"good", True),
        (b"no compressed body", False),
        (b"good", True),
    ]
    assert len(read_bad(monkeypatch, ("body",), onCorrupt="skip")) == 2
    assert len(read_bad(monkeypatch, ("body",), decompress="false")) == 3


@pytest.mark.parametrize("kafka", ["true", "false"])
def test_flagged_rows_have_the_column_that_tells(kafka: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    options = parse({"servers": SERVER, "subscribe": "x", "onCorrupt": "flag", "kafkaColumns": kafka})
    assert "bodyOk" in default_columns(options)
    unmarked = from_arrow_schema(schema_of(["value", "crcOk"]))
    with pytest.raises(OptionError, match="bodyOk boolean"):
        checked_columns(unmarked, options)
    assert checked_columns(from_arrow_schema(schema_of(["size"])), options) == ("size",)


def test_times_are_looked_up_at_the_master(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def query(_: Brokers, addresses: Any, keys: Any, at_ms: int) -> dict[Key, int]:
        asked.append(addresses)
        return {}

    monkeypatch.setattr(Brokers, "query_offsets", query)
    found = Brokers(parse({"servers": SERVER, "subscribe": "orders", **FAST}))
    found.offsets_by_time([A0], 5, {"a": (SLAVE, MASTER)})
    scene.members = scene.members[1:]
    found.offsets_by_time([A0], 5, {"a": (SLAVE,)})
    assert asked == [(MASTER,), (SLAVE,)]


def test_offsets_that_are_passed_over_are_told_at_the_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, now = stream(monkeypatch, startingOffsets="earliest", failOnDataLoss="false")
    now["extents"] = {A0: Extent(0, 3)}
    begin = next_end(reader, reader.initialOffset())
    now["extents"] = {A0: Extent(5, 9)}
    assert planned(reader, begin, next_end(reader, begin)) == {A0: (5, 9)}
    assert caplog.messages == ["failOnDataLoss=false: orders, queue 0 of a: offsets 3 to 5 are gone"]


def archived(tmp_path: Path, columns: tuple[str, ...], **options: str) -> list[dict[str, Any]]:
    """Read a file of an archive that has three bodies, the second of which does not decompress."""
    bodies = [b"good", b"no compressed body", b"good"]
    table = pa.table(
        {
            "queueId": pa.array([0, 0, 0], pa.int32()),
            "queueOffset": pa.array([0, 1, 2], pa.int64()),
            "physicalOffset": pa.array([0, 100, 200], pa.int64()),
            "sysFlag": pa.array([0, ZLIB, 0], pa.int32()),
            "bodyCrc": pa.array([zlib.crc32(body) & 0x7FFFFFFF for body in bodies], pa.int32()),
            "body": pa.array(bodies, pa.binary()),
        }
    )
    pq.write_table(table, tmp_path / "one.parquet")
    split = FileSplit("one.parquet", "orders", 1, (0, 1), None)
    chosen = parse({"archive": str(tmp_path), **options})
    task = ArchiveTask(tmp_path, (split,), columns, chosen, UNRESTRICTED)
    return [row for batch in task.read() for row in batch.to_pylist()]


def test_the_same_of_an_archive(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord, match=r"one.parquet: the record at 100: .*onCorrupt=flag"):
        archived(tmp_path, ("body",))
    flagged = archived(tmp_path, ("queueOffset", "crcOk", "bodyOk"), onCorrupt="flag")
    assert [tuple(row.values()) for row in flagged] == [(0, True, True), (1, True, False), (2, True, True)]
    assert len(archived(tmp_path, ("body",), onCorrupt="skip")) == 2
