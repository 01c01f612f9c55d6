"""Who lives, and where queues stand: what planning asks of the cluster, with retries inside.

One question to a nameserver, then one to each broker group, of which the members are tried in the order that
`readFrom` gives. A group of which nobody answers is left out: its queues stay where they are, and the next
look tries again. Nobody at all is an error, after as many tries as the options say.

An exception that leaves a stream reader ends its query, so retrying is done here.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from whimbrel.errors import WhimbrelError
from whimbrel.model.cluster import BrokerStatus
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.wire import CLIENT_ID_HEADER, LANGUAGE_HEADER, PROTOCOL_HEADER, PROTOCOL_V2
from whimbrel.rpc.api import admin_calls, bulk_calls
from whimbrel.rpc.api.bulk_calls import BrokerQueues, TopicQueues
from whimbrel.rpc.api.calls import perform_blocking, query_offset
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions, parse
from whimbrel.spark.planning import Extent

__all__ = ["HEADERS", "Brokers", "Groups", "NoBroker", "Seen", "queue_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")
ReadFrom = Literal["slave", "master", "any"]
Groups = dict[str, tuple[str, ...]]  # broker name: addresses of its members, the one to ask first first
HEADERS = ((CLIENT_ID_HEADER, "spark"), (LANGUAGE_HEADER, "PYTHON"), (PROTOCOL_HEADER, PROTOCOL_V2))
RECORD_BYTES = 1024.0  # of a broker that has none yet


class NoBroker(RuntimeError):
    """Nobody could be asked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the cluster.

    Attributes:
        extents: of the queues that are read, of the brokers that answered.
        groups: where each broker group is asked.
        silent: groups of which nobody answered.
    """

    extents: dict[Key, Extent]
    groups: Groups
    silent: tuple[str, ...]


class Brokers:
    """The cluster behind some nameservers."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.subscription is not None, "brokers are asked for topics"
        self.options, self.subscription = options, options.subscription

    @classmethod
    def at(cls, servers: str) -> "Brokers":
        """Return those behind some nameservers, for other questions than what is read."""
        return cls(parse({"servers": servers, "subscribePattern": ".*"}))

    def look(self) -> Seen:
        """Return where the queues stand now.

        Raises:
            NoBroker: nobody answered, after all tries.
            LookupError: a topic that is named is nowhere.
        """
        return self.persisting("looking at the cluster", self.look_once)

    def look_once(self) -> Seen:
        """Look without retrying."""
        groups = self.groups()
        extents: dict[Key, Extent] = {}
        silent, topics_seen = [], set()
        failure: WhimbrelError | None = None
        for name, addresses in groups.items():
            try:
                queues = self.describe(addresses)
            except WhimbrelError as error:
                silent.append(name)
                failure = error
                log.warning("broker %s does not answer, its queues wait: %s", name, error)
                continue
            for topic in self.read_topics(queues.topics):
                topics_seen.add(topic.name)
                extents |= self.of_topic(topic, queues)
        if failure is not None and len(silent) == len(groups):
            raise failure
        missing = [name for name in self.subscription.named if name not in topics_seen]
        if missing and not silent:
            raise LookupError(
                f"no broker has the topic {', '.join(missing)}; `whimbrel topic list` shows them"
            )
        return Seen(extents, groups, tuple(silent))

    def groups(self) -> Groups:
        """Return where each broker group is asked.

        Raises:
            WhimbrelError: no nameserver answers, or none knows a broker.
        """
        read_from = self.options.read_from
        return {name: ordered(members, read_from) for name, members in self.members().items()}

    def members(self) -> dict[str, list[BrokerStatus]]:
        """Ask a nameserver who lives; errors as in `groups`."""
        failure: WhimbrelError | None = None
        for server in self.options.servers:
            host = re.sub(r":\d+$", "", server).strip("[]")
            try:
                with open_channel(server) as channel:
                    question = admin_calls.describe_cluster(host)
                    cluster = perform_blocking(channel, question, (), self.options.timeout_s)
            except WhimbrelError as error:
                failure = error
                continue
            found: dict[str, list[BrokerStatus]] = {}
            for broker in cluster.brokers:
                found.setdefault(broker.broker_name, []).append(broker)
            if found:
                return found
            failure = WhimbrelError("the nameserver knows no broker yet")
        assert failure is not None, "there is at least one server"
        raise failure

    def master_end(self, key: Key) -> int | None:
        """Return where the master's queue ends; None when no master of its name answers."""
        topic, name, queue_id = key
        try:
            queues = self.describe(ordered(self.members().get(name, ()), "master"))
        except WhimbrelError as error:
            log.warning("the master of %s does not answer: %s", name, error)
            return None
        for found in queues.topics:
            for queue in found.queues:
                if (found.name, queue.queue_id) == (topic, queue_id):
                    return queue.max_offset
        return None

    def offsets_by_time(self, keys: Sequence[Key], at_ms: int, groups: Groups) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end.

        Raises:
            NoBroker: a queue's group does not answer, after all tries.
        """
        found: Positions = {}
        for name in sorted({key[1] for key in keys}):
            mine = [key for key in keys if key[1] == name]
            found |= self.persisting(
                f"looking for {at_ms} in the queues of {name}",
                lambda name=name, mine=mine: self.ask_times(groups.get(name, ()), mine, at_ms),  # type: ignore[misc]
            )
        return found

    def ask_times(self, addresses: Sequence[str], keys: Sequence[Key], at_ms: int) -> Positions:
        """Ask the members of a group, the first one first.

        Raises:
            WhimbrelError: nobody answers.
        """
        failure = WhimbrelError("no member of the kind that readFrom names is there")
        timeout_s = self.options.timeout_s
        for address in addresses:
            try:
                with open_channel(address) as channel:
                    return {
                        key: perform_blocking(
                            channel, query_offset(queue_of(key, address), at_ms / 1000), HEADERS, timeout_s
                        )
                        for key in keys
                    }
            except WhimbrelError as error:
                failure = error
        raise failure

    def persisting(self, what: str, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, which is tried as often as the options say.

        Raises:
            NoBroker: it failed each time.
        """
        failure = ""
        for attempt in range(self.options.retries + 1):
            if attempt:
                time.sleep(self.options.retry_s)
            try:
                return ask()
            except WhimbrelError as error:
                failure = str(error)
                log.warning("%s failed (try %d): %s", what, attempt + 1, failure)
        raise NoBroker(
            f"no broker could be asked through {', '.join(self.options.servers)}: {failure};"
            " is the cluster running, and is `servers` its nameserver's address?"
        )

    def describe(self, addresses: Sequence[str]) -> BrokerQueues:
        """Ask the members of a group, the first one first.

        Raises:
            WhimbrelError: nobody answers.
        """
        failure = WhimbrelError("no member of the kind that readFrom names is there")
        for address in addresses:
            try:
                with bulk_calls.open_bulk_channel(address) as channel:
                    # All topics: one that is named and that this broker lacks is no error.
                    question = bulk_calls.describe_queues((), include_system=True)
                    return perform_blocking(channel, question, (), self.options.timeout_s)
            except WhimbrelError as error:
                failure = error
        raise failure

    def read_topics(self, topics: Sequence[TopicQueues]) -> list[TopicQueues]:
        """Return the topics that are read."""
        wants = self.subscription.wants_topic
        include = self.options.include_system
        return [topic for topic in topics if wants(topic.name, system=topic.system, include_system=include)]

    def of_topic(self, topic: TopicQueues, broker: BrokerQueues) -> dict[Key, Extent]:
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
    """Return the addresses to ask: slaves first, unless the master is wanted."""
    masters = [member.address for member in members if member.broker_id == 0]
    slaves = [member.address for member in members if member.broker_id]
    if read_from == "master":
        return tuple(masters)
    return tuple(slaves if read_from == "slave" else slaves + masters)
