"""A server that listens on more ports: all of them alike."""

import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2

from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.serving import serve


async def healthy(port: int) -> bool:
    """Return whether a server serves on a port."""
    async with open_aio_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            response = await check(health_pb2.HealthCheckRequest(), timeout=9)
        except grpc.aio.AioRpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def test_all_ports_serve_the_same_until_the_server_stops() -> None:
    server = await serve([], host="127.0.0.1", port=0, extra_ports=(0, 0))
    ports = (server.port, *server.extra_ports)
    assert len(set(ports)) == 3
    assert server.address == f"127.0.0.1:{server.port}"
    assert [await healthy(port) for port in ports] == [True] * 3
    await server.stop(grace=0)
    assert [await healthy(port) for port in ports] == [False] * 3


async def test_a_taken_extra_port_is_a_clear_error_and_leaves_no_port_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[int] = []
    listen = NativeServer.listen

    async def noted(self: NativeServer, port: int) -> int:
        bound.append(await listen(self, port))
        return bound[-1]

    monkeypatch.setattr(NativeServer, "listen", noted)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{taken}"):
            await serve([], host="127.0.0.1", port=0, extra_ports=(0, taken))
    assert len(bound) == 2
    for port in bound:
        with socket.create_server(("127.0.0.1", port)):
            pass
