"""RecallMessage at the nameserver: hands the call on to the master of the broker that the handle names.

Most SDKs recall at their access point, Go and C++ at any broker, and brokers ask a nameserver for the one
that is meant. Its answer goes back as it is. A recall that is repeated does no harm, so one that gets no
answer in time may be.
"""

import asyncio
from typing import Any

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotMaster, NotReady, Throttled, WhimbrelError
from whimbrel.model.names import check_topic
from whimbrel.model.recall import RecallHandle
from whimbrel.model.route import Endpoint
from whimbrel.model.wire import CLIENT_ID_HEADER, CLIENT_PEER_HEADER, NAMESPACE_HEADER
from whimbrel.nameserver.registry import MASTER_ID, Registry
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.calls import MESSAGING, Outbound, perform
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import check_client_id

__all__ = ["RECALLS_MAX", "Recalls"]

RECALLS_MAX = 256  # under way
ANSWER_S = 6.0  # a broker that waits for its disk or its slaves answers within 5 s
PASSED_ON = (CLIENT_ID_HEADER, NAMESPACE_HEADER)


class Recalls:
    """The recalls that brokers have not answered yet."""

    def __init__(self, registry: Registry) -> None:
        """Take the tables."""
        self.registry = registry
        self.tasks: set[asyncio.Task[None]] = set()

    def recall(self, call: Call, request: messaging.RecallMessageRequest, now: float) -> Deferred[Any]:
        """Hand a call on; `now` is the registry's time.

        Raises:
            BadRequest: the handle is none, or names no broker that is known.
            NotMaster, NotReady: that broker has no master now, or may not be known yet.
            Throttled: too many are under way.
        """
        check_client_id(call)
        check_topic(request.topic.name)
        address = self.master(RecallHandle.decode(request.recall_handle).broker_name, now)
        if len(self.tasks) >= RECALLS_MAX:
            raise Throttled(f"{RECALLS_MAX} recalls wait for brokers already")
        headers = [(name, call.metadata[name]) for name in PASSED_ON if call.metadata.get(name)]
        headers.append((CLIENT_PEER_HEADER, call.metadata.get(CLIENT_PEER_HEADER) or call.peer))
        outbound = Outbound(
            MESSAGING + "RecallMessage",
            request.SerializeToString(),
            lambda answers, _: messaging.RecallMessageResponse.FromString(answers[0]),
        )
        deferred: Deferred[Any] = Deferred()
        task = asyncio.get_running_loop().create_task(self.relay(address, outbound, headers, deferred))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return deferred

    def master(self, name: str, now: float) -> str:
        """Return where a broker's master serves."""
        members = self.registry.holders(name)
        if not members:
            if not self.registry.settled(now):
                raise NotReady("this nameserver has just started, and does not know all brokers yet")
            raise BadRequest(f"the recall handle names the broker {name}, which nobody knows")
        if members[0].broker.id != MASTER_ID:
            raise NotMaster(f"broker {name} has no master now")
        address = members[0].broker.address
        explicit = address.advertised_host if address.advertised_explicitly else ""
        return str(Endpoint(explicit or address.peer_host or address.host_name, address.port))

    async def relay(
        self, address: str, outbound: Outbound[Any], headers: list[tuple[str, str]], deferred: Deferred[Any]
    ) -> None:
        """Make one call, and answer with what comes back."""
        reason = "this nameserver stops"
        try:
            async with open_aio_channel(address) as channel:
                deferred.complete(await perform(channel, outbound, headers, ANSWER_S))
        except WhimbrelError as error:
            reason = str(error)
        finally:  # also when the task is cancelled
            deferred.fail(NotMaster(f"the broker at {address} has not answered the recall: {reason}"))
