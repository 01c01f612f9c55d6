"""Connections to a server of ours that have made one call, and then do nothing."""

import socket

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.http2.stream import Headers

__all__ = ["connect"]

TIMEOUT_S = 20.0
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/grpc.health.v1.Health/Check"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"user-agent", b"idle/1"),
    (b"x-mq-request-id", b"1234567890"),
]


def connect(host: str, port: int) -> socket.socket:
    """Connect, exchange settings, and make one call."""
    sock = socket.create_connection((host, port), TIMEOUT_S)
    conn = Connection(server=False)
    stream = conn.request()
    conn.send_headers(stream, encode(REQUEST))
    conn.send_data(stream, prefixed(b""), end=True)
    trailers: list[Headers] = []
    while not trailers:
        sock.sendall(conn.take())
        data = sock.recv(1 << 16)
        assert data, "the server has closed the connection"
        trailers = [event for event in conn.receive(data) if isinstance(event, Headers) and event.ended]
    assert (b"grpc-status", b"0", False) in trailers[0].fields
    sock.sendall(conn.take())  # its settings acknowledged
    return sock
