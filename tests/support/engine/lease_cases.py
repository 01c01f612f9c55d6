"""Cases about what groups hold: who holds what before a request, what goes wrong, and what has changed.

Times are told in seconds since the case began: the clock goes on from case to case, as serials do, and never
back.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.engine.cases import PLACES, BrokenCase, Started, put, runs
from support.engine.in_process import CLIENT
from support.engine.rules import Rule, plain
from support.engine.turned import TurnedMaster
from whimbrel.broker.consume.lease_codec import Lease, Order
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.engine.waiting import EARLY_RECEIVES, POLLS
from whimbrel.errors import FlushTimeout, StoreFull, WhimbrelError
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.topic import OrderedBy
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.store.codec import decode_record

__all__ = [
    "ALONE", "FAULT_RULES", "LEASE_GROUP_RULES", "LeaseCase", "Step", "Steps", "acknowledge", "after_steps",
    "begin_case",
    "case_text", "change", "confirm", "delete_group", "delete_topic", "faults", "fill_journal", "finish",
    "handle_of", "handle_text", "hold", "lease_text", "letters_text", "now_s", "side_effects", "topic_goes",
]  # fmt: skip

BROKER = "broker-a"
LONG = 120  # characters of a group's name that leave none for the prefix of its dead letters

Step = Callable[[TurnedMaster, Any], object]
Steps = tuple[tuple[str, Step | int], ...]


@dataclass
class LeaseCase(BrokenCase):
    """A request about what a group holds.

    Attributes:
        long: the group has a long name.
        journal_full: nothing about leases can be written down; `once`: for the first time.
        refusal: why nothing can be appended; empty while it can.
        copies_later: copies of messages are confirmed when a test says so; see `confirm`.
        comes: what comes while the request waits.
        again: it is made once more after its answer.
        began_ms: when the case began.
        copies: who waits for copies. waiting: receives that wait.
    """

    long: bool = False
    journal_full: bool | str = False
    refusal: str = ""
    copies_later: bool = False
    comes: str = ""
    again: bool = False
    began_ms: int = 0
    copies: list[Callable[[WhimbrelError | None], None]] = field(default_factory=list)
    waiting: list[Started] = field(default_factory=list)

    @property
    def group(self) -> str:
        """The group's name."""
        return super().group + "g" * LONG if self.long else super().group

    @property
    def letters(self) -> str:
        """The topic of the group's dead letters."""
        return DEAD_LETTER_PREFIX + self.group


def with_long_name(case: LeaseCase) -> None:
    """Give the group a long name."""
    case.long = True
    case.asked_group = case.group
    if case.config is not None:
        case.config = replace(case.config, name=case.group)


def ordered_by_message_group(case: BrokenCase) -> None:
    """Have the group be in order, message group by message group."""
    case.change_group(fifo=True)
    if case.config is not None:
        case.config = case.config.with_ordered_by(OrderedBy.MESSAGE_GROUP)


# About the group.
LEASE_GROUP_RULES: Final[tuple[Rule, ...]] = (
    Rule("ordered by message group", "group", ordered_by_message_group),
    Rule("dead after 1", "attempts", lambda case: case.change_group(retry_max=0)),
    Rule("dead after 2", "attempts", lambda case: case.change_group(retry_max=1)),
    Rule("long name", "named", with_long_name),
)
# Names that are refused as others are: alone, and not beside other rules.
ALONE: Final = frozenset((
    "illegal topic", "system topic that is there", "no group named", "illegal group", "long group",
    "system group",
))  # fmt: skip
# About the disk, and the log.
FAULT_RULES: Final[tuple[Rule, ...]] = (
    Rule("journal full", "journal", put(journal_full=True)),
    Rule("journal full once", "journal", put(journal_full="once")),
    Rule("no writes", "writes", put(refusal="writes are refused")),
    Rule("copies later", "copies", put(copies_later=True)),
)


# Before


def begin_case(side: TurnedMaster, case: LeaseCase) -> None:
    """Have the clock go on, so that serials of cases before are of times before."""
    side.put_forward(1)
    case.began_ms = side.clock.now_ms


def hold(
    side: TurnedMaster,
    case: LeaseCase,
    start: int,
    end: int,
    *,
    queue_id: int = 0,
    for_ms: int = 10_000,
    attempt: int = 1,
    by: str = "",
    renewed: bool = False,
    ago_ms: int = 0,
) -> None:
    """Have the group hold messages under one lease, those of them that are there.

    Args:
        side, case, start, end, queue_id: what is held.
        for_ms: how long from now on.
        attempt: which delivery that is.
        by: the attempt id of the receive.
        renewed: by the server, for the client.
        ago_ms: how long ago it was taken.
    """
    end = min(end, side.store.queue_range(case.name, queue_id)[1])
    if start >= end:
        return
    leases, now = side.consumption.lease_store, side.clock.now_ms
    state = leases.table.state(case.group, case.name, queue_id)
    client = CLIENT if renewed else ""
    serial = leases.table.next_serial(now - ago_ms)
    lease = Lease(serial, 0, now + for_ms, now - ago_ms, attempt, renewed, client)
    leases.commit([(state, start, end, lease)], [(state, Order(serial, by))] if by else ())


def finish(side: TurnedMaster, case: LeaseCase, start: int, end: int, queue_id: int = 0) -> None:
    """Have messages be done."""
    end = min(end, side.store.queue_range(case.name, queue_id)[1])
    if start < end:
        state = side.consumption.table.state(case.group, case.name, queue_id)
        side.consumption.lease_store.commit([(state, start, end, None)])


def handle_of(side: TurnedMaster, case: LeaseCase, offset: int, queue_id: int = 0) -> ReceiptHandle:
    """Return the receipt handle of a message as it is held; where it is not, one of a delivery just now."""
    table = side.consumption.table
    units = side.store.queue_units(case.name, queue_id, offset, 1)
    place, size = units[0][:2] if units else (0, 100)
    state = table.find(case.group, case.name, queue_id)
    lease = state.leases.get(offset) if state is not None else None
    epoch = state.epoch if state is not None else 0
    serial = table.next_serial(side.clock.now_ms) if lease is None else lease.serial
    attempt = 1 if lease is None else max(lease.attempt, 1)
    return ReceiptHandle(BROKER, case.group, case.name, queue_id, epoch, offset, place, size, serial, attempt)


@contextmanager
def faults(side: TurnedMaster, case: LeaseCase) -> Iterator[None]:
    """Have go wrong what does, as the case says."""
    role = side.broker.role
    journal, appender, internal = role.consumption.lease_store.journal, role.appender, role.internal
    before = appender.refusal
    internal.append_count = 0  # of what is appended to other topics: it goes to each of their queues in turn
    if case.journal_full:
        fill_journal(side, case)
    appender.refusal = case.refusal
    if case.copies_later:
        internal.when_durable = lambda end, done: case.copies.append(done)  # type: ignore[method-assign]
    try:
        yield
    finally:
        vars(journal).pop("append", None)
        vars(internal).pop("when_durable", None)
        appender.refusal = before


def fill_journal(side: TurnedMaster, case: LeaseCase) -> None:
    """Have the disk take no more about leases."""
    journal = side.consumption.lease_store.journal

    def append(entries: bytes) -> None:
        if case.journal_full == "once":
            vars(journal).pop("append")
        raise StoreFull("the journal is full")

    journal.append = append  # type: ignore[method-assign]


# What comes meanwhile


def held_now(side: TurnedMaster, case: LeaseCase, queue_id: int = 0) -> list[int]:
    """Return the offsets that the group holds."""
    state = side.consumption.table.find(case.group, case.name, queue_id)
    return sorted(state.leases) if state is not None else []


def acknowledge(side: TurnedMaster, case: LeaseCase, offsets: Iterable[int]) -> Any:
    """Acknowledge messages of queue 0."""
    request = messaging.AckMessageRequest()
    request.topic.name, request.group.name = case.name, case.group
    for offset in offsets:
        request.entries.add(message_id="m", receipt_handle=handle_of(side, case, offset).encode())
    return side.broker.call("AckMessage", request)


def change(side: TurnedMaster, case: LeaseCase, offset: int, ms: int) -> Any:
    """Change when a message of queue 0 comes again."""
    request = messaging.ChangeInvisibleDurationRequest()
    request.topic.name, request.group.name = case.name, case.group
    request.receipt_handle = handle_of(side, case, offset).encode()
    request.invisible_duration.FromMilliseconds(ms)
    return side.broker.call("ChangeInvisibleDuration", request)


def topic_goes(side: TurnedMaster, case: LeaseCase) -> None:
    """Take the topic out of the table; its queues and leases stay."""
    side.topics.remove(case.name)


def delete_topic(side: TurnedMaster, case: LeaseCase) -> None:
    """Delete the topic, as administrators do."""
    side.topics.remove(case.name)
    side.store.delete_topic(case.name)
    side.consumption.delete_topic(case.name)


def delete_group(side: TurnedMaster, case: LeaseCase) -> None:
    """Delete the group, as administrators do."""
    side.groups.remove(case.group)
    side.consumption.delete_group(case.group)


def confirm(side: TurnedMaster, case: LeaseCase, *, fails: bool = False) -> None:
    """Tell those who wait that their copies are durable, or that they are not yet."""
    waiting = list(case.copies)
    case.copies.clear()
    for done in waiting:
        done(FlushTimeout("not flushed in time") if fails else None)


async def after_steps(side: TurnedMaster, case: LeaseCase, started: Started, steps: Steps) -> list[str]:
    """Take steps until a request that waits has its answer; return what changed its state, and to what."""
    texts: list[str] = []
    state = started.state
    for name, step in steps:
        if isinstance(step, int):
            await side.pass_time(step)
        else:
            try:
                step(side, case)
            except WhimbrelError as error:
                texts.append(f"{name}: {type(error).__name__}")
            await side.turn()
        if started.state != state:
            state = started.state
            texts.append(f"{name}: {state}")
        if started.deferred is not None and started.deferred.done:
            break
    return texts


# After


def now_s(case: LeaseCase, at_ms: int) -> str:
    """Return a time in seconds since the case began."""
    return f"{(at_ms - case.began_ms) / 1000:+g}"


def lease_text(case: LeaseCase, state: QueueLeases) -> str:
    """Say where a group stands in a queue: its position, what is done above that, what it holds how long."""
    text = f"{state.queue_id}@{state.committed if state.started else '-'}"
    text += f" epoch {state.epoch}" if state.epoch else ""
    text += "".join(f" done {runs(list(range(start, end)))}" for start, end in state.done_above())
    for start, end, lease in state.lease_runs():
        text += f" {runs(list(range(start, end)))}x{lease.attempt}{now_s(case, lease.visible_at)}"
        text += f" of{now_s(case, lease.taken_at)}" if lease.taken_at != case.began_ms else ""
        text += f" r{lease.revision}" if lease.revision else ""
        text += f" {'for' if lease.auto_renew else 'once for'} {lease.client_id}" * bool(lease.client_id)
        text += f" by {state.orders[lease.serial][:8]}" if lease.serial in state.orders else ""
    return text


def letters_text(side: TurnedMaster, case: LeaseCase) -> list[str]:
    """Say which dead letters the group has: of what, and a digest of all that they are."""
    found = []
    for queue_id in range(4):
        low, high = side.store.queue_range(case.letters, queue_id)
        for place, size, _ in side.store.queue_units(case.letters, queue_id, low, high - low):
            letter = decode_record(side.store.read(place, size))
            properties = sorted(letter.properties.items())
            told = (properties, letter.body, letter.reconsume_times, letter.born_timestamp, letter.sys_flag)
            digest = hashlib.sha256(case_text(case, repr(told)).encode()).hexdigest()[:8]
            found.append(f"letter {queue_id} {letter.properties.get('UNIQ_KEY')} #{digest}")
    return found


def side_effects(
    side: TurnedMaster, case: LeaseCase, made: tuple[set[str], set[str]], *beside: str
) -> list[str]:
    """Say what a request has changed.

    Args:
        side, case: where, and of what.
        made: topics and groups that there were before.
        beside: topics that receives read beside the case's.
    """
    topics, groups, table = side.topics, side.groups, side.consumption.table
    found = [
        f"topic {name} {topic.read_queues}/{topic.write_queues} {topic.permission}"
        for name, topic in topics.rows.items()
        if name not in made[0]
    ]
    found += [f"group {name}" for name in groups.rows if name not in made[1]]
    pairs = [(case.group, case.name), *((case.group, name) for name in beside)]
    if case.asked_group != case.group or case.asked_topic != case.name:
        pairs += [(case.asked_group, case.asked_topic)]
    for number, (group, name) in enumerate(pairs):
        states = [table.find(group, name, queue_id) for queue_id in range(4)]
        told = [
            lease_text(case, state)
            for state in states
            if state is not None and (state.started or state.epoch)
        ]
        found += [("beside " if number else "") + "; ".join(told)] if told else []
    found += letters_text(side, case)
    for what, counts in (("delivered", side.counted.delivered), ("dead", side.counted.dead_letters)):
        found += [
            f"{what} {' '.join(labels)} {sent.messages}/{sent.bytes}" for labels, sent in counts.items()
        ]
    polls = side.polls.rooms[POLLS].taken, side.polls.rooms[EARLY_RECEIVES].taken
    found += [f"polls {polls[0]}/{polls[1]}"] if any(polls) else []
    found += [f"copies {len(case.copies)}"] if case.copies else []
    return found


def case_text(case: BrokenCase, text: str) -> str:
    """Return a text without what is another one in each case or each run."""
    text = text.replace(case.name, "TOPIC").replace(case.group, "GROUP").replace(case.group[:12], "GROUP")
    return plain(PLACES.sub("PLACES", text))


def handle_text(side: TurnedMaster, case: LeaseCase, text: str) -> str:
    """Say how a receipt handle differs from what its message is held under; nothing where it does not."""
    handle = ReceiptHandle.decode(text)
    table, store = side.consumption.table, side.store
    state = table.find(handle.group, handle.topic, handle.queue_id)
    lease = state.leases.get(handle.offset) if state is not None else None
    units = store.queue_units(handle.topic, handle.queue_id, handle.offset, 1)
    expected = {
        "broker": (handle.broker_name, BROKER),
        "group": (handle.group, case.group),
        "topic": (handle.topic, case.name),
        "epoch": (handle.epoch, state.epoch if state is not None else 0),
        "serial": (handle.serial, lease.serial if lease is not None else 0),
        "attempt": (handle.attempt, lease.attempt if lease is not None else 0),
        "place": ((handle.physical_offset, handle.size), units[0][:2] if units else None),
    }
    return " ".join(
        f"{what} {one if what != 'serial' and what != 'place' else 'is not held'}"
        for what, (one, other) in expected.items()
        if one != other
    )
