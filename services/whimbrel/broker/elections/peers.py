"""Calls to other processes that elections need: a channel for each, opened anew after a failure.

A channel whose peer went away waits before it tries again, longer than an election may take. So one that has
failed is closed, and the next call opens another.
"""

import asyncio
from typing import TypeVar

import grpc.aio

from whimbrel.errors import RemoteProtocolError, WhimbrelError
from whimbrel.rpc.api.calls import Outbound, perform
from whimbrel.rpc.client.channel import open_aio_channel

__all__ = ["CALL_S", "Peers"]

T = TypeVar("T")

CALL_S = 1.0  # the deadline of a call among members, and to the coordinator


class Peers:
    """Channels by address; a handful, since a group has few members."""

    def __init__(self) -> None:
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.closing: set[asyncio.Task[None]] = set()

    async def call(self, address: str, outbound: Outbound[T], timeout_s: float = CALL_S) -> T:
        """Make a call.

        Raises:
            WhimbrelError: the peer's error, or that it can't be reached in that time.
        """
        channel = self.channels.get(address)
        if channel is None:
            channel = self.channels[address] = open_aio_channel(address)
        try:
            return await perform(channel, outbound, (), timeout_s)
        except WhimbrelError:
            self.drop(address, channel)
            raise
        except Exception as error:  # protobuf's own, of bytes that are no message
            self.drop(address, channel)
            raise RemoteProtocolError(f"{address} answers what can't be read: {error}") from error

    def drop(self, address: str, channel: grpc.aio.Channel) -> None:
        """Close a channel, unless another call has done so."""
        if self.channels.get(address) is channel:
            del self.channels[address]
            task = asyncio.ensure_future(channel.close())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)

    def keep_only(self, addresses: frozenset[str]) -> None:
        """Close the channels to all others."""
        for address in self.channels.keys() - addresses:
            self.drop(address, self.channels[address])

    async def close(self) -> None:
        """Close all."""
        self.keep_only(frozenset())
        if self.closing:
            await asyncio.wait(self.closing, timeout=CALL_S)
