"""Calls to other processes that elections need: a channel for each address, opened anew after a failure.

A channel whose peer went away waits before it tries again, longer than an election may take. So one over
which a call has failed is let go, and the next call opens another; the same where a member has another
address now.

    open ──a call fails, or nobody is at that address any more──► let go ──its last call ends──► closed

Other calls that are under way over a channel that is let go come to their end: an answer may be on its way,
and each has a deadline. Only `close` ends them early, with `ConnectionClosed`.
"""

import asyncio
from collections import Counter
from typing import TypeVar

import grpc.aio

from whimbrel.errors import ConnectionClosed, RemoteProtocolError, WhimbrelError
from whimbrel.rpc.api.calls import Outbound, perform
from whimbrel.rpc.client.channel import open_aio_channel

__all__ = ["AGAIN_S", "CALL_S", "Peers"]

T = TypeVar("T")

CALL_S = 1.0  # the deadline of a call among members, and to the coordinator
AGAIN_S = 0.5  # before a call that has failed to the coordinator, or a change of role, is tried again


class Peers:
    """Channels by address; a handful, since a group has few members.

    Attributes:
        channels: by address, what the next call goes over.
        calls: by channel, how many are under way; a channel that is in neither is closed, or about to be.
    """

    def __init__(self) -> None:
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.calls: Counter[grpc.aio.Channel] = Counter()
        self.closing: set[asyncio.Task[None]] = set()

    async def call(self, address: str, outbound: Outbound[T], timeout_s: float = CALL_S) -> T:
        """Make a call.

        Raises:
            WhimbrelError: the peer's error, or that it can't be reached in that time; `ConnectionClosed`:
                `close` was called meanwhile.
        """
        channel = self.channels.get(address)
        if channel is None:
            channel = self.channels[address] = open_aio_channel(address)
        self.calls[channel] += 1
        try:
            return await perform(channel, outbound, (), timeout_s)
        except asyncio.CancelledError:
            # A transport cancels the calls of a channel that is closed: that is nothing this task was told.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionClosed(f"the connection to {address} was closed") from None
        except WhimbrelError:
            self.let_go(address, channel)
            raise
        except Exception as error:  # protobuf's own, of bytes that are no message
            self.let_go(address, channel)
            raise RemoteProtocolError(f"{address} answers what can't be read: {error}") from error
        finally:
            self.over(address, channel)

    def over(self, address: str, channel: grpc.aio.Channel) -> None:
        """Note that a call has ended; the last one of a channel that was let go closes it."""
        if channel not in self.calls:  # `close` has ended it
            return
        self.calls[channel] -= 1
        if not self.calls[channel]:
            del self.calls[channel]
            if self.channels.get(address) is not channel:
                self.end(channel)

    def let_go(self, address: str, channel: grpc.aio.Channel) -> None:
        """Use a channel no more, unless another one is in its place already."""
        if self.channels.get(address) is channel:
            del self.channels[address]

    def forget(self, address: str) -> None:
        """Nobody is at that address any more: its channel is closed once no call is under way over it."""
        channel = self.channels.pop(address, None)
        if channel is not None and channel not in self.calls:
            self.end(channel)

    def end(self, channel: grpc.aio.Channel) -> None:
        """Close a channel."""
        task = asyncio.ensure_future(channel.close())
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    async def close(self) -> None:
        """Close all channels; calls under way end."""
        for channel in {*self.channels.values(), *self.calls}:
            self.end(channel)
        self.channels.clear()
        self.calls.clear()
        if self.closing:
            await asyncio.wait(self.closing, timeout=CALL_S)
