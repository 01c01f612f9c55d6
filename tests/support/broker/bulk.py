"""Bulk reading on a loop, for tests; programs read from threads (`rpc/api/bulk_calls.py`)."""

from collections.abc import AsyncGenerator
from typing import TypeVar

import grpc.aio

from whimbrel.rpc.api.bulk_calls import OPTIONS, OutboundStream
from whimbrel.rpc.api.status import error_of
from whimbrel.rpc.client.channel import open_aio_channel

__all__ = ["open_bulk_aio_channel", "stream"]

T = TypeVar("T")


def open_bulk_aio_channel(target: str) -> grpc.aio.Channel:
    """Return a channel for the running loop; it connects by itself at the first call."""
    return open_aio_channel(target, OPTIONS)


async def stream(
    channel: grpc.aio.Channel, call: OutboundStream[T], *, timeout_s: float | None = None
) -> AsyncGenerator[T, None]:
    """Make the call on a loop and yield its responses on demand; errors as in `stream_blocking`."""
    open_stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(call.path)
    responses = open_stream(call.payload, timeout=timeout_s)
    try:
        async for response in responses:
            yield call.decode(response)
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    finally:
        responses.cancel()
