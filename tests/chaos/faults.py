"""What is done to the leader, and to what it depends on."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.group import Group
from support.cluster.elections import Member
from support.cluster.processes import Process
from support.waiting import elapse
from whimbrel.client import sync
from whimbrel.errors import NotReady, WhimbrelError

__all__ = ["BEHIND", "BROKER", "KINDS", "QUICK", "Kind", "Scene"]

BROKER = "broker-a"  # the name of the group
SWITCHOVER_TRIES_MAX = 10
SWITCHOVER_PAUSE_S = 0.5  # after a refusal: no other member is close enough just now
BEFORE_S = 0.2, 1.5  # how long the nameserver is away before the leader is killed


@dataclass(slots=True)
class Scene:
    """Where a fault happens.

    Attributes:
        leader: who leads at its begin.
        other: a follower.
        began: when it began.
    """

    group: Group
    dice: random.Random
    leader: Member
    other: Member
    began: float = 0.0

    def now(self) -> None:
        """Note that it begins."""
        self.began = time.monotonic()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        what: is done, for the table.
        begin: does it.
        away_s: the bounds of the time after which everything is started, woken or mended again.
    """

    name: str
    what: str
    begin: Callable[[Scene], None]
    away_s: tuple[float, float]


KILLED_S = 1.0, 3.0
HUNG_S = 3.0, 8.0


def send_signal(number: signal.Signals, *processes: Process) -> None:
    """Send several processes a signal, one right after the other; the killed are reaped."""
    for process in processes:
        process.signal(number)
    for process in processes:
        if number is not signal.SIGSTOP:
            process.wait()


def kill(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGKILL, *scene.leader.processes)


def kill_broker(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGKILL, scene.leader.broker)


def kill_replicator(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGKILL, scene.leader.replicator)


def hang(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGSTOP, *scene.leader.processes)


def hang_broker(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGSTOP, scene.leader.broker)


def hang_replicator(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGSTOP, scene.leader.replicator)


def stop(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGTERM, *scene.leader.processes)
    codes = [process.code for process in scene.leader.processes]
    assert codes == [0, 0], f"the stopped leader's processes ended with {codes}"


def switchover(scene: Scene) -> None:
    with sync.Admin(scene.group.endpoint) as admin:
        for tried in range(1, SWITCHOVER_TRIES_MAX + 1):
            scene.now()
            try:
                member = admin.switchover(BROKER)
            except NotReady:
                if tried == SWITCHOVER_TRIES_MAX:
                    raise
                elapse(SWITCHOVER_PAUSE_S)
            except WhimbrelError as error:
                raise AssertionError(f"switchover: {error!r}") from error
            else:
                assert member != scene.leader.number
                return


def kill_two(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGKILL, *scene.leader.processes, *scene.other.processes)


def kill_without_coordinator(scene: Scene) -> None:
    scene.group.nameserver.kill()
    elapse(scene.dice.uniform(*BEFORE_S))
    kill(scene)


def kill_with_coordinator(scene: Scene) -> None:
    scene.now()
    send_signal(signal.SIGKILL, scene.group.nameserver, *scene.leader.processes)


def cut(scene: Scene) -> None:
    scene.now()
    scene.group.cut(scene.leader, with_grpc=True)


def cut_replication(scene: Scene) -> None:
    scene.now()
    scene.group.cut(scene.leader, with_grpc=False)


def cut_broker(scene: Scene) -> None:
    scene.now()
    scene.group.cut_broker(scene.leader)


KINDS = (
    Kind("kill -9", "both processes of the leader", kill, KILLED_S),
    Kind("kill -9, broker", "the leader's broker alone", kill_broker, KILLED_S),
    Kind("kill -9, replicator", "the leader's replicator alone", kill_replicator, KILLED_S),
    Kind("hang", "SIGSTOP of both for 3 to 8 s", hang, HUNG_S),
    Kind("hang, broker", "SIGSTOP of the leader's broker for 3 to 8 s", hang_broker, HUNG_S),
    Kind("hang, replicator", "SIGSTOP of its replicator for 3 to 8 s", hang_replicator, HUNG_S),
    Kind("SIGTERM", "both are stopped as an operator does", stop, KILLED_S),
    Kind("switchover", "an operator has another member lead", switchover, (0.5, 1.0)),
    Kind("kill -9, and a follower", "four processes at once, back after 1 to 3 s", kill_two, KILLED_S),
    Kind(
        "kill -9 without nameserver",
        "the nameserver, which keeps the group's record, is killed before; both are back after 1 to 3 s",
        kill_without_coordinator,
        KILLED_S,
    ),
    Kind("kill -9 with nameserver", "both at once, back after 1 to 3 s", kill_with_coordinator, KILLED_S),
)

# These need the forwarders.
BEHIND = (
    Kind(
        "cut",
        "nothing passes to or from the leader's two ports for 3 to 8 s; its clients are cut off, too",
        cut,
        HUNG_S,
    ),
    Kind(
        "cut, replication",
        "nothing passes to or from its port for followers for 3 to 8 s",
        cut_replication,
        HUNG_S,
    ),
    Kind(
        "cut, broker",
        "nothing passes to or from its broker, while its replicator reaches all, for 3 to 8 s",
        cut_broker,
        HUNG_S,
    ),
)

QUICK = tuple(
    kind
    for kind in KINDS
    if kind.begin in (kill, hang_broker, stop, switchover, kill_two, kill_with_coordinator)
)
