"""What a send costs in our own HTTP/2 server, step by step: CPU of the server's thread for each message.

    python bench/front.py [--calls N] [--rounds N] [--batch N]

A client's bytes are made once, four calls a read as 32 outstanding ones come in, and handed to a connection
in memory: no socket, no other process. Each row does all that the rows above it do; rows take turns round by
round, and printed are medians. `ids in the table` is the first row once more, with headers as clients send
them that put each call's id into the table (Go's, Java's): none of their blocks is like another one.
"""

import argparse
import asyncio
import gc
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import uvloop
from hpack import Encoder
from tracing import SendPath, request

from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.http2.stream import Data, Limits
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import Call, Encoded, Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.responses import OK, check_client_id

SERVICE = "apache.rocketmq.v2.MessagingService"
CALLS_A_READ = 4


def headers(number: int) -> list[tuple[bytes, bytes]]:
    """Return what an official SDK sends with a call."""
    return [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/{SERVICE}/SendMessage".encode()),
        (b":authority", b"127.0.0.1:8081"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)"), (b"grpc-timeout", b"3S"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"), (b"x-mq-language", b"CPP"),
        (b"x-mq-protocol", b"v2"), (b"x-mq-client-version", b"5.0.0"), (b"x-mq-namespace", b""),
        (b"x-mq-client-id", b"bench@26904@0@1795305558607"), (b"x-mq-date-time", b"20260101T000000Z"),
        (b"x-mq-request-id", f"{number:08x}-0000-4000-8000-{secrets.token_hex(6)}".encode()),
    ]  # fmt: skip


def reads_of(calls: int, batch: int, *, indexed: bool) -> list[bytes]:
    """Return a client's bytes, read by read."""
    client = Connection(server=False, limits=Limits())
    encoder: Any = Encoder()
    messages = [request() for _ in range(calls * batch)]
    reads = [client.take()]
    for number in range(calls):
        stream = client.request()
        fields = headers(number)
        client.send_headers(stream, encoder.encode(fields) if indexed else encode(fields))
        data = prefixed(b"".join(messages[number * batch : (number + 1) * batch]))  # requests add up
        client.send_window = stream.send_window = client.peer_frame = 1 << 24
        client.send_data(stream, data, end=True)
        if number % CALLS_A_READ == CALLS_A_READ - 1:
            reads.append(client.take())
    return [*reads, client.take()]


class Sink:
    """A transport that drops what is written."""

    def get_extra_info(self, name: str) -> Any:
        """Return the peer."""
        return ("127.0.0.1", 5555) if name == "peername" else self

    def setsockopt(self, *args: Any) -> None:
        """Take a setting of the socket."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Take a limit."""

    def write(self, data: bytes) -> None:
        """Take what is sent."""

    def get_write_buffer_size(self) -> int:
        """Return what waits: nothing."""
        return 0

    def is_closing(self) -> bool:
        """Return whether it is closing."""
        return False


class Row:
    """One part of the path."""

    def __init__(self, name: str, reads: list[bytes]) -> None:
        self.name, self.reads = name, reads
        self.costs: list[float] = []

    def run(self) -> None:
        """Hand all reads over."""
        raise NotImplementedError


class CoreRow(Row):
    """The core alone: frames, headers and windows in, the frames of an answer out."""

    def run(self) -> None:
        conn = Connection(server=True, limits=Limits())
        answer = bytes(100)
        for data in self.reads:
            for event in conn.receive(data):
                if type(event) is Data:
                    conn.consumed(event.stream, event.size)
                    if event.ended:
                        conn.send_response(event.stream, answer, len(answer))
            conn.take()


class ServerRow(Row):
    """The server, with what a handler does."""

    def __init__(
        self, name: str, reads: list[bytes], method: UnaryMethod, path: SendPath | None = None
    ) -> None:
        super().__init__(name, reads)
        self.server = NativeServer([Service(SERVICE, (method,))])
        self.path = path

    def run(self) -> None:
        connection = NativeConnection(self.server, 0.0)
        connection.connection_made(cast(Any, Sink()))
        for data in self.reads:
            connection.data_received(data)
            if self.path is not None:
                self.path.ticks.end()
        assert connection.conn.error is None, connection.conn.error
        connection.connection_lost(None)


class Raw:
    """A request that is not decoded."""

    @staticmethod
    def FromString(data: bytes) -> bytes:
        """Return it as it is."""
        return data


async def measure(calls: int, rounds: int, batch: int, folder: Path) -> None:
    """Measure and print."""
    plain = reads_of(calls, batch, indexed=False)
    indexed = reads_of(calls, batch, indexed=True)
    answer = Encoded(bytes(60), OK)
    path = SendPath(folder, None)

    def known(call: Call, request: Any) -> Any:
        check_client_id(call)
        return path.sends.send(call, request)

    decoded = messaging.SendMessageRequest
    rows: list[Row] = [
        CoreRow("frames, headers, windows", plain),
        ServerRow("... call and answer", plain, UnaryMethod("SendMessage", Raw, lambda *_: answer)),
        ServerRow("... request decoded", plain, UnaryMethod("SendMessage", decoded, lambda *_: answer)),
        ServerRow("... checked, stored, indexed", plain, UnaryMethod("SendMessage", decoded, known), path),
        CoreRow("ids in the table: frames ...", indexed),
    ]
    for row in rows:
        row.run()
    gc.collect()
    gc.freeze()
    collections: list[float] = []
    began = 0.0

    def collected(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            collections.append(time.perf_counter() - began)

    gc.callbacks.append(collected)
    for turn in range(rounds):
        start = turn % len(rows)
        for row in rows[start:] + rows[:start]:
            at = time.thread_time()
            row.run()
            row.costs.append((time.thread_time() - at) / (calls * batch) * 1e6)
    print(f"| step, batches of {batch} | us a message |\n|---|---|")
    for row in rows:
        print(f"| {row.name} | {statistics.median(row.costs):.2f} |")
    longest = max(collections, default=0.0) * 1e6
    count = len(rows) * rounds * calls
    print(f"\ncollector: {len(collections)} runs in {count} calls, the longest {longest:.0f} us")
    path.close()


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=4000, help="in each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=1, help="messages a call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(arguments.calls, arguments.rounds, arguments.batch, Path(folder)))


if __name__ == "__main__":
    main()
