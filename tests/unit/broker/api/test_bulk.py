"""The bulk service over a real store and a real connection: ranges, offsets, checksums, refusals."""

import asyncio
import dataclasses
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from support.broker.bulk import open_bulk_aio_channel, stream
from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.broker.api import bulk as bulk_service
from whimbrel.broker.api.bulk import BulkService, checksum_chunks
from whimbrel.broker.engine.frames import BulkReader
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    BadRequest,
    BeyondConfirmed,
    CorruptRecord,
    Forbidden,
    IllegalFilter,
    IllegalOffset,
    NotReady,
    QueueNotFound,
    RangeGone,
    Throttled,
    TopicNotFound,
)
from whimbrel.model.message import MessageType
from whimbrel.model.topic import MessageType as TakenType
from whimbrel.model.topic import TopicConfig
from whimbrel.pb.whimbrel.bulk.v1 import bulk_service_pb2 as bulk
from whimbrel.rpc.api.bulk_calls import (
    BrokerQueues,
    Chunk,
    OutboundStream,
    checksum_log,
    describe_queues,
    log_bytes,
    read_records,
)
from whimbrel.rpc.api.calls import perform
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.serving import serve
from whimbrel.store.codec import decode_record
from whimbrel.store.master_store import MasterStore
from whimbrel.store.runs import RecordRuns


class Rig:
    """A served store; `confirmed` is set by the test, None for all that is written."""

    def __init__(
        self, store: MasterStore, topics: TopicTable, service: BulkService, channel: grpc.aio.Channel
    ) -> None:
        self.store, self.topics, self.service, self.channel = store, topics, service, channel
        self.confirmed: int | None = None

    def log_confirmed(self) -> int:
        return self.store.written if self.confirmed is None else self.confirmed

    def add(self, count: int, *, size: int = 100, queues: int = 1, topic: str = "topic") -> list[int]:
        """Append messages; return where each ends in the log."""
        return [
            self.store.append([make_draft(number, topic=topic, queue_id=number % queues, size=size)])[0].end
            for number in range(count)
        ]

    async def all(self, call: OutboundStream[Any]) -> list[Any]:
        async with aclosing(stream(self.channel, call, timeout_s=10)) as answers:
            return [answer async for answer in answers]

    async def bodies(self, queue_id: int = 0, **fields: Any) -> list[bytes]:
        """Read a queue and decode it."""
        found = []
        for frame in await self.all(read_records("topic", queue_id, start=fields.pop("start", 0), **fields)):
            at = 0
            while at < len(frame.records):
                message = decode_record(frame.records, at)
                found.append(message.body)
                at += message.size
        return found

    async def describe(self, *topics: str, **fields: Any) -> BrokerQueues:
        return await perform(self.channel, describe_queues(topics, **fields), (), 10)

    async def checksums(self, *range_: int, **fields: Any) -> list[Chunk]:
        return await self.all(checksum_log(*range_, **fields))


@asynccontextmanager
async def serving(root: Path, **options: Any) -> AsyncIterator[Rig]:
    store = open_master(root, dataclasses.replace(OPTIONS, **options))
    (root / "config").mkdir()
    topics = TopicTable(root / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW)
    topics.put(TopicConfig(name="topic", read_queues=4, write_queues=4))
    rig: Rig
    service = BulkService(
        topics, store, confirmed=lambda: rig.log_confirmed(), name="b", broker_id=0, master=True
    )
    server = await serve([service.service()], host="127.0.0.1", port=0)
    channel = open_bulk_aio_channel(server.address)
    rig = Rig(store, topics, service, channel)
    try:
        yield rig
    finally:
        await channel.close()
        await server.stop(grace=0)
        store.close()


def body(number: int, size: int = 100) -> bytes:
    return (b"%08d" % number) * (size // 8)


async def test_records_come_as_they_were_stored_from_any_offset(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(400, size=800, queues=3)
        for queue_id in range(3):
            wanted = [body(number, 800) for number in range(queue_id, 400, 3)]
            assert await rig.bodies(queue_id) == wanted
            assert await rig.bodies(queue_id, start=77) == wanted[77:]
            assert await rig.bodies(queue_id, start=20, end=90) == wanted[20:90]
        assert await rig.bodies(3) == []


async def test_the_lane_makes_the_frames_where_it_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_to_python(reader: BulkReader) -> RecordRuns:
        raise AssertionError("planned by Python")

    async with serving(tmp_path / "s") as rig:
        if not rig.store.passes.lane.active:
            pytest.skip("no compiled lane")
        rig.add(10)
        monkeypatch.setattr(BulkReader, "plan_frame", left_to_python)
        assert await rig.bodies(0) == [body(number) for number in range(10)]


async def test_reading_ends_where_the_log_is_confirmed(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        ends = rig.add(40, queues=2)
        rig.confirmed = ends[20]
        assert await rig.bodies(0) == [body(number) for number in range(0, 21, 2)]
        assert await rig.bodies(1) == [body(number) for number in range(1, 21, 2)]
        assert len(await rig.bodies(1, isolation="latest")) == 20
        for call in (read_records("topic", 0, start=12), read_records("topic", 0, start=0, end=12)):
            with pytest.raises(BeyondConfirmed, match="confirmed up to 11 of 20"):
                await rig.all(call)
        (frame,) = await rig.all(read_records("topic", 0, start=11))
        assert (frame.records, frame.next_offset, frame.confirmed_offset, frame.max_offset) == (
            b"",
            11,
            11,
            20,
        )


async def test_tags_are_compared_by_hash(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(10)
        assert len(await rig.bodies(tags="tag")) == len(await rig.bodies(tags="x || tag")) == 10
        assert len(await rig.bodies(tags="*")) == 10
        (frame,) = await rig.all(read_records("topic", 0, start=0, tags="other"))
        assert (frame.records, frame.next_offset) == (b"", 10)
        with pytest.raises(IllegalFilter):
            await rig.bodies(tags="||")


async def test_unknown_topics_and_queues_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.topics.put(TopicConfig(name="closed", permission=2))
        with pytest.raises(TopicNotFound, match="no topic unknown"):
            await rig.all(read_records("unknown", 0, start=0))
        with pytest.raises(QueueNotFound, match="no queue 4 here, only 0 to 3"):
            await rig.all(read_records("topic", 4, start=0))
        with pytest.raises(QueueNotFound):
            await rig.all(read_records("topic", -1, start=0))
        with pytest.raises(Forbidden):
            await rig.all(read_records("closed", 0, start=0))
        with pytest.raises(IllegalOffset):
            await rig.all(read_records("topic", 0, start=1))


async def test_queue_that_holds_messages_is_read_whatever_the_topic_says_by_now(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(8, queues=4)
        rig.topics.put(TopicConfig(name="topic", read_queues=1, write_queues=1))
        assert await rig.bodies(3) == [body(3), body(7)]
        assert [queue.queue_id for queue in (await rig.describe()).topics[0].queues] == [0, 1, 2, 3]
        rig.store.append([make_draft(topic="%RETRY%g")])  # nobody has registered it
        assert len(await rig.all(read_records("%RETRY%g", 0, start=0))) == 1


async def test_retention_that_passes_the_start_is_named_before_and_in_mid_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", delete_when=tuple(range(24)), reserved_hours=1) as rig:
        rig.add(3000, size=4000)
        frames = stream(rig.channel, read_records("topic", 0, start=0), timeout_s=10)
        async with aclosing(frames):
            first = await anext(frames)
            rig.store.writer.flush()
            *old, newest, _ = sorted((tmp_path / "s" / "commitlog").iterdir())
            os.utime(newest, (NOW / 1000, NOW / 1000))
            for path in old:
                os.utime(path, (0, 0))
            while rig.store.run_retention(NOW):
                pass
            low = rig.store.queue_range("topic", 0)[0]
            assert low > first.next_offset
            with pytest.raises(RangeGone):
                while True:
                    await anext(frames)
        with pytest.raises(RangeGone, match=f"begins at {low}"):
            await rig.all(read_records("topic", 0, start=low - 1))
        assert len(await rig.bodies(start=low)) == 3000 - low


async def test_topic_that_is_deleted_while_it_is_read_ends_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(3000, size=4000)
        frames = stream(rig.channel, read_records("topic", 0, start=0), timeout_s=10)
        async with aclosing(frames):
            await anext(frames)
            rig.topics.remove("topic")
            rig.store.delete_topic("topic")
            with pytest.raises(TopicNotFound):
                while True:
                    await anext(frames)


async def test_no_more_readers_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_service, "READERS_MAX", 2)
    async with serving(tmp_path / "s") as rig:
        rig.add(3000, size=4000)
        calls = [stream(rig.channel, read_records("topic", 0, start=0)) for _ in range(2)]
        for call in calls:
            await anext(call)
        with pytest.raises(Throttled, match="2 bulk readers"):
            await rig.bodies()
        for call in calls:
            await call.aclose()
        async with asyncio.timeout(5):
            while True:
                try:
                    assert len(await rig.bodies()) == 3000
                    return
                except Throttled:
                    await asyncio.sleep(0)


async def test_all_queues_are_described_in_one_call(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        ends = rig.add(10, queues=4)
        rig.topics.put(
            TopicConfig(name="ordered", read_queues=1, write_queues=2, permission=4).with_type(TakenType.FIFO)
        )
        rig.store.append([make_draft(topic="%DLQ%g")])
        rig.confirmed = ends[5]
        found = await rig.describe()
        assert (found.broker_name, found.broker_id, found.role) == ("b", 0, "master")
        assert (found.log_begin, found.log_confirmed, found.log_written) == (0, ends[5], rig.store.written)
        ordered, topic = found.topics
        assert (ordered.name, ordered.message_type, ordered.permission, ordered.system) == (
            "ordered",
            MessageType.FIFO,
            4,
            False,
        )
        assert [queue.queue_id for queue in ordered.queues] == [0, 1]
        assert [
            (queue.queue_id, queue.min_offset, queue.confirmed_offset, queue.max_offset)
            for queue in topic.queues
        ] == [(0, 0, 2, 3), (1, 0, 2, 3), (2, 0, 1, 2), (3, 0, 1, 2)]
        everything = {topic.name: topic.system for topic in (await rig.describe(include_system=True)).topics}
        assert everything.items() >= {"topic": False, "%DLQ%g": True, "SCHEDULE_TOPIC_XXXX": True}.items()
        named = await rig.describe("topic", "%DLQ%g", "missing")
        assert [topic.name for topic in named.topics] == ["%DLQ%g", "topic"]


async def test_thousands_of_queues_are_described_in_several_turns(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        for number in range(3):
            rig.topics.put(TopicConfig(name=f"wide{number}", read_queues=1000, write_queues=1000))
        rig.add(5)
        found = await rig.describe()
        assert [len(topic.queues) for topic in found.topics] == [4, 1000, 1000, 1000]
        assert found.topics[0].queues[0].max_offset == 5


class Untouchable:
    """In place of a store that is closed."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"{name} of a closed store was used")


async def test_closed_service_ends_what_is_open_without_touching_the_store(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        ends = rig.add(2000, size=800)
        rig.topics.put(TopicConfig(name="wide", read_queues=1000, write_queues=1000))
        service, call = rig.service, Call("m", "p", {}, None)
        streams: list[AsyncGenerator[Any, None]] = [
            service.read_records(call, bulk.ReadRecordsRequest(topic="topic")),
            service.checksum_log(call, bulk.ChecksumLogRequest(chunk_bytes=4096)),
            service.read_log(call, bulk.ReadLogRequest(begin_offset=0, end_offset=ends[-1])),
        ]
        for one in streams:
            await anext(one)
        pending = service.describe_queues(call, bulk.DescribeQueuesRequest())
        late = service.read_records(call, bulk.ReadRecordsRequest(topic="topic"))
        rig.confirmed = 0
        service.close("the broker becomes a slave")
        service.store = service.records = service.topics = Untouchable()  # type: ignore[assignment]
        for one in (*streams, late):
            with pytest.raises(NotReady, match="becomes a slave"):
                await anext(one)
        assert service.readers == 0
        await asyncio.sleep(0)
        assert isinstance(pending.error, NotReady)
        with pytest.raises(NotReady):
            service.describe_queues(call, bulk.DescribeQueuesRequest())


async def test_thread_that_ends_after_the_service_was_closed_touches_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(10)
        service = rig.service
        stream_ = service.checksum_log(Call("m", "p", {}, None), bulk.ChecksumLogRequest())
        step = asyncio.ensure_future(anext(stream_))
        await asyncio.sleep(0)
        assert service.readers == 1
        service.close("the broker becomes a slave")
        service.store = service.records = Untouchable()  # type: ignore[assignment]
        with pytest.raises(NotReady):
            await step


@pytest.mark.parametrize(
    ("begin", "end", "chunk", "file_size", "wanted"),
    [
        (0, 0, 10, 100, []),
        (0, 25, 10, 100, [(0, 10), (10, 10), (20, 5)]),
        (7, 25, 10, 100, [(7, 3), (10, 10), (20, 5)]),
        (95, 112, 40, 100, [(95, 5), (100, 12)]),
        (0, 250, 1000, 100, [(0, 100), (100, 100), (200, 50)]),
    ],
)
def test_chunks_begin_at_multiples_from_the_begin_of_their_file(
    begin: int, end: int, chunk: int, file_size: int, wanted: list[tuple[int, int]]
) -> None:
    assert list(checksum_chunks(begin, end, chunk, file_size)) == wanted


async def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        rig.add(100, size=4000)
        written = rig.store.written
        log = b"".join(path.read_bytes() for path in sorted((tmp_path / "s" / "commitlog").iterdir()))
        for call, chunk in (((), 0), ((), 5000), ((1234, 200_000), 16_384), ((FILE, FILE + 1), 4096)):
            begin, end = call or (0, written)
            found = await rig.checksums(*call, chunk_bytes=chunk)
            assert sum(one.size for one in found) == end - begin and found[0].offset == begin
            for one in found:
                assert one.crc32 == zlib.crc32(log[one.offset : one.offset + one.size])
                assert (one.log_begin, one.log_confirmed, one.log_written) == (0, written, written)
        assert [one.size for one in await rig.checksums(77, 77)] == [0]


async def test_checksums_of_what_is_not_there_are_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", delete_when=tuple(range(24)), reserved_hours=1) as rig:
        rig.add(100, size=4000)
        written = rig.store.written
        rig.confirmed = FILE
        assert [one.size for one in await rig.checksums()] == [FILE]
        with pytest.raises(BeyondConfirmed, match=f"confirmed up to {FILE} of {written}"):
            await rig.checksums(0, FILE + 1)
        with pytest.raises(IllegalOffset, match=f"ends at {written}"):
            await rig.checksums(0, written + 1)
        with pytest.raises(BadRequest):
            await rig.checksums(5, 4)
        with pytest.raises(BadRequest, match="a chunk has"):
            await rig.checksums(chunk_bytes=100)
        rig.confirmed = None
        (tmp_path / "s" / "commitlog" / f"{FILE:020d}").rename(tmp_path / "gone")
        with pytest.raises(RangeGone, match="removed"):
            await rig.checksums()
        (tmp_path / "gone").rename(tmp_path / "s" / "commitlog" / f"{FILE:020d}")
        os.truncate(tmp_path / "s" / "commitlog" / f"{FILE:020d}", 100)
        with pytest.raises(CorruptRecord, match="cut off"):
            await rig.checksums()
        rig.store.writer.flush()
        os.utime(tmp_path / "s" / "commitlog" / f"{0:020d}", (0, 0))
        assert rig.store.run_retention(NOW) > 0
        with pytest.raises(RangeGone, match=f"begins at {rig.store.min_offset}"):
            await rig.checksums(0)


async def test_the_log_is_read_as_it_stands_and_no_further_than_confirmed(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        ends = rig.add(300, size=800)
        assert (await rig.describe()).log_file_size == FILE
        pieces = await rig.all(log_bytes(1000, ends[-1]))
        found = b"".join(data for _, data in pieces)
        files = sorted((rig.store.root / "commitlog").iterdir())
        assert found == b"".join(path.read_bytes() for path in files)[1000 : ends[-1]]
        assert [offset for offset, _ in pieces][:2] == [1000, FILE]
        assert await rig.all(log_bytes(ends[0], ends[0])) == []
        rig.confirmed = ends[10]
        with pytest.raises(BeyondConfirmed):
            await rig.all(log_bytes(0, ends[11]))
        (rig.store.root / "commitlog" / f"{0:020d}").rename(tmp_path / "gone")
        with pytest.raises(RangeGone, match="its file was removed"):
            await rig.all(log_bytes(0, ends[10]))
