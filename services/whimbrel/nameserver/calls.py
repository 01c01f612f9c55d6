"""Calls of clients at the nameserver that are for brokers: they are handed on to masters.

    RecallMessage    the master of the broker that the handle names. Most SDKs recall at their access point,
                     Go and C++ at any broker, and brokers ask a nameserver for the one that is meant.
    EndTransaction   the topic's masters one after the other, until one knows the transaction: its id names no
                     broker. Most SDKs end one at the broker that has it, Rust's at its access point.

Either may be repeated without harm, so one that gets no answer in time may be.
"""

from typing import Any

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotMaster, NotReady, TopicNotFound
from whimbrel.model.names import check_topic
from whimbrel.model.recall import RecallHandle
from whimbrel.model.route import Endpoint
from whimbrel.nameserver.registry import MASTER_ID, BrokerIdentity, Registry
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_HOLDER, Forwarder, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import check_client_id

__all__ = ["CallsForBrokers"]


class CallsForBrokers:
    """Finds the brokers that such calls are for."""

    def __init__(self, registry: Registry, forwarder: Forwarder) -> None:
        """Take the tables, and what hands calls on."""
        self.registry, self.forwarder = registry, forwarder

    def recall(self, call: Call, request: messaging.RecallMessageRequest, now: float) -> Deferred[Any]:
        """Hand a call on; `now` is the registry's time.

        Raises:
            BadRequest: the handle is none, or names no broker that is known.
            NotMaster, NotReady: that broker has no master now, or may not be known yet.
            Throttled: too many are under way.
        """
        check_client_id(call)
        check_topic(request.topic.name)
        target = self.master(RecallHandle.decode(request.recall_handle).broker_name, now)
        return self.forwarder.forward(
            call, request, [target], TO_HOLDER, messaging.RecallMessageResponse.FromString
        )

    def end(self, call: Call, request: messaging.EndTransactionRequest, now: float) -> Deferred[Any]:
        """Hand a decision on; `now` is the registry's time.

        Raises:
            TopicNotFound, NotReady: no master has the topic, or it may not be known yet.
            Throttled: too many are under way.
        """
        check_client_id(call)
        check_topic(request.topic.name)
        return self.forwarder.forward(
            call,
            request,
            self.masters(request.topic.name, now),
            TO_HOLDER,
            messaging.EndTransactionResponse.FromString,
            accept=lambda answer: answer.status.code != v2.INVALID_TRANSACTION_ID,
        )

    def master(self, name: str, now: float) -> Target:
        """Return where a broker's master serves."""
        members = self.registry.holders(name)
        if not members:
            self.check_settled(now)
            raise BadRequest(f"the recall handle names the broker {name}, which nobody knows")
        if members[0].broker.id != MASTER_ID:
            raise NotMaster(f"broker {name} has no master now")
        return target_of(members[0].broker)

    def masters(self, topic: str, now: float) -> list[Target]:
        """Return where the masters of a topic serve."""
        brokers = (entry.broker for entry in self.registry.route(topic, now))
        found = [target_of(broker) for broker in brokers if broker.id == MASTER_ID]
        if not found:
            self.check_settled(now)
            raise TopicNotFound(f"no master has the topic {topic} now")
        return found

    def check_settled(self, now: float) -> None:
        """Raise NotReady while living brokers may not be known yet."""
        if not self.registry.settled(now):
            raise NotReady("this nameserver has just started, and does not know all brokers yet")


def target_of(broker: BrokerIdentity) -> Target:
    """Return where this nameserver reaches a broker."""
    address = broker.address
    explicit = address.advertised_host if address.advertised_explicitly else ""
    host = explicit or address.peer_host or address.host_name
    return Target(broker.name, str(Endpoint(host, address.port)))
