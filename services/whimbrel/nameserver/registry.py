"""The route tables and the rules of registration. Pure: times (monotonic seconds) are passed in.

RocketMQ's five tables, and their counterparts:

    clusterAddrTable     `clusters`: cluster -> broker names
    brokerAddrTable      `groups`: broker name -> cluster, and the holder of each broker id
    brokerLiveTable      `live`: session -> the last state that the broker has sent, and when
    topicQueueTable      `topics`: topic -> broker name -> queues
    filterServerTable    gone: filters run in the broker

A session is one stream of one broker. It has the part of RocketMQ's registered address and its connection:

    register ──the place is free, or was this broker's──► holds (name, id) ──leave, expire──► gone
        │                                                     ▲        │
        └──another broker has it──► holds nothing ──renewal,──┘        └──lose──► gone, the place is kept
                                    or any answer, once it is free                until the lease ends

Who has a place keeps it for as long as it lives: of two masters with one name the first one writes, however
often either reconnects, and the other one is told who has the place. To live is to have a lease. A broker
whose stream breaks without a word is out of the routes at once, but its place is kept for it until its lease
would have ended: it may have lost no more than the network. After that, and at once when it took its leave,
the place is anybody's who asks for it.

- A broker is *the same* if it is the same process (`instance`, a text that it draws when it starts) or has
  the same address: a broker that starts again takes its place at once, since nothing else can listen where it
  did. Brokers of earlier versions have no instance; of them the address alone counts. The late end of an
  older stream removes nothing.
- A nameserver that has just started has forgotten who had which place. Until it is settled, a broker that
  says it held the place takes it from one that does not.
- One address is held under one id: a slave that comes back as master loses its old place.
- A master's table counts when its version changed, or when it is new in its place; it then replaces what the
  nameserver knew of that broker name. (RocketMQ only ever adds; there, topics are deleted at each nameserver
  by hand. Here the broker decides, as with 5.x's `deleteTopicWithBrokerRegistration`.)
- A broker tells its table whole, or what has changed in it since a version. A change counts only when that is
  the version which is known of this session; else the whole table is asked for. It costs what it changes.
- A slave's table counts only while its group has no master, and adds only: it may lag behind the lost
  master's. A group without a master is routed to its lowest slave id, under id 0 and without the write bit
  (5.x's acting master).
- With the last member of a group the group's topics go, too. `absences` keeps its name with theirs, as it
  does who else is away; routes do not show it.

**Groups that elect their leader.** Its members say how many of them vote (`voters`), each under its own id
(`member_id`), and in which *epoch* they lead or follow. Elections need no nameserver: here it only shows who
won. The leader registers as master, under id 0, the others under their member ids; a member that becomes
leader says so in its session, as any change of a registration.

- As master, a higher epoch takes the place from a lower one at once, whether the holder lives or the place is
  kept. A lower epoch never takes it, not even a free place: the highest one that had the place is remembered
  as long as anybody of that name is registered. Equal epochs, as those of fixed pairs, which are 0, go by the
  rules above.
- While nobody holds place 0, routes keep the write bit, and topics that a send would make, as long as more
  than half of as many as vote hold their places: an election takes a second or two, and an SDK that asked
  meanwhile would take the topic for read-only until it asks again, 30 s later. With fewer, nobody will be
  elected, and the group is one without a master.
- A route entry names all members that hold a place, the leader first: each of them takes calls for it.

The rest goes for all groups again.

- An operator may take the write bit of a broker name out of its routes by RocketMQ's tools (205, 327). That
  lasts until it is put back, or until the session ends that has the master's place, or its group is gone; a
  member that leads next within the same sessions changes nothing. (RocketMQ: until the broker registers with
  another table, which any new topic there causes.) Nothing else goes by it: brokers take what comes.
- A route lists every queue. What it costs is bounded by `ROUTE_QUEUES_MAX` over all brokers of a topic; one
  with more is refused, since a part of its queues would hide messages.

For one renewal period after its start a nameserver is not *settled*: living brokers may still be missing, so
that "no such topic" would be a guess. One that was told how many brokers there are is settled as soon as so
many hold a place, masters and slaves alike. A session without a place does not count, so two brokers of one
name do not stand for two. When a broker never comes, the renewal period still ends the wait, and what is
settled stays so, whoever leaves.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from whimbrel.errors import BadRequest, Forbidden, NotReady, TopicNotFound
from whimbrel.model.group_record import majority
from whimbrel.model.limits import AUTO_QUEUES, ROUTE_QUEUES_MAX, TOPICS_MAX
from whimbrel.model.names import TEMPLATE_TOPIC, is_system_topic
from whimbrel.model.topic import INHERIT, WRITE, MessageType
from whimbrel.nameserver.absences import Absences
from whimbrel.nameserver.addresses import BrokerAddress

__all__ = [
    "KEPT_PLACES_MAX",
    "MASTER_ID",
    "BrokerIdentity",
    "QueueCounts",
    "Registry",
    "Route",
    "RouteEntry",
    "TopicsChange",
    "Update",
]

MASTER_ID = 0
KEPT_PLACES_MAX = 1024  # beyond, the place of a broker that is lost is free at once

# Types of topics that take messages of a message group. Transactions stay with the broker of their half.
GROUPED = frozenset((MessageType.FIFO.value, MessageType.MIXED.value))

Session = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """A topic's queues on one broker."""

    read_queues: int
    write_queues: int
    permission: int
    message_type: str = "NORMAL"
    system_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """A broker's registration.

    Attributes:
        instance: names the process; empty when the broker is of an earlier version.
        epoch, member_id, voters: in a group that elects its leader, else 0; see `model/registration.py`.
    """

    cluster: str
    name: str
    id: int
    master: bool
    address: BrokerAddress
    ha_address: str = ""
    instance: str = ""
    epoch: int = 0
    member_id: int = 0
    voters: int = 0

    @property
    def votes(self) -> bool:
        """Whether it is a member of a group that elects its leader."""
        return self.voters > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChange:
    """What has changed in a broker's table.

    Attributes:
        base: the version that it leads on from.
        topics: those that were added, or are others now.
        deleted: those that are gone; none of `topics`.
    """

    base: tuple[int, int]
    topics: dict[str, QueueCounts]
    deleted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One request of a session.

    Attributes:
        broker: set on the first request, and when something in it changed.
        topics: the whole table; None when it is not included.
        change: what has changed in it, in place of the whole.
        version: of the table: time and counter.
        held_place: on the first request: the broker had its place when its last session broke.
    """

    broker: BrokerIdentity | None = None
    topics: dict[str, QueueCounts] | None = None
    change: TopicsChange | None = None
    version: tuple[int, int] = (0, 0)
    log_begin: int = 0
    log_end: int = 0
    writable: bool = False
    held_place: bool = False


@dataclass(slots=True)
class LiveSession:
    """A live session.

    Attributes:
        version: of the table that counts; None before the first one.
        topics_wanted: a change was about another version, and the whole table has not come since.
    """

    session: Session
    broker: BrokerIdentity
    renewed_at: float
    log_begin: int = 0
    log_end: int = 0
    writable: bool = False
    version: tuple[int, int] | None = None
    topics: dict[str, QueueCounts] = field(default_factory=dict)
    topics_wanted: bool = False
    held_place: bool = False


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """The place of a broker that is lost, kept for it until its lease would have ended."""

    broker: BrokerIdentity
    until: float


@dataclass(slots=True)
class Group:
    """A master and its slaves."""

    cluster: str
    holders: dict[int, Session] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry:
    """The queues of a topic on one broker, with the write bit as it counts now.

    Attributes:
        members: who else takes calls for the broker: the members of its group that hold a place, the leader
            first, then by id. Empty in a group that elects nobody.
    """

    broker: BrokerIdentity
    queues: QueueCounts
    members: tuple[BrokerIdentity, ...] = ()


Route = tuple[RouteEntry, ...]


class Registry:
    """The tables. Session keys are the caller's, who also closes streams and sends updates.

    Args:
        lease_s: how long a registration lives without a renewal.
        renew_s: how often brokers are asked to renew.
        started: when this nameserver began to serve.
        expected_brokers: how many brokers there are; 0 when that is not known.
    """

    def __init__(self, *, lease_s: float, renew_s: float, started: float, expected_brokers: int = 0) -> None:
        self.lease_s = lease_s
        self.renew_s = renew_s
        self.started = started
        self.expected_brokers = expected_brokers
        self.complete = False  # all that are expected have held a place at one time
        self.clusters: dict[str, set[str]] = {}
        self.groups: dict[str, Group] = {}
        self.live: dict[Session, LiveSession] = {}
        self.absences = Absences(same_broker)
        self.kept: dict[tuple[str, int], KeptPlace] = {}  # by name and id
        # By name: who had the master's place in the highest epoch, as long as anybody has a session.
        self.leaders: dict[str, BrokerIdentity] = {}
        self.topics: dict[str, dict[str, QueueCounts]] = {}
        self.topic_changes = 0  # counts what may change which topics there are, where, and with which flags
        self.wiped: set[str] = set()  # names whose write bit an operator has taken out of routes
        # Called when a broker name has lost a topic.
        self.on_dropped: Callable[[str], None] = nobody_asks
        # Counts what may change which topics brokers share: changes of the groups' membership, whole tables,
        # and changes of topics that several brokers have.
        self.sharing_changes = 0

    def settled(self, now: float) -> bool:
        """Return whether every living broker has registered, or had the time to."""
        return self.complete or now - self.started >= self.renew_s

    def update(self, session: Session, update: Update, now: float) -> bool:
        """Apply a registration or a renewal; return whether the group's membership changed.

        Raises:
            BadRequest: the first request of a session has no registration, or an invalid one; or there are
                too many topics.
        """
        live = self.live.get(session)
        if live is None:
            if update.broker is None:
                raise BadRequest("the first request of a session carries no registration")
            live = self.live[session] = LiveSession(session, update.broker, now, held_place=update.held_place)
        changed = False
        if update.broker is not None and update.broker != live.broker:
            self.release(live)
            name, live.broker = live.broker.name, update.broker
            self.forget_leader(name)
            changed = True
        live.renewed_at = now
        live.log_begin, live.log_end, live.writable = update.log_begin, update.log_end, update.writable
        first = self.claim_place(live, now, registering=update.broker is not None)
        if update.change is not None:
            self.take_change(live, update.change, update.version)
        if update.topics is not None and (first or update.version != live.version or live.topics_wanted):
            live.topics, live.version, live.topics_wanted = update.topics, update.version, False
            self.apply_topics(live)
        elif first:
            self.apply_topics(live)
        if changed or first:
            self.sharing_changes += 1
        return changed or first

    def take_change(self, live: LiveSession, change: TopicsChange, version: tuple[int, int]) -> None:
        """Apply a change of a session's table, or have the whole table asked for."""
        if change.base != live.version:
            live.topics_wanted = True
            return
        added = sum(topic not in live.topics for topic in change.topics)
        gone = sum(topic in live.topics for topic in change.deleted)
        if (count := len(live.topics) + added - gone) > TOPICS_MAX:
            raise BadRequest(f"{count} topics: a broker has at most {TOPICS_MAX}; delete some")
        live.version = version
        counts = self.counts(live)
        for topic in change.deleted:
            if live.topics.pop(topic, None) is not None and counts and live.broker.id == MASTER_ID:
                self.drop_topic(live.broker.name, topic)
        for topic, queues in change.topics.items():
            live.topics[topic] = queues
            if counts:
                self.put_topic(live.broker.name, topic, queues)

    def claim_place(self, live: LiveSession, now: float, *, registering: bool) -> bool:
        """Put the session into its group, if it may be there; return whether it was not there before."""
        broker = live.broker
        group = self.groups.get(broker.name)
        session = None if group is None else group.holders.get(broker.id)
        if session == live.session or not self.may_take(live, session, now, registering=registering):
            return False
        self.kept.pop((broker.name, broker.id), None)
        if group is None:
            group = self.groups[broker.name] = Group(broker.cluster)
        self.clusters.setdefault(group.cluster, set()).add(broker.name)
        for other_id, other in tuple(group.holders.items()):
            if other_id != broker.id and same_address(self.live[other].broker, broker):
                del group.holders[other_id]
        group.holders[broker.id] = live.session
        self.absences.back(broker)
        self.topic_changes += 1
        if broker.id == MASTER_ID and broker.epoch:
            self.leaders[broker.name] = broker
        places = sum(len(each.holders) for each in self.groups.values())
        self.complete |= 0 < self.expected_brokers <= places
        return True

    def take_free_place(self, session: Session, now: float) -> bool:
        """Let a session that holds nothing take its place if that is free by now; return whether it was."""
        live = self.live[session]
        if not self.claim_place(live, now, registering=False):
            return False
        self.apply_topics(live)
        return True

    def may_take(self, live: LiveSession, holder: Session, now: float, *, registering: bool) -> bool:
        """Return whether a session may take its place from a holder; None when nobody holds it.

        A renewal takes a free place only, a registration also that of the same broker. Before all that, a
        master's epoch decides.
        """
        broker = live.broker
        if self.newer_leader(broker) is not None:
            return False
        if holder is None:
            kept = self.kept.get((broker.name, broker.id))
            if kept is None or kept.until < now:
                return True
            return supersedes(broker, kept.broker) or same_broker(kept.broker, broker)
        known = self.live[holder]
        if supersedes(broker, known.broker):
            return True
        if not registering:
            return False
        if same_broker(known.broker, broker):
            return True
        return live.held_place and not known.held_place and not self.settled(now)

    def newer_leader(self, broker: BrokerIdentity) -> BrokerIdentity | None:
        """Return who had, or claims, a master's place in a higher epoch than its own; None: nobody known."""
        if broker.id != MASTER_ID:
            return None
        kept = self.kept.get((broker.name, MASTER_ID))
        # One that claims it may have to wait until the place is no longer kept for somebody else.
        claims = [self.live[session].broker for session in self.sessions_of(broker.name)]
        for other in (self.leaders.get(broker.name), None if kept is None else kept.broker, *claims):
            if other is not None and other.id == MASTER_ID and other.epoch > broker.epoch:
                return other
        return None

    def forget_leader(self, name: str) -> None:
        """Forget who led a group, if none of its members has a session any more."""
        if name in self.leaders and not self.sessions_of(name):
            del self.leaders[name]

    def apply_topics(self, live: LiveSession) -> None:
        """Apply a session's whole table, as far as its role allows."""
        self.sharing_changes += 1
        self.topic_changes += 1
        if not self.counts(live):
            return
        name = live.broker.name
        if live.broker.id == MASTER_ID:
            self.drop_topics(name, keep=live.topics)
        for topic, queues in live.topics.items():
            self.topics.setdefault(topic, {})[name] = queues

    def counts(self, live: LiveSession) -> bool:
        """Return whether a session's table counts: it has its place, as master or as slave without one."""
        group = self.groups.get(live.broker.name)
        if group is None or group.holders.get(live.broker.id) != live.session:
            return False
        return live.broker.id == MASTER_ID or MASTER_ID not in group.holders

    def put_topic(self, name: str, topic: str, queues: QueueCounts) -> None:
        """Take note of a topic of a broker name."""
        self.topic_changes += 1
        brokers = self.topics.setdefault(topic, {})
        brokers[name] = queues
        self.sharing_changes += len(brokers) > 1

    def drop_topic(self, name: str, topic: str) -> None:
        """Forget a topic of a broker name; one without a broker vanishes."""
        self.topic_changes += 1
        brokers = self.topics.get(topic, {})
        self.sharing_changes += len(brokers) > 1
        brokers.pop(name, None)
        if not brokers:
            self.topics.pop(topic, None)
        self.on_dropped(topic)

    def drop_topics(self, name: str, keep: Collection[str] = ()) -> None:
        """Forget a broker name's topics but those to keep."""
        for topic in [
            topic for topic, brokers in self.topics.items() if name in brokers and topic not in keep
        ]:
            self.drop_topic(name, topic)

    def release(self, live: LiveSession) -> bool:
        """Take a session out of its place; return whether it held one."""
        name = live.broker.name
        group = self.groups.get(name)
        if group is None or group.holders.get(live.broker.id) != live.session:
            return False
        del group.holders[live.broker.id]
        self.sharing_changes += 1
        self.topic_changes += 1
        if not group.holders:
            self.wiped.discard(name)
            del self.groups[name]
            names = self.clusters[group.cluster]
            names.discard(name)
            if not names:
                del self.clusters[group.cluster]
            topics = frozenset(topic for topic, brokers in self.topics.items() if name in brokers)
            self.absences.miss_group(group.cluster, name, topics, live.renewed_at)
            self.drop_topics(name)
        elif live.broker.id == MASTER_ID:
            for other in self.holders(name):
                for topic, queues in other.topics.items():
                    self.topics.setdefault(topic, {}).setdefault(name, queues)
        return True

    def miss(self, session: Session, now: float, *, in_order: bool) -> None:
        """Note that a session's broker is away, if it has its place; to be called before it is removed.

        Args:
            session: of the broker.
            now: the time.
            in_order: it takes its leave. Then only a master is missed whose topics take messages: a drained
                one has left for good, and what a slave has its master has, too.
        """
        live = self.live.get(session)
        if live is None or self.holder(live.broker) is not live:
            return
        if in_order and not (live.broker.id == MASTER_ID and takes_messages(live)):
            return
        self.absences.miss(live.broker, now)

    def let_go(self, name: str) -> tuple[int, bool]:
        """Let go of a group that never comes back.

        Returns:
            How many brokers of it were away, and whether the group was, or had been let go of before.

        Raises:
            BadRequest: a member of it is registered.
        """
        if name in self.groups:
            raise BadRequest(f"{name} is registered: stop its master and its slaves first")
        return self.absences.forget(name), self.absences.forget_group(name)

    def leave(self, session: Session) -> bool:
        """Remove a session that takes its leave, or has expired; return whether its group changed."""
        live = self.live.pop(session, None)
        if live is None:
            return False
        released = self.release(live)
        if released and live.broker.id == MASTER_ID:
            self.wiped.discard(live.broker.name)
        self.forget_leader(live.broker.name)
        return released

    def lose(self, session: Session, now: float) -> bool:
        """Remove a session whose stream broke, and keep its place; returns as `leave` does."""
        live = self.live.get(session)
        if live is None or not self.leave(session):
            return False
        until = live.renewed_at + self.lease_s
        if now <= until and len(self.kept) < KEPT_PLACES_MAX:
            self.kept[live.broker.name, live.broker.id] = KeptPlace(live.broker, until)
        return True

    def expired(self, now: float) -> list[Session]:
        """Return the sessions whose lease is over; the caller ends and removes them."""
        self.kept = {place: kept for place, kept in self.kept.items() if now <= kept.until}
        self.absences.end_old(now)
        return [session for session, live in self.live.items() if live.renewed_at + self.lease_s < now]

    def prolong_leases(self, seconds: float) -> None:
        """Prolong all leases: the nameserver itself did not run for so long, and could receive no renewal."""
        for live in self.live.values():
            live.renewed_at += seconds
        self.kept = {place: replace(kept, until=kept.until + seconds) for place, kept in self.kept.items()}

    def holders(self, name: str) -> list[LiveSession]:
        """Return the members of a group by broker id."""
        group = self.groups.get(name)
        return [] if group is None else [self.live[group.holders[id_]] for id_ in sorted(group.holders)]

    def holder(self, broker: BrokerIdentity) -> LiveSession | None:
        """Return the session that holds a broker's name and id now."""
        group = self.groups.get(broker.name)
        session = None if group is None else group.holders.get(broker.id)
        return None if session is None else self.live[session]

    def occupant(self, broker: BrokerIdentity) -> BrokerIdentity | None:
        """Return who has a broker's name and id now: who holds the place, or for whom it is kept.

        Where nobody does, and a master may not have it all the same: who had it in a higher epoch.
        """
        live = self.holder(broker)
        if live is not None:
            return live.broker
        kept = self.kept.get((broker.name, broker.id))
        return self.newer_leader(broker) if kept is None else kept.broker

    def members(self, session: Session) -> list[LiveSession]:
        """Return the other members of a session's group, by broker id.

        Of brokers that share an id, one is no member to the other. In a group that elects its leader it is
        one if it has another member id: a leader's successor.
        """
        live = self.live[session]
        own = (live.broker.id, live.broker.member_id)
        return [
            other
            for other in self.holders(live.broker.name)
            if other.session != session
            and (other.broker.id != own[0] or (other.broker.votes and other.broker.member_id != own[1]))
        ]

    def sessions_of(self, name: str) -> list[Session]:
        """Return all sessions of a group, also those that hold nothing."""
        return [session for session, live in self.live.items() if live.broker.name == name]

    def brokers(self) -> Iterator[LiveSession]:
        """Yield the brokers that hold a place, by cluster, name and id."""
        for cluster in sorted(self.clusters):
            for name in sorted(self.clusters[cluster]):
                yield from self.holders(name)

    def shared_topics(self, session: Session) -> dict[str, dict[str, int]]:
        """Return the topics for message groups that a session's broker has and others have, too.

        Returns:
            By topic, the other broker names and how many queues may be written there.
        """
        live = self.live[session]
        name, shared = live.broker.name, {}
        if len(self.groups) < 2 or live.broker.id != MASTER_ID:
            return {}
        for topic, queues in live.topics.items():
            brokers = self.topics.get(topic, {})
            if queues.message_type in GROUPED and len(brokers) > (name in brokers):
                shared[topic] = {
                    other: found.write_queues if found.permission & WRITE else 0
                    for other, found in sorted(brokers.items())
                    if other != name
                }
        return shared

    def masters(self, session: Session) -> dict[str, BrokerIdentity | None]:
        """Return the master of each other broker name, by name; None where there are slaves only."""
        own = self.live[session].broker.name
        found: dict[str, BrokerIdentity | None] = {}
        for name in sorted(self.groups):
            first = next(iter(self.holders(name)))
            if name != own:
                found[name] = first.broker if first.broker.id == MASTER_ID else None
        return found

    def groups_without_master(self) -> int:
        """Return how many groups only slaves have registered; may be called from another thread."""
        return sum(MASTER_ID not in group.holders for group in list(self.groups.values()))

    def peers(self) -> frozenset[str]:
        """Return the addresses from which brokers' sessions come."""
        return frozenset(live.broker.address.peer_host for live in self.live.values())

    def route(self, topic: str, now: float) -> Route:
        """Return where a topic's queues are; for an unknown topic, where a send may create it.

        Raises:
            NotReady: the topic is unknown, but so may be a broker that has it.
            TopicNotFound: the topic is unknown.
            Forbidden: it has more queues than a route may list.
        """
        entries = self.known_route(topic)
        if entries:
            check_route(topic, entries)
            return entries
        if not self.settled(now):
            raise NotReady("this nameserver has just started, and does not know all brokers yet")
        entries = tuple(self.entries(self.inherited()))
        if not entries:
            raise TopicNotFound(f"no topic {topic}{self.lack()}")
        return entries

    def known_route(self, topic: str) -> Route:
        """Return where a topic's queues are, however many these are; nothing for an unknown topic."""
        return tuple(self.entries(self.topics.get(topic, {}).items()))

    def addresses(self, broker: BrokerIdentity) -> dict[int, BrokerIdentity]:
        """Return who serves a broker's group, by the ids that clients of RocketMQ 4 know: 0 takes writes.

        Args:
            broker: of a route's entry: without a master it stands under 0, and under no id of its own
                (RocketMQ 5.3.3: RouteInfoManager, `supportActingMaster`).
        """
        others = (live.broker for live in self.holders(broker.name))
        return {MASTER_ID: broker} | {other.id: other for other in others if other != broker}

    def wipe_writes(self, name: str) -> int:
        """Take a broker name's write bit out of routes; return how many topics it has, 0 if it is unknown."""
        if name in self.groups:
            self.wiped.add(name)
        return self.count_topics(name)

    def restore_writes(self, name: str) -> int:
        """Put a broker name's write bit back; returns as `wipe_writes`."""
        self.wiped.discard(name)
        return self.count_topics(name)

    def count_topics(self, name: str) -> int:
        """Return how many topics a broker name has."""
        return sum(name in brokers for brokers in self.topics.values())

    def writable(self, name: str) -> bool:
        """Return whether a group has a master, or will have elected one soon."""
        if MASTER_ID in self.groups[name].holders:
            return True
        return elects([live.broker for live in self.holders(name)])

    def lack(self) -> str:
        """Return what else there is to know where a topic is not found, as the end of a sentence."""
        if not self.groups:
            return ", and no broker is registered with this nameserver"
        if self.groups_without_master() == len(self.groups):
            return ", and no master is registered with this nameserver"
        return ""

    def entries(self, queues_by_name: Iterable[tuple[str, QueueCounts]]) -> Iterator[RouteEntry]:
        """Yield route entries by broker name."""
        for name, queues in sorted(queues_by_name, key=lambda item: item[0]):
            found = [live.broker for live in self.holders(name)]
            if name in self.wiped or (found[0].id != MASTER_ID and not elects(found)):
                queues = replace(queues, permission=queues.permission & ~WRITE)
            members = members_of(found)
            first = found[0] if found[0].id == MASTER_ID or not members else members[0]
            yield RouteEntry(broker=first, queues=queues, members=members if first in members else ())

    def inherited(self) -> Iterator[tuple[str, QueueCounts]]:
        """Yield the queues that groups would give a new topic, if they have a template to inherit.

        Those are groups with a master, or that elect one.

        It takes messages of the first one's kind, so until then it takes all.
        """
        for name, template in self.topics.get(TEMPLATE_TOPIC, {}).items():
            if template.permission & INHERIT and self.writable(name):
                count = min(AUTO_QUEUES, template.write_queues)
                yield (
                    name,
                    QueueCounts(
                        read_queues=count,
                        write_queues=count,
                        permission=template.permission & ~INHERIT,
                        message_type=MessageType.MIXED.value,
                    ),
                )


def takes_messages(live: LiveSession) -> bool:
    """Return whether a broker has a topic of its users that takes messages."""
    return any(
        queues.permission & WRITE and queues.write_queues and not is_system_topic(topic)
        for topic, queues in live.topics.items()
    )


def nobody_asks(topic: str) -> None:
    """Do nothing about a topic that a broker name has lost."""


def check_route(topic: str, entries: Route) -> None:
    """Raise Forbidden when a topic has more queues, over all of its brokers, than a route may list."""
    queues = sum(max(entry.queues.read_queues, entry.queues.write_queues) for entry in entries)
    if queues > ROUTE_QUEUES_MAX:
        raise Forbidden(
            f"topic {topic} has {queues} queues on {len(entries)} brokers, and a route lists at most"
            f" {ROUTE_QUEUES_MAX}: give it fewer (`whimbrel topic update`)"
        )


def supersedes(broker: BrokerIdentity, holder: BrokerIdentity) -> bool:
    """Return whether a master takes its place from a holder whatever that one does."""
    return broker.id == MASTER_ID and broker.epoch > holder.epoch


def members_of(holders: list[BrokerIdentity]) -> tuple[BrokerIdentity, ...]:
    """Return the members among the holders of a group's places, the leader first, then by member id."""
    members = [broker for broker in holders if broker.votes]
    return tuple(sorted(members, key=lambda broker: (broker.id != MASTER_ID, broker.member_id)))


def elects(holders: list[BrokerIdentity]) -> bool:
    """Return whether the holders of a group's places are enough to elect a leader: more than half vote."""
    members = {broker.member_id: broker.voters for broker in holders if broker.votes}
    return bool(members) and len(members) >= majority(max(members.values()))


def same_address(one: BrokerIdentity, other: BrokerIdentity) -> bool:
    """Return whether two registrations come from one place."""
    return (one.address.peer_host, one.address.host_name, one.address.port) == (
        other.address.peer_host,
        other.address.host_name,
        other.address.port,
    )


def same_broker(one: BrokerIdentity, other: BrokerIdentity) -> bool:
    """Return whether two registrations are of one broker: of one process, or of one that started again."""
    return (bool(one.instance) and one.instance == other.instance) or same_address(one, other)
