"""What is left of dead letters, put back once, and dropped; over a real log and lease state."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from support.broker.consumption import FakeClock, FakeJournal
from support.broker.letters import ConfirmedWhenTold, messages_of
from support.store.stores import NOW, OPTIONS, make_draft
from whimbrel.broker.api import dead_letter_admin
from whimbrel.broker.api.dead_letter_admin import DeadLetterAdmin
from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, NotWritable, ReplicaTimeout, StoreFull
from whimbrel.model.limits import DEAD_LETTERS_MAX
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.pb.whimbrel.admin.v1 import dead_letter_service_pb2 as letters
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import StoredMessage, pack_host
from whimbrel.store.master_store import MasterStore

HOST = pack_host("10.0.0.9", 8091)
CALL = cast(Call, None)
DONE, BEFORE, GONE, REFUSED = (
    letters.DEAD_LETTER_RESULT_DONE,
    letters.DEAD_LETTER_RESULT_BEFORE,
    letters.DEAD_LETTER_RESULT_GONE,
    letters.DEAD_LETTER_RESULT_REFUSED,
)


class Rig:
    """A broker's dead letters, without the broker."""

    def __init__(self, root: Path) -> None:
        (root / "store").mkdir(exist_ok=True)
        self.store = MasterStore.open(root / "store", OPTIONS, clock=lambda: NOW)
        self.log = ConfirmedWhenTold(self.store)
        self.topics = TopicTable(
            root / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW
        )
        self.groups = GroupTable(root / "config", auto_create=False, clock=lambda: NOW)
        self.internal = InternalAppender(self.topics, cast(RecordAppender, self.log), store_host=lambda: HOST)
        self.journal = FakeJournal()
        self.open()

    def open(self) -> None:
        """Begin as after a start."""
        clock = FakeClock()
        consumption = GroupConsumption(
            self.store, self.journal, clock.waiting(), broker_name="b", broker_id=0, now_ms=lambda: clock.now,
            schedule=clock.schedule, client_alive=lambda *_: False,
        )  # fmt: skip
        consumption.open()
        self.admin = DeadLetterAdmin(
            self.topics, self.groups, consumption, self.store, cast(RecordAppender, self.log),
            broker_name="b", master=True, store_host=lambda: HOST,
        )  # fmt: skip

    def die(
        self, count: int, *, queue_id: int = 1, properties: str = "", group: str = "g", topic: str = "orders"
    ) -> None:
        """Make dead letters of new messages of the topic `orders`, or another."""
        if self.topics.get("orders") is None:
            self.topics.put(TopicConfig(name="orders", read_queues=4, write_queues=4))
        for _ in range(count):
            number = self.store.written
            draft = make_draft(number, topic=topic, queue_id=queue_id)
            draft.properties = f"UNIQ_KEY\x01id-{number}\x02k\x01v\x02{properties}".encode()
            (place,) = self.store.append([draft])
            message = messages_of(self.store, topic, queue_id)[-1]
            assert message.physical_offset == place.physical_offset
            target = dead_letter(GroupConfig(name=group), message, 17, attempts=16)
            self.internal.hand_on(message, target, lambda error: None)
            self.log.confirm()

    def left(self, **fields: Any) -> list[int]:
        """Return the offsets of what is left, page by page."""
        found: list[int] = []
        while True:
            response = self.admin.list_letters(CALL, letters.ListDeadLettersRequest(group="g", **fields))
            found += [one.message.system_properties.queue_offset for one in response.letters]
            if not response.HasField("next"):
                return found
            fields["from"] = response.next

    def replay(self, *offsets: int) -> Any:
        request = letters.ReplayDeadLettersRequest(group="g", places=places(*offsets))
        return self.admin.replay(CALL, request)

    def drop(self, *offsets: int) -> list[int]:
        request = letters.DropDeadLettersRequest(group="g", places=places(*offsets))
        return [outcome.result for outcome in self.admin.drop(CALL, request).outcomes]

    def back(self) -> list[StoredMessage]:
        """Return what was put back."""
        stored = [one for queue_id in range(4) for one in messages_of(self.store, "orders", queue_id)]
        return [one for one in stored if "REPLAYED_FROM" in one.properties]


def places(*offsets: int) -> list[letters.DeadLetterPlace]:
    return [letters.DeadLetterPlace(offset=offset) for offset in offsets]


def results(response: Any) -> list[int]:
    return [outcome.result for outcome in response.outcomes]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def test_what_is_put_back_is_the_message_in_its_queue(rig: Rig) -> None:
    rig.die(2)
    pending = rig.replay(1)
    assert rig.left() == [0, 1], "not before it is durable"
    rig.log.confirm()
    assert results(pending.result) == [DONE]
    assert pending.result.outcomes[0].topic == "orders"
    [back] = rig.back()
    original = messages_of(rig.store, "orders", 1)[1]
    assert (back.queue_id, back.body, back.reconsume_times) == (1, original.body, 0)
    assert (back.born_timestamp, back.born_host) == (original.born_timestamp, original.born_host)
    assert back.properties == original.properties | {"REPLAYED_FROM": "b:%DLQ%g:0:1"}
    assert rig.left() == [0]


def test_a_letter_is_put_back_once(rig: Rig) -> None:
    rig.die(1)
    rig.replay(0)
    rig.log.confirm()
    response = rig.replay(0)
    assert results(response) == [BEFORE]
    assert len(rig.back()) == 1


@pytest.mark.parametrize("crash", [True, False])
def test_a_letter_that_was_put_back_and_not_settled_is_found_again(rig: Rig, crash: bool) -> None:
    """A crash between the two, and slaves that were late."""
    rig.die(1)
    pending = rig.replay(0)
    if crash:
        rig.log.waiting.clear()
        rig.open()
    else:
        rig.log.confirm(ReplicaTimeout("late"))
        assert isinstance(pending.error, ReplicaTimeout)
    assert rig.left() == [0]
    again = rig.replay(0)
    rig.log.confirm()
    assert results(again.result) == [DONE]
    assert len(rig.back()) == 1 and rig.left() == []


def test_what_is_settled_stays_so_after_a_start(rig: Rig) -> None:
    rig.die(4)
    assert rig.drop(2, 0) == [DONE, DONE]
    rig.open()
    assert rig.left() == [1, 3]
    assert rig.drop(0, 1, 9) == [BEFORE, DONE, GONE]
    assert rig.left() == [3]
    assert rig.groups.get("whimbrel-dlq-g") is not None


def test_a_message_that_was_put_back_can_die_and_be_put_back_again(rig: Rig) -> None:
    rig.die(1)
    rig.replay(0)
    rig.log.confirm()
    [back] = rig.back()
    rig.internal.hand_on(back, dead_letter(GroupConfig(name="g"), back, 17, attempts=16), lambda error: None)
    rig.log.confirm()
    assert rig.left() == [1]
    rig.replay(1)
    rig.log.confirm()
    first, second = rig.back()
    assert [one.properties["REPLAYED_FROM"] for one in (first, second)] == ["b:%DLQ%g:0:0", "b:%DLQ%g:0:1"]
    assert second.properties_raw.count(b"REPLAYED_FROM") == 1


def test_without_its_original_a_letter_goes_where_its_properties_say(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.admin, "original_of", lambda *_: None)
    for properties in ("__SHARDINGKEY\x01customer\x02", "_SYS_MSG_PRIORITY_\x019\x02", ""):
        rig.die(2, properties=properties)
    rig.replay(*range(6))
    rig.log.confirm()
    queues: dict[str, list[int]] = {}
    for one in rig.back():
        kind = next((name for name in ("__SHARDINGKEY", "_SYS_MSG_PRIORITY_") if name in one.properties), "")
        queues.setdefault(kind, []).append(one.queue_id)
    assert len(set(queues["__SHARDINGKEY"])) == 1
    assert queues["_SYS_MSG_PRIORITY_"] == [3, 3]
    assert len(set(queues[""])) == 2


def test_letters_of_rocketmq_s_redeliveries_go_to_the_topic_behind_them(rig: Rig) -> None:
    rig.die(1, properties="RETRY_TOPIC\x01%RETRY%g_orders\x02", topic="%RETRY%g")
    rig.die(1, properties="RETRY_TOPIC\x01%RETRY%other\x02", topic="%RETRY%g")
    pending = rig.replay(0, 1)
    rig.log.confirm()
    first, second = pending.result.outcomes
    assert (first.result, first.topic) == (DONE, "orders")
    assert second.result == REFUSED and "does not tell" in second.why


def test_pages_go_on_where_they_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.die(7)
    rig.drop(1, 4)
    assert rig.left(count=2) == [0, 2, 3, 5, 6]
    assert rig.left(count=1) == [0, 2, 3, 5, 6]
    monkeypatch.setattr(dead_letter_admin, "LISTED_BYTES_MAX", 1)
    assert rig.left(with_bodies=True) == [0, 2, 3, 5, 6]


def test_a_damaged_letter_is_not_listed_and_may_be_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.die(3)
    read = rig.admin.read
    monkeypatch.setattr(
        rig.admin,
        "read",
        lambda topic, queue_id, offset: None if offset < 2 else read(topic, queue_id, offset),
    )
    assert rig.left(count=1) == [2]
    assert results(rig.replay(0)) == [REFUSED]
    assert rig.drop(0) == [DONE]


def test_bodies_come_when_they_are_wanted(rig: Rig) -> None:
    rig.die(1)
    for wanted in (True, False):
        request = letters.ListDeadLettersRequest(group="g", with_bodies=wanted)
        [letter] = rig.admin.list_letters(CALL, request).letters
        assert bool(letter.message.body) is wanted
        assert letter.origin_topic == "orders"
        assert letter.message.system_properties.delivery_attempt == 18
        assert letter.message.system_properties.dead_letter_queue.topic == "orders"


def test_a_group_without_dead_letters_has_none(rig: Rig) -> None:
    assert rig.left() == []
    assert rig.drop(0) == [GONE]
    assert results(rig.replay(0)) == [GONE]


def test_who_takes_no_writes_puts_nothing_back(rig: Rig) -> None:
    rig.die(1)
    rig.log.refusal = "not yet"
    with pytest.raises(NotWritable, match="not yet"):
        rig.replay(0)
    rig.admin.master = False
    for call in (rig.replay, rig.drop):
        with pytest.raises(NotWritable, match="at its master"):
            call(0)
    assert rig.left() == [0], "slaves show them"


def test_a_full_disk_settles_nothing(rig: Rig) -> None:
    rig.die(1)
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.drop(0)
    pending = rig.replay(0)
    rig.log.confirm()
    assert isinstance(pending.error, StoreFull)
    rig.journal.full = False
    assert rig.left() == [0]


def test_calls_are_bounded(rig: Rig) -> None:
    for offsets in ((), tuple(range(DEAD_LETTERS_MAX + 1))):
        with pytest.raises(BadRequest, match="are allowed"):
            rig.drop(*offsets)
    with pytest.raises(BadRequest, match="has no dead letters"):
        rig.admin.list_letters(CALL, letters.ListDeadLettersRequest(group="g" * 250))
