"""Hands a client's call on to the broker that it belongs to, and its answer back, as it is.

    client --call--> this broker --call, `whimbrel-hops`--> target
           <-answer-            <-answer-

The header names why the call was handed on. A target that gets it serves the call itself: each kind of hop
happens at most once, and two brokers that take each other for the right one end in an error, not in a circle.
The client's headers that a server looks at go with the call, and the client's address; trace contexts are in
the messages.

Calls under way and their bytes are bounded; beyond, the client is told to slow down. A target that can't be
reached, or does not answer in time, may have stored what it got: the client's own retry may make a second
copy, as with every send.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from whimbrel.deferred import Deferred
from whimbrel.errors import OwnerAway, Throttled, WhimbrelError
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
from whimbrel.rpc.api.calls import Metadata, Outbound, perform
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call

__all__ = ["FORWARDS_MAX", "FORWARD_BYTES_MAX", "FORWARD_S_MAX", "Dial", "Forwarder", "Peer"]

FORWARDS_MAX = 1024  # calls under way
FORWARD_BYTES_MAX = 64 << 20  # of their requests
# A target that waits for its disk or its slaves answers within 5 s.
FORWARD_S_MAX = 8.0
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


class Peer(Protocol):
    """A connection to another broker."""

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        """Make a call; raises WhimbrelError when that fails."""

    async def close(self) -> None:
        """End the connection, and what is under way on it."""


# Opens a connection to `host:port`; it connects with the first call.
Dial = Callable[[str], Peer]


class Connection:
    """A channel."""

    def __init__(self, address: str) -> None:
        """Take where to connect to, `host:port`."""
        self.channel = open_aio_channel(address)

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        """Make a call; raises WhimbrelError when that fails."""
        return await perform(self.channel, outbound, metadata, timeout_s)

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


class Forwarder:
    """The calls that were handed on and not answered yet, and the connections that they use."""

    def __init__(
        self, dial: Dial = Connection, *, calls_max: int = FORWARDS_MAX, bytes_max: int = FORWARD_BYTES_MAX
    ) -> None:
        """Take what connects; see above for the bounds."""
        self.dial = dial
        self.calls_max, self.bytes_max = calls_max, bytes_max
        self.peers: dict[str, Peer] = {}  # by broker name
        self.addresses: dict[str, str] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.bytes = 0

    def forward(
        self,
        call: Call,
        payload: bytes,
        *,
        target: str,
        address: str,
        hop: str,
        headers: Sequence[tuple[str, str]] = (),
        decode: Callable[[bytes], Any],
    ) -> Deferred[Any]:
        """Hand a call on; its answer is what `decode` makes of the target's.

        Args:
            call: the client's; its method is called.
            payload: its request, encoded.
            target: the name of the broker.
            address: where that is, `host:port`; empty while nobody knows.
            hop: why it is handed on.
            headers: to be added.
            decode: makes the response of bytes.

        Raises:
            OwnerAway: nobody knows where the target is.
            Throttled: too much is under way.
        """
        if not address:
            raise OwnerAway(
                f"broker {target} owns the queue of this message group, and no nameserver knows it now"
            )
        if len(self.tasks) >= self.calls_max or self.bytes + len(payload) > self.bytes_max:
            raise Throttled(f"{len(self.tasks)} calls with {self.bytes} bytes wait for other brokers already")
        known = [(name, call.metadata[name]) for name in PASSED_ON if call.metadata.get(name)]
        metadata = [*known, (CLIENT_PEER_HEADER, call.peer), (HOPS_HEADER, hop), *headers]
        timeout_s = FORWARD_S_MAX
        if call.deadline is not None:
            timeout_s = max(min(timeout_s, call.deadline - time.monotonic() - MARGIN_S), 0.0)
        deferred: Deferred[Any] = Deferred()
        outbound = Outbound(call.method, payload, lambda answers, _: decode(answers[0]))
        work = self.run(target, address, outbound, metadata, timeout_s, deferred)
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        self.bytes += len(payload)

        def over(_: object) -> None:
            self.tasks.discard(task)
            self.bytes -= len(payload)

        task.add_done_callback(over)
        return deferred

    async def run(
        self,
        target: str,
        address: str,
        outbound: Outbound[Any],
        metadata: Metadata,
        timeout_s: float,
        deferred: Deferred[Any],
    ) -> None:
        reason = "this broker stops or changes its role"
        try:
            peer = await self.peer(target, address)
            deferred.complete(await peer.perform(outbound, metadata, timeout_s))
        except WhimbrelError as error:
            reason = str(error)
        finally:  # also when the task is cancelled
            deferred.fail(
                OwnerAway(f"broker {target} at {address}, which owns the queue, does not answer: {reason}")
            )

    async def peer(self, target: str, address: str) -> Peer:
        found = self.peers.get(target)
        if found is None or self.addresses[target] != address:
            self.peers[target], self.addresses[target] = self.dial(address), address
            if found is not None:
                await found.close()
        return self.peers[target]

    async def close(self) -> None:
        """End what is under way, and all connections."""
        tasks = tuple(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        peers, self.peers = tuple(self.peers.values()), {}
        for peer in peers:
            await peer.close()
