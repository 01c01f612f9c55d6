"""Forwards QueryAssignment, the queues that a push consumer polls, from a broker to a nameserver.

SDKs send the call to different servers and name different endpoints in the request:

    Go              sends it to its access point (the nameserver)
    Java, Node.js   send it to a broker of the route, and name the access point
    Python          sends it to a broker of the route, and names that broker

A broker knows neither the other brokers nor the address under which the caller dials it. If it returned the
endpoints of the request, Java and Node.js would poll the nameserver. So it forwards the call to a nameserver
and returns that answer. SDKs drop and rebuild their queues when an answer differs from the one before, so
while no nameserver answers, the last answer to an equal request is returned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.wire import CLIENT_ID_HEADER, CLIENT_PEER_HEADER, LANGUAGE_HEADER, NAMESPACE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.calls import MESSAGING, Metadata, Outbound
from whimbrel.rpc.server.handlers import Call

__all__ = ["CACHED_MAX", "Ask", "Assignments"]

CACHED_MAX = 4096  # answers of some 300 bytes: topics times access points in use
ANSWERED_BY = (NAMESPACE_HEADER, LANGUAGE_HEADER)  # SDKs differ in how many addresses they can dial
FORWARDED = (CLIENT_ID_HEADER, *ANSWERED_BY)

Response = messaging.QueryAssignmentResponse

# Sends a call to any nameserver, with these headers; None when none answers.
Ask = Callable[[Outbound[Response], Metadata], Awaitable[Response | None]]


class Assignments:
    """Forwards to nameservers, and caches their answers."""

    def __init__(self, ask: Ask) -> None:
        """Take what sends a call to a nameserver."""
        self.ask = ask
        self.cached: dict[bytes, Response] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def answer(
        self,
        call: Call,
        request: messaging.QueryAssignmentRequest,
        own_answer: Callable[[], Response | None],
    ) -> Deferred[Response]:
        """Forward the call, and complete the answer later.

        Args:
            call: whose headers are forwarded.
            request: what is forwarded.
            own_answer: returns this broker's own answer, or None, for when no other one is known.
        """
        deferred: Deferred[Response] = Deferred()
        task = asyncio.get_running_loop().create_task(self.fetch(call, request, own_answer, deferred))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return deferred

    async def fetch(
        self,
        call: Call,
        request: messaging.QueryAssignmentRequest,
        own_answer: Callable[[], Response | None],
        deferred: Deferred[Response],
    ) -> None:
        headers = [(name, call.metadata[name]) for name in FORWARDED if call.metadata.get(name)]
        headers.append((CLIENT_PEER_HEADER, call.peer))
        payload = request.SerializeToString(deterministic=True)
        key = payload + "\0".join(call.metadata.get(name, "") for name in ANSWERED_BY).encode()
        try:
            outbound = Outbound(MESSAGING + "QueryAssignment", payload, decoded)
            response = await self.ask(outbound, headers)
            if response is not None and response.status.code == v2.OK:
                self.cache(key, response)
            elif response is None or response.status.code >= v2.INTERNAL_ERROR:  # or it is not ready yet
                response = self.cached.get(key) or own_answer()
            if response is not None:
                deferred.complete(response)
        except WhimbrelError as error:
            deferred.fail(error)
        finally:  # also when the nameserver's channel is closed during the call, which cancels this task
            deferred.fail(NotReady("no nameserver says who serves this topic; ask again"))

    def cache(self, key: bytes, response: messaging.QueryAssignmentResponse) -> None:
        self.cached.pop(key, None)
        self.cached[key] = response
        if len(self.cached) > CACHED_MAX:
            del self.cached[next(iter(self.cached))]


def decoded(answers: Sequence[bytes], _: object) -> Response:
    return Response.FromString(answers[0])
