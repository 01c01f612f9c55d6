"""Opens channels to our servers, for asyncio and for plain threads, with the options both ends agree on.

    asyncio    grpcio (`grpc.aio`), or native: our own HTTP/2 (`native_channel.py`)
    threads    grpcio; the threaded client library runs a loop of its own, and so uses either

Which one is used: `transport`, else WHIMBREL_CLIENT_TRANSPORT in the environment, else TRANSPORT_DEFAULT.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

import grpc
import grpc.aio

from whimbrel.errors import ClientError
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX

__all__ = ["ClientTransport", "open_aio_channel", "open_channel"]

ClientTransport = Literal["grpcio", "native"]

TRANSPORT_DEFAULT: ClientTransport = "native"
TRANSPORT_VARIABLE = "WHIMBREL_CLIENT_TRANSPORT"

Options = tuple[tuple[str, Any], ...]

OPTIONS: Options = (
    ("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_MESSAGE_BYTES_MAX),
    # A restarted server is found within a second: our own retries have pauses already.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In effect the time that a connection attempt gets: a busy server must be waited for.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # http_proxy in the environment is not for our servers
    ("grpc.enable_retries", 0),  # retries are decided by error class, in one place
    ("grpc.use_local_subchannel_pool", 1),  # two channels are two connections
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def open_aio_channel(
    target: str, options: Options = (), *, transport: ClientTransport | None = None
) -> grpc.aio.Channel:
    """Return a channel for the running loop; it connects by itself at the first call.

    `options` override the default ones.

    Raises:
        ClientError: the environment names an unknown transport.
        ValueError: the target is no address (native).
    """
    if (transport or chosen(os.environ)) == "native":
        from whimbrel.rpc.client.native_channel import NativeChannel

        return NativeChannel(target, merged(options))
    return grpc.aio.insecure_channel(target, options=merged(options))


def chosen(environment: Mapping[str, str]) -> ClientTransport:
    """Return the transport that the environment names, or the default.

    Raises:
        ClientError: there is no such transport.
    """
    match environment.get(TRANSPORT_VARIABLE, TRANSPORT_DEFAULT):
        case "grpcio":
            return "grpcio"
        case "native":
            return "native"
        case other:
            raise ClientError(f"{TRANSPORT_VARIABLE}={other} names no transport: write grpcio or native")


def open_channel(target: str, options: Options = ()) -> grpc.Channel:
    """Return a channel for use from threads; it connects by itself at the first call.

    `options` override the default ones.
    """
    return grpc.insecure_channel(target, options=merged(options))


def merged(options: Options) -> Options:
    """Return the default options, overridden by others."""
    return tuple((dict(OPTIONS) | dict(options)).items()) if options else OPTIONS
