"""Hands a client's call on to the server that it belongs to, and its answer back, as it is.

    client --call--> this server --call, `whimbrel-hops`--> target, or the next one
           <-answer-             <-answer-

A `Hop` says why a call is handed on, and what its client is told when nobody answers:

    owner        broker to broker             the queue of a message group; away: OwnerAway
    nameserver   broker to nameserver         which knows the broker that is meant; away: NotMaster
    holder       nameserver to master         what has the message or the transaction; away: NotMaster
    leader       member to leader of a group  which alone changes anything; away: LeaderAway

The header names the hops that a call has made. A call makes each of them at most once: two servers that take
each other for the right one end in an error, not in a circle. The client's headers that a server looks at go
with the call, and the client's address; trace contexts are in the messages.

Calls under way and their bytes are bounded; beyond, the client is told to slow down. Each target has
`FORWARD_S_MAX`, and all of them no more than the client's time. A target that can't be reached, or does not
answer in time, may have done what it was asked: the client's own retry may do it again. A connection is kept
for the calls to come, and belongs to the forwarder alone.

Two ways of handing on: `forward` asks targets one after the other, until one answers. `pass_on` asks one
target once, returns its answer as bytes, and tells a call that had no effect (no connection, a refusal) from
one that may have had one; when the client leaves, the target is told. What follows from that is up to its
caller (`broker/api/leader_calls.py`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc
import grpc.aio

from whimbrel.deferred import Deferred
from whimbrel.errors import LeaderAway, NotMaster, NotReady, OwnerAway, Throttled, WhimbrelError
from whimbrel.metrics import SECONDS, Family, Histogram, Series
from whimbrel.model.wire import (
    CLIENT_ID_HEADER,
    CLIENT_PEER_HEADER,
    DATE_TIME_HEADER,
    HOPS_HEADER,
    LANGUAGE_HEADER,
    NAMESPACE_HEADER,
    PROTOCOL_HEADER,
    REQUEST_ID_HEADER,
    VERSION_HEADER,
)
from whimbrel.rpc.api.calls import Metadata, Outbound, Trailers, perform
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call

__all__ = [
    "CONNECTIONS_MAX",
    "CONNECTION_CALLS_MAX",
    "FORWARDS_MAX",
    "FORWARD_BYTES_MAX",
    "FORWARD_S_MAX",
    "TO_HOLDER",
    "TO_LEADER",
    "TO_NAMESERVER",
    "TO_OWNER",
    "Answer",
    "Dial",
    "Forwarder",
    "Hop",
    "Peer",
    "Target",
    "forward_family",
    "made",
]

FORWARDS_MAX = 1024  # calls under way
FORWARD_BYTES_MAX = 64 << 20  # of their requests
FORWARD_S_MAX = 8.0  # a target that waits for its disk or its slaves answers within 5 s
CONNECTIONS_MAX = 64  # kept while no call uses them; one for each server of a large cluster
# Of those that `pass_on` makes: half of the streams that a server takes, so that a send finds room beside
# long polls. Beyond, another connection to the same server is opened.
CONNECTION_CALLS_MAX = 512
CONNECT_S = 0.25  # how long `pass_on` waits for a connection before it says that there is none
# Left of the client's time for our own answer.
MARGIN_S = 0.2
PASSED_ON = (
    CLIENT_ID_HEADER,
    LANGUAGE_HEADER,
    VERSION_HEADER,
    PROTOCOL_HEADER,
    NAMESPACE_HEADER,
    REQUEST_ID_HEADER,
    DATE_TIME_HEADER,
)


@dataclass(frozen=True, slots=True)
class Hop:
    """Why calls are handed on.

    Attributes:
        name: as the header names it; without commas.
        role: what a target does, for people.
        away: what the client is told where no target answers.
    """

    name: str
    role: str
    away: type[WhimbrelError]


TO_OWNER = Hop("owner", "owns the queue of this message group", OwnerAway)
TO_NAMESERVER = Hop("nameserver", "knows the broker that is meant", NotMaster)
TO_HOLDER = Hop("holder", "has what the call is about", NotMaster)
TO_LEADER = Hop("leader", "leads this group", LeaderAway)


@dataclass(frozen=True, slots=True)
class Target:
    """A server to hand a call on to: its name, and where it is, `host:port`."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered: its messages as bytes, one unless it is a stream, and the trailers."""

    messages: Sequence[bytes]
    trailers: Trailers


class Peer(Protocol):
    """A connection to another server."""

    async def connect(self, timeout_s: float) -> None:
        """Return when there is a connection; raises NotReady where there is none in time."""

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        """Make a call; raises WhimbrelError when that fails."""

    async def close(self) -> None:
        """End the connection, and what is under way on it."""


# Opens a connection to `host:port`; it connects with the first call.
Dial = Callable[[str], Peer]


class Channel:
    """A peer that is reached by gRPC."""

    def __init__(self, address: str) -> None:
        """Take where to connect to, `host:port`."""
        self.channel = open_aio_channel(address)

    async def connect(self, timeout_s: float) -> None:
        """Return when there is a connection; raises NotReady where there is none in time."""
        if self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.channel.channel_ready()
        except TimeoutError:
            raise NotReady(f"no connection within {timeout_s:.2g} s") from None
        except grpc.aio.UsageError as error:
            raise NotReady(str(error)) from error

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        """Make a call; raises WhimbrelError when that fails."""
        return await perform(self.channel, outbound, metadata, timeout_s)

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


@dataclass(slots=True)
class Connection:
    """A peer, where it is, and how many calls use it."""

    address: str
    peer: Peer
    calls: int = 0


def made(call: Call, hop: Hop) -> bool:
    """Return whether a call has made this hop already."""
    return hop.name in call.metadata.get(HOPS_HEADER, "").split(",")


class Forwarder:
    """The calls that were handed on and not answered yet, and the connections that they use.

    Attributes:
        seconds: how long calls took, by method, hop and result.
    """

    def __init__(
        self, dial: Dial = Channel, *, calls_max: int = FORWARDS_MAX, bytes_max: int = FORWARD_BYTES_MAX
    ) -> None:
        """Take what connects; see above for the bounds."""
        self.dial = dial
        self.calls_max, self.bytes_max = calls_max, bytes_max
        self.connections: dict[str, Connection] = {}  # by target name, the one used last at the end
        self.tasks: set[asyncio.Task[None]] = set()
        self.bytes = 0
        self.seconds: Series[Histogram] = Series(lambda: Histogram(SECONDS))

    def forward(
        self,
        call: Call,
        request: Any,
        targets: Sequence[Target],
        hop: Hop,
        decode: Callable[[bytes], Any],
        *,
        headers: Metadata = (),
        accept: Callable[[Any], bool] = lambda answer: True,
    ) -> Deferred[Any]:
        """Hand a call on; its answer is what `decode` makes of a target's.

        Args:
            call: the client's; its method is called.
            request: its message.
            targets: asked one after the other, until one answers; those without an address are left out.
            hop: why it is handed on.
            decode: makes the response of bytes.
            headers: to be added.
            accept: returns False for an answer after which the next target is asked. It is the client's only
                where all targets have answered so.

        Raises:
            WhimbrelError: of the hop's class: nobody knows a target, or the call has made this hop before.
            Throttled: too much is under way.
        """
        method = call.method.rpartition("/")[2]
        payload = request.SerializeToString()
        known = [target for target in targets if target.address]
        if not known:
            named = ", ".join(target.name for target in targets) or "a server"
            raise hop.away(f"no nameserver knows now where {named} is, which {hop.role}")
        if made(call, hop):
            raise hop.away(f"another server took this one for the one that {hop.role}; it is not")
        self.check_room(method, hop, len(payload))
        metadata = [*self.passed_on(call, hop), *headers]
        deferred: Deferred[Any] = Deferred()
        outbound = Outbound(call.method, payload, lambda answers, _: decode(answers[0]))
        begin = time.monotonic()

        async def run() -> None:
            result, reason = "away", "this server stops or changes its role"
            try:
                answer, reason = await self.ask(known, outbound, metadata, call.deadline, accept)
                if not reason:
                    result = "answered"
                    deferred.complete(answer)
            finally:  # also when the task is cancelled
                deferred.fail(hop.away(f"no server answers that {hop.role}: {reason}"))
                self.seconds.at((method, hop.name, result)).observe(time.monotonic() - begin)

        self.start(run(), len(payload))
        return deferred

    def pass_on(
        self,
        call: Call,
        request: Any,
        target: Target,
        hop: Hop,
        *,
        stream: bool = False,
        answer_s: float = FORWARD_S_MAX,
        headers: Metadata = (),
    ) -> Deferred[Answer]:
        """Hand a call on to one server, once; cancelled there when the client leaves (`Deferred.cancel`).

        It fails with an error whose effect is none where nothing was done: a refusal, or NotReady where
        there is no connection. Else it fails with the hop's: the call may have been done.

        Args:
            call: the client's; its method is called.
            request: its message.
            target: where it goes.
            hop: why; the caller knows that the call has not made it.
            stream: the answer has several messages, all of which are waited for.
            answer_s: how long the target has, and no more than the client's time.
            headers: to be added.

        Raises:
            Throttled: too much is under way.
        """
        method, payload = call.method.rpartition("/")[2], request.SerializeToString()
        self.check_room(method, hop, len(payload))
        metadata = [*self.passed_on(call, hop), *headers]
        deferred: Deferred[Answer] = Deferred()
        outbound = Outbound(call.method, payload, Answer, stream)
        begin = time.monotonic()

        async def run() -> None:
            result = "away"
            error: WhimbrelError = hop.away("this server stops")
            try:
                answer = await self.ask_one(target, outbound, metadata, call.deadline, answer_s)
                result = "answered"
                deferred.complete(answer)
            except WhimbrelError as failure:
                where = f"the one that {hop.role}, {target.address}"
                if failure.effect == "none":
                    result, error = "refused", type(failure)(f"{where}: {failure}")
                else:
                    error = hop.away(f"no answer came from {where}: {failure}")
            finally:  # also when the task is cancelled
                deferred.fail(error)
                self.seconds.at((method, hop.name, result)).observe(time.monotonic() - begin)

        task = self.start(run(), len(payload))
        deferred.on_cancel = task.cancel  # type: ignore[assignment]  # what it returns is of no use
        return deferred

    def check_room(self, method: str, hop: Hop, size: int) -> None:
        """Raise Throttled where too much is under way for one more call of this size."""
        if len(self.tasks) >= self.calls_max or self.bytes + size > self.bytes_max:
            self.seconds.at((method, hop.name, "refused")).observe(0.0)
            raise Throttled(f"{len(self.tasks)} calls with {self.bytes} bytes wait for other servers already")

    def start(self, work: Coroutine[Any, Any, None], size: int) -> asyncio.Task[None]:
        """Run a call, and count it and its bytes until it is over."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        self.bytes += size

        def over(_: object) -> None:
            self.tasks.discard(task)
            self.bytes -= size

        task.add_done_callback(over)
        return task

    @staticmethod
    def passed_on(call: Call, hop: Hop) -> list[tuple[str, str]]:
        """Return the headers that go with a call."""
        known = [(name, call.metadata[name]) for name in PASSED_ON if call.metadata.get(name)]
        hops = ",".join(filter(None, (call.metadata.get(HOPS_HEADER), hop.name)))
        client = call.metadata.get(CLIENT_PEER_HEADER) or call.peer
        return [*known, (CLIENT_PEER_HEADER, client), (HOPS_HEADER, hops)]

    async def ask(
        self,
        targets: Sequence[Target],
        outbound: Outbound[Any],
        metadata: Metadata,
        deadline: float | None,
        accept: Callable[[Any], bool],
    ) -> tuple[Any, str]:
        """Ask one after the other; return the answer, and why there is none."""
        answer, reason = None, ""
        for target in targets:
            timeout_s = FORWARD_S_MAX
            if deadline is not None:
                timeout_s = max(min(timeout_s, deadline - time.monotonic() - MARGIN_S), 0.0)
            connection, superfluous = self.connection(target)
            connection.calls += 1
            try:
                for each in superfluous:
                    await each.peer.close()
                answer = await connection.peer.perform(outbound, metadata, timeout_s)
            except WhimbrelError as error:
                reason = f"{target.name} at {target.address}: {error}"
                continue
            finally:
                connection.calls -= 1
            if accept(answer):
                return answer, ""
        return answer, reason

    async def ask_one(
        self,
        target: Target,
        outbound: Outbound[Answer],
        metadata: Metadata,
        deadline: float | None,
        answer_s: float,
    ) -> Answer:
        """Ask one server once there is a connection; raises NotReady without one, else as `Peer.perform`."""
        connection, superfluous = self.connection(self.with_room(target))
        connection.calls += 1
        try:
            for each in superfluous:
                await each.peer.close()
            await connection.peer.connect(CONNECT_S)
            timeout_s = answer_s
            if deadline is not None:
                timeout_s = max(min(timeout_s, deadline - time.monotonic() - MARGIN_S), 0.0)
            answer: Answer = await connection.peer.perform(outbound, metadata, timeout_s)
            return answer
        finally:
            connection.calls -= 1

    def with_room(self, target: Target) -> Target:
        """Return a target under a name whose connection has room for one more call."""
        name, number = target.name, 1
        while (found := self.connections.get(name)) is not None and found.calls >= CONNECTION_CALLS_MAX:
            number += 1
            name = f"{target.name} ({number})"
        return replace(target, name=name)

    def connection(self, target: Target) -> tuple[Connection, list[Connection]]:
        """Return the connection to a target, and those to be closed for it."""
        found = self.connections.pop(target.name, None)
        superfluous = []
        if found is not None and found.address != target.address:
            superfluous.append(found)
            found = None
        if found is None:
            found = Connection(target.address, self.dial(target.address))
        self.connections[target.name] = found
        idle = [name for name, each in self.connections.items() if not each.calls and each is not found]
        most = max(len(self.connections) - CONNECTIONS_MAX, 0)
        superfluous += [self.connections.pop(name) for name in idle[:most]]
        return found, superfluous

    async def close(self) -> None:
        """End what is under way, and all connections."""
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self.connections = tuple(self.connections.values()), {}
        for each in connections:
            await each.peer.close()


def forward_family(forwarder: Forwarder | None) -> Family:
    """Return the metric of the calls that a server has handed on; None: it hands none on."""
    return Family(
        name="whimbrel_forward",
        kind="histogram",
        unit="seconds",
        labels=("request_code", "hop", "result"),
        help="Calls handed on to another server, from the client's call to its answer.",
        read=list if forwarder is None else forwarder.seconds.items,
    )
