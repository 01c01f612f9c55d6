"""Who consumes and produces over the remoting protocol, and what consumer groups subscribe to.

    heartbeat (34) ──► registered ──unregister (35), or the end of its connection──► gone
                            '────silent for SILENT_S: its connection is to be closed──► gone

Members are told apart by their connection, as in RocketMQ: a client that connects anew stands here twice
until its old connection has ended, and `client_ids` names it once.

**The subscription of a group** to a topic is, of those that the newest heartbeats of its members name, the
one with the greatest version, whoever sent it; versions are times (Java: milliseconds, Go: nanoseconds). So
two members with different expressions or versions both pull, filtered by the newer expression, until the
one with the newer has gone. A topic is subscribed for as long as one member names it. In RocketMQ a heartbeat
removes topics that only others name, so members that differ take each other's away, and their pulls fail in
turn; and the expression of a member that has gone stays. Either is an accident of its table, not a promise.

Message model, consume type and where to begin are those of the last heartbeat, as in RocketMQ. What a client
says of the codes of its tags is not looked at: C++ and Go say other things than Java.

Pure: times are seconds of the monotonic clock, and arguments. All that strangers choose is bounded: members,
subscriptions of all members together, and the length of their names and expressions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from whimbrel.errors import IllegalFilter, Throttled

if TYPE_CHECKING:
    from whimbrel.store.scan import Filter

__all__ = [
    "MEMBERS_MAX",
    "PEER_GROUPS_MAX",
    "SILENT_S",
    "SUBSCRIPTIONS_MAX",
    "TEXT_CHARS_MAX",
    "ConsumerGroup",
    "Consumes",
    "Identity",
    "Member",
    "RemotingClients",
    "Subscription",
]

SILENT_S = 120.0  # RocketMQ's CHANNEL_EXPIRED_TIMEOUT; clients send a heartbeat each 30 s
MEMBERS_MAX = 50_000  # connections, counted once in each of their groups: some 50 MB
PEER_GROUPS_MAX = 1_024  # of one connection: a client has a few
SUBSCRIPTIONS_MAX = 200_000  # of all members together: some 60 MB
TEXT_CHARS_MAX = 32 * 1024 * 1024  # of their expressions

Kind = Literal["tag", "sql"]
Compile = Callable[[Kind, str], "Filter"]


class Subscription:
    """What a member, or a group, wants of a topic.

    Attributes:
        version: the greater, the newer.
        sql: whether the expression is SQL, and not tags.
        expression: its text.
    """

    __slots__ = ("compile", "compiled", "expression", "known", "sql", "topic", "version")

    def __init__(self, topic: str, version: int, expression: str, *, sql: bool, compile: Compile) -> None:
        self.topic, self.version = topic, version
        self.expression, self.sql = expression, sql
        self.compile, self.compiled = compile, False
        self.known: Filter | None = None

    @property
    def filter(self) -> "Filter | None":
        """What selects its messages; None where the expression does not compile.

        It is compiled when it is asked for: heartbeats are more than pulls that begin.
        """
        if not self.compiled:
            self.compiled = True
            try:
                self.known = self.compile("sql" if self.sql else "tag", self.expression)
            except IllegalFilter:
                self.known = None
        return self.known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[str, int, str, bool]:
        """All that tells it from others."""
        return self.topic, self.version, self.expression, self.sql

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.version}, {self.expression!r}, sql={self.sql})"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client says of itself; `language` and `version` are those of the command that said it."""

    client_id: str
    language: str
    version: int


@dataclass(slots=True, eq=False)
class Member:
    """One connection in a consumer or producer group.

    Attributes:
        last_seen: when its last heartbeat came.
        topics: of a consumer, what its newest heartbeat names.
    """

    peer: object
    identity: Identity
    last_seen: float
    topics: Mapping[str, Subscription] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumes:
    """What a heartbeat says of a consumer group, in RocketMQ's words.

    Attributes:
        topics: what the member subscribes to; None: what it did before (5.x: `withoutSub`).
    """

    group: str
    model: str = "CLUSTERING"
    kind: str = "CONSUME_PASSIVELY"
    begin: str = "CONSUME_FROM_LAST_OFFSET"
    topics: Mapping[str, Subscription] | None


class ConsumerGroup:
    """A consumer group with live members.

    Attributes:
        members: by their connections, the longest there first.
        model, kind, begin: as in `Consumes`, of the last heartbeat.
        subscriptions: by topic, those that count.
        naming: what members name, by topic and connection.
        ids_text: `client_ids` as it is sent, kept by who sends it; None once members are others.
    """

    __slots__ = ("begin", "ids_text", "kind", "members", "model", "name", "naming", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[object, Member] = {}
        self.model, self.kind, self.begin = "CLUSTERING", "CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET"
        self.subscriptions: dict[str, Subscription] = {}
        self.naming: dict[str, dict[object, Subscription]] = {}
        self.ids_text: bytes | None = None

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets all messages, and keeps its own offsets."""
        return self.model == "BROADCASTING"

    def subscription(self, topic: str) -> Subscription | None:
        """Return what the group wants of a topic; None where it does not subscribe to it."""
        return self.subscriptions.get(topic)

    def client_ids(self) -> list[str]:
        """Return the ids of all members, each once, by name."""
        return sorted({member.identity.client_id for member in self.members.values()})

    def name_topics(
        self, peer: object, before: Mapping[str, Subscription], topics: Mapping[str, Subscription]
    ) -> bool:
        """Take what a member names now instead of before; return whether a topic came or went."""
        changed = False
        for topic in before:
            if topic not in topics:
                changed |= self.drop_topic(peer, topic)
        for topic, one in topics.items():
            naming = self.naming.setdefault(topic, {})
            old, naming[peer] = naming.get(peer), one
            known = self.subscriptions.get(topic)
            if known is None or one.version >= known.version:
                self.subscriptions[topic] = one
            elif old is known:  # this member's was the newest, and is older now
                self.subscriptions[topic] = newest(naming)
            changed |= known is None
        return changed

    def drop_topic(self, peer: object, topic: str) -> bool:
        """Take note that a member names a topic no longer; return whether no other one does."""
        naming = self.naming[topic]
        gone = naming.pop(peer)
        if not naming:
            del self.naming[topic], self.subscriptions[topic]
            return True
        if self.subscriptions[topic] is gone:
            self.subscriptions[topic] = newest(naming)
        return False


def newest(naming: Mapping[object, Subscription]) -> Subscription:
    return max(naming.values(), key=lambda one: one.version)


class RemotingClients:
    """The members of all groups."""

    def __init__(self, compile: Compile) -> None:
        """Begin without members; `compile` reads filter expressions (`filters.compile_filter`)."""
        self.compile = compile
        self.groups: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[object, Member]] = {}
        self.joined: dict[object, dict[tuple[str, str], Member]] = {}  # by connection, ("consumer", group)
        self.clients: dict[str, dict[object, None]] = {}  # connections by client id, the newest last
        self.count = self.subscribed = self.chars = 0

    def __len__(self) -> int:
        """How many members there are, a connection counted once in each of its groups."""
        return self.count

    # What is known

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group; None where no member lives."""
        return self.groups.get(name)

    def producers_of(self, group: str) -> list[Member]:
        """Return the members of a producer group, those that joined last at the end."""
        return list(self.producers.get(group, {}).values())

    def connections_of(self, client_id: str) -> list[object]:
        """Return the connections of a client, the newest first."""
        return list(reversed(self.clients.get(client_id, {})))

    def knows(self, peer: object) -> bool:
        """Tell whether a connection is a member of any group."""
        return peer in self.joined

    def owns_positions(self, group: str) -> bool:
        """Tell whether live members decide where a group stands: in CLUSTERING, not in BROADCASTING."""
        found = self.groups.get(group)
        return found is not None and not found.broadcasting

    # What changes

    def subscription(self, topic: str, version: int, expression: str, *, sql: bool) -> Subscription:
        """Make one of a heartbeat's subscriptions."""
        return Subscription(topic, version, expression, sql=sql, compile=self.compile)

    def consumes(self, peer: object, identity: Identity, said: Consumes, now: float) -> bool:
        """Take what a heartbeat says of a consumer group.

        Returns:
            Whether the group's members are to be told (40): one is new, or a topic came or went.

        Raises:
            Throttled: there is no room for another member, or for what it subscribes to.
        """
        group = self.groups.get(said.group) or ConsumerGroup(said.group)
        known = group.members.get(peer)
        before: Mapping[str, Subscription] = {} if known is None else known.topics
        topics = before if said.topics is None else said.topics
        more, chars = len(topics) - len(before), size_of(topics) - size_of(before)
        self.check_room(peer, new=known is None, more=more, chars=chars)
        if known is None or known.identity != identity:
            group.ids_text = None
        member = self.join(("consumer", said.group), peer, identity, now)
        self.groups[said.group], group.members[peer] = group, member
        self.subscribed, self.chars = self.subscribed + more, self.chars + chars
        group.model, group.kind, group.begin = said.model, said.kind, said.begin
        changed = False
        if topics != before:
            # What is the same stays the same object, with its filter.
            member.topics = {
                name: found if (found := before.get(name)) == one else one for name, one in topics.items()
            }
            changed = group.name_topics(peer, before, member.topics)
        return changed or known is None

    def produces(self, peer: object, identity: Identity, group: str, now: float) -> None:
        """Take what a heartbeat says of a producer group.

        Raises:
            Throttled: there is no room for another member.
        """
        members = self.producers.get(group, {})
        self.check_room(peer, new=peer not in members, more=0, chars=0)
        members[peer] = self.join(("producer", group), peer, identity, now)
        self.producers[group] = members

    def check_room(self, peer: object, *, new: bool, more: int, chars: int) -> None:
        if new and len(self.joined.get(peer, ())) >= PEER_GROUPS_MAX:
            raise Throttled(f"this connection is in {PEER_GROUPS_MAX} groups, and can be in no more")
        if new and self.count >= MEMBERS_MAX:
            raise Throttled(f"this broker has {self.count} members of groups, and takes no more")
        if (more > 0 and self.subscribed + more > SUBSCRIPTIONS_MAX) or (
            chars > 0 and self.chars + chars > TEXT_CHARS_MAX
        ):
            raise Throttled(
                f"the members of groups have {self.subscribed} subscriptions here, no room for {more}"
            )

    def join(self, place: tuple[str, str], peer: object, identity: Identity, now: float) -> Member:
        """Return the member at a place, which is made if it is new, as it was seen now."""
        places = self.joined.setdefault(peer, {})
        member = places.get(place)
        if member is None:
            member = places[place] = Member(peer, identity, now)
            self.count += 1
        elif member.identity != identity:
            old, member.identity = member.identity, identity
            self.forget_client(old.client_id, peer)
        member.last_seen = now
        self.clients.setdefault(identity.client_id, {}).setdefault(peer)
        return member

    def forget_client(self, client_id: str, peer: object) -> None:
        """Forget that a connection is a client's, unless it is that in another group."""
        places = self.joined.get(peer, {})
        if any(member.identity.client_id == client_id for member in places.values()):
            return
        connections = self.clients.get(client_id)
        if connections is not None:
            connections.pop(peer, None)
            if not connections:
                del self.clients[client_id]

    def leave(self, peer: object, *, consumer: str = "", producer: str = "") -> str | None:
        """Take a connection out of groups; an empty name is none.

        Returns:
            The consumer group whose other members are to be told; None for nobody.
        """
        told = None
        if producer:
            self.remove(("producer", producer), peer)
        if consumer and self.remove(("consumer", consumer), peer) and consumer in self.groups:
            told = consumer
        return told

    def remove(self, place: tuple[str, str], peer: object) -> bool:
        """Remove a member; return whether there was one."""
        places = self.joined.get(peer)
        member = None if places is None else places.pop(place, None)
        if places is None or member is None:
            return False
        self.count -= 1
        kind, name = place
        if kind == "producer":
            members = self.producers[name]
            del members[peer]
            if not members:
                del self.producers[name]
        else:
            group = self.groups[name]
            del group.members[peer]
            group.ids_text = None
            self.subscribed -= len(member.topics)
            self.chars -= size_of(member.topics)
            for topic in member.topics:
                group.drop_topic(peer, topic)
            if not group.members:
                del self.groups[name]
        self.forget_client(member.identity.client_id, peer)
        if not places:
            del self.joined[peer]
        return True

    def closed(self, peer: object) -> list[str]:
        """Forget a connection that has ended; return the consumer groups whose members are to be told."""
        places = list(self.joined.get(peer, {}))
        told = []
        for place in places:
            self.remove(place, peer)
            if place[0] == "consumer" and place[1] in self.groups:
                told.append(place[1])
        return told

    def expire(self, now: float) -> tuple[list[str], list[object]]:
        """Forget members that are silent.

        Returns:
            The consumer groups whose members are to be told, and the connections that are to be closed: those
            that are no member of any group any more.
        """
        silent = [
            (place, peer)
            for peer, places in self.joined.items()
            for place, member in places.items()
            if now - member.last_seen > SILENT_S
        ]
        told: dict[str, None] = {}
        for place, peer in silent:
            self.remove(place, peer)
            if place[0] == "consumer":
                told[place[1]] = None
        gone = {peer: None for _, peer in silent if peer not in self.joined}
        return [group for group in told if group in self.groups], list(gone)

    def all_producers(self) -> Iterator[tuple[str, list[Member]]]:
        """Yield the producer groups by name, with their members."""
        for group in sorted(self.producers):
            yield group, self.producers_of(group)


def size_of(topics: Mapping[str, Subscription]) -> int:
    """Return how many characters the names and expressions of subscriptions have."""
    return sum(len(topic) + len(one.expression) for topic, one in topics.items())
