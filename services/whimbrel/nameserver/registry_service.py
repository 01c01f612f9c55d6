"""`whimbrel.registry.v1.RegistryService`: the brokers' sessions, and the live brokers.

A session's end removes its broker at once. `tick`, called every second, ends the sessions whose lease is
over: a hung broker's stream stays open, but its renewals do not come. Changes of a group's membership are
sent to its other members.

Masters also learn which topics for message groups other brokers have, and where those brokers are: all of
them choose the queue of a group among all queues. That goes out when it changes, gathered by `tick`, and with
the answer to who has changed it. A change of a table that changes nothing of this has nobody look for it, so
what it costs does not grow with the number of topics.

Every field that a session sends is checked (`model/registration.py`) before anything of it is kept: a bad one
ends this session, with a sentence, and no other one. There are at most
`SESSIONS_MAX` sessions, and one that does not register within a lease ends.
"""

import logging
from collections.abc import Callable, Collection

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, Refused, Throttled
from whimbrel.model.limits import TOPICS_MAX
from whimbrel.model.names import check_broker_name
from whimbrel.model.registration import check_broker, check_log, check_queue_counts, check_topic_name
from whimbrel.model.route import WILDCARD_HOSTS, Endpoint, check_host
from whimbrel.model.topic import MessageType
from whimbrel.model.wire import REGISTRY_SERVICE
from whimbrel.nameserver.addresses import (
    Access,
    BrokerAddress,
    Meanings,
    access_of,
    dial_address,
    host_of,
    is_loopback,
    joined,
)
from whimbrel.nameserver.registry import (
    BrokerIdentity,
    QueueCounts,
    Registry,
    Session,
    TopicsChange,
    Update,
)
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.sessions import Sessions
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry_pb
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, Service, UnaryMethod

__all__ = ["SESSIONS_MAX", "RegistryService"]

TICK_S = 1.0
# A tick that is so late means that the nameserver itself hung: it could receive no renewal, and expires no
# lease yet.
TICK_LATE_S = 1.0
HA_WILDCARDS = WILDCARD_HOSTS | {"*"}  # of an HA address
SESSIONS_MAX = 1024  # a broker each; a cluster has some dozens
MESSAGE_TYPES = frozenset(kind.value for kind in MessageType)

logger = logging.getLogger(__name__)


class RegistryService:
    """The service; `service` is what to serve.

    Args:
        registry: the tables.
        own: gives the addresses of this machine's interfaces.
        resolver: knows what the names mean under which brokers and tools dial us.
        now: gives the registry's time, seconds of a monotonic clock.
        wall: gives seconds since the epoch.
        sessions: knows which producers can be asked.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        own: Callable[[], Collection[str]],
        resolver: Resolver,
        now: Callable[[], float],
        wall: Callable[[], float],
        sessions: Sessions,
    ) -> None:
        self.registry = registry
        self.own = own
        self.resolver = resolver
        self.now = now
        self.wall = wall
        self.streams: dict[Session, BrokerStream] = {}
        self.ticked_at: float | None = None
        self.sharing_stale = False  # somebody registered, left, or changed its topics since masters were told
        self.expired = 0  # expired leases since the start
        self.service = Service(
            REGISTRY_SERVICE,
            (
                BidiMethod("Session", registry_pb.SessionRequest, self.open_session),
                UnaryMethod("DescribeCluster", registry_pb.DescribeClusterRequest, self.describe_cluster),
                UnaryMethod("AskProducer", registry_pb.AskProducerRequest, sessions.ask_producer),
                UnaryMethod("ForgetBroker", registry_pb.ForgetBrokerRequest, self.forget_broker),
            ),
        )

    def open_session(self, call: Call, outbox: Outbox) -> "BrokerStream":
        """Take a new session."""
        if len(self.streams) >= SESSIONS_MAX:
            raise Throttled(f"this nameserver has {SESSIONS_MAX} sessions of brokers, and takes no more")
        return BrokerStream(self, call, outbox)

    def tick(self, now: float) -> None:
        """End the sessions whose lease is over."""
        late = 0.0 if self.ticked_at is None else now - self.ticked_at - TICK_S
        self.ticked_at = now
        if late > TICK_LATE_S:
            logger.warning("this nameserver did not run for %.1f s: all leases are prolonged by that", late)
            self.registry.prolong_leases(late)
        for session in self.registry.expired(now):
            live = self.registry.live[session]
            logger.warning(
                "%s did not renew for %.1f s and is removed", label(live.broker), now - live.renewed_at
            )
            self.expired += 1
            self.registry.miss(session, now, in_order=False)
            self.end(self.streams[session], f"no renewal came for {self.registry.lease_s:g} s")
        if self.sharing_stale:
            self.sharing_stale = False
            alone = len(self.registry.groups) < 2
            for session, live in self.registry.live.items():
                stream = self.streams[session]
                if live.broker.master and not (alone and (stream.told is None or not stream.told.masters)):
                    self.send_update(stream)
        for stream in [each for each in self.streams.values() if each not in self.registry.live]:
            if stream.opened_at + self.registry.lease_s < now:
                self.end(stream, f"no registration came for {self.registry.lease_s:g} s")

    def end(self, stream: "BrokerStream", reason: str) -> None:
        """End a session whose broker may register again."""
        stream.left = True
        self.remove(stream)
        stream.outbox.close(Refused(f"{reason}; register again"))

    def notify_settled(self) -> None:
        """Report to all sessions that this nameserver is settled: masters wait for that before they write."""
        for session, stream in self.streams.items():
            if session in self.registry.live:
                self.send_update(stream)

    def remove(self, stream: "BrokerStream") -> None:
        """Forget a session and notify its group."""
        self.streams.pop(stream, None)
        registry = self.registry
        live = registry.live.get(stream)
        if live is None:
            return
        self.sharing_stale = True
        name = live.broker.name
        wiped = name in registry.wiped
        registry.miss(stream, self.now(), in_order=stream.left)
        if registry.leave(stream) if stream.left else registry.lose(stream, self.now()):
            self.notify_group(name)
        if wiped and name not in registry.wiped:
            logger.warning("routes give %s its write bit again, since its session ended", name)

    def notify_group(self, name: str, *, leave_out: Session = None) -> None:
        """Send a group's membership to its sessions."""
        for session in self.registry.sessions_of(name):
            if session != leave_out:
                self.send_update(self.streams[session])

    def send_update(self, stream: "BrokerStream") -> None:
        """Send a session its state, once the name under which it dials us is resolved."""
        host = self.registry.live[stream].broker.address.nameserver_host

        def then(meanings: Meanings) -> None:
            if stream in self.registry.live:
                access = access_of([host], peer=stream.peer_host, own=self.own(), meanings=meanings)
                stream.outbox.send(self.update_for(stream, access))

        self.resolver.when_known([host], then)

    def update_for(self, session: Session, access: Access) -> registry_pb.SessionResponse:
        """Return a session's state, with addresses that it can dial."""
        own, live = self.own(), self.registry.live[session]
        response = registry_pb.SessionResponse(
            settled=self.registry.settled(self.now()),
            takes_changes=True,
            topics_wanted=live.topics_wanted,
        )
        response.lease.seconds, response.lease.nanos = split(self.registry.lease_s)
        response.renew_interval.seconds, response.renew_interval.nanos = split(self.registry.renew_s)
        if self.registry.take_free_place(session, self.now()):
            logger.info("%s takes the place, which is free now", label(live.broker))
        elif self.registry.holder(live.broker) is not live:
            other = self.registry.occupant(live.broker)
            assert other is not None, "a free place is taken"
            host, port = dial_address(other.address, access, own)
            response.displaced_by = joined(host, port)
        for member in self.registry.members(session):
            host, port = dial_address(member.broker.address, access, own)
            response.members.add(
                broker_id=member.broker.id,
                address=joined(host, port),
                ha_address=ha_address(member.broker, host),
                log_begin=member.log_begin,
                log_end=member.log_end,
                epoch=member.broker.epoch,
                member_id=member.broker.member_id,
            )
        self.tell_shared(session, response, access)
        return response

    def tell_shared(self, session: Session, response: registry_pb.SessionResponse, access: Access) -> None:
        """Add what a master shares with other brokers, if it was not told so before."""
        stream, own = self.streams[session], self.own()
        if not self.registry.live[session].broker.master:
            return
        if stream.changes_only and stream.told_at == self.registry.sharing_changes:
            return
        stream.told_at = self.registry.sharing_changes
        shared = registry_pb.SharedTopics()
        for topic, brokers in self.registry.shared_topics(session).items():
            added = shared.topics.add(topic=topic)
            for name, queues in brokers.items():
                added.brokers.add(broker_name=name, write_queues=queues)
        for name, master in self.registry.masters(session).items():
            address = "" if master is None else joined(*dial_address(master.address, access, own))
            shared.masters.add(broker_name=name, address=address)
        if shared != stream.told:
            stream.told = shared
            response.shared.CopyFrom(shared)

    def describe_cluster(
        self, call: Call, request: registry_pb.DescribeClusterRequest
    ) -> Deferred[registry_pb.DescribeClusterResponse]:
        """List the live brokers for a tool that reached this nameserver under `access_host`.

        Raises:
            BadRequest: that is no host; it would stand in the address of every broker.
        """
        try:
            check_host("access_host", request.access_host)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        peer = host_of(call.peer)
        host = request.access_host or (peer if is_loopback(peer) else "")
        deferred: Deferred[registry_pb.DescribeClusterResponse] = Deferred()

        def then(meanings: Meanings) -> None:
            access = access_of([host], peer=peer, own=self.own(), meanings=meanings)
            deferred.complete(self.cluster(access, absent_topics=request.absent_topics))

        self.resolver.when_known([host], then)
        return deferred

    def forget_broker(
        self, call: Call, request: registry_pb.ForgetBrokerRequest
    ) -> registry_pb.ForgetBrokerResponse:
        """Let go of a broker name, or one broker of it, that never comes back.

        Raises:
            BadRequest: a member of it is registered, and it is all of it that is meant; or that is no name.
        """
        try:
            check_broker_name("broker_name", request.broker_name)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        only = request.id if request.HasField("id") else None
        if only is None:
            absent, known = self.registry.let_go(request.broker_name)
        else:
            absent, known = self.registry.absences.forget(request.broker_name, only), False
        if known or absent:
            logger.info("%s is let go of: %d brokers of it were away", request.broker_name, absent)
        return registry_pb.ForgetBrokerResponse(absent=absent, known=known)

    def cluster(self, access: Access, *, absent_topics: bool) -> registry_pb.DescribeClusterResponse:
        """Return the live brokers, with addresses that the tool can dial, and who is away."""
        own, now, wall = self.own(), self.now(), self.wall()
        response = registry_pb.DescribeClusterResponse(settled=self.registry.settled(now))
        for live in self.registry.brokers():
            broker = live.broker
            host, port = dial_address(broker.address, access, own)
            seconds, nanos = split(wall - (now - live.renewed_at))
            described = response.brokers.add(
                cluster=self.registry.groups[broker.name].cluster,
                broker_name=broker.name,
                broker_id=broker.id,
                role=registry_pb.BROKER_ROLE_MASTER if broker.master else registry_pb.BROKER_ROLE_SLAVE,
                address=joined(host, port),
                ha_address=ha_address(broker, host),
                log_begin=live.log_begin,
                log_end=live.log_end,
                writable=live.writable,
                topic_count=len(live.topics),
                epoch=broker.epoch,
                member_id=broker.member_id,
            )
            described.renewed_at.seconds, described.renewed_at.nanos = seconds, nanos
        absences = self.registry.absences
        absences.end_old(now)
        for _, absence in sorted(absences.places.items()):
            away = response.absent.add(
                cluster=absence.broker.cluster,
                broker_name=absence.broker.name,
                broker_id=absence.broker.id,
                member_id=absence.broker.member_id,
            )
            away.since.seconds, away.since.nanos = split(wall - (now - absence.since))
        for group in absences.groups.values():
            told = response.absent_groups.add(
                cluster=group.cluster,
                broker_name=group.name,
                topics=sorted(group.topics or ()) if absent_topics else (),
                topics_unknown=group.topics is None,
            )
            seconds, nanos = split(wall - (now - group.renewed_at))
            told.renewed_at.seconds, told.renewed_at.nanos = seconds, nanos
        response.forgotten.extend(absences.forgotten)
        return response


class BrokerStream:
    """One session; also its key in the registry, so that two streams of one broker are never mixed up.

    Attributes:
        left: the broker took its leave, or was told to go: its place is not kept.
        told: what it shares with other brokers, as it was told last.
        told_at: as of which count of changes that was.
        changes_only: its last request was about changes of topics.
    """

    def __init__(self, service: RegistryService, call: Call, outbox: Outbox) -> None:
        self.service = service
        self.outbox = outbox
        self.peer_host = host_of(call.peer)
        self.opened_at = service.now()
        self.left = False
        self.told: registry_pb.SharedTopics | None = None
        self.told_at = -1
        self.changes_only = False
        service.streams[self] = self

    def received(self, message: registry_pb.SessionRequest) -> None:
        """Apply a registration or a renewal, and send the session's state."""
        if self.left:
            return  # sent while the lease expired; the broker registers again
        service = self.service
        registry = service.registry
        update = update_of(message, self.peer_host)
        now = service.now()
        was_settled = registry.settled(now)
        before = registry.sharing_changes
        changed = registry.update(self, update, now)
        live = registry.live[self]
        self.changes_only = update.change is not None
        if update.broker is not None:  # a member that becomes leader in its session knows nothing of before
            self.told, self.told_at = None, -1
        service.sharing_stale |= registry.sharing_changes != before
        if changed:
            logger.info(
                "%s registered from %s, port %d: %d topics, log %d to %d", label(live.broker), self.peer_host,
                live.broker.address.port, len(live.topics), live.log_begin, live.log_end,
            )  # fmt: skip
        if update.broker is not None:
            self.warn_of_duplicate(update.broker)
        if registry.settled(now) and not was_settled:
            logger.info("all %d brokers that are expected have registered", registry.expected_brokers)
            service.notify_settled()
            return
        service.send_update(self)
        if changed:
            service.notify_group(live.broker.name, leave_out=self)

    def warn_of_duplicate(self, broker: BrokerIdentity) -> None:
        """Log that another broker has this name and id."""
        registry = self.service.registry
        other = registry.occupant(broker)
        if registry.holder(broker) is registry.live[self] or other is None:
            return
        if other.epoch > broker.epoch:
            logger.info("%s registers, and %s leads or led the group", label(broker), label(other))
        else:
            logger.warning(
                "%s registers from %s while another one from %s has the place, and keeps it while it"
                " lives: two brokers must not share name and id",
                label(broker), self.peer_host, other.address.peer_host,
            )  # fmt: skip

    def half_closed(self) -> None:
        """End the session: the broker takes its leave."""
        self.left = True
        self.outbox.close()

    def closed(self) -> None:
        """Remove the broker at once."""
        live = self.service.registry.live.get(self)
        if live is not None:
            logger.info("%s is gone: its session ended", label(live.broker))
        self.service.remove(self)


def label(broker: BrokerIdentity) -> str:
    """Return a broker's name for the log."""
    named = f"{'master' if broker.master else 'slave'} {broker.name}/{broker.id}"
    return f"{named} (member {broker.member_id}, epoch {broker.epoch})" if broker.member_id else named


def split(seconds: float) -> tuple[int, int]:
    """Return whole seconds and nanoseconds."""
    nanos = round(seconds * 1e9)
    return nanos // 1_000_000_000, nanos % 1_000_000_000


def ha_address(broker: BrokerIdentity, host: str) -> str:
    """Return where a replicator is dialled; one on a wildcard address is where its broker is."""
    if not broker.ha_address:
        return ""
    replicator = Endpoint.parse(broker.ha_address)
    return joined(host, replicator.port) if replicator.host in HA_WILDCARDS else broker.ha_address


def update_of(message: registry_pb.SessionRequest, peer_host: str) -> Update:
    """Return a request as a value.

    Raises:
        BadRequest: one of its fields is invalid.
    """
    check_log(message.log_begin, message.log_end)
    return Update(
        broker=broker_of(message.registration, peer_host) if message.HasField("registration") else None,
        topics=topics_of(message.topics) if message.topics_included else None,
        change=change_of(message) if message.HasField("change_base") else None,
        version=(message.version.timestamp_ms, message.version.counter),
        log_begin=message.log_begin,
        log_end=message.log_end,
        writable=message.writable,
        held_place=message.held_place,
    )


def change_of(message: registry_pb.SessionRequest) -> TopicsChange:
    """Return what has changed in a topic table.

    Raises:
        BadRequest: a topic is invalid, or there are too many.
    """
    base, topics = message.change_base, topics_of(message.changed_topics)
    return TopicsChange(
        base=(base.timestamp_ms, base.counter),
        topics=topics,
        deleted=frozenset(message.deleted_topics).difference(topics),
    )


def topics_of(topics: Collection[registry_pb.TopicQueues]) -> dict[str, QueueCounts]:
    """Return a topic table; topics that differ in nothing but their names share their counts.

    Raises:
        BadRequest: a topic is invalid, or there are too many.
    """
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"{len(topics)} topics: a broker has at most {TOPICS_MAX}; delete some")
    table: dict[str, QueueCounts] = {}
    known: dict[tuple[int, int, int, str, int], QueueCounts] = {}
    for topic in topics:
        name, kind = topic.topic, topic.message_type
        check_topic_name(name)
        key = (topic.read_queues, topic.write_queues, topic.permission, kind, topic.system_flag)
        counts = known.get(key)
        if counts is None:
            counts = known[key] = queue_counts(name, topic)
        table[name] = counts
    return table


def queue_counts(name: str, topic: registry_pb.TopicQueues) -> QueueCounts:
    """Return a topic's queues.

    Raises:
        BadRequest: there can't be so many.
    """
    try:
        check_queue_counts(topic.read_queues, topic.write_queues, topic.permission)
    except BadRequest as error:
        raise BadRequest(f"topic {name}: {error}") from None
    kind = topic.message_type  # RocketMQ, too, takes an unknown one for NORMAL
    return QueueCounts(
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        message_type=kind if kind in MESSAGE_TYPES else MessageType.NORMAL.value,
        system_flag=topic.system_flag,
    )


def broker_of(registration: registry_pb.Registration, peer_host: str) -> BrokerIdentity:
    """Return a registration as a value.

    Raises:
        BadRequest: it is invalid.
    """
    master = registration.role == registry_pb.BROKER_ROLE_MASTER
    check_broker(
        cluster=registration.cluster,
        name=registration.broker_name,
        broker_id=registration.broker_id,
        master=master,
        port=registration.port,
        ha_address=registration.ha_address,
        hosts={
            "advertised_host": registration.advertised_host,
            "host_name": registration.host_name,
            "nameserver_host": registration.nameserver_host,
        },
        instance=registration.instance_id,
        epoch=registration.epoch,
        member_id=registration.member_id,
        voters=registration.voters,
    )
    return BrokerIdentity(
        cluster=registration.cluster,
        name=registration.broker_name,
        id=registration.broker_id,
        master=master,
        ha_address=registration.ha_address,
        instance=registration.instance_id,
        epoch=registration.epoch,
        member_id=registration.member_id,
        voters=registration.voters,
        address=BrokerAddress(
            advertised_host=registration.advertised_host,
            advertised_explicitly=registration.advertised_explicitly,
            port=registration.port,
            host_name=registration.host_name,
            nameserver_host=registration.nameserver_host,
            peer_host=peer_host,
        ),
    )
