"""RocketMQ's official SDKs, unmodified, while the leader of a group that elects it is killed, or hangs.

A producer, a simple and a push consumer of each SDK run all the time; in the end all that was acknowledged
has been consumed. How long their sends and receives pause is printed, and never asserted. docs/failover.md
says what came out.
"""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from chaos.faults import BROKER
from chaos.group import Group
from support.cluster.elections import ElectedGroup, Member
from support.systems.sdk_programs import LANGUAGES, Program, remote_ports
from support.waiting import elapse
from whimbrel.client import sync

pytestmark = pytest.mark.process

STEADY = 20  # messages before a fault, and again after it
PAUSE_MS = 20
FLOW_S = 60.0  # SDKs look at their routes every 30 s, so that they go on by then whatever they do with errors
HANG_S = 15.0
WITHOUT_PUSH = ("rust",)
QUICK = ("python",)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("sdk-failovers")) as running:
        yield running


def kill(member: Member) -> float:
    member.kill()
    return 2.0


def hang(member: Member) -> float:
    member.signal(signal.SIGSTOP)
    return HANG_S


class Clients:
    """The programs of an SDK."""

    def __init__(self, language: str, group: ElectedGroup, topic: str) -> None:
        self.producer = Program(language, "produce", group.endpoint, topic, "m", 0, PAUSE_MS)
        self.consumers = {
            role: Program(language, role, group.endpoint, topic, f"{topic}-{role}", "*")
            for role in (("simple",) if language in WITHOUT_PUSH else ("simple", "push"))
        }

    def __enter__(self) -> "Clients":
        for each in (self.producer, *self.consumers.values()):
            each.wait_ready()
        self.flow()
        return self

    def __exit__(self, *error: object) -> None:
        kind, value, trace = error
        for each in (self.producer, *self.consumers.values()):
            each.__exit__(kind, value, trace)  # type: ignore[arg-type]

    def flow(self) -> None:
        """Wait until more messages are acknowledged, and received everywhere."""
        self.producer.wait_more("sent", STEADY, FLOW_S, "sending goes on")
        newest = set(self.producer.bodies("sent")[-STEADY:])
        for consumer in self.consumers.values():
            consumer.wait_bodies("got", newest, FLOW_S)

    def dialled(self, member: Member) -> str:
        """Tell which of them are connected to a member's broker: of several addresses SDKs dial any."""
        port = int(member.broker.grpc.rpartition(":")[2])
        programs = {"producer": self.producer, **self.consumers}
        found = [name for name, program in programs.items() if port in remote_ports(program.child.pid)]
        return ", ".join(found) or "none"

    def pauses(self, since: float) -> str:
        """Tell the longest pauses since a moment."""
        told = [f"sends {self.producer.longest_pause('sent', since):.1f} s"]
        told += [
            f"{role} receives {consumer.longest_pause('got', since):.1f} s"
            for role, consumer in self.consumers.items()
        ]
        return ", ".join(told)

    def all_through(self) -> str:
        """End the producer, wait until nothing that was acknowledged is missing, and tell the counts."""
        self.producer.end()
        sent = self.producer.bodies("sent")
        told = f"{len(sent)} acknowledged, {len(self.producer.of('failed'))} failed"
        for role, consumer in self.consumers.items():
            consumer.wait_bodies("got", set(sent), FLOW_S)
            again = consumer.bodies("got")
            told += f", {len(again) - len(set(again))} twice to {role}"
        return told


def led_by_dialled(group: Group, clients: Clients) -> Member:
    """Have the member lead to which the producer is connected: the others would hand its calls on."""
    leader = group.await_in_step()
    for member in group.members.values():
        if member is not leader and "producer" in clients.dialled(member):
            with sync.Admin(group.endpoint) as admin:
                admin.switchover(BROKER, member.number)
            return group.await_in_step()
    return leader


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", [kill, hang], ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "language",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in LANGUAGES],
    indirect=True,
)
def test_running_clients_go_on_at_the_next_leader(
    language: str, fault: Callable[[Member], float], group: Group, measured: Callable[[str], None]
) -> None:
    topic = f"{fault.__name__}-{language}"
    with Clients(language, group, topic) as clients:
        leader = led_by_dialled(group, clients)
        clients.flow()
        dialled = clients.dialled(leader)
        began = time.monotonic()
        away_s = fault(leader)
        group.await_leader(leader)
        elected_s = time.monotonic() - began
        elapse(max(0.0, away_s - elected_s))
        meanwhile = clients.pauses(began)
        group.mend()
        clients.flow()
        measured(
            f"{language}, {fault.__name__} of the leader, the next after {elected_s:.1f} s:"
            f" {clients.pauses(began)} ({meanwhile} before the old one is back, after {away_s:g} s);"
            f" connected to it: {dialled}; {clients.all_through()}"
        )
        if failed := clients.producer.of("failed"):
            measured(f"{language}: {failed[0]}")
