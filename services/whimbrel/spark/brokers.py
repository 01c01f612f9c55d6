"""Asks brokers where their queues stand, with retries.

A nameserver knows the brokers, and which groups were there and are absent. Each group's master is asked
where its queues end: what is confirmed is confirmed by it, and a slave may lag. Without a master's answer the
slaves say as far as they know.

    away    by group: it is absent and had something that is read; no member answers; its master does not

Who reads everything (a batch, an AvailableNow query, a job) gets an error that names those who are away,
after as many tries as the options say, or with `allowPartial` what is there and who is away, to be told. A
stream goes on: the queues of who is away stay where they are, and are asked for again the next time. If no
group answers, that is an error in any case; when a query begins, at the latest after FIRST_CONTACT_S for each
nameserver: somebody waits for it, and the address may be wrong.

An exception that leaves a stream reader ends its query, so retrying is done here.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

from whimbrel.errors import NotSupported, Unavailable, WhimbrelError
from whimbrel.model.cluster import AbsentGroup, BrokerStatus, Cluster
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.wire import CLIENT_ID_HEADER, LANGUAGE_HEADER, PROTOCOL_HEADER, PROTOCOL_V2
from whimbrel.rpc.api import bulk_calls
from whimbrel.rpc.api.bulk_calls import BrokerQueues, TopicQueues
from whimbrel.rpc.api.calls import perform_blocking, query_offset
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark import nameservers
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions, parse
from whimbrel.spark.planning import Extent, Incomplete, NotThere

__all__ = ["HEADERS", "BrokerAddresses", "Brokers", "NoBroker", "QueuesSeen", "away_text", "queue_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
ReadFrom = Literal["slave", "master", "any"]
BrokerAddresses = dict[str, tuple[str, ...]]  # by broker name: its members, in the order they are asked
HEADERS = ((CLIENT_ID_HEADER, "spark"), (LANGUAGE_HEADER, "PYTHON"), (PROTOCOL_HEADER, PROTOCOL_V2))
FIRST_CONTACT_S = 3.0  # of trying, for each nameserver: as long as all tries take that are refused at once
RECORD_BYTES = 1024.0  # of a broker that has none yet
UNKNOWN = "some brokers"  # stands for those that a nameserver may not know yet


class NoBroker(RuntimeError):
    """No broker could be asked."""


@dataclass(frozen=True, slots=True)
class QueuesSeen:
    """Where queues stand.

    Attributes:
        extents: of the brokers that answer.
        addresses: where each broker is asked.
        away: by broker name, why what it has is not known whole; under UNKNOWN, why brokers may be missing.
    """

    extents: dict[Key, Extent]
    addresses: BrokerAddresses
    away: dict[str, str]


class Brokers:
    """The brokers that some nameservers know."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.subscription is not None, "brokers are asked for topics"
        self.options, self.subscription = options, options.subscription

    @classmethod
    def at(cls, servers: str) -> "Brokers":
        """Return the brokers of some nameservers, for calls that are about no topic in particular."""
        return cls(parse({"servers": servers, "subscribePattern": ".*"}))

    def extents(self, *, first_contact: bool, whole: bool = True, known: Collection[str] = ()) -> QueuesSeen:
        """Return where the queues stand now.

        Args:
            first_contact: a query begins.
            whole: nothing may be left out, unless the options allow it.
            known: brokers that had some of what is read: one that is not registered is away.

        Raises:
            NoBroker: no broker answered, after all tries.
            Incomplete: `whole`, and some broker can't be asked, after all tries.
            NotThere: no broker has a topic that is named.
        """
        within_s = FIRST_CONTACT_S * len(self.options.servers) if first_contact else math.inf
        partial: list[QueuesSeen] = []  # the newest one; empty when the newest try failed

        def look() -> QueuesSeen:
            partial.clear()
            seen = self.extents_once(known)
            if seen.away if whole else first_contact and UNKNOWN in seen.away:
                partial.append(seen)
                raise Unavailable(away_text(seen.away))
            return seen

        try:
            return self.retried("looking at the cluster", look, within_s=within_s)
        except NoBroker:
            if not partial:
                raise
        (seen,) = partial
        if not self.options.allow_partial:
            raise incomplete(seen.away)
        return seen

    def extents_once(self, known: Collection[str] = ()) -> QueuesSeen:
        """Do the same without retrying."""
        cluster = self.cluster()
        groups = grouped(cluster.brokers)
        away = self.absent(cluster, known)
        seen = QueuesSeen({}, {name: self.order(members) for name, members in groups.items()}, away)
        answered, topics_seen = 0, set()
        failure: WhimbrelError | None = None
        for name, members in groups.items():
            try:
                queues, trouble = self.queues_of(members)
            except WhimbrelError as error:
                away[name] = f"no member of it answers: {error}"
                failure = error
                continue
            answered += 1
            topics = self.subscribed(queues.topics)
            if trouble and topics:
                away[name] = trouble
            for topic in topics:
                topics_seen.add(topic.name)
                seen.extents.update(self.extents_of_topic(topic, queues))
        if failure is not None and not answered:
            raise failure
        missing = [name for name in self.subscription.named if name not in topics_seen]
        if missing and not away:
            raise NotThere(f"no broker has the topic {', '.join(missing)}; `whimbrel topic list` shows them")
        return seen

    def queues_of(self, members: Sequence[BrokerStatus]) -> tuple[BrokerQueues, str]:
        """Return a group's queues as its master knows them, and why it could not be asked; "" when it was.

        Raises:
            WhimbrelError: no member answers, or there is none of the kind that `readFrom` names.
        """
        order = self.order(members)
        masters = ordered(members, "master")
        try:
            queues, trouble = self.describe_queues(masters if order else ()), ""
        except WhimbrelError as error:
            why = str(error) if masters else "none is registered"
            slaves = tuple(address for address in order if address not in masters)
            if not slaves:
                raise
            queues, trouble = (
                self.describe_queues(slaves),
                f"its master does not answer ({why}): slaves may lag",
            )
        return queues, trouble

    def absent(self, cluster: Cluster, known: Collection[str]) -> dict[str, str]:
        """Return which brokers are away that had something of what is read, and why."""
        there = {broker.broker_name for broker in cluster.brokers}
        away = dict.fromkeys(sorted(set(known) - there - cluster.forgotten), "it is not registered")
        for group in cluster.absent_groups:
            if group.broker_name in known or self.had(group):
                away[group.broker_name] = f"no member of it is registered{since(group)}"
        if not cluster.settled:
            away[UNKNOWN] = "the nameserver has just started, and may not know all of them yet"
        return away

    def had(self, group: AbsentGroup) -> bool:
        """Return whether a group had a topic that is read; it counts as one that had if that is not known."""
        own = {group.broker_name, group.cluster}  # topics of RocketMQ, on each broker
        named = self.subscription.named
        return group.topics is None or any(
            self.options.reads_topic(topic) for topic in group.topics if topic not in own or topic in named
        )

    def addresses(self) -> BrokerAddresses:
        """Return where each broker is asked, as `readFrom` says.

        Raises:
            WhimbrelError: no nameserver answers, or none knows a broker.
        """
        return {name: self.order(members) for name, members in self.members().items()}

    def order(self, members: Sequence[BrokerStatus]) -> tuple[str, ...]:
        """Return where a group is asked, as `readFrom` says."""
        return ordered(members, self.options.read_from)

    def cluster(self) -> Cluster:
        """Return what a nameserver says; errors as in `addresses`."""
        return nameservers.describe_any(self.options.servers, self.options.timeout_s)

    def members(self) -> dict[str, list[BrokerStatus]]:
        """Return the registered masters and slaves by broker name; errors as in `addresses`."""
        return grouped(self.cluster().brokers)

    def master_end(self, key: Key) -> int | None:
        """Return where the master's queue ends; None when no master of its name answers."""
        topic, name, queue_id = key
        try:
            queues = self.describe_queues(ordered(self.members().get(name, ()), "master"))
        except WhimbrelError as error:
            logger.warning("the master of %s does not answer: %s", name, error)
            return None
        for found in queues.topics:
            for queue in found.queues:
                if (found.name, queue.queue_id) == (topic, queue_id):
                    return queue.max_offset
        return None

    def offsets_by_time(self, keys: Sequence[Key], at_ms: int, addresses: BrokerAddresses) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end.

        Masters are asked, as for the ends; the other addresses where no master is registered.

        Raises:
            NoBroker: a queue's broker does not answer, after all tries.
        """
        found: Positions = {}
        for name in sorted({key[1] for key in keys}):
            mine = [key for key in keys if key[1] == name]
            found |= self.retried(
                f"looking for {at_ms} in the queues of {name}",
                lambda name=name, mine=mine: self.query_offsets(  # type: ignore[misc]
                    ordered(self.members().get(name, ()), "master") or addresses.get(name, ()), mine, at_ms
                ),
            )
        return found

    def query_offsets(self, addresses: Sequence[str], keys: Sequence[Key], at_ms: int) -> Positions:
        """Return the same of one broker's queues, from the first member that answers.

        Raises:
            WhimbrelError: none answers.
        """

        def query(address: str) -> Positions:
            calls = {key: query_offset(queue_of(key, address), at_ms / 1000) for key in keys}
            with open_channel(address) as channel:
                return {
                    key: perform_blocking(channel, call, HEADERS, self.options.timeout_s)
                    for key, call in calls.items()
                }

        return first_answer(addresses, query)

    def retried(self, what: str, call: Callable[[], T], *, within_s: float = math.inf) -> T:
        """Return what `call` returns; it is repeated as often as the options say.

        Args:
            within_s: no try begins later than that.

        Raises:
            NoBroker: it failed each time, or can't succeed.
        """
        began, failure, tries = time.monotonic(), "", 0
        while tries <= self.options.retries:
            if tries:
                if time.monotonic() + self.options.retry_s - began > within_s:
                    break
                time.sleep(self.options.retry_s)
            tries += 1
            try:
                return call()
            except NotSupported as error:
                raise NoBroker(f"option servers: {error}; name the nameserver, as HOST:PORT") from None
            except WhimbrelError as error:
                failure = str(error)
                level = logging.WARNING if math.isinf(within_s) else logging.INFO  # else the last one is told
                logger.log(level, "%s failed (try %d): %s", what, tries, failure)
        raise NoBroker(
            f"no broker could be asked through {', '.join(self.options.servers)} ({tries}"
            f" {'try' if tries == 1 else 'tries'} in {time.monotonic() - began:.1f} s): {failure};"
            " is the cluster running, and is `servers` its nameserver's address?"
        ) from None

    def describe_queues(self, addresses: Sequence[str]) -> BrokerQueues:
        """Return the queues of a broker, from the first member that answers.

        Raises:
            WhimbrelError: none answers.
        """

        def query(address: str) -> BrokerQueues:
            # All topics: one that is named need not be on this broker.
            call = bulk_calls.describe_queues((), include_system=True)
            with bulk_calls.open_bulk_channel(address) as channel:
                return perform_blocking(channel, call, (), self.options.timeout_s)

        return first_answer(addresses, query)

    def subscribed(self, topics: Sequence[TopicQueues]) -> list[TopicQueues]:
        """Return the topics that are read."""
        wants = self.subscription.wants_topic
        include = self.options.include_system
        return [topic for topic in topics if wants(topic.name, system=topic.system, include_system=include)]

    def extents_of_topic(self, topic: TopicQueues, broker: BrokerQueues) -> dict[Key, Extent]:
        """Return where a topic's queues on one broker stand."""
        confirmed = self.options.isolation == "confirmed"
        messages = sum(queue.max_offset - queue.min_offset for each in broker.topics for queue in each.queues)
        log_bytes = broker.log_written - broker.log_begin
        record_bytes = log_bytes / messages if messages and log_bytes else RECORD_BYTES
        return {
            (topic.name, broker.broker_name, queue.queue_id): Extent(
                queue.min_offset, queue.confirmed_offset if confirmed else queue.max_offset, record_bytes
            )
            for queue in topic.queues
            if self.subscription.wants_queue(topic.name, queue.queue_id)
        }


def grouped(brokers: Sequence[BrokerStatus]) -> dict[str, list[BrokerStatus]]:
    """Return masters and slaves by broker name."""
    found: dict[str, list[BrokerStatus]] = {}
    for broker in brokers:
        found.setdefault(broker.broker_name, []).append(broker)
    return found


def since(group: AbsentGroup) -> str:
    """Return since when a group is absent, as the end of a sentence; "" when that is not known."""
    if group.renewed_at is None:
        return ""
    return datetime.fromtimestamp(group.renewed_at, UTC).strftime(" since %Y-%m-%dT%H:%M:%SZ")


def away_text(away: Mapping[str, str]) -> str:
    """Return who is away and why, for people."""
    return "; ".join(f"{name}: {why}" for name, why in sorted(away.items()))


def incomplete(away: Mapping[str, str]) -> Incomplete:
    """Return the error for brokers that are away."""
    names = [name for name in sorted(away) if name != UNKNOWN]
    forget = f"if it never comes back, `whimbrel broker forget {names[0]}` lets go of it; " if names else ""
    return Incomplete(
        f"not all that is to be read can be asked for: {away_text(away)}. Start it, or wait, and try again;"
        f" {forget}allowPartial=true (--allow-partial of a job) reads what is there"
    )


def first_answer(addresses: Sequence[str], query: Callable[[str], T]) -> T:
    """Return what `query` returns for the first address that answers.

    Raises:
        WhimbrelError: none answers.
    """
    failure = WhimbrelError("no member of the kind that readFrom names is there")
    for address in addresses:
        try:
            return query(address)
        except WhimbrelError as error:
            failure = error
    raise failure


def queue_of(key: Key, address: str) -> Queue:
    """Return a queue as calls to one broker name it."""
    topic, broker, queue_id = key
    return Queue(
        topic=topic,
        broker_name=broker,
        broker_id=0,
        queue_id=queue_id,
        readable=True,
        writable=False,
        endpoints=(Endpoint.parse(address),),
    )


def ordered(members: Sequence[BrokerStatus], read_from: ReadFrom) -> tuple[str, ...]:
    """Return the addresses in the order in which they are asked: slaves first, unless only masters are."""
    masters = [member.address for member in members if member.broker_id == 0]
    slaves = [member.address for member in members if member.broker_id]
    if read_from == "master":
        return tuple(masters)
    return tuple(slaves if read_from == "slave" else slaves + masters)
