"""Real RocketMQ servers for interop tests, run by the kit's scripts (`tests/kit/README.md`).

They need java and mvn; without them `need_kit` skips the test and says so. The first use fetches RocketMQ's
jars from Maven Central into `RMQ_KIT_BUILD` (by default ~/.cache/rocketmq-kit).
"""

import functools
import json
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from support.store.goldens import KIT
from support.waiting import until

__all__ = [
    "Controller",
    "JavaServer",
    "Remoting",
    "Server",
    "broker",
    "free_port",
    "kit",
    "name_server",
    "need_kit",
    "proxy",
]

PORTS = 12_000, 32_000  # below those of outgoing connections: ip(7), ip_local_port_range
KIT_TIMEOUT_S = 180.0  # includes the first look-up of the jars
JAVA_START_S = 90.0
SEND_MESSAGE, PULL_MESSAGE, CREATE_TOPIC, RUNTIME_INFO = 10, 11, 17, 28
PULL_NOT_FOUND = 19
ANSWER = 1  # in a header's flag: it is not a request
WITH_SUBSCRIPTION = 4  # a pull's system flag


def need_kit() -> None:
    """Skip the calling test where real RocketMQ can't be run."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"real RocketMQ needs {' and '.join(missing)}, not found on this machine")


@functools.cache
def resolved(version: str) -> str:
    """Fetch the jars of a version, once."""
    return kit("resolve", version)


def kit(script: str, *arguments: object, java_options: str = "") -> str:
    """Run a script of the kit and return its output."""
    command = [str(KIT / "bin" / script), *map(str, arguments)]
    environment = os.environ | ({"JAVA_OPT_EXTRA": java_options} if java_options else {})
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=KIT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{script} {arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_port(neighbours: tuple[int, ...] = (0,)) -> int:
    """Return a port that is free together with those at the given distances.

    The kernel gives none of these to others that ask for any port before the server has them.
    """
    for _ in range(100):
        port = random.randrange(*PORTS)
        try:
            for distance in neighbours:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + distance))
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


class Server:
    """A running Java process of the kit; a proxy has an address for gRPC as well."""

    def __init__(self, root: Path, port: int, start: list[object], grpc: str = "") -> None:
        self.root, self.port, self.start_command, self.grpc = root, port, start, grpc

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """Return its remoting address."""
        return f"127.0.0.1:{self.port}"

    @property
    def ha(self) -> str:
        """Return a broker's HA address."""
        return f"127.0.0.1:{self.port + 1}"

    @property
    def store(self) -> Path:
        """Return a broker's store directory."""
        return self.root / "store"

    @property
    def pid(self) -> int:
        """Return its process id."""
        (file,) = self.root.glob("*.pid")
        return int(file.read_text(encoding="utf-8"))

    def start(self) -> None:
        """Start it and wait until it is ready."""
        need_kit()
        resolved(str(self.start_command[1]))
        kit(*map(str, self.start_command))

    def stop(self) -> None:
        """End it cleanly."""
        self.end()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.end("-9")

    def end(self, *words: str) -> None:
        """End it, and wait until it is gone: its store is locked for longer than it has a command line."""
        with ExitStack() as stack:
            left = []
            for file in self.root.glob("*.pid"):
                with suppress(ProcessLookupError):
                    left.append(os.pidfd_open(int(file.read_text(encoding="utf-8"))))
                    stack.callback(os.close, left[-1])
            kit("stop", self.root, *words)
            for process in left:
                assert select.select([process], [], [], KIT_TIMEOUT_S)[0], f"{self.root}: a process is left"


def name_server(version: str, root: Path) -> Server:
    """Describe a RocketMQ name server."""
    port = free_port()
    return Server(root, port, ["start-namesrv", version, root, port])


def broker(version: str, root: Path, role: str, names: str, **settings: object) -> Server:
    """Describe a RocketMQ broker; `settings` go into its broker.conf."""
    port = free_port((-2, 0, 1))
    pairs = [f"{key}={value}" for key, value in settings.items()]
    return Server(root, port, ["start-broker", version, root, "broker-i", role, port, names, *pairs])


def proxy(root: Path, names: str, **settings: object) -> Server:
    """Describe a 5.3.3 proxy in local mode: one process that is a master as well."""
    port, grpc = free_port((-2, 0, 1)), free_port((0, 1))
    pairs = [f"{key}={value}" for key, value in settings.items()]
    start: list[object] = ["start-proxy", "5.3.3", root, "broker-i", port, grpc, names, *pairs]
    return Server(root, port, start, f"127.0.0.1:{grpc}")


class JavaServer:
    """A server of RocketMQ 5.3.3's that the kit has no script for; subclasses say how it is started."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.port = root, port
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"127.0.0.1:{self.port}"

    def run(self, *words: str) -> None:
        """Start a class with arguments, and wait until it takes connections."""
        with (self.root / "out").open("wb") as out:
            self.child = subprocess.Popen(
                [
                    *("java", "-Xmx256m", "-XX:+UseSerialGC", f"-Duser.home={self.root}"),
                    *("-cp", kit("resolve", "5.3.3").strip(), *words),
                ],
                stdout=out,
                stderr=out,
                env=os.environ | {"ROCKETMQ_HOME": str(self.root)},
            )
        until(self.listens, timeout=JAVA_START_S, what=lambda: (self.root / "out").read_text()[-2000:])

    def listens(self) -> bool:
        """Whether it takes connections."""
        with suppress(OSError):
            Remoting(self.address).sock.close()
            return True
        return False

    def kill(self) -> None:
        """End it."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()


class Controller(JavaServer):
    """RocketMQ 5.3.3's controller, alone; brokers name it with `controllerAddr`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, free_port())

    def start(self) -> None:
        """Start it."""
        self.root.mkdir(parents=True)
        settings = self.root / "controller.conf"
        settings.write_text(
            f"rocketmqHome={self.root}\ncontrollerDLegerGroup=c0\ncontrollerDLegerSelfId=n0\n"
            f"controllerDLegerPeers=n0-{self.address}\ncontrollerStorePath={self.root}/data\n"
        )
        self.run("org.apache.rocketmq.controller.ControllerStartup", "-c", str(settings))


class Remoting:
    """A minimal client of RocketMQ's remoting protocol: JSON headers, one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=20)
        self.stream = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self.sock.close()

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Return header and body of the answer; what the server asks meanwhile is passed over."""
        request = {
            "code": code,
            "language": "JAVA",
            "version": 0,
            "opaque": 1,
            "flag": 0,
            "extFields": fields,
        }
        header = json.dumps(request).encode()
        self.sock.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        while True:
            (length,) = struct.unpack(">i", self.stream.read(4))
            frame = self.stream.read(length)
            size = struct.unpack_from(">i", frame)[0] & 0xFFFFFF
            found = json.loads(frame[4 : 4 + size])
            if found["flag"] & ANSWER:
                return found, frame[4 + size :]

    def create_topic(self, topic: str, queues: int, **more: str) -> None:
        """Make a topic; `more`: other fields of the request, `attributes` for instance."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        header, _ = self.call(CREATE_TOPIC, fields | more)
        assert header["code"] == 0, header

    def send(self, topic: str, body: bytes, properties: str = "", queue_id: int = 0) -> int:
        """Send a message, and return its queue offset."""
        fields = {
            "producerGroup": "interop",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue_id),
            "sysFlag": "0",
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "flag": "0",
            "properties": properties,
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        header, _ = self.call(SEND_MESSAGE, fields, body)
        assert header["code"] == 0, header
        return int(header["extFields"]["queueOffset"])

    def pull(self, group: str, topic: str, queue_id: int, offset: int) -> bytes:
        """Return up to 32 records of a queue as they stand in the log, none at its end."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        header, body = self.call(PULL_MESSAGE, fields)
        assert header["code"] in (0, PULL_NOT_FOUND), header
        return body if header["code"] == 0 else b""

    def log_end(self) -> int:
        """Return the end of the broker's commitlog, -1 when it can't tell yet."""
        header, body = self.call(RUNTIME_INFO, {})
        return int(json.loads(body)["table"]["commitLogMaxOffset"]) if header["code"] == 0 else -1
