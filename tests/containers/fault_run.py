"""A case of the table of faults: the fault under load, and what must hold afterwards.

    load is steady ─► fault begins ─► held for a while ─► healed (or heals itself) ─► load is steady again
      ─► load ends ─► the slave has all ─► consumers have all ─► checks

Clients are senders and a group of the official SDK (`sdk_notes.py`), and a producer, a group and a reader of
the client library (`noting.py`). Replication is synchronous, so that what was acknowledged is on the slave.
`run` is the same for all cases of `faults.py`. Checked each time:

- no finding of `histories.py` stands against what the clients saw and the slave's log has: nothing is lost,
  stored twice without a reason, out of order, skipped by the reader, never delivered, ...
- offsets of each queue go on without a gap
- the logs of master and slave are equal, byte for byte
- the cluster recovered by itself, within `RECOVERY_S`
"""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.faults import FAULTS, MOMENTARY, PRODUCERS, RECOVERY_S, SENDERS, Case, Scene
from containers.rig import Rig
from support.history.histories import Finding, Place
from support.history.noting import READER, SETTLE_S, Load
from support.history.sdk_notes import SdkLoad, note_drain, note_sends
from support.waiting import elapse, until
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.errors import WhimbrelError

__all__ = ["PER_SECOND", "STEADY", "Result", "run"]

PER_SECOND = 400.0  # so that a table of thirty cases fits into an hour, and a case onto a small disk
PAUSE_S = 0.02
BROKER = "broker-a"  # the name that docker-compose.yml gives both
GROUP = "drain"
STEADY = 100  # messages acknowledged before a fault, and after it
CONVERGE_S = 60.0
SHOWN = 10  # findings that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case.

    Attributes:
        held_s: how long the fault lasted, by plan; 0 for those that are over at once.
        acknowledged: sends of all clients that were answered OK.
        failed: sends that the SDK gave up since the fault began, after its own tries.
        delivered: deliveries to groups.
        read: messages that the reader of queues got.
        findings: of the history, by kind; a case with any is a failure.
        served_s: from the end of the fault until a client that has just come has sent a message.
        recovered_s: from the end of the fault to the next message acknowledged to those that were there.
        steady_s: from the end of the fault until `STEADY` more were acknowledged.
    """

    case: Case
    held_s: float
    acknowledged: int
    failed: int
    delivered: int
    read: int
    findings: Counter[str]
    served_s: float
    recovered_s: float
    steady_s: float


class Newcomer:
    """A client that knows nothing yet: it sends one message as soon as the cluster takes it.

    An SDK that was there during the fault may still wait for its own reasons, the next refresh of its route
    for instance: this one tells how long the services took.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sent_at = 0.0
        self.given_up_at = time.monotonic() + RECOVERY_S
        self.thread = threading.Thread(target=self.send, daemon=True)
        self.thread.start()

    def send(self) -> None:
        """Try until it is acknowledged."""
        while not self.sent_at and time.monotonic() < self.given_up_at:
            with contextlib.suppress(WhimbrelError), Producer(self.endpoint) as producer:
                producer.send(Message(topic="newcomer", body=b"hello"))
                self.sent_at = time.monotonic()

    def served_at(self) -> float:
        """Return when that was.

        Raises:
            AssertionError: the cluster did not take it in time.
        """
        self.thread.join()
        assert self.sent_at, f"a new client could not send anything within {RECOVERY_S:g} s"
        return self.sent_at


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long after the end of a fault; see `Result`."""

    served_s: float
    recovered_s: float
    steady_s: float


def run(rig: Rig, case: Case, *, iptables: str, folder: Path, seed: int, hold_s_max: float) -> Result:
    """Run a case: the fault under load, then the checks.

    Args:
        seed: decides how long the fault lasts.
        hold_s_max: at most; above 8 s nameservers take a broker for dead.

    Raises:
        AssertionError: something that must hold does not.
    """
    held_s = 0.0
    if case.fault not in MOMENTARY:
        held_s = round(random.Random(f"{seed} {case.name}").uniform(1.0, hold_s_max), 1)
    topic = "".join(letter if letter.isalnum() else "-" for letter in f"{case.name}-{seed}")
    rig.stack.wait_usable()
    begin = int(rig.marks("master")["written"])
    with clients(rig, case, topic, held_s=held_s, iptables=iptables, folder=folder) as scene:
        failed_before = scene.load.count("failed")
        recovery = struck(scene, case)
        settle(scene)
    findings = checked(scene, case, stored(rig, topic, begin))
    rig.stack.wait_healthy()
    history = scene.own.history
    return Result(
        case=case,
        held_s=held_s,
        acknowledged=len(history.acknowledged),
        failed=scene.load.count("failed") - failed_before,
        delivered=len(history.deliveries),
        read=len(history.reads),
        findings=Counter(finding.kind for finding in findings),
        served_s=recovery.served_s,
        recovered_s=recovery.recovered_s,
        steady_s=recovery.steady_s,
    )


@contextlib.contextmanager
def clients(
    rig: Rig, case: Case, topic: str, *, held_s: float, iptables: str, folder: Path
) -> Iterator[Scene]:
    """Have clients send and receive, at a steady pace from here on; they end with the context."""
    load = SdkLoad("send", rig.endpoint, topic, folder, str(SENDERS), str(PER_SECOND))
    drain = SdkLoad("drain", rig.endpoint, topic, folder, GROUP)
    own = Load(rig.endpoint, topic, producers=PRODUCERS, pause_s=PAUSE_S)
    try:
        load.wait_for(STEADY, "a steady load before the fault", RECOVERY_S)
        own.wait_for(1, "a message of the client library", RECOVERY_S)
        yield Scene(
            rig=rig,
            service=case.service,
            load=load,
            drains={GROUP: drain},
            own=own,
            hold=lambda: elapse(held_s),
            iptables=iptables,
            folder=folder,
        )
    finally:
        load.end()
        drain.end()
        own.end()


def struck(scene: Scene, case: Case) -> Recovery:
    """Let the fault happen, and return how long the cluster took to serve again.

    Raises:
        AssertionError: it does not, in time.
    """
    FAULTS[case.fault](scene)
    healed = time.monotonic()
    newcomer = Newcomer(scene.rig.endpoint)
    scene.load.wait_for(1, "a message after the fault", RECOVERY_S)
    recovered_s = time.monotonic() - healed
    scene.load.wait_for(STEADY, "a steady load after the fault", RECOVERY_S)
    steady_s = time.monotonic() - healed
    return Recovery(newcomer.served_at() - healed, recovered_s, steady_s)


def settle(scene: Scene) -> None:
    """End the load, and wait until the slave and all consumers have what was sent."""
    load, own = scene.load, scene.own
    load.end()
    own.stop_sending()
    until(scene.rig.converged, timeout=CONVERGE_S, what="the slave having all that the master has")
    own.settle({body.encode() for body in load.sent()})
    sent = load.sent() | {sent.id.decode() for sent in own.history.acknowledged}
    scene.drains[GROUP].wait_for_all(sent, SETTLE_S)


def checked(scene: Scene, case: Case, complete: list[tuple[Place, bytes]]) -> list[Finding]:
    """Return what stands against the histories of all clients, given what is stored."""
    history = scene.own.history
    if case.service in ("broker-master", "master"):
        history.ack_window_s = None  # a slave serves, that may lack the last acknowledgements of consumers
    note_sends(history, scene.load, complete)
    for group, reader in scene.drains.items():
        note_drain(history, reader, group)
    findings = history.check(complete=complete, groups=[scene.own.group, READER, GROUP])
    for finding in findings[:SHOWN]:
        print(finding)
    return findings


def stored(rig: Rig, topic: str, begin: int) -> list[tuple[Place, bytes]]:
    """Compare the logs of master and slave, and return what the slave's has of a topic.

    Raises:
        AssertionError: they differ, are damaged, or a queue has a gap.
    """
    end = int(rig.marks("master")["written"])
    master, slave = (rig.look(f"broker-{role}", "log", begin, end, topic) for role in ("master", "slave"))
    for log in (master, slave):
        assert (log["hashed"], log["walked"], log["fault"]) == (end, end, ""), log | {"records": "..."}
    assert master["sha256"] == slave["sha256"], f"the logs differ between {begin} and {end}"
    next_offset: dict[int, int] = {}
    found: list[tuple[Place, bytes]] = []
    for queue, offset, body in slave["records"]:
        assert offset == next_offset.get(queue, 0), f"queue {queue}: offset {offset} out of turn"
        next_offset[queue] = offset + 1
        found.append(((f"{BROKER}/{topic}", queue, offset), body.encode()))
    return found
