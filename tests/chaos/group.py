"""The group of a run: three members and a nameserver; maybe their ports are reached through forwarders."""

import signal
from pathlib import Path
from types import TracebackType

from chaos.forwarders import Forwarder, Forwarders
from support.cluster.elections import ElectedGroup, Member
from support.waiting import until

__all__ = ["Group"]

STEP_S = 40.0  # for one member to lead, and all others to follow it
LOOK_S = 0.1
# Transactions that are left open are asked about soon.
SETTINGS: dict[str, object] = {"transaction_timeout_ms": 2000, "transaction_check_interval_ms": 1000}


class Group(ElectedGroup):
    """The group, started.

    Args:
        behind: whether other members, and clients, reach its members through forwarders.
    """

    def __init__(self, root: Path, *, behind: bool = False) -> None:
        self.forwarders = Forwarders() if behind else None
        self.ways: dict[int, tuple[Forwarder, Forwarder]] = {}  # by member, of gRPC and of replication
        self.upward: dict[int, Forwarder] = {}  # by member, of its broker to the nameserver
        super().__init__(root)
        for number, (grpc, _) in self.ways.items():
            grpc.target = address(self.members[number].broker.grpc)

    def member(self, number: int, voters: list[int], flush: str, settings: dict[str, object]) -> Member:
        """Describe a member.

        Where its replicator listens, nobody can be told another port, but another host: the forwarder has
        the same port on another address of loopback.
        """
        member = super().member(number, voters, flush, settings | SETTINGS)
        if self.forwarders is not None:
            host = f"127.0.0.{10 + number}"
            grpc, replication = self.forwarders.add("127.0.0.1"), self.forwarders.add(host)
            self.ways[number] = grpc, replication
            upward = self.upward[number] = self.forwarders.add("127.0.0.1")
            upward.target = address(self.endpoint)
            member.broker.settings |= {
                "advertise_port": grpc.address[1],
                "nameservers": [f"127.0.0.1:{upward.address[1]}"],
            }
            member.replicator.settings |= {"port": replication.address[1], "advertise_host": host}
            grpc.target = replication.target = ("127.0.0.1", replication.address[1])
        return member

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self.forwarders is not None:
            self.forwarders.close()

    def told(self, member: Member) -> str:
        """Return the address of a member that stands in routes."""
        ways = self.ways.get(member.number)
        return f"127.0.0.1:{ways[0].address[1]}" if ways else member.broker.grpc

    def cut(self, member: Member, *, with_grpc: bool) -> None:
        """Let nothing pass to the ports of a member, or from them."""
        assert self.forwarders is not None
        grpc, replication = self.ways[member.number]
        self.forwarders.cut(replication, *((grpc,) if with_grpc else ()))

    def cut_broker(self, member: Member) -> None:
        """Let nothing pass to a member's broker, or from it; its replicator goes on."""
        assert self.forwarders is not None
        self.forwarders.cut(self.ways[member.number][0], self.upward[member.number])
        others = [grpc for number, (grpc, _) in self.ways.items() if number != member.number]
        self.forwarders.cut_off(member.broker.pid, *others)

    def mend(self) -> None:
        """Start and wake everything."""
        if self.forwarders is not None:
            self.forwarders.mend(*self.forwarders.all)
        processes = [self.nameserver, *(each for one in self.members.values() for each in one.processes)]
        for process in processes:
            process.signal(signal.SIGCONT)
        launched = [process.launch() for process in processes if not process.running]
        for process in launched:
            process.wait_ready()

    def in_step(self) -> Member | None:
        """Return who leads, if all others follow it."""
        views = {member: member.view() for member in self.members.values()}
        leaders = [
            member for member, view in views.items() if view and view.role == "MASTER" and view.writable
        ]
        if len(leaders) != 1 or None in views.values():
            return None
        (leader,) = leaders
        held = views[leader].confirmed_offset
        followers = [view for member, view in views.items() if member is not leader]
        if all(view.role == "SLAVE" and view.connected and view.log_end >= held for view in followers):
            return leader
        return None

    def await_in_step(self) -> Member:
        """Wait until one member leads, and all others follow it."""
        found = until(
            self.in_step,
            timeout=STEP_S,
            every_s=LOOK_S,
            what=lambda: f"a leader that all follow: {[each.view() for each in self.members.values()]}",
        )
        assert isinstance(found, Member)
        return found


def address(text: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = text.rpartition(":")
    return host, int(port)
