"""Serves handlers by the transport that a setting names.

grpcio    grpc.aio: complete, and several times the CPU time of native; plaintext only    grpcio.py
native    our own HTTP/2, plaintext and TLS on one port                                   native.py
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the settings of processes take `Transport` and `DEFAULT` from here, and nothing else
    from whimbrel.rpc.remoting.handlers import RemotingService
    from whimbrel.rpc.server.certificates import TlsSettings
    from whimbrel.rpc.server.handlers import Service
    from whimbrel.rpc.server.limits import Guard, OnCallEnd, RunningServer
    from whimbrel.rpc.server.read_end import ReadEnd
    from whimbrel.rpc.server.remoting import OnRequestEnd

__all__ = ["DEFAULT", "Transport", "serve"]

Transport = Literal["grpcio", "native"]

# What serves where no setting says so: nameserver, broker, and all tests of a run (docs/testing.md).
DEFAULT: Transport = "native"


async def serve(
    services: "Sequence[Service]",
    *,
    host: str,
    port: int,
    on_call_end: "OnCallEnd | None" = None,
    guard: "Guard | None" = None,
    tls: "TlsSettings | None" = None,
    transport: Transport | None = None,
    read_end: "ReadEnd | None" = None,
    remoting: "RemotingService | None" = None,
    on_request_end: "OnRequestEnd | None" = None,
    extra_ports: Sequence[int] = (),
) -> "RunningServer":
    """Start to serve on `host` and `port`; 0 is any free port. Health and reflection are served as well.

    Args:
        on_call_end: called after each call that has responded; not for streams both ways and pulled ones,
            since those last.
        guard: called before each call, those of health and reflection too; its error refuses the call.
        tls: where native has its certificate from; without, it makes one for as long as it runs.
        transport: None is `DEFAULT`.
        read_end: told of the reads of each connection, by native.
        remoting: what is served by RocketMQ's remoting protocol on the same port, by native only.
        on_request_end: called at the end of each request of that protocol.
        extra_ports: of the same host, on which the same is served, by native only; 0 is any free one. Clients
            of RocketMQ 4 expect some at certain ports.

    Raises:
        CertificateError: the certificate that `tls` names can't be used.
        OSError: a port is taken, or the host is not one of this machine's; the text says so.
    """
    if (transport or DEFAULT) == "native":
        from whimbrel.rpc.server.native import serve_native

        return await serve_native(
            services,
            host=host,
            port=port,
            on_call_end=on_call_end,
            guard=guard,
            tls=tls,
            read_end=read_end,
            remoting=remoting,
            on_request_end=on_request_end,
            extra_ports=extra_ports,
        )
    assert not extra_ports, "grpcio listens on one port; settings that ask for more are refused with it"
    from whimbrel.rpc.server.grpcio import serve_grpcio

    return await serve_grpcio(services, host=host, port=port, on_call_end=on_call_end, guard=guard)
