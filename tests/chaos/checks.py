"""What must hold when a run has ended: of clients' notes, of every member's queues, and of the logs.

    lost            a plain or ordered message was acknowledged and is not there; and all that
                    `histories.py` finds besides
    unequal         a member has other messages, or others at a place, or other bytes in its log
    ordered         messages of one message group in two queues, or the other way round than they were sent
    delayed         acknowledged, and not once in its queue; or twice; or early
    transaction     committed, and not once in its queue; rolled back, and in a queue; or twice
    redelivered     delivered to the group again after an acknowledgement that no fault came near to
    undelivered     acknowledged, or committed, and never delivered

A message counts as acknowledged when its last try was answered OK, a transaction as committed when its send
was and its producer, or the check, says so. Acknowledgements of consumers go to the other members a moment
later than they are answered (docs/failover.md), so those of the last `ACK_S` before a fault may be forgotten:
how many were is counted, and how old they were.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.load import DELAYED, GROUPS, ORDERED, PAID, PLAIN, QUEUES, Load, Note, number_of, resolution_of
from support.cluster.elections import ElectedGroup, Member
from support.history.histories import Finding, Place
from support.history.noting import READER, place_of
from support.waiting import until
from whimbrel.client import sync
from whimbrel.model.message import Resolution

__all__ = [
    "ACK_S",
    "UNDELIVERED",
    "Messages",
    "Redeliveries",
    "check",
    "check_noted",
    "check_ordered",
    "redeliveries",
    "unequal",
]

EQUAL_S = 30.0  # for all members to have the same log
ACK_S = 2.0  # leases travel at once; a stream that broke is opened again within a second
Messages = list[tuple[Place, bytes]]


@dataclass(slots=True)
class Redeliveries:
    """What a group got again after it was acknowledged.

    Attributes:
        count: of deliveries.
        oldest_s: the greatest time from such an acknowledgement to the next fault.
        findings: those that no fault excuses.
    """

    count: int = 0
    oldest_s: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def redeliveries(load: Load, faults: Sequence[float]) -> Redeliveries:
    """Return what came again although it was acknowledged; `faults` are the times at which one began."""
    found = Redeliveries()
    history = load.history
    for delivery in history.deliveries:
        for acked in history.acked.get((delivery.group, delivery.place), ()):
            if delivery.at <= acked:
                continue
            # An acknowledgement is noted a moment after it was taken.
            between = [fault - acked for fault in faults if acked - ACK_S <= fault <= delivery.at]
            found.count += 1
            what = f"{delivery.id!r} to {delivery.group} at {delivery.at:.3f}, acknowledged at {acked:.3f}"
            if not between:
                found.findings.append(Finding("redelivered", what))
                continue
            age = max(0.0, min(between))
            found.oldest_s = max(found.oldest_s, age)
            if age > ACK_S:
                found.findings.append(Finding("redelivered", f"{what}, {age:.3f} s before the fault"))
    return found


def messages_of(member: Member) -> dict[str, Messages]:
    """Return all that a member's queues hold, by topic, as it serves them itself."""
    found = {}
    with sync.PullConsumer(member.broker.grpc, "audit") as reader:
        for topic in QUEUES:
            found[topic] = messages = Messages()
            for queue in reader.queues(topic):
                at = reader.offset(queue, "earliest")
                while got := reader.pull(queue, at, follow=False).messages:
                    messages += [(place_of(message), message.body) for message in got]
                    at = got[-1].queue_offset + 1
    return found


def log_bytes(store: Path, end: int) -> bytes:
    """Return a log up to an offset."""
    data = bytearray()
    for path in sorted((store / "commitlog").iterdir()):
        data += path.read_bytes()
    return bytes(data[:end])


def check(group: ElectedGroup, load: Load, faults: Sequence[float]) -> tuple[list[Finding], Redeliveries]:
    """Return what must not have happened, once the load has settled and ended."""
    found, complete = check_members(group)
    history = load.history
    found += history.check(complete=[*complete[PLAIN], *complete[ORDERED]])
    found += check_ordered(load, complete[ORDERED])
    found += [
        finding
        for topic in (DELAYED, PAID)
        for finding in check_noted(topic, load.notes[topic], complete[topic])
    ]
    found += [Finding("meanwhile", what) for what in load.findings]
    again = redeliveries(load, faults)
    return found + again.findings, again


def check_members(group: ElectedGroup) -> tuple[list[Finding], dict[str, Messages]]:
    """Return what members differ in, and all messages, as the first one has them."""
    members = list(group.members.values())

    def equal() -> int:
        ends = {view.log_end if (view := member.view()) else -1 for member in members}
        confirmed = {view.confirmed_offset if (view := member.view()) else -1 for member in members}
        (end, *others) = ends | confirmed
        return 0 if others else end

    end = int(until(equal, timeout=EQUAL_S, what=lambda: f"equal log ends: {[m.view() for m in members]}"))
    held = {each.number: (messages_of(each), log_bytes(each.broker.store, end)) for each in members}
    return unequal(held), held[members[0].number][0]


def unequal(held: dict[int, tuple[dict[str, Messages], bytes]]) -> list[Finding]:
    """Return in what members differ from the first one; given are messages by topic and the log of each."""
    (first, (messages, log)), *others = held.items()
    found = []
    for number, (theirs, their_log) in others:
        found += [
            Finding("unequal", f"{topic}: members {first} and {number} have other messages")
            for topic in messages
            if theirs[topic] != messages[topic]
        ]
        if their_log != log:
            found.append(Finding("unequal", f"the logs of members {first} and {number}"))
    return found


def check_ordered(load: Load, complete: Messages) -> list[Finding]:
    """Each message group is in one queue; its acknowledged messages first stand there in their order."""
    found = []
    places: dict[bytes, list[Place]] = defaultdict(list)
    for place, body in complete:
        places[body].append(place)
    for group, bodies in load.ordered.items():
        queues = {
            place[1]
            for body, at in places.items()
            if body.startswith(b"%s-" % group.encode())
            for place in at
        }
        if len(queues) > 1:
            found.append(Finding("ordered", f"{group} is in queues {sorted(queues)}"))
        first = [(min(place[2] for place in places[body]), body) for body in bodies if body in places]
        for (offset, body), (after, later) in itertools.pairwise(first):
            if after <= offset:
                found.append(Finding("ordered", f"{later!r} stands at {after}, {body!r} at {offset}"))
        assert [number_of(body) for body in bodies] == sorted(number_of(body) for body in bodies)
    return found


def check_noted(topic: str, notes: dict[bytes, Note], complete: Messages) -> list[Finding]:
    """Each message is there as often as it is to be."""
    found = []
    copies = Counter(body for _, body in complete)
    kind = "delayed" if topic == DELAYED else "transaction"
    for body, note in notes.items():
        wanted = topic == DELAYED or resolution_of(body, note) is Resolution.COMMIT
        count = copies.pop(body, 0)
        told = f"{body!r} is there {count} times, send {note.outcome}, wish {note.wish.name}, {note.ended=}"
        if count > 1 or (count and not wanted) or (count == 0 and wanted and note.outcome == "ok"):
            found.append(Finding(kind, told))
        elif count and note.outcome == "none":
            found.append(Finding(kind, f"{told}, and was refused"))
    return found + [Finding("phantom", f"{body!r} in {topic}") for body in copies]


UNDELIVERED = {GROUPS[topic]: topic for topic in QUEUES} | {READER: PLAIN}
