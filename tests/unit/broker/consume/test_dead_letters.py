"""Dead letters of groups in memory: when a message is given up, what its copy holds, and forwards."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import HOST, Rig, attempts, offsets
from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.consume.plan import HandOn
from whimbrel.broker.consume.policies import Policies
from whimbrel.broker.consume.queue_leases import HAND_ON_LEASE_MS
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.errors import (
    IllegalTopic,
    InvalidReceiptHandle,
    MessageTooLarge,
    NoReplica,
    NotWritable,
    PropertiesTooLarge,
    StoreFull,
    WhimbrelError,
)
from whimbrel.model.dead_letter import attempts_of, cause_of, origin_of
from whimbrel.model.retry import Customized
from whimbrel.model.topic import GroupConfig
from whimbrel.store.codec import RecordDraft, StoredMessage, decode_record, encode_record, format_properties

Done = Callable[[WhimbrelError | None], None]
PLACE = (HOST + (4096).to_bytes(8, "big")).hex().upper()


@dataclass
class Begun:
    """An append that was asked for."""

    message: StoredMessage
    target: HandOn
    since: int
    done: Done


class Letters:
    """Rig with the real policies of a group `g` that allows two deliveries."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.groups = GroupTable(tmp_path, auto_create=False, clock=lambda: 1)
        self.group = GroupConfig(name="g", retry_max=1)
        self.groups.add(self.group)
        self.begun: list[Begun] = []
        policies = Policies(self.groups)
        self.rig = Rig(policy_of=policies, wait_ms=policies.wait_ms, hand_on=self.hand_on, **options)
        self.clock, self.take = self.rig.clock, self.rig.take
        self.results: list[WhimbrelError | None] = []

    def hand_on(self, message: StoredMessage, target: HandOn, since: int, done: Done) -> None:
        self.begun.append(Begun(message, target, since, done))

    def finish(self, error: WhimbrelError | None = None) -> None:
        begun, self.begun = self.begun, []
        for one in begun:
            one.done(error)

    def fail(self, count: int, **changes: Any) -> None:
        """Have all messages delivered so often, and not acknowledged."""
        for _ in range(count):
            assert self.take(invisible_ms=10_000, **changes)
            self.clock.advance(10_000)

    def forward(self, handle: str, group: str = "g", topic: str = "t") -> None:
        self.rig.settles.group_of = self.groups.get
        done = self.rig.settles.forward(group, topic, handle)

        def over() -> None:
            assert done.error is None or isinstance(done.error, WhimbrelError)
            self.results.append(done.error)

        done.waker = over
        if done.done:
            over()

    @property
    def committed(self) -> int:
        return self.rig.consumption.positions.get_offset("g", "t", 0)


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    return Letters(tmp_path)


def record(*pairs: tuple[str, str], topic: str = "t", reconsume_times: int = 0) -> StoredMessage:
    draft = RecordDraft(topic, 0, b"body", format_properties(pairs), 1, HOST, HOST)
    draft = replace(draft, reconsume_times=reconsume_times)
    return decode_record(encode_record(draft, physical_offset=4096, queue_offset=0, store_timestamp=2))


# What a dead letter holds


def test_a_dead_letter_says_where_it_comes_from() -> None:
    """Checklist 56 and 57: after three deliveries the fourth attempt is the number of its redeliveries."""
    message = record(("UNIQ_KEY", "id-1"), ("DELAY", "3"), ("k", "v"))
    letter = dead_letter(GroupConfig(name="g"), message, 4, attempts=3)
    assert letter.topic == "%DLQ%g"
    assert letter.reconsume_times == 4
    assert dict(letter.added) == {
        "RETRY_TOPIC": "t",
        "DLQ_ORIGIN_TOPIC": "t",
        "DLQ_ORIGIN_MESSAGE_ID": "id-1",
        "ORIGIN_MESSAGE_ID": PLACE,
        "DEAD_AFTER_ATTEMPTS": "3",
    }
    assert len(PLACE) == 32
    assert letter.removed == {"DELAY", "HANDED_ON_FROM", "DEAD_AFTER_ATTEMPTS"}
    assert cause_of(dict(letter.added)) == PLACE


def test_groups_in_order_are_redelivered_the_same_record() -> None:
    letter = dead_letter(GroupConfig(name="g", fifo=True), record(), 4, attempts=3)
    assert letter.reconsume_times == 1
    assert attempts_of(dict(letter.added), 1, 3) == 3


@pytest.mark.parametrize(
    ("told", "times", "most", "attempts"),
    [
        ("3", 4, 3, 3),
        ("", 3, 2, 2),  # of an earlier version, after a timeout
        ("", 2, 16, 2),
        ("", 2, None, 2),
        ("", -1, None, 0),
        ("three", 2, None, 2),
        ("9" * 40, 2, None, 2),
    ],
)
def test_attempts_are_the_deliveries_before_it_was_given_up(
    told: str, times: int, most: int | None, attempts: int
) -> None:
    assert attempts_of({"DEAD_AFTER_ATTEMPTS": told}, times, most) == attempts


def test_deliveries_of_redelivered_records_count_as_well() -> None:
    message = record(topic="%RETRY%g", reconsume_times=2)
    added = dict(dead_letter(GroupConfig(name="g"), message, 2, attempts=1).added)
    assert added["DEAD_AFTER_ATTEMPTS"] == "3"


def test_a_message_without_an_id_keeps_the_one_under_which_it_was_delivered() -> None:
    added = dict(dead_letter(GroupConfig(name="g"), record(), 2, attempts=1).added)
    assert added["UNIQ_KEY"] == added["DLQ_ORIGIN_MESSAGE_ID"] == PLACE


def test_a_dead_letter_that_fails_again_keeps_its_origin_and_names_its_own_cause() -> None:
    first = {
        "UNIQ_KEY": "id-1", "RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "id-1", "ORIGIN_MESSAGE_ID": "0" * 32,
        "HANDED_ON_FROM": "1" * 32,
    }  # fmt: skip
    letter = dead_letter(
        GroupConfig(name="h"), record(*first.items(), topic="%DLQ%g", reconsume_times=4), 3, attempts=2
    )
    assert letter.added == (("HANDED_ON_FROM", PLACE), ("DEAD_AFTER_ATTEMPTS", "2"))
    assert cause_of({**first, **dict(letter.added)}) == PLACE
    assert letter.reconsume_times == 7


def test_what_a_client_says_of_an_origin_counts_for_nothing() -> None:
    marks = (
        "RETRY_TOPIC",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_ID",
        "HANDED_ON_FROM",
    )
    message = record(("UNIQ_KEY", "id-1"), *((name, "another") for name in marks))
    letter = dead_letter(GroupConfig(name="g"), message, 4, attempts=3)
    said = {name: value for name, value in message.properties.items() if name not in letter.removed}
    said |= dict(letter.added)
    assert origin_of(said, "g") == "t" and cause_of(said) == PLACE
    assert "another" not in said.values()


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "UNIQ_KEY"])
def test_no_text_of_a_client_makes_what_a_dead_letter_adds_long(name: str) -> None:
    message = record((name, "x" * 30_000), topic="%RETRY%g")
    assert (
        sum(
            len(key) + len(value)
            for key, value in dead_letter(GroupConfig(name="g"), message, 1, attempts=1).added
        )
        < 300
    )


# When a message is given up


def test_as_many_deliveries_as_the_group_allows_and_the_next_receive_moves_it(letters: Letters) -> None:
    """Checklist 56; the rest goes out in the same answer."""
    letters.rig.store.put("t", 0)
    letters.fail(2)
    first_taken = letters.clock.now - 10_000
    letters.rig.store.put("t", 0)
    assert offsets(letters.take()) == [1]
    [one] = letters.begun
    assert (one.message.queue_offset, one.target.topic, one.target.reconsume_times) == (0, "%DLQ%g", 3)
    assert one.since == first_taken
    letters.finish()
    assert letters.committed == 1


def test_a_changed_group_counts_at_once(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    letters.fail(2)
    letters.groups.put(replace(letters.group, retry_max=3))
    letters.rig.consumption.groups_changed()
    letters.fail(2)
    assert letters.take() == [] and len(letters.begun) == 1


@pytest.mark.parametrize("retry_max", [-1, 0])
def test_every_message_is_delivered_once_at_least(letters: Letters, retry_max: int) -> None:
    letters.groups.put(replace(letters.group, retry_max=retry_max))
    letters.rig.consumption.groups_changed()
    letters.rig.store.put("t", 0)
    letters.fail(1)
    assert letters.take() == [] and len(letters.begun) == 1


def test_a_refused_append_is_made_again_and_looks_for_copies_since_the_last_delivery(
    letters: Letters,
) -> None:
    """Checklist 59: neither lost nor delivered, and moved later."""
    letters.rig.store.put("t", 0)
    letters.fail(2)
    since = set()
    for _ in range(3):
        assert letters.take() == []
        since |= {one.since for one in letters.begun}
        letters.finish(StoreFull("full"))
        letters.clock.advance(HAND_ON_LEASE_MS)
    assert len(since) == 1
    assert letters.take() == []
    letters.finish()
    assert letters.committed == 1


@pytest.mark.parametrize(
    "error", [MessageTooLarge("4 MiB"), PropertiesTooLarge("32767"), IllegalTopic("long")]
)
def test_what_no_record_can_hold_is_set_aside_loudly_and_its_queue_goes_on(
    letters: Letters, caplog: pytest.LogCaptureFixture, error: WhimbrelError
) -> None:
    """It would come again for ever; of an ordered group, nothing behind it ever would."""
    letters.groups.put(replace(letters.group, fifo=True))
    letters.rig.store.put("t", 0)
    letters.fail(2)
    letters.rig.store.put("t", 0)
    assert letters.take() == []
    letters.finish(error)
    assert letters.committed == 1
    assert "t/0 offset 0 is no dead letter of g" in caplog.text and str(error) in caplog.text
    assert offsets(letters.take()) == [1]


def test_a_forward_of_what_no_record_can_hold_is_answered(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    letters.forward(one.handle)
    letters.finish(MessageTooLarge("4 MiB"))
    assert letters.results == [None] and letters.committed == 1


def test_a_broker_that_can_t_append_holds_it_back_and_the_next_master_moves_it(letters: Letters) -> None:
    """10.6."""
    letters.rig.store.put("t", 0)
    letters.fail(2)
    letters.rig.consumption.hand_ons.append = None
    for _ in range(2):
        assert letters.take() == []
        letters.clock.advance(HAND_ON_LEASE_MS)
    assert letters.committed == 0
    letters.rig.consumption.hand_ons.append = letters.hand_on
    assert letters.take() == [] and len(letters.begun) == 1


def test_a_poll_is_served_with_what_stood_behind_a_message_that_was_moved(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    letters.fail(2)
    poll = letters.rig.park()
    letters.rig.store.put("t", 0)
    letters.clock.advance()
    assert offsets(poll.result) == [1]


# The end of renewals


def test_a_lease_that_was_renewed_for_three_hours_comes_again_after_the_group_s_wait(
    letters: Letters,
) -> None:
    """Checklist 60: by the policy, with one more attempt, and without a wait that the client asked for."""
    group = letters.group.with_retry_policy(Customized((70_000, 200_000)))
    letters.groups.put(group)
    letters.rig.consumption.groups_changed()
    letters.rig.store.put("t", 0)
    letters.take(invisible_ms=None)
    letters.clock.advance(3 * 3600 * 1000)
    assert letters.take() == []
    letters.clock.advance(69_999)
    assert letters.take() == []
    letters.clock.advance(1)
    assert attempts(letters.take()) == [2]


# Forwards


def test_a_forward_copies_and_then_finishes(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    letters.forward(one.handle)
    [begun] = letters.begun
    assert (begun.message, begun.target.reconsume_times) == (one.message, 1)
    assert (letters.results, letters.committed) == ([], 0)
    letters.finish()
    assert (letters.results, letters.committed) == ([None], 1)
    assert letters.rig.ack(one) == [None]


def test_a_repeated_forward_of_what_is_done_does_nothing(letters: Letters) -> None:
    """Checklist 14; also of what was acknowledged."""
    for _ in range(2):
        letters.rig.store.put("t", 0)
    first, second = letters.take()
    letters.forward(first.handle)
    letters.finish()
    letters.rig.ack(second)
    for one in (first, second):
        letters.forward(one.handle)
    assert letters.results == [None] * 3 and letters.begun == []


def test_a_forward_of_a_delivery_that_is_over_finishes_the_message(letters: Letters) -> None:
    """Checklist 14: expired, and also when another consumer holds the message by now."""
    letters.rig.store.put("t", 0)
    [first] = letters.take(invisible_ms=10_000)
    letters.clock.advance(10_000)
    letters.forward(first.handle)
    assert letters.take() == [], "it is held while its copy is not durable"
    letters.finish()
    assert (letters.results, letters.committed) == ([None], 1)
    letters.rig.store.put("t", 0)
    [first] = letters.take(invisible_ms=10_000)
    letters.clock.advance(10_000)
    [again] = letters.take()
    letters.forward(first.handle)
    letters.rig.change(again.handle, 20_000)
    letters.finish()
    assert (letters.results, letters.committed) == ([None, None], 2)


def test_after_a_reset_a_forward_does_nothing(letters: Letters) -> None:
    """Checklist 14."""
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    letters.rig.consumption.positions.reset_offset("g", "t", 0, 0)
    letters.forward(one.handle)
    assert letters.results == [None] and letters.begun == []
    assert attempts(letters.take()) == [1]


def test_a_forward_of_a_record_that_is_gone_does_nothing(letters: Letters) -> None:
    for _ in range(2):
        letters.rig.store.put("t", 0)
    [one, _] = letters.take()
    letters.rig.store.minima["t", 0] = 1
    letters.forward(one.handle)
    letters.rig.consumption.delete_topic("t")
    letters.forward(one.handle)
    assert letters.results == [None, None] and letters.begun == []


def test_a_forward_with_a_handle_from_a_change_copies_the_right_record(letters: Letters) -> None:
    """Checklist 15."""
    for _ in range(3):
        letters.rig.store.put("t", 0)
    taken = letters.take()
    handle = letters.rig.change(taken[2].handle, 20_000)
    letters.forward(handle)
    assert [one.message.queue_offset for one in letters.begun] == [2]


def test_a_forward_is_refused_for_what_is_no_handle_or_another_one_s(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    for handle, group, topic in (("junk", "g", "t"), (one.handle, "other", "t"), (one.handle, "g", "other")):
        with pytest.raises(InvalidReceiptHandle):
            letters.forward(handle, group, topic)
    letters.rig.consumption.hand_ons.append = None
    with pytest.raises(NotWritable):
        letters.forward(one.handle)


def test_a_forward_that_fails_leaves_the_message_undone_and_says_why(letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    error = NoReplica("none is near")
    letters.forward(one.handle)
    letters.finish(error)
    assert letters.results == [error] and letters.committed == 0
    letters.forward(one.handle)
    letters.finish()
    assert letters.committed == 1


def test_a_forward_of_a_delivery_that_only_another_broker_knew(tmp_path: Path, letters: Letters) -> None:
    letters.rig.store.put("t", 0)
    [one] = letters.take()
    (tmp_path / "other").mkdir()
    other = Letters(tmp_path / "other", store=letters.rig.store, clock=letters.clock, broker_id=1)
    other.forward(one.handle)
    assert [begun.since for begun in other.begun] == [letters.clock.now]
    other.finish()
    assert (other.results, other.committed) == ([None], 1)


def test_what_a_slave_held_back_whose_clock_is_ahead_is_handed_on_by_the_masters(tmp_path: Path) -> None:
    """It was delivered by the master's clock, and held back by the slave's."""
    hour_ms = 3_600_000
    letters = Letters(tmp_path)
    master, store = letters.rig, letters.rig.store
    store.put("t", 0)
    letters.fail(2)
    slave = Rig(store=store, broker_id=1, follows=True, policy_of=Policies(letters.groups))
    for entries in master.journal.chunks:
        slave.consumption.lease_store.merge(entries)
    slave.clock.now = master.clock.now + hour_ms
    assert slave.take() == []
    for entries in slave.journal.chunks:
        master.consumption.lease_store.merge(entries)
    assert letters.take() == [] and not letters.begun  # it is held for more than an hour
    master.consumption.sweep()
    letters.clock.advance(HAND_ON_LEASE_MS)
    assert letters.take() == [] and [one.message.queue_offset for one in letters.begun] == [0]
