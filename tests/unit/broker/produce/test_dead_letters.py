"""Dead letters over a real log: one copy of each cause, whatever came in between."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from support.broker.letters import ConfirmedWhenTold, messages_of
from support.store.stores import NOW, OPTIONS, make_draft
from whimbrel.broker.consume.dead_letters import dead_letter, dead_letter_rule
from whimbrel.broker.produce import dead_letters
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.dead_letters import CLOCK_SLACK_MS, DeadLetters
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import NotWritable, ReplicaTimeout, WhimbrelError
from whimbrel.model.dead_letter import cause_of
from whimbrel.model.limits import TOPIC_CHARS_MAX
from whimbrel.model.topic import GroupConfig
from whimbrel.store.codec import StoredMessage, decode_record, pack_host
from whimbrel.store.master_store import MasterStore

HOST = pack_host("10.0.0.9", 8091)
GROUP = GroupConfig(name="g")
ID = b"UNIQ_KEY\x01id-1\x02"


class Rig:
    """A store with a message, and what makes dead letters of it."""

    def __init__(self, root: Path) -> None:
        self.now = NOW
        (root / "store").mkdir(exist_ok=True)
        self.store = MasterStore.open(root / "store", OPTIONS, clock=lambda: self.now)
        self.log = ConfirmedWhenTold(self.store)
        topics = TopicTable(
            root / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW
        )
        internal = InternalAppender(topics, cast(RecordAppender, self.log), store_host=lambda: HOST)
        self.sent: list[tuple[str, str]] = []
        self.letters = DeadLetters(internal, self.store, on_sent=lambda *names: self.sent.append(names))
        self.done: list[WhimbrelError | None] = []

    def put(self, properties: bytes = ID) -> StoredMessage:
        draft = make_draft(1, topic="orders")
        draft.properties = properties
        return self.read([draft], "orders")

    def read(self, drafts: Any, topic: str) -> StoredMessage:
        (place,) = self.store.append(drafts)
        return decode_record(self.store.read(place.physical_offset, place.size))

    def hand_on(self, message: StoredMessage, since: int = 0) -> None:
        self.letters.hand_on(message, dead_letter(GROUP, message, 2, attempts=1), since, self.done.append)

    def copies(self) -> list[StoredMessage]:
        return messages_of(self.store, "%DLQ%g")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def test_a_copy_is_done_when_it_is_durable_and_counted_then(rig: Rig) -> None:
    rig.hand_on(rig.put())
    assert (rig.done, rig.sent) == ([], [])
    rig.log.confirm()
    assert (rig.done, rig.sent) == ([None], [("g", "orders")])


def test_an_append_that_was_reported_late_is_waited_for_and_not_made_again(rig: Rig) -> None:
    """Checklist 59 and 10.3: it is in the log after all."""
    message = rig.put()
    rig.hand_on(message)
    late = ReplicaTimeout("late")
    rig.log.confirm(late)
    rig.store.append([make_draft(2)])
    rig.hand_on(message)
    assert rig.done == [late]
    assert [end for end, _ in rig.log.waiting] == [rig.store.written]
    rig.log.confirm()
    assert (rig.done, len(rig.copies()), rig.sent) == ([late, None], 1, [])


def test_a_copy_that_waits_is_found_by_a_second_forward(rig: Rig) -> None:
    """Checklist 14."""
    message = rig.put()
    rig.hand_on(message)
    rig.hand_on(message)
    rig.log.confirm()
    assert (rig.done, len(rig.copies())) == ([None, None], 1)


def test_two_records_of_one_id_are_two_dead_letters(rig: Rig) -> None:
    first, second = rig.put(), rig.put()
    for message in (first, second, first, second):
        rig.hand_on(message)
    assert [cause_of(one.properties) for one in rig.copies()] == [
        first.offset_message_id, second.offset_message_id
    ]  # fmt: skip


def test_a_message_without_an_id_is_found_as_well(rig: Rig) -> None:
    message = rig.put(b"")
    for _ in range(2):
        rig.hand_on(message)
    [copy] = rig.copies()
    assert copy.properties["UNIQ_KEY"] == message.offset_message_id


def test_a_message_that_failed_once_more_after_a_reset_is_another_dead_letter(rig: Rig) -> None:
    message = rig.put()
    rig.hand_on(message)
    rig.now += CLOCK_SLACK_MS + 1000
    rig.hand_on(message, since=rig.now)
    rig.hand_on(message, since=rig.now)
    assert len(rig.copies()) == 2


def test_a_dead_letter_that_was_put_back_and_failed_again_is_another_one(rig: Rig) -> None:
    rig.hand_on(rig.put())
    [letter] = rig.copies()
    again = rig.put(letter.properties_raw)
    for _ in range(2):
        rig.hand_on(again)
    _, second = rig.copies()
    assert cause_of(second.properties) == again.offset_message_id
    assert second.properties["ORIGIN_MESSAGE_ID"] == again.offset_message_id  # it was sent, by whomever


def test_a_copy_is_found_after_a_restart(tmp_path: Path) -> None:
    before = Rig(tmp_path)
    message = before.put()
    before.hand_on(message)
    before.store.close()
    after = Rig(tmp_path)
    with closing(after.store):
        after.hand_on(message)
        after.log.confirm()
        assert (after.done, len(after.copies())) == ([None], 1)


def test_who_may_not_write_confirms_nothing(rig: Rig) -> None:
    message = rig.put()
    rig.hand_on(message)
    rig.log.confirm(ReplicaTimeout("late"))
    rig.log.refusal = "a slave"
    rig.hand_on(message)
    assert [type(error) for error in rig.done] == [ReplicaTimeout, NotWritable]


def test_beyond_the_bound_of_equal_ids_there_is_a_second_copy_and_none_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "SAME_ID_MAX", 2)
    messages = [rig.put() for _ in range(3)]
    for message in (*messages, messages[0]):
        rig.hand_on(message)
    assert len(rig.copies()) == 4


def test_the_longest_name_of_a_group_with_dead_letters_makes_a_topic(rig: Rig) -> None:
    message = rig.put()
    group = GroupConfig(name="g" * (TOPIC_CHARS_MAX - len("%DLQ%")))
    assert dead_letter_rule(group) is not None
    rig.letters.hand_on(message, dead_letter(group, message, 2, attempts=1), 0, rig.done.append)
    rig.log.confirm()
    assert rig.done == [None]


def test_a_group_with_a_longer_name_has_none() -> None:
    assert dead_letter_rule(GroupConfig(name="g" * (TOPIC_CHARS_MAX - 4))) is None
