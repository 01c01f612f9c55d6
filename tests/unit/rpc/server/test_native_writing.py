"""Answers that wait for the loop to come round, on several connections of the native transport."""

import socket
from typing import Any

from support.http2.echoing import Raw
from support.http2.frames import block
from support.http2.in_memory import Sink, connected
from support.waiting import eventually
from whimbrel.deferred import Deferred
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.stream import Data
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer


def request() -> bytes:
    """Return the bytes of a client that makes one call."""
    client = Connection(server=False)
    stream = client.request()
    client.send_headers(stream, block("/t.T/U"))
    client.send_data(stream, prefixed(b"question"), end=True)
    return client.take()


def answer(sink: Sink) -> list[bytes]:
    """Return the data that a client finds in what was written."""
    client = Connection(server=False)
    client.request()
    return [event.data for event in client.receive(sink.sent) if isinstance(event, Data)]


async def test_who_goes_before_its_answer_is_written_keeps_no_other_from_its_own() -> None:
    held: list[Deferred[Any]] = []

    def handle(call: Call, _: Raw) -> Deferred[Any]:
        held.append(Deferred())
        return held[-1]

    server = NativeServer([Service("t.T", (UnaryMethod("U", Raw, handle),))])
    with socket.socket() as option_taker:
        pairs = [connected(server, option_taker) for _ in range(3)]
        for connection, _ in pairs:
            connection.data_received(request())
        for deferred in held:
            assert deferred.complete(Raw(b"answer"))
        first, sink = pairs[0]
        sink.close()
        first.connection_lost(None)
        await eventually(lambda: not server.unflushed)
    assert [answer(sink) for _, sink in pairs] == [[], [prefixed(b"answer")], [prefixed(b"answer")]]
