"""What a push consumer polls: asked of a broker, known to a nameserver.

SDKs ask different servers and name different endpoints in the request:

    Go              asks its access point (the nameserver)
    Java, Node.js   ask a broker of the route, and name the access point
    Python          asks a broker of the route, and names that broker

A broker knows neither the other brokers nor the address under which the caller dials it: were it to hand the
endpoints back, Java and Node.js would poll the nameserver. So it asks a nameserver the same question and
passes the answer on. SDKs drop and rebuild their queues when an answer differs from the one before, so while
no nameserver answers, the last answer to the same question stands.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.wire import CLIENT_ID_HEADER, CLIENT_PEER_HEADER, NAMESPACE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.calls import MESSAGING, Metadata, Outbound
from whimbrel.rpc.server.handlers import Call

__all__ = ["REMEMBERED_MAX", "Ask", "Assignments"]

REMEMBERED_MAX = 4096  # answers of some 300 bytes: topics times access points in use
FORWARDED = (CLIENT_ID_HEADER, NAMESPACE_HEADER)

Response = messaging.QueryAssignmentResponse

# Asks any nameserver, with these headers; None: none answers.
Ask = Callable[[Outbound[Response], Metadata], Awaitable[Response | None]]


class Assignments:
    """Asks nameservers, and remembers what they said."""

    def __init__(self, ask: Ask) -> None:
        """Take the way to a nameserver."""
        self.ask = ask
        self.remembered: dict[bytes, Response] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def answer(
        self,
        call: Call,
        request: messaging.QueryAssignmentRequest,
        alone: Callable[[], Response | None],
    ) -> Deferred[Response]:
        """Answer later, with what a nameserver says.

        Args:
            alone: gives this broker's own answer for when nobody else has one, or None.
        """
        deferred: Deferred[Response] = Deferred()
        task = asyncio.get_running_loop().create_task(self.fetch(call, request, alone, deferred))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return deferred

    async def fetch(
        self,
        call: Call,
        request: messaging.QueryAssignmentRequest,
        alone: Callable[[], Response | None],
        deferred: Deferred[Response],
    ) -> None:
        headers = [(name, call.metadata[name]) for name in FORWARDED if call.metadata.get(name)]
        headers.append((CLIENT_PEER_HEADER, call.peer))
        payload = request.SerializeToString(deterministic=True)
        question = payload + call.metadata.get(NAMESPACE_HEADER, "").encode()
        try:
            outbound = Outbound(MESSAGING + "QueryAssignment", payload, decoded)
            response = await self.ask(outbound, headers)
            if response is not None and response.status.code == v2.OK:
                self.remember(question, response)
            elif response is None or response.status.code >= v2.INTERNAL_ERROR:  # it does not know yet
                response = self.remembered.get(question) or alone()
            if response is not None:
                deferred.complete(response)
        except WhimbrelError as error:
            deferred.fail(error)
        finally:  # also when the nameserver's channel was closed under the call, which cancels this task
            deferred.fail(NotReady("no nameserver says who serves this topic; ask again"))

    def remember(self, question: bytes, response: messaging.QueryAssignmentResponse) -> None:
        self.remembered.pop(question, None)
        self.remembered[question] = response
        if len(self.remembered) > REMEMBERED_MAX:
            del self.remembered[next(iter(self.remembered))]


def decoded(answers: Sequence[bytes], _: object) -> Response:
    return Response.FromString(answers[0])
