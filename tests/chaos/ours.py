"""A group of ours for `beside.py`, which asks the same of it as of `controller_mode.py`."""

import signal
from pathlib import Path

import grpc

from chaos.forwarders import Forwarder
from chaos.group import Group, address
from support.cluster.broker_api import Api, queue
from support.cluster.elections import QUEUES, Member
from whimbrel.client import sync
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

__all__ = ["Ours"]

PULL_MAX = 32


class Ours(Group):
    """Three members and a nameserver, which keeps who leads.

    Behind forwarders a member reaches the nameserver through one as well: a cut keeps it from there, too.
    """

    def __init__(self, root: Path, *, behind: bool = False) -> None:
        self.out: dict[int, Forwarder] = {}  # by member, to the nameserver
        self.topics: list[str] = []
        super().__init__(root, behind=behind)
        self.asking = Api(grpc.insecure_channel(self.endpoint))

    def member(self, number: int, voters: list[int], flush: str, settings: dict[str, object]) -> Member:
        """Describe a member."""
        member = super().member(number, voters, flush, settings)
        if self.forwarders is not None:
            out = self.out[number] = self.forwarders.add("127.0.0.1")
            out.target = address(self.endpoint)
            member.broker.settings["nameservers"] = [f"127.0.0.1:{out.address[1]}"]
        return member

    def address(self, member: Member) -> str:
        """Return a member's address as routes have it."""
        return self.told(member)

    # Faults

    def begin(self, fault: str, member: Member) -> None:
        """Kill, stop or cut off a member."""
        if fault == "kill -9":
            member.kill()
        elif fault == "hang":
            member.signal(signal.SIGSTOP)
        else:
            assert self.forwarders is not None
            self.cut(member, with_grpc=True)
            self.forwarders.cut(self.out[member.number])

    # What it says

    def routed(self) -> str:
        """Return whom the route of a topic names first."""
        queues = self.asking.route(self.topics[0]).message_queues
        if not queues:
            return ""
        first = queues[0].broker.endpoints.addresses[0]
        return f"{first.host}:{first.port}"

    def create(self, topics: list[str]) -> None:
        """Make topics."""
        self.await_in_step()
        with sync.Admin(self.endpoint) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=QUEUES)
        self.topics += topics

    def read_back(self, topic: str) -> list[tuple[int, int, str]]:
        """Return queue, offset and body of all messages of a topic."""
        found: list[tuple[int, int, str]] = []
        peer = self.await_in_step().peer
        for number in range(QUEUES):
            offset = 0
            while True:
                frames = peer(
                    "PullMessage", group=v2.Resource(name="reader"), message_queue=queue(topic, number),
                    offset=offset, batch_size=PULL_MAX,
                )  # fmt: skip
                got = [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
                if not got:
                    break
                found += [(number, each.system_properties.queue_offset, each.body.decode()) for each in got]
                offset = got[-1].system_properties.queue_offset + 1
        peer.channel.close()
        return found

    def cut_bytes(self) -> int:
        """Return how much was cut off members' logs; it is kept in directories that say it."""
        cuts = [path.name.split("-") for path in self.root.glob("store-*/whimbrel/cut/*-*-*")]
        return sum(int(to) - int(first) for _, first, to in cuts)
