"""Starts a server that serves handlers on a port."""

from collections.abc import Sequence

from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.admission import Admission
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.handlers import RemotingService, Service
from whimbrel.rpc.server.limits import Guard, OnCallEnd, OnRequestEnd
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.read_end import ReadEnd

__all__ = ["serve"]


async def serve(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    on_call_end: OnCallEnd | None = None,
    guard: Guard | None = None,
    tls: TlsSettings | None = None,
    limits: Limits | None = None,
    admission: Admission | None = None,
    read_end: ReadEnd | None = None,
    remoting: RemotingService | None = None,
    on_request_end: OnRequestEnd | None = None,
    extra_ports: Sequence[int] = (),
) -> NativeServer:
    """Start to serve on `host` and `port`; 0 is any free port. Health and reflection are served as well.

    Args:
        on_call_end: called after each call that has responded; not for streams both ways and pulled ones,
            since those last.
        guard: called before each call, those of health and reflection too; its error refuses the call.
        tls: where the certificate comes from; without, the server makes one for as long as it runs.
        limits: for the peer of each connection.
        admission: which connections are let in; None: as many as leave descriptors for files.
        read_end: told of the reads of each connection.
        remoting: what is served by RocketMQ's remoting protocol on the same port.
        on_request_end: called at the end of each request of that protocol.
        extra_ports: of the same host, on which the same is served; 0 is any free one. Clients of RocketMQ 4
            expect some at certain ports.

    Raises:
        CertificateError: the certificate that `tls` names can't be used.
        OSError: a port is taken, or the host is not one of this machine's; the text says so.
    """
    server = NativeServer(
        services,
        on_call_end=on_call_end,
        guard=guard,
        limits=limits,
        admission=admission,
        read_end=read_end,
        remoting=remoting,
        on_request_end=on_request_end,
    )
    await server.start(host, port, tls or TlsSettings(), extra_ports)
    return server
