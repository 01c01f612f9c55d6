"""Asks brokers where their queues stand, with retries.

A nameserver knows the brokers; each broker group is asked once, its members in the order that `readFrom`
gives. A group of which no member answers is left out: its queues stay where they are, and are asked for again
the next time. If no group answers, that is an error, after as many tries as the options say; when a query
begins, at the latest after FIRST_CONTACT_S for each nameserver: somebody waits for it, and the address may be
wrong.

An exception that leaves a stream reader ends its query, so retrying is done here.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from whimbrel.errors import NotSupported, WhimbrelError
from whimbrel.model.cluster import BrokerStatus
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.wire import CLIENT_ID_HEADER, LANGUAGE_HEADER, PROTOCOL_HEADER, PROTOCOL_V2
from whimbrel.rpc.api import bulk_calls
from whimbrel.rpc.api.bulk_calls import BrokerQueues, TopicQueues
from whimbrel.rpc.api.calls import perform_blocking, query_offset
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark import nameservers
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions, parse
from whimbrel.spark.planning import Extent, NotThere

__all__ = ["HEADERS", "BrokerAddresses", "Brokers", "NoBroker", "queue_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
ReadFrom = Literal["slave", "master", "any"]
BrokerAddresses = dict[str, tuple[str, ...]]  # by broker name: its members, in the order they are asked
HEADERS = ((CLIENT_ID_HEADER, "spark"), (LANGUAGE_HEADER, "PYTHON"), (PROTOCOL_HEADER, PROTOCOL_V2))
FIRST_CONTACT_S = 3.0  # of trying, for each nameserver: as long as all tries take that are refused at once
RECORD_BYTES = 1024.0  # of a broker that has none yet


class NoBroker(RuntimeError):
    """No broker could be asked."""


class Brokers:
    """The brokers that some nameservers know."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.subscription is not None, "brokers are asked for topics"
        self.options, self.subscription = options, options.subscription

    @classmethod
    def at(cls, servers: str) -> "Brokers":
        """Return the brokers of some nameservers, for calls that are about no topic in particular."""
        return cls(parse({"servers": servers, "subscribePattern": ".*"}))

    def extents(self, *, first_contact: bool) -> tuple[dict[Key, Extent], BrokerAddresses, frozenset[str]]:
        """Return where the queues stand now of the brokers that answer, where each broker is asked, and which
        brokers did not answer.

        Raises:
            NoBroker: no broker answered, after all tries.
            NotThere: no broker has a topic that is named.
        """
        within_s = FIRST_CONTACT_S * len(self.options.servers) if first_contact else math.inf
        return self.retried("looking at the cluster", self.extents_once, within_s=within_s)

    def extents_once(self) -> tuple[dict[Key, Extent], BrokerAddresses, frozenset[str]]:
        """Do the same without retrying."""
        addresses = self.addresses()
        extents: dict[Key, Extent] = {}
        unreachable, topics_seen = [], set()
        failure: WhimbrelError | None = None
        for name, members in addresses.items():
            try:
                queues = self.describe_queues(members)
            except WhimbrelError as error:
                unreachable.append(name)
                failure = error
                logger.warning("broker %s does not answer, its queues wait: %s", name, error)
                continue
            for topic in self.subscribed(queues.topics):
                topics_seen.add(topic.name)
                extents |= self.extents_of_topic(topic, queues)
        if failure is not None and len(unreachable) == len(addresses):
            raise failure
        missing = [name for name in self.subscription.named if name not in topics_seen]
        if missing and not unreachable:
            raise NotThere(f"no broker has the topic {', '.join(missing)}; `whimbrel topic list` shows them")
        return extents, addresses, frozenset(unreachable)

    def addresses(self) -> BrokerAddresses:
        """Return where each broker is asked, as `readFrom` says.

        Raises:
            WhimbrelError: no nameserver answers, or none knows a broker.
        """
        read_from = self.options.read_from
        return {name: ordered(members, read_from) for name, members in self.members().items()}

    def members(self) -> dict[str, list[BrokerStatus]]:
        """Return the registered masters and slaves by broker name; errors as in `addresses`."""
        found: dict[str, list[BrokerStatus]] = {}
        for broker in nameservers.describe_any(self.options.servers, self.options.timeout_s).brokers:
            found.setdefault(broker.broker_name, []).append(broker)
        return found

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

        Raises:
            NoBroker: a queue's broker does not answer, after all tries.
        """
        found: Positions = {}
        for name in sorted({key[1] for key in keys}):
            mine = [key for key in keys if key[1] == name]
            found |= self.retried(
                f"looking for {at_ms} in the queues of {name}",
                lambda name=name, mine=mine: self.query_offsets(addresses.get(name, ()), mine, at_ms),  # type: ignore[misc]
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
