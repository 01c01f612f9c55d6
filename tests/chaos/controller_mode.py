"""RocketMQ 5.3.3 in controller mode for SDKs of `apache.rocketmq.v2`: a name server, a controller, three
brokers of one group, and a proxy in cluster mode, through which all clients go.

    with RocketMQ(root, behind=True) as group:
        group.endpoint              # where clients go: the proxy
        group.routed()              # the address of the master in the name server's route
        group.cut(broker)

A send is answered when the SyncStateSet holds it, and that must have two members
(`allAckInSyncStateSet=true`, `minInSyncReplicas=2`); logs are flushed asynchronously. All else is as RocketMQ
has it by default.

Behind forwarders a broker can be cut off. What goes through them:

    others -> broker        at another address of loopback, which the broker takes for its own (`brokerIP1`)
    slaves -> its log       a broker takes the port for replication at all addresses, and registers that port,
                            which is replaced by the forwarder's in what goes to the name server
    broker -> name server   a forwarder for each broker
    broker -> controller    the same; the controller answers where it is itself, which is replaced as well

What is replaced has the same length, five digits of a port.
"""

import concurrent.futures
import json
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.forwarders import Forwarder, Forwarders
from support.systems.real_broker import (
    Controller,
    JavaServer,
    Remoting,
    Server,
    broker,
    free_port,
    name_server,
)
from support.waiting import until
from whimbrel.store.codec import decode_record
from whimbrel.testing.signals import send_signal

__all__ = ["VERSION", "Proxy", "RocketMQ"]

VERSION = "5.3.3"
NAME = "broker-i"
MEMBERS = 3
QUEUES = 8
TABLES = 2  # below a broker's port is the one by which slaves copy topics and positions
IN_STEP_S = 150.0  # for all members to be in the SyncStateSet again
LOOK_S = 0.5
ROUTE, TOPIC_CONFIG, SYNC_STATE = 105, 351, 1006


class Proxy(JavaServer):
    """A proxy in cluster mode, which finds brokers by the name server; its port serves SDKs."""

    def __init__(self, root: Path, names: str) -> None:
        super().__init__(root, free_port((0, 1)))
        self.names = names

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self.root.mkdir(parents=True)
        settings = self.root / "proxy.json"
        described = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": self.names,
            "grpcServerPort": self.port,
            "remotingListenPort": self.port + 1,
        }
        settings.write_text(json.dumps(described))
        words = ["-pm", "cluster", "-n", self.names, "-pc", str(settings)]
        self.run("org.apache.rocketmq.proxy.ProxyStartup", *words)


class RocketMQ:
    """The group, started.

    Args:
        behind: whether a broker can be cut off.
    """

    def __init__(self, root: Path, *, behind: bool = False) -> None:
        self.root = root
        self.forwarders = Forwarders() if behind else None
        self.ways: dict[int, list[Forwarder]] = {}  # by place among the members
        self.names = name_server(VERSION, root / "names")
        self.controller = Controller(root / "controller")
        self.members: list[Server] = []
        self.proxy = Proxy(root / "proxy", self.names.address)
        self.topics: list[str] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()  # its servers are no children of ours
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all."""
        self.names.start()
        self.controller.start()
        self.members = [self.member(number) for number in range(MEMBERS)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, self.members))
        self.proxy.start()
        self.await_in_step()

    def close(self) -> None:
        """End all."""
        self.proxy.kill()
        for member in self.members:
            with suppress(OSError, ValueError):  # it was never started, or is dead
                os.kill(member.pid, signal.SIGCONT)
            member.kill()
        self.controller.kill()
        self.names.kill()
        if self.forwarders is not None:
            self.forwarders.close()

    def member(self, number: int) -> Server:
        """Describe a broker."""
        settings: dict[str, object] = {
            "enableControllerMode": "true",
            "fetchControllerAddrByDnsLookup": "false",
            "controllerAddr": self.controller.address,
            "allAckInSyncStateSet": "true",
            "minInSyncReplicas": 2,
            "mappedFileSizeCommitLog": 1 << 24,
        }
        root = self.root / f"member-{number}"
        if self.forwarders is None:
            return broker(VERSION, root, "ASYNC_MASTER", self.names.address, **settings)
        host = f"127.0.0.{20 + number}"
        log, names, controller = (self.forwarders.add("127.0.0.1") for _ in range(3))
        names.target = ("127.0.0.1", self.names.port)
        controller.target = ("127.0.0.1", self.controller.port)
        own = self.controller.address.encode(), told(controller).encode()
        controller.answers = own
        settings |= {"controllerAddr": told(controller), "brokerIP1": host, "bindAddress": "127.0.0.1"}
        found = broker(VERSION, root, "ASYNC_MASTER", told(names), **settings)
        log.target = ("127.0.0.1", found.port + 1)
        names.requests = f'"127.0.0.1:{found.port + 1}"'.encode(), f'"{told(log)}"'.encode()
        serving, tables = (self.forwarders.add(host, found.port - distance) for distance in (0, TABLES))
        serving.target, tables.target = ("127.0.0.1", found.port), ("127.0.0.1", found.port - TABLES)
        self.ways[number] = [serving, tables, log, names, controller]
        return found

    def address(self, member: Server) -> str:
        """Return a broker's address as routes have it."""
        if self.forwarders is None:
            return member.address
        return told(self.ways[self.members.index(member)][0])

    @property
    def endpoint(self) -> str:
        """Return where clients go."""
        return self.proxy.address

    # Faults

    def begin(self, fault: str, member: Server) -> None:
        """Kill, stop or cut off a broker."""
        if fault == "partition":
            assert self.forwarders is not None
            self.forwarders.cut(*self.ways[self.members.index(member)])
        else:
            send_signal(member.pid, signal.SIGKILL if fault == "kill -9" else signal.SIGSTOP)

    def mend(self) -> None:
        """Start and wake everything."""
        if self.forwarders is not None:
            self.forwarders.mend(*self.forwarders.all)
        for member in self.members:
            try:
                os.kill(member.pid, signal.SIGCONT)
            except (OSError, ValueError):
                member.start()

    # What it says

    def routed(self) -> str:
        """Return the master's address in the route of a topic; empty: there is none."""
        with Remoting(self.names.address) as names:
            fields = {"topic": self.topics[0], "acceptStandardJsonOnly": "true"}
            _, body = names.call(ROUTE, fields)
        told_brokers = json.loads(body or b"{}").get("brokerDatas", [])
        return str(told_brokers[0]["brokerAddrs"].get("0", "")) if told_brokers else ""

    def leader(self) -> Server:
        """Return the master."""
        return next(each for each in self.members if self.address(each) == self.routed())

    def in_step(self) -> Server | None:
        """Return the master, when all are in the SyncStateSet and know all topics."""
        try:
            with Remoting(self.controller.address) as controller:
                _, body = controller.call(SYNC_STATE, {}, json.dumps([NAME]).encode())
            (known,) = json.loads(body)["replicasInfoTable"].values()
            if len(known["inSyncReplicas"]) < MEMBERS:
                return None
            for member in self.members:
                with Remoting(member.address) as connection:
                    if not all(knows(connection, topic) for topic in self.topics):
                        return None
            routed = self.routed() if self.topics else known["masterAddress"]
            return next((each for each in self.members if self.address(each) == routed), None)
        except (OSError, ValueError, struct.error):
            return None

    def await_in_step(self) -> Server:
        """Wait for that."""
        found = until(self.in_step, timeout=IN_STEP_S, every_s=LOOK_S, what="all members in the SyncStateSet")
        assert isinstance(found, Server)
        return found

    def create(self, topics: list[str]) -> None:
        """Make topics, and wait until all members know them."""
        with Remoting(self.await_in_step().address) as connection:
            for topic in topics:
                connection.create_topic(topic, QUEUES)  # 5.3.3's slaves can't copy one with attributes
        self.topics += topics
        self.await_in_step()

    def read_back(self, topic: str) -> list[tuple[int, int, str]]:
        """Return queue, offset and body of all messages of a topic."""
        found: list[tuple[int, int, str]] = []
        with Remoting(self.leader().address) as connection:
            for queue in range(QUEUES):
                offset = 0
                while records := connection.pull("reader", topic, queue, offset):
                    at = 0
                    while at < len(records):
                        message = decode_record(records, at)
                        found.append((queue, message.queue_offset, message.body.decode()))
                        at += message.size
                        offset = message.queue_offset + 1
        return found

    def cut_bytes(self) -> int | None:
        """Return None: brokers log where they cut their logs, not how far those went."""
        return None


def told(forwarder: Forwarder) -> str:
    """Return a forwarder's address."""
    host, port = forwarder.address
    return f"{host}:{port}"


def knows(connection: Remoting, topic: str) -> bool:
    """Return whether a broker has a topic."""
    header, _ = connection.call(TOPIC_CONFIG, {"topic": topic, "lo": "true"})
    return bool(header["code"] == 0)
