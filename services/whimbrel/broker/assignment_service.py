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

from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.answers import CLIENT_PEER
from whimbrel.rpc.calls import MESSAGING, Metadata, Outbound
from whimbrel.rpc.handlers import Call, Deferred

__all__ = ["REMEMBERED_MAX", "Ask", "Assignments"]

REMEMBERED_MAX = 4096  # answers of some 300 bytes: topics times access points in use
NAMESPACE = "x-mq-namespace"
FORWARDED = ("x-mq-client-id", NAMESPACE)

Response = messaging.QueryAssignmentResponse

# Asks any nameserver, with these headers; None: none answers.
Ask = Callable[[Outbound[Response], Metadata], Awaitable[Response | None]]


class Assignments:
    """Asks nameservers, and remembers what they said."""

    def __init__(self, ask: Ask) -> None:
        """Take the way to a nameserver."""
        self._ask = ask
        self._remembered: dict[bytes, Response] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
        task = asyncio.get_running_loop().create_task(self._fetch(call, request, alone, deferred))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return deferred

    async def _fetch(
        self,
        call: Call,
        request: messaging.QueryAssignmentRequest,
        alone: Callable[[], Response | None],
        deferred: Deferred[Response],
    ) -> None:
        headers = [(name, call.metadata[name]) for name in FORWARDED if call.metadata.get(name)]
        headers.append((CLIENT_PEER, call.peer))
        payload = request.SerializeToString(deterministic=True)
        question = payload + call.metadata.get(NAMESPACE, "").encode()
        try:
            outbound = Outbound(MESSAGING + "QueryAssignment", payload, _decoded)
            response = await self._ask(outbound, headers)
            if response is not None and response.status.code == v2.OK:
                self._remember(question, response)
            elif response is None or response.status.code >= v2.INTERNAL_ERROR:  # it does not know yet
                response = self._remembered.get(question) or alone()
            if response is not None:
                deferred.complete(response)
        except WhimbrelError as error:
            deferred.fail(error)
        finally:  # also when the nameserver's channel was closed under the call, which cancels this task
            deferred.fail(NotReady("no nameserver says who serves this topic; ask again"))

    def _remember(self, question: bytes, response: messaging.QueryAssignmentResponse) -> None:
        self._remembered.pop(question, None)
        self._remembered[question] = response
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]


def _decoded(answers: Sequence[bytes], _: object) -> Response:
    return Response.FromString(answers[0])
