"""A group of members that elect their leader, as processes: members with ids from 1 on, and one nameserver.

with ElectedGroup(tmp_path) as group:
    leader = group.await_leader()       # a `Member` that takes sends
    leader.kill()                       # its broker and its replicator
    group.await_leader()                # another one
"""

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from integration.test_broker_cluster import Peer
from support.cluster.broker_api import message, queue
from support.cluster.processes import Process, kill_all
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

__all__ = ["ElectedGroup", "Load", "Member", "bodies_of", "loaded"]

QUEUES = 8
SEND_S = 0.7  # the deadline of a send: who hangs answers none
PAUSE_S = 0.01  # after a send that was refused

SETTINGS: dict[str, object] = {
    "commitlog_file_size": 1 << 20,
    "consumequeue_file_size": 20_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "auto_create_topics": True,
    "auto_create_groups": True,
}


class Member:
    """A broker and its replicator over one store."""

    def __init__(self, number: int, broker: Process, replicator: Process) -> None:
        self.number, self.broker, self.replicator = number, broker, replicator

    @property
    def processes(self) -> tuple[Process, Process]:
        """Both."""
        return self.broker, self.replicator

    @property
    def peer(self) -> Peer:
        """Calls to its broker."""
        return Peer(self.broker)

    def view(self) -> Any:
        """What it says of replication; None when it does not answer."""
        peer = self.peer
        try:
            return peer.administer("DescribeReplication")
        except grpc.RpcError:
            return None
        finally:
            peer.channel.close()

    def leads(self) -> bool:
        """Whether it takes sends."""
        view = self.view()
        return view is not None and view.role == "MASTER" and view.writable

    def kill(self) -> None:
        """End both at once."""
        kill_all(self.processes)

    def start(self) -> None:
        """Start both again."""
        for process in self.processes:
            process.launch()
        for process in self.processes:
            process.wait_ready()

    def signal(self, number: signal.Signals) -> None:
        """Send both a signal."""
        for process in self.processes:
            process.signal(number)


class ElectedGroup:
    """The group, started."""

    def __init__(
        self, root: Path, *, members: int = 3, flush: str = "sync", trace_to: str = "", **broker: object
    ) -> None:
        """Start it; `broker` are settings of the brokers, another coordinator among them."""
        self.root, self.trace_to = root, trace_to
        self.nameserver = Process(
            root, "nameserver", "nameserver", keeps_groups=root / "groups.json", renew_s=1, lease_s=8,
            expected_brokers=members,
        )  # fmt: skip
        self.nameserver.start()
        numbers = range(1, members + 1)
        self.members = {number: self.member(number, list(numbers), flush, broker) for number in numbers}
        launched = [process.launch() for member in self.members.values() for process in member.processes]
        for process in launched:
            process.wait_ready()

    def member(self, number: int, voters: list[int], flush: str, settings: dict[str, object]) -> Member:
        """Describe a member."""
        store = self.root / f"store-{number}"
        common: dict[str, object] = {"role": "elected", "id": number, "store": store, "flush": flush}
        if self.trace_to:
            common["trace_to"] = self.trace_to
        settings = SETTINGS | {"coordinator": "nameserver"} | settings
        broker = Process(
            self.root, "broker", f"broker-{number}",
            **common, nameservers=[self.endpoint], replication="majority", voters=voters, **settings,
        )  # fmt: skip
        size = settings["commitlog_file_size"]
        replicator = Process(
            self.root, "replicator", f"replicator-{number}", **common, commitlog_file_size=size
        )
        return Member(number, broker, replicator)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = [self.nameserver, *(each for one in self.members.values() for each in one.processes)]
        if error is not None:
            for process in processes:
                print(f"--- {process.name}\n{process.log_tail(40)}")
        for process in processes:
            process.signal(signal.SIGCONT)
            process.kill()

    @property
    def endpoint(self) -> str:
        """Where clients go."""
        return self.nameserver.grpc

    def leader(self, *besides: Member) -> Member | None:
        """Return who takes sends now."""
        return next(
            (member for member in self.members.values() if member not in besides and member.leads()), None
        )

    def await_leader(self, *besides: Member, timeout: float = 20.0) -> Member:
        """Wait until somebody takes sends."""
        found = until(lambda: self.leader(*besides), timeout=timeout, what="a leader")
        assert isinstance(found, Member)
        return found

    def await_sending(self) -> Member:
        """Return the leader, once a send to it holds."""
        leader = self.await_leader()
        peer = leader.peer
        until(lambda: peer.send("t", b"first").status.code == v2.OK, timeout=10, what="a send that holds")
        return leader


class Load:
    """Sends to all members at once, each from a thread of its own; who does not lead refuses.

    Attributes:
        acknowledged: bodies that were answered OK, with the time of the answer.
    """

    def __init__(self, group: ElectedGroup, topic: str = "t") -> None:
        self.group, self.topic = group, topic
        self.acknowledged: list[tuple[float, bytes]] = []
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=self.send, args=(member,)) for member in group.members.values()
        ]

    def send(self, member: Member) -> None:
        """Send until the end."""
        peer: Peer | None = None
        number = 0
        while not self.stopping.is_set():
            number += 1
            body = b"%d-%06d" % (member.number, number)
            try:
                peer = peer or member.peer
                answer = peer("SendMessage", timeout=SEND_S, messages=[message(self.topic, body)])
            except grpc.RpcError:
                assert peer is not None
                peer.channel.close()
                peer = None
                self.stopping.wait(PAUSE_S)
                continue
            if answer.status.code == v2.OK:
                self.acknowledged.append((time.monotonic(), body))
            else:
                self.stopping.wait(PAUSE_S)

    def longest_pause(self, since: float) -> float:
        """Return the longest time without an acknowledged send since then, in seconds."""
        times = [since, *(at for at, _ in self.acknowledged if at > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def await_count(self, count: int) -> None:
        """Wait for so many acknowledged sends more."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + count, timeout=20, what=f"{count} sends")


@contextmanager
def loaded(group: ElectedGroup) -> Iterator[Load]:
    """Send while the block runs; the threads have ended after it."""
    load = Load(group)
    for thread in load.threads:
        thread.start()
    try:
        load.await_count(20)
        yield load
    finally:
        load.stopping.set()
        for thread in load.threads:
            thread.join()


def bodies_of(peer: Peer, topic: str = "t") -> list[bytes]:
    """Return all that can be pulled of a topic, queue by queue, in order."""
    found: list[bytes] = []
    for number in range(QUEUES):
        offset = 0
        while True:
            frames = peer(
                "PullMessage", group=v2.Resource(name="puller"), message_queue=queue(topic, number),
                offset=offset, batch_size=32,
            )  # fmt: skip
            got = [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
            if not got:
                break
            found += [each.body for each in got]
            offset = got[-1].system_properties.queue_offset + 1
    return found
