"""Messages of another queue come back as they were, once each and in order, whoever is killed in between."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.broker.api.replay import ReplayService
from whimbrel.broker.produce import replay
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.broker.produce.replay import Source, already_stored, replayed_from
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    BadRequest,
    FlushTimeout,
    Forbidden,
    IllegalOffset,
    IllegalTopic,
    MessageTypeConflict,
    NotReady,
    NotWritable,
    QueueNotFound,
    TopicNotFound,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.rpc.api.calls import Outbound, perform
from whimbrel.rpc.api.replay_calls import (
    ReplayResult,
    ReplayState,
    SourceMessage,
    SourceQueue,
    append_replay,
    describe_replay,
)
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Service
from whimbrel.rpc.server.serving import serve
from whimbrel.store.codec import RecordDraft, StoredMessage, decode_record, format_properties, pack_host
from whimbrel.store.master_store import MasterStore

SOURCE = SourceQueue("old-broker", "orders", 3)
HOST = pack_host("127.0.0.1", 8091)


def message(offset: int, **fields: Any) -> SourceMessage:
    defaults: dict[str, Any] = {
        "source_offset": offset,
        "born_ms": 1_600_000_000_123 + offset,
        "born_host": "10.1.2.3:4567",
        "flag": 7,
        "sys_flag": 0,
        "properties": b"KEYS\x01k%d\x02UNIQ_KEY\x01ID%d\x02TAGS\x01red" % (offset, offset),
        "body": b"body %d" % offset,
        "message_id": f"ID{offset}",
    }
    return SourceMessage(**{**defaults, **fields})


class Page:
    replica_sleeping = broker_sleeping = 0

    def reported_ends(self) -> list[int]:
        return []

    def acknowledged(self, needed: int) -> int:
        return -1

    def replica_alive(self, now_ns: int) -> bool:
        return False


class Rig:
    """A served store with the two calls."""

    def __init__(
        self, store: MasterStore, topics: TopicTable, appender: Appender, service: Any, channel: Any
    ):
        self.store, self.topics, self.appender, self.service = store, topics, appender, service
        self.channel: grpc.aio.Channel = channel

    async def ask(self, call: Outbound[Any]) -> Any:
        return await perform(self.channel, call, (), 10)

    async def append(
        self, messages: Sequence[SourceMessage], after: int = -1, queue_id: int = 3, **fields: Any
    ) -> ReplayResult:
        found: ReplayResult = await self.ask(
            append_replay("orders", queue_id, fields.pop("source", SOURCE), messages, after=after, **fields)
        )
        return found

    async def describe(self, queue_id: int = 3, **fields: Any) -> ReplayState:
        found: ReplayState = await self.ask(describe_replay("orders", queue_id, SOURCE, **fields))
        return found

    def records(self, queue_id: int = 3) -> list[StoredMessage]:
        low, high = self.store.queue_range("orders", queue_id)
        units = self.store.queue_units("orders", queue_id, low, high - low)
        return [decode_record(self.store.read(place, size)) for place, size, _ in units]

    def offsets(self, queue_id: int = 3) -> list[int]:
        origins = [replayed_from(record.properties_raw) for record in self.records(queue_id)]
        return [origin[1] for origin in origins if origin is not None]


@asynccontextmanager
async def serving(
    root: Path, *, accepts: bool = True, master: bool = True, durability: Durability | None = None
) -> AsyncIterator[Rig]:
    store = open_master(root, dataclasses.replace(OPTIONS, commitlog_file_size=1 << 20, index_slots=500,
                                                  index_entries=5000))  # fmt: skip
    (root / "config").mkdir(exist_ok=True)
    topics = TopicTable(root / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW)
    topics.put(TopicConfig(name="orders", read_queues=4, write_queues=4))
    loop = asyncio.get_running_loop()
    appender = Appender(store, Page(), durability or Durability(), loop, ring=lambda: None)
    appender.refusal = ""
    service = ReplayService(topics, appender, store, master=master, accepts=accepts, store_host=lambda: HOST)
    server = await serve(
        [Service("whimbrel.admin.v1.AdminService", service.methods())], host="127.0.0.1", port=0
    )
    channel = open_aio_channel(server.address)
    try:
        yield Rig(store, topics, appender, service, channel)
    finally:
        await channel.close()
        await server.stop(grace=0)
        appender.close("the test is over")
        store.close()


async def test_what_is_kept_is_kept_and_the_place_is_new(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        sent = [
            message(5),
            message(6, body=b"", properties=b"", message_id="7F000001000010AF0000000000000000"),
            message(9, sys_flag=0x1 | 0x300 | 0x8 | 0x10, born_host="[2001:db8:0:0:0:0:0:1]:99"),
        ]
        done = await rig.append(sent)
        assert (done.stored, done.skipped, done.last, done.refused) == (3, 0, 9, ())
        assert (done.first_offset, done.last_offset) == (0, 2)
        first, second, third = rig.records()
        assert (first.born_timestamp, first.born_host, first.flag) == (
            1_600_000_000_128, "10.1.2.3:4567", 7)  # fmt: skip
        assert first.properties_raw.startswith(sent[0].properties + b"\x02REPLAYED_FROM\x01")
        assert first.properties["REPLAYED_FROM"] == "old-broker:orders:3:5"
        assert (first.store_timestamp, first.store_host) == (NOW, "127.0.0.1:8091")
        assert second.body == b""
        assert second.properties["UNIQ_KEY"] == sent[1].message_id
        assert third.sys_flag == 0x1 | 0x300 | 0x10  # the compression; that the host is IPv6 is ours to say
        assert third.born_host == "[2001:db8:0:0:0:0:0:1]:99"
        assert rig.store.find_by_key("orders", "k5") == [first.physical_offset]


async def test_a_retry_stores_nothing_twice_and_the_rest_of_a_batch_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.append([message(0), message(1)])
        again = await rig.append([message(0), message(1), message(2)])
        assert (again.stored, again.skipped, again.last) == (1, 2, 2)
        assert rig.offsets() == [0, 1, 2]


async def test_after_a_restart_the_log_tells_how_far_each_source_came(tmp_path: Path) -> None:
    other = SourceQueue("old-broker", "orders", 7)
    async with serving(tmp_path) as rig:
        await rig.append([message(4), message(6)])
        await rig.append([message(80)], source=other)
        for number in range(5):
            rig.store.append([make_draft(number, topic="orders", queue_id=3)])
    async with serving(tmp_path) as rig:
        found = await rig.describe(with_first=True)
        assert (found.complete, found.last, found.first) == (True, 6, 4)
        again = await rig.append([message(6), message(7)])
        assert (again.stored, again.skipped) == (1, 1)
        assert (await rig.append([message(80)], source=other)).skipped == 1
        assert (await rig.describe(queue_id=1)).last == -1


async def test_a_long_queue_is_searched_in_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SEARCH_MAX", 10)
    async with serving(tmp_path) as rig:
        await rig.append([message(0), message(1)])
        for number in range(35):
            rig.store.append([make_draft(number, topic="orders", queue_id=3)])
    async with serving(tmp_path) as rig:
        with pytest.raises(NotReady, match="DescribePreserved"):
            await rig.append([message(2)], after=1)
        calls = 0
        while not (found := await rig.describe()).complete:
            calls += 1
            assert 0 < found.left < 37
        assert 1 <= calls <= 4
        assert found.last == 1
        assert (await rig.append([message(2)], after=1)).stored == 1


async def test_a_view_of_the_queue_that_is_no_retry_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.append([message(0), message(1)])
        with pytest.raises(IllegalOffset, match="the log was cut"):
            await rig.append([message(9)], after=8)
        await rig.append([message(5)], after=1)
        with pytest.raises(IllegalOffset, match="another replay"):
            await rig.append([message(2), message(3)], after=1)
        assert rig.offsets() == [0, 1, 5]


def test_offsets_alone_show_what_a_queue_holds() -> None:
    source = Source("b", "t", 0)
    assert already_stored(source, [3, 5, 8], last=2, after=2) == 0
    assert already_stored(source, [3, 5, 8], last=5, after=2) == 2
    assert already_stored(source, [3, 5, 8], last=6, after=2) == 2  # 6 was refused then, or passed over
    assert already_stored(source, [3, 5, 8], last=8, after=-1) == 3


async def test_a_deleted_topic_forgets_what_was_replayed(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.append([message(0), message(1)])
        rig.store.delete_topic("orders")
        assert (await rig.append([message(0)])).stored == 1
        rig.service.forget()
        assert (await rig.append([message(0), message(1)])).stored == 1


async def test_a_message_that_cannot_be_stored_is_named_and_the_others_are_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        done = await rig.append(
            [
                message(0),
                message(1, properties=b"UNIQ_KEY\x01a\x02big\x01" + b"x" * 32_740),
                message(2, properties=b"", message_id=""),
                message(3, born_host="somewhere"),
                message(4),
            ]
        )
        assert (done.stored, done.last) == (2, 4)
        reasons = dict(done.refused)
        assert list(reasons) == [1, 2, 3]
        assert "32767 can be stored" in reasons[1]
        assert "UNIQ_KEY" in reasons[2]
        assert "IP:PORT" in reasons[3]
        assert rig.offsets() == [0, 4]


async def test_single_dead_letters_are_identified_by_id_and_origin(tmp_path: Path) -> None:
    dead = SourceQueue("old-broker", "%DLQ%billing", 0)
    async with serving(tmp_path) as rig:
        await rig.append([message(5), message(9)], source=dead, selection=True)
        done = await rig.append([message(3), message(5), message(7)], source=dead, selection=True)
        assert (done.stored, done.skipped) == (2, 1)
    async with serving(tmp_path) as rig:
        done = await rig.append([message(3), message(4)], source=dead, selection=True, queue_id=1)
        assert (done.stored, done.skipped) == (1, 1)
        with pytest.raises(BadRequest, match="selections"):
            await rig.append([message(3)], selection=True)
        with pytest.raises(BadRequest, match="selections"):
            await rig.append([message(3)], source=dead)


async def test_the_call_is_off_unless_it_is_switched_on(tmp_path: Path) -> None:
    async with serving(tmp_path, accepts=False) as rig:
        with pytest.raises(Forbidden, match="--accept-replays true"):
            await rig.append([message(0)])
        with pytest.raises(Forbidden, match="--accept-replays true"):
            await rig.describe()
        assert rig.store.written == 0


async def test_slaves_and_masters_that_may_not_write_refuse(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", master=False) as rig:
        with pytest.raises(NotWritable, match="master"):
            await rig.append([message(0)])
    async with serving(tmp_path / "b") as rig:
        rig.appender.refusal = "behind a slave"
        with pytest.raises(NotWritable, match="behind a slave"):
            await rig.append([message(0)])


async def test_wrong_targets_and_batches_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        rig.topics.put(TopicConfig(name="later").with_type(MessageType.DELAY))
        refused = {
            "nowhere": TopicNotFound,
            "SCHEDULE_TOPIC_XXXX": IllegalTopic,
            "%RETRY%g": IllegalTopic,
            "%DLQ%g": IllegalTopic,
            "later": MessageTypeConflict,
        }
        for topic, error in refused.items():
            with pytest.raises(error):
                await rig.ask(append_replay(topic, 0, SOURCE, [message(0)]))
        with pytest.raises(QueueNotFound, match="0 to 3"):
            await rig.append([message(0)], queue_id=4)
        with pytest.raises(BadRequest, match="rising"):
            await rig.append([message(1), message(1)])
        with pytest.raises(BadRequest, match="1 to 256"):
            await rig.append([message(number) for number in range(257)])
        with pytest.raises(BadRequest, match="bytes in a call"):
            await rig.append([message(0, body=b"x" * (1 << 20)), message(1)])
        assert rig.store.written == 0


async def test_the_answer_waits_for_the_disk_also_when_all_was_stored_already(tmp_path: Path) -> None:
    durability = Durability(sync_flush=True, flush_timeout_s=0.05)
    async with serving(tmp_path, durability=durability) as rig:
        rig.store.request_flush = lambda end: None  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(FlushTimeout):
                await rig.append([message(0)])
        with pytest.raises(FlushTimeout):
            await rig.describe()
        assert rig.offsets() == [0]


def sent_by_an_earlier_version(offset: int, **fields: str) -> RecordDraft:
    """A message whose producer set the property, as a broker wrote it that let the name pass."""
    pairs = [("REPLAYED_FROM", f"old-broker:orders:3:{offset}"), ("UNIQ_KEY", "id"), ("CLUSTER", "c"),
             ("BORN_TIMESTAMP", "1")]  # fmt: skip
    return RecordDraft.from_properties(
        topic="orders", queue_id=3, body=b"sent", properties=format_properties([*pairs, *fields.items()]),
        born_timestamp=1, born_host=HOST, store_host=HOST,
    )  # fmt: skip


async def test_message_of_a_producer_says_nothing_of_a_replay(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        await rig.append([message(5)])
        rig.store.append([sent_by_an_earlier_version(1_000_000)])
        rig.store.append([sent_by_an_earlier_version(2_000_000, TAGS="t", TRACE_CONTEXT="c")])
        rig.service.forget()
        assert (await rig.describe()).last == 5
        done = await rig.append([message(6), message(7)], after=5)
        assert (done.stored, done.skipped, done.last) == (2, 0, 7)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (b"KEYS\x01k\x02REPLAYED_FROM\x01b:t:3:7\x02", True),  # as earlier versions wrote it
        (b"REPLAYED_FROM\x01b:t:3:7\x02", True),
        (b"REPLAYED_FROM\x01x:y:1:99\x02REPLAYED_FROM\x01b:t:3:7\x02", True),
        (b"KEYS\x01k\x02REPLAYED_FROM\x01b:t:3:7\x02__CRC32#\x010123456789\x02", True),
        (b"REPLAYED_FROM\x01b:t:3:7\x02UNIQ_KEY\x01id\x02", False),
        (b"REPLAYED_FROM\x01b:t:3:7", False),
        (b"KEYS\x01REPLAYED_FROM\x01b:t:3:7\x02", False),
        (b"XREPLAYED_FROM\x01b:t:3:7\x02", False),
        (b"REPLAYED_FROM\x01b:t:3:" + b"9" * 5000 + b"\x02", False),
        (b"REPLAYED_FROM\x01b:t:-3:7\x02", False),
        (b"", False),
    ],
)
def test_origin_counts_at_the_end_of_the_text_only(text: bytes, counts: bool) -> None:
    assert replayed_from(text) == ((Source("b", "t", 3), 7) if counts else None)
