"""EndTransaction at the nameserver: asks the masters of the topic, until one knows the transaction.

Most SDKs end a transaction at the broker that has it; Rust's does so at its access point. A transaction's id
names no broker, so they are asked one after the other. A decision that is repeated does no harm, so one that
gets no answer in time may be.
"""

import asyncio
from typing import Any

from whimbrel.deferred import Deferred
from whimbrel.errors import NotMaster, NotReady, Throttled, TopicNotFound, WhimbrelError
from whimbrel.model.names import check_topic
from whimbrel.model.route import Endpoint
from whimbrel.nameserver.recalls import ANSWER_S, PASSED_ON
from whimbrel.nameserver.registry import MASTER_ID, Registry
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.calls import MESSAGING, Outbound, perform
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import check_client_id

__all__ = ["ENDINGS_MAX", "Endings"]

ENDINGS_MAX = 256  # under way


class Endings:
    """The decisions that brokers have not answered yet."""

    def __init__(self, registry: Registry) -> None:
        """Take the tables."""
        self.registry = registry
        self.tasks: set[asyncio.Task[None]] = set()

    def end(self, call: Call, request: messaging.EndTransactionRequest, now: float) -> Deferred[Any]:
        """Hand a call on; `now` is the registry's time.

        Raises:
            TopicNotFound, NotReady: no master has the topic, or it may not be known yet.
            Throttled: too many are under way.
        """
        check_client_id(call)
        check_topic(request.topic.name)
        addresses = self.masters(request.topic.name, now)
        if len(self.tasks) >= ENDINGS_MAX:
            raise Throttled(f"{ENDINGS_MAX} transactions wait for brokers already")
        headers = [(name, call.metadata[name]) for name in PASSED_ON if call.metadata.get(name)]
        outbound = Outbound(
            MESSAGING + "EndTransaction",
            request.SerializeToString(),
            lambda answers, _: messaging.EndTransactionResponse.FromString(answers[0]),
        )
        deferred: Deferred[Any] = Deferred()
        task = asyncio.get_running_loop().create_task(self.relay(addresses, outbound, headers, deferred))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return deferred

    def masters(self, topic: str, now: float) -> list[str]:
        """Return where the masters of a topic serve."""
        found = []
        for entry in self.registry.route(topic, now):
            address = entry.broker.address
            if entry.broker.id == MASTER_ID:
                explicit = address.advertised_host if address.advertised_explicitly else ""
                host = explicit or address.peer_host or address.host_name
                found.append(str(Endpoint(host, address.port)))
        if not found:
            if not self.registry.settled(now):
                raise NotReady("this nameserver has just started, and does not know all brokers yet")
            raise TopicNotFound(f"no master has the topic {topic} now")
        return found

    async def relay(
        self,
        addresses: list[str],
        outbound: Outbound[Any],
        headers: list[tuple[str, str]],
        deferred: Deferred[Any],
    ) -> None:
        """Ask one after the other, and answer with what the one says that knows the transaction."""
        reason = ""
        answer: Any = None
        try:
            for address in addresses:
                try:
                    async with open_aio_channel(address) as channel:
                        answer = await perform(channel, outbound, headers, ANSWER_S)
                except WhimbrelError as error:
                    reason = f"{address}: {error}"
                    continue
                if answer.status.code != v2.INVALID_TRANSACTION_ID:
                    deferred.complete(answer)
                    return
            if not reason:  # all say that they do not know it, or that it was decided otherwise
                deferred.complete(answer)
        finally:  # also when the task is cancelled
            deferred.fail(NotMaster(f"a broker has not answered the end of the transaction: {reason}"))
