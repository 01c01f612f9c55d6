"""A checker of histories: what clients sent and saw, and whether a broker may have behaved like that.

A history is a list of events in the order in which clients noted them. What a message is, its body says: an
id that no other message has. A send has one of four outcomes, by what its error says (`whimbrel.errors`,
`effect`):

    ok        acknowledged: the receipt names queue and offset
    stored    stored, but not as safe as asked (FlushTimeout, ReplicaTimeout)
    unknown   no answer, or one that says nothing: it may be stored, once or more often, now or later
    none      refused: nothing was stored

`check` returns findings of these kinds:

    lost          acknowledged, and not in any complete read; the caller says what may be gone (expired, or of
                  a deleted topic)
    aborted       read although its send was refused
    phantom       read, and never sent
    gone          read, and not in the complete read, though no broker lost its power; consumers may read what
                  no slave has yet, so this may be where a master is lost and a slave read in its place
    duplicate     at more than one place although no try of it had an unknown outcome
    moved         one place (topic, queue, offset) with two contents, or a receipt that names a place where
                  nothing is while its message lies at another one; what was not acknowledged may lose its
                  place to another message where power was lost
    order         two messages of one producer in one queue, the second sent after the first was acknowledged,
                  the other way round in the queue
    skip          a reader of a queue got an offset, then one further on, and something lies between that it
                  never got
    undelivered   acknowledged, and never delivered to a group (or read by a reader) that had time for all
    redelivered   delivered again to a group longer than `ack_window_s` after its acknowledgement was taken,
                  and no loss of power (`losses`) came so near to that that it may be forgotten. One shortly
                  before counts as well: a client notes an acknowledgement later than a broker takes it

Sources: the anomalies are those of public descriptions of tests of logs and queues (lost write, aborted read,
...).
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Finding", "History", "Outcome", "Place", "Sent", "outcome_of"]

Outcome = Literal["ok", "stored", "unknown", "none"]
Place = tuple[str, int, int]  # topic, queue id, queue offset


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not happen."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Sent:
    """A send.

    Attributes:
        began, ended: seconds; `ended` is infinite while there is no answer.
        tries_unknown: some try of it had an unknown outcome, so it may be stored more than once.
    """

    id: bytes
    producer: str
    topic: str
    began: float
    ended: float = float("inf")
    outcome: Outcome = "unknown"
    place: Place | None = None
    tries_unknown: bool = False


@dataclass(slots=True)
class Delivered:
    """A message that came to a member of a group."""

    group: str
    id: bytes
    place: Place
    at: float


@dataclass(slots=True)
class History:
    """What clients noted.

    Attributes:
        ack_window_s: how old an acknowledgement may be that a loss of power takes back; None: not checked.
        sends: by id.
        acked: by group and place, when acknowledgements were taken.
        reads: reader, place and id, in the order of each reader.
        losses: times at which a broker of the group lost power, or its disk.
        takeovers: times at which an elected leader was followed by another one: acknowledgements of consumers
            shortly before may be forgotten, as after a loss, and nothing else.
        jumps: by reader, topic and queue, the offsets [from, to) that it passed over since they had expired.
    """

    ack_window_s: float | None = None
    sends: dict[bytes, Sent] = field(default_factory=dict)
    deliveries: list[Delivered] = field(default_factory=list)
    acked: dict[tuple[str, Place], list[float]] = field(default_factory=lambda: defaultdict(list))
    reads: list[tuple[str, Place, bytes]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    jumps: dict[tuple[str, str, int], list[range]] = field(default_factory=lambda: defaultdict(list))

    # Notes

    def send(self, message: bytes, producer: str, topic: str, at: float) -> Sent:
        """Note that a send begins; what comes of it goes into what is returned."""
        sent = self.sends[message] = Sent(message, producer, topic, at)
        return sent

    def deliver(self, group: str, message: bytes, place: Place, at: float) -> None:
        """Note that a message was delivered to a member of a group."""
        self.deliveries.append(Delivered(group, message, place, at))

    def ack(self, group: str, place: Place, at: float) -> None:
        """Note that a group's acknowledgement was taken."""
        self.acked[group, place].append(at)

    def read(self, reader: str, place: Place, message: bytes) -> None:
        """Note what a reader of a queue got next."""
        self.reads.append((reader, place, message))

    def jump(self, reader: str, topic: str, queue_id: int, passed: range) -> None:
        """Note that a reader goes on at a queue's new begin."""
        self.jumps[reader, topic, queue_id].append(passed)

    @property
    def acknowledged(self) -> list[Sent]:
        """Sends that were answered OK."""
        return [sent for sent in self.sends.values() if sent.outcome == "ok"]

    def is_acknowledged(self, message: bytes) -> bool:
        """Return whether a message was sent, and answered OK."""
        sent = self.sends.get(message)
        return sent is not None and sent.outcome == "ok"

    @property
    def summary(self) -> str:
        """Return how much was noted, in words."""
        outcomes = Counter(sent.outcome for sent in self.sends.values())
        told = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        return (
            f"a history of {len(self.sends):,} sends ({told}), {len(self.deliveries):,} deliveries, "
            f"{len(self.reads):,} reads"
        )

    # Checks

    def check(
        self,
        *,
        complete: Iterable[tuple[Place, bytes]] | None = None,
        groups: Iterable[str] = (),
        gone: Container[bytes] = (),
    ) -> list[Finding]:
        """Return what must not have happened.

        Args:
            complete: places and contents of all that can be read in the end; None: nobody looked.
            groups: those, and readers, that had time to get everything.
            gone: messages that may be missing.
        """
        final = None if complete is None else list(complete)
        found = self.check_places(final or [])
        found += self.check_reads(final or [])
        found += self.check_order()
        if final is not None:
            there = {message for _, message in final}
            found += [
                Finding("lost", f"{sent.id!r}, acknowledged at {sent.ended:.3f} as {sent.place}")
                for sent in self.acknowledged
                if sent.id not in there and sent.id not in gone
            ]
            found += self.check_gone(there, gone)
        for group in groups:
            got = {delivery.id for delivery in self.deliveries if delivery.group == group}
            got |= {message for reader, _, message in self.reads if reader == group}
            found += [
                Finding("undelivered", f"{sent.id!r} to {group}")
                for sent in self.acknowledged
                if sent.id not in got and sent.id not in gone
            ]
        return found + self.check_skips(final or []) + self.check_redelivery()

    def seen(self, final: list[tuple[Place, bytes]]) -> Iterable[tuple[Place, bytes, str]]:
        """Yield all that anybody read: place, content, reader."""
        for delivery in self.deliveries:
            yield delivery.place, delivery.id, delivery.group
        for reader, place, message in self.reads:
            yield place, message, reader
        for place, message in final:
            yield place, message, "the end"

    def check_places(self, final: list[tuple[Place, bytes]]) -> list[Finding]:
        """One place has one content; a receipt names it; nothing is stored twice without a reason."""
        found = []
        content: dict[Place, bytes] = {}
        places: dict[bytes, set[Place]] = defaultdict(set)
        told = set()
        kept, stored = {place for place, _ in final}, {message for _, message in final}
        moved = set()
        for sent in self.acknowledged:
            if sent.place is None:
                continue
            known = content.setdefault(sent.place, sent.id)
            if known != sent.id:
                told.add((sent.place, sent.id))
                found.append(Finding("moved", f"{sent.place} is {known!r}, and {sent.id!r} by its receipt"))
            if sent.id in stored and sent.place not in kept:
                moved.add(sent.id)
                found.append(Finding("moved", f"{sent.id!r} is not at {sent.place}, which its receipt names"))
            places[sent.id].add(sent.place)
        for place, message, reader in self.seen(final):
            known = content.setdefault(place, message)
            places[message].add(place)
            # What nobody was told is stored may be read, and then lost with the power.
            if self.losses and not (self.is_acknowledged(known) and self.is_acknowledged(message)):
                continue
            if known != message and (place, message) not in told:
                told.add((place, message))
                found.append(Finding("moved", f"{place} is {known!r}, and {message!r} to {reader}"))
        for message, where in places.items():
            sent_as = self.sends.get(message)
            if (
                len(where) > 1
                and message not in moved
                and sent_as is not None
                and not sent_as.tries_unknown
                and sent_as.outcome != "unknown"
            ):
                found.append(Finding("duplicate", f"{message!r} at {sorted(where)}"))
        return found

    def check_reads(self, final: list[tuple[Place, bytes]]) -> list[Finding]:
        """What is read was sent, and its send not refused."""
        found = {}
        for place, message, reader in self.seen(final):
            sent = self.sends.get(message)
            if sent is None:
                found[message] = Finding("phantom", f"{message[:60]!r} at {place} to {reader}")
            elif sent.outcome == "none" and not sent.tries_unknown:
                found[message] = Finding("aborted", f"{message!r} at {place} to {reader}")
        return list(found.values())

    def check_gone(self, there: set[bytes], gone: Container[bytes]) -> list[Finding]:
        """What was read is still there; what was acknowledged and is not counts as lost."""
        if self.losses:
            return []
        return [
            Finding("gone", f"{message!r} at {place}, which {reader} got")
            for message, (place, reader) in {
                message: (place, reader) for place, message, reader in self.seen([])
            }.items()
            if message not in there and message not in gone
            if message in self.sends and not self.is_acknowledged(message)
        ]

    def check_order(self) -> list[Finding]:
        """Messages of one producer that were sent one after the other stand so in their queue.

        A receipt's place is that of the try which was answered, so earlier tries change nothing.
        """
        found = []
        queues: dict[tuple[str, str, int], list[tuple[int, Sent]]] = defaultdict(list)
        for sent in self.acknowledged:
            if sent.place is not None:
                queues[sent.producer, sent.place[0], sent.place[1]].append((sent.place[2], sent))
        for queue, members in queues.items():
            latest = None  # of those before in the queue, the one that began last
            for offset, sent in sorted(members, key=lambda member: member[0]):
                if latest is not None and sent.ended < latest.began:
                    found.append(
                        Finding("order", f"{sent.id!r} stands at {offset} of {queue}, behind {latest.id!r}")
                    )
                if latest is None or sent.began > latest.began:
                    latest = sent
        return found

    def check_skips(self, final: list[tuple[Place, bytes]]) -> list[Finding]:
        """A reader of a queue passes nothing over."""
        found = []
        there = {place for place, _ in final}
        there |= {sent.place for sent in self.acknowledged if sent.place is not None}
        got = {(reader, place) for reader, place, _ in self.reads}
        last: dict[tuple[str, str, int], int] = {}
        for reader, (topic, queue, offset), _ in self.reads:
            key = (reader, topic, queue)
            before = last.get(key)
            if before is not None:
                passed = self.jumps.get(key, [])
                between = (
                    (topic, queue, number)
                    for number in range(before + 1, offset)
                    if not any(number in one for one in passed)
                )
                missed = [place[2] for place in between if place in there and (reader, place) not in got]
                if missed:
                    found.append(
                        Finding(
                            "skip",
                            f"{reader} got {before}, then {offset} of {topic}/{queue}: not {missed[:5]}",
                        )
                    )
            last[key] = offset
        return found

    def check_redelivery(self) -> list[Finding]:
        """What was acknowledged long ago does not come again."""
        if self.ack_window_s is None:
            return []
        return [
            Finding(
                "redelivered",
                f"{delivery.id!r} to {delivery.group} at {delivery.at:.3f}, acknowledged at {acked:.3f}",
            )
            for delivery in self.deliveries
            for acked in self.acked.get((delivery.group, delivery.place), ())
            if delivery.at - acked > self.ack_window_s
            and not any(abs(acked - loss) < self.ack_window_s for loss in (*self.losses, *self.takeovers))
        ]


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a send that failed: unknown where the error says nothing of its effect."""
    match str(getattr(error, "effect", "unknown")):
        case "none":
            return "none"
        case "stored":
            return "stored"
    return "unknown"
