"""Serves handlers by the transport that a setting names.

grpcio    grpc.aio: complete and slow, 130 us of CPU a call                              server.py
native    our own HTTP/2: no TLS yet                                                     native.py
"""

from collections.abc import Sequence
from typing import Literal

from whimbrel.rpc.edge import Heard, RunningServer
from whimbrel.rpc.handlers import Service

__all__ = ["DEFAULT", "Transport", "serve"]

Transport = Literal["grpcio", "native"]

# What serves where no setting says so: nameserver, broker, and all tests of a run (docs/testing.md).
DEFAULT: Transport = "grpcio"


async def serve(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    heard: Heard | None = None,
    transport: Transport | None = None,
) -> RunningServer:
    """Start to serve on `host` and `port`; 0 is any free port. Health is served as well.

    `transport` None is `DEFAULT`.

    `heard` is told of each answered call; of a stream both ways, or a pulled one, it hears nothing, since
    those last.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's; the text says so.
    """
    if (transport or DEFAULT) == "native":
        from whimbrel.rpc.native import serve_native

        return await serve_native(services, host=host, port=port, heard=heard)
    from whimbrel.rpc.server import serve_grpcio

    return await serve_grpcio(services, host=host, port=port, heard=heard)
