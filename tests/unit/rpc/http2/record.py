"""Records what real clients send over one connection, for `test_recordings.py`.

    PYTHONPATH=services:tests python tests/unit/rpc/http2/record.py [NAME ...]

A proxy stands before the native transport and keeps the bytes of the client, connection by connection; the
longest one of a client is written to `recordings/NAME.bin`. Small bodies and few calls: each recording is
replayed at every fragment size, which costs the square of its frames. What is recorded:

    echo-KIND             the programs of tests/echo: calls of all forms, errors, deadline, cancellation
    sdk-LANGUAGE-ROLE     RocketMQ's SDKs (tests/sdks) at a broker: `produce` sends, `simple` receives

Client ids hold the host's name: `unshare -u sh -c 'hostname client; ...'` gives one that means nothing.
"""

import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from support.cluster.processes import Process
from support.http2 import echoing
from support.systems import sdk_programs
from whimbrel.client import Message
from whimbrel.client.sync import Producer

RECORDINGS = Path(__file__).resolve().parent / "recordings"
CALLS, SIZES = "3", ("0", "100")
MESSAGES = 3
WAIT_S = 60.0
BYTES_MAX = 8192  # a recording that is longer makes its test slow


class Proxy:
    """Passes bytes on both ways, and keeps those of the client."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.target = ("", 0)
        self.connections: list[bytearray] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.close()

    def to(self, address: str) -> Self:
        """Say where bytes go."""
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        return self

    @property
    def address(self) -> str:
        """Return what clients connect to."""
        return f"127.0.0.1:{self.port}"

    def accept(self) -> None:
        """Take connections until the end."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            kept = bytearray()
            self.connections.append(kept)
            for source, sink, keep in ((client, server, kept), (server, client, None)):
                threading.Thread(target=pump, args=(source, sink, keep), daemon=True).start()

    def longest(self) -> bytes:
        """Return the bytes of the connection that has most."""
        return bytes(max(self.connections, key=len))


def pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
    """Pass on one direction."""
    try:
        while data := source.recv(1 << 16):
            if kept is not None:
                kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def echo(kind: str) -> bytes:
    """Record a program of tests/echo."""
    program = echoing.prepare(kind)
    with echoing.EchoServer() as server, Proxy() as proxy:
        proxy.to(server.address)
        subprocess.run([*program, proxy.address, CALLS, *SIZES], check=True, stdout=subprocess.DEVNULL)
        return proxy.longest()


def sdk(language: str, role: str) -> bytes:
    """Record an SDK at a broker."""
    sdk_programs.prepare(language)
    with tempfile.TemporaryDirectory() as folder, Proxy() as proxy:
        root = Path(folder)
        with (
            Process(root, "nameserver", "nameserver") as nameserver,
            Process(
                root, "broker", "broker", store=root / "store",
                nameservers=nameserver.grpc,
                commitlog_file_size=1 << 20, auto_create_topics=True, auto_create_groups=True,
                advertise_host="127.0.0.1", advertise_port=proxy.port,
            ) as broker,
        ):  # fmt: skip
            proxy.to(broker.grpc)
            with Producer(nameserver.grpc) as producer:
                for number in range(MESSAGES):
                    producer.send(Message(topic="recorded", body=b"m-%d" % number))
            proxy.connections.clear()
            words = ("m", MESSAGES, 0) if role == "produce" else ("group", "*")
            with sdk_programs.Program(language, role, nameserver.grpc, "recorded", *words) as program:
                if role == "simple":
                    program.wait_bodies("acked", {f"m-{number}" for number in range(MESSAGES)}, WAIT_S)
                    program.end(WAIT_S)
                else:
                    program.wait_ended(WAIT_S)
            return proxy.longest()


def main(names: list[str]) -> None:
    """Record all, or those that are named."""
    for name in names or [*ECHO, *SDKS]:
        data = echo(ECHO[name]) if name in ECHO else sdk(*SDKS[name])
        print(f"{name}: {len(data)} bytes")
        assert len(data) <= BYTES_MAX, f"{name} is too long to be replayed at every size"
        (RECORDINGS / f"{name}.bin").write_bytes(data)


ECHO = {f"echo-{kind.replace(' ', '-')}": kind for kind in echoing.LANGUAGES}
SDKS = {
    f"sdk-{language}-{role}": (language, role)
    for language in ("python", "go", "nodejs", "java")
    for role in ("produce", "simple")
}

if __name__ == "__main__":
    main(sys.argv[1:])
