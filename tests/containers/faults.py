"""The faults: what is done to the cluster while the official SDK sends, and what must hold afterwards.

    load is steady ─► fault begins ─► held for a while ─► healed (or heals itself) ─► load is steady again
      ─► load ends ─► the slave has all ─► checks

Replication is synchronous, so that what was acknowledged is on the slave. A case is a fault and a service;
`run` is the same for all of them. Checked each time:

- what was acknowledged stands in the log under its id, at the offset of its receipt, on master and slave
- offsets of each queue go on without a gap, and each sender's acknowledged messages keep their order in it
- the logs of master and slave are equal, byte for byte
- the cluster recovered by itself, within `RECOVERY_S`
"""

import collections
import contextlib
import io
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.rig import HERE, Rig, until
from processes import elapse
from stack import SERVICES
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.errors import WhimbrelError

__all__ = ["CASES", "Case", "Result", "run"]

RECOVERY_S = 60.0  # of which the SDK's pauses and gRPC's back-off are a part
SENDERS = 3
PER_SECOND = 400.0  # so that a table of thirty cases fits into an hour, and a case onto a small disk
STEADY = 100  # messages acknowledged before a fault, and after it
CONVERGE_S = 60.0
STORE_OF = {"master": "broker-master", "slave": "broker-slave"}
# Whose packets no longer reach a service when one direction is cut.
SILENT_PEER = {
    "nameserver": "broker-master",
    "broker-master": "nameserver",
    "replicator-master": "replicator-slave",
    "broker-slave": "broker-master",
    "replicator-slave": "replicator-master",
}
UPGRADE_ORDER = ("replicator-slave", "broker-slave", "nameserver", "replicator-master", "broker-master")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table.

    Attributes:
        fault: a key of `FAULTS`.
        service: whom it hits; a role where it hits both processes beside a store.
        quick: CI runs it, one of each fault.
    """

    fault: str
    service: str
    quick: bool = False

    @property
    def name(self) -> str:
        """Return a name that can be a topic's."""
        return f"{self.fault}-{self.service}".replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case.

    Attributes:
        held_s: how long the fault lasted, by plan; 0 for those that are over at once.
        failed: sends that the SDK gave up since the fault began, after its own attempts.
        lost: acknowledged messages that are missing anywhere; a case with any is a failure.
        served_s: from the end of the fault until a client that has just come has sent a message.
        recovered_s: from the end of the fault to the next message acknowledged to those that were there.
        steady_s: from the end of the fault until `STEADY` more were acknowledged.
    """

    case: Case
    held_s: float
    acknowledged: int
    failed: int
    lost: int
    served_s: float
    recovered_s: float
    steady_s: float


class Load:
    """The SDK's program, and what it has noted so far."""

    def __init__(self, rig: Rig, role: str, topic: str, folder: Path, *words: str) -> None:
        self.file, self.log = folder / f"{topic}-{role}.notes", folder / f"{topic}-{role}.log"
        command = [sys.executable, str(HERE / "sdk_load.py"), role, rig.endpoint, topic, str(self.file)]
        with self.log.open("ab") as output:
            self.child = subprocess.Popen(
                [*command, *words], stdout=output, stderr=output, start_new_session=True
            )

    def notes(self, kind: str) -> list[list[str]]:
        """Return the notes of a kind, each as its words."""
        if not self.file.exists():
            return []
        text = self.file.read_text(encoding="utf-8").rpartition("\n")[0]
        return [words for line in text.splitlines() if (words := line.split(" "))[0] == kind]

    def count(self, kind: str = "sent") -> int:
        """Return how many notes of a kind there are."""
        return len(self.notes(kind))

    def wait_for(self, more: int, what: str, kind: str = "sent") -> float:
        """Wait for more notes of a kind; return how long that took."""
        wanted = self.count(kind) + more
        try:
            return until(lambda: self.count(kind) >= wanted, RECOVERY_S, what)
        except AssertionError as error:
            last = self.notes("failed")[-3:]
            raise AssertionError(f"{error}; {self.count(kind)} {kind}, {last}") from None

    def end(self) -> None:
        """End the program; a send that is under way ends within the SDK's three attempts."""
        self.child.terminate()
        try:
            self.child.wait(30)
        finally:
            self.child.kill()
            self.child.wait()


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


Hold = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault is given.

    Attributes:
        hold: waits for as long as the fault is to last.
    """

    rig: Rig
    service: str
    load: Load
    hold: Hold
    iptables: str
    folder: Path


def kill(scene: Scene) -> None:
    """Kill -9 of the process from inside; the engine starts it again by its restart policy."""
    restarts = scene.rig.container(scene.service).attrs["RestartCount"]
    pid = "import json, os; os.kill(json.load(open('/tmp/ready.json'))['pid'], 9)"
    scene.rig.container(scene.service).exec_run(["python", "-c", pid])
    until(
        lambda: scene.rig.container(scene.service).attrs["RestartCount"] > restarts,
        RECOVERY_S,
        "the engine starting it again",
    )


def pause(scene: Scene) -> None:
    """Freeze the process: its peers' kernels still get answers from its own."""
    scene.rig.container(scene.service).pause()
    try:
        scene.hold()
    finally:
        scene.rig.container(scene.service).unpause()


def restart(scene: Scene) -> None:
    """Stop it gracefully and start it again."""
    scene.rig.container(scene.service).restart(timeout=15)


def cut(scene: Scene) -> None:
    """Take it off the network, which also takes its published port and its name away."""
    container, network = scene.rig.container(scene.service), scene.rig.network
    network.disconnect(container)
    try:
        scene.hold()
    finally:
        network.connect(container, aliases=[scene.service])


def one_way_cut(scene: Scene) -> None:
    """Drop what comes from one peer; what goes there still does."""
    peer = scene.rig.address(SILENT_PEER[scene.service])
    rule = f"INPUT ! -i lo -s {peer} -j DROP"
    options: dict[str, Any] = {
        "network_mode": f"container:{scene.rig.container(scene.service).id}",
        "cap_add": ["NET_ADMIN"],
        "timeout_s": 20,
    }
    scene.rig.run(scene.iptables, ["sh", "-c", f"iptables -I {rule}"], **options)
    try:
        scene.hold()
    finally:
        scene.rig.run(scene.iptables, ["sh", "-c", f"iptables -D {rule}"], **options)


def full_disk(scene: Scene) -> None:
    """Fill the disk of a store until sends fail, then give it back."""
    broker = STORE_OF[scene.service]
    scene.rig.look(broker, "fill")
    try:
        scene.load.wait_for(SENDERS, "sends failing on a full disk", "failed")
        scene.hold()
    finally:
        scene.rig.look(broker, "free")


def slave_gone(scene: Scene) -> None:
    """Kill the slave's broker and replicator: nothing may be acknowledged without them."""
    gone = [scene.rig.container(service) for service in ("replicator-slave", "broker-slave")]
    for container in gone:
        container.kill()
    acknowledged = scene.load.count()
    scene.hold()
    # An answer may have been on its way when they were killed, one for each sender.
    assert scene.load.count() <= acknowledged + SENDERS, "acknowledged without a slave"
    for container in gone:
        container.start()


def master_gone(scene: Scene) -> None:
    """Kill the master's broker and replicator: all that was acknowledged can be read from the slave."""
    gone = [scene.rig.container(service) for service in ("broker-master", "replicator-master")]
    for container in gone:
        container.kill()
    scene.hold()
    sent = {words[3] for words in scene.load.notes("sent")}
    reader = Load(scene.rig, "drain", topic_of(scene.load), scene.folder, "reader")
    try:
        until(
            lambda: sent <= {words[1] for words in reader.notes("got")},
            RECOVERY_S,
            f"all {len(sent)} acknowledged messages coming from the slave",
        )
    finally:
        reader.end()
    for container in gone:
        container.start()


def topic_of(load: Load) -> str:
    """Return the topic of a load."""
    return load.file.name.removesuffix("-send.notes")


def upgrade(scene: Scene) -> None:
    """Replace all containers, one after the other, by those of another image."""
    rig = scene.rig
    tag = f"{rig.image}-upgrade"
    dockerfile = f"FROM {rig.image}\nLABEL whimbrel.upgrade={time.time_ns()}\n"
    rig.client.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True, forcerm=True)
    wanted = rig.client.images.get(tag).id
    rig.stack.environment["WHIMBREL_IMAGE"] = tag
    for service in UPGRADE_ORDER:
        rig.stack.compose("up", "-d", "--no-deps", service, quiet=True)
        rig.stack.wait_healthy([service])
        scene.load.wait_for(1, f"a message after {service} was replaced")
    assert {rig.container(service).attrs["Image"] for service in SERVICES} == {wanted}


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill -9": kill,
    "pause": pause,
    "restart": restart,
    "cut": cut,
    "one-way cut": one_way_cut,
    "full disk": full_disk,
    "gone": slave_gone,
    "gone, slave read": master_gone,
    "rolling upgrade": upgrade,
}
MOMENTARY = ("kill -9", "restart", "rolling upgrade")  # no time to hold them for

# Which service CI hits with which fault: each fault once, each service at least once.
QUICK = {
    "kill -9": "broker-master",
    "pause": "replicator-slave",
    "restart": "nameserver",
    "cut": "broker-slave",
    "one-way cut": "replicator-master",
}
CASES = (
    *(
        Case(fault, service, quick=QUICK[fault] == service)
        for fault, service in itertools.product(QUICK, SERVICES)
    ),
    Case("full disk", "master", quick=True),
    Case("full disk", "slave"),
    Case("gone", "slave", quick=True),
    Case("gone, slave read", "master", quick=True),
    Case("rolling upgrade", "all", quick=True),
)


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
    load = Load(rig, "send", topic, folder, str(SENDERS), str(PER_SECOND))
    try:
        load.wait_for(STEADY, "a steady load before the fault")
        scene = Scene(
            rig=rig,
            service=case.service,
            load=load,
            hold=lambda: elapse(held_s),
            iptables=iptables,
            folder=folder,
        )
        failed_before = load.count("failed")
        FAULTS[case.fault](scene)
        healed = time.monotonic()
        newcomer = Newcomer(rig.endpoint)
        load.wait_for(1, "a message after the fault")
        recovered_s = time.monotonic() - healed
        load.wait_for(STEADY, "a steady load after the fault")
        steady_s = time.monotonic() - healed
        served_s = newcomer.served_at() - healed
    finally:
        load.end()
    until(rig.converged, CONVERGE_S, "the slave having all that the master has")
    lost = check(rig, load, topic, begin)
    rig.stack.wait_healthy()
    return Result(
        case=case,
        held_s=held_s,
        acknowledged=load.count(),
        failed=load.count("failed") - failed_before,
        lost=lost,
        served_s=served_s,
        recovered_s=recovered_s,
        steady_s=steady_s,
    )


def check(rig: Rig, load: Load, topic: str, begin: int) -> int:
    """Compare what was acknowledged with what master and slave hold, and these with each other.

    Returns:
        How many acknowledged messages are missing.
    """
    end = int(rig.marks("master")["written"])
    master, slave = (rig.look(f"broker-{role}", "log", begin, end, topic) for role in ("master", "slave"))
    for log in (master, slave):
        assert (log["hashed"], log["walked"], log["fault"]) == (end, end, ""), log | {"records": "..."}
    assert master["sha256"] == slave["sha256"], f"the logs differ between {begin} and {end}"
    # The SDK leaves the queue to the broker, and its receipt names an offset only.
    sent = {(words[3], int(words[4])) for words in load.notes("sent")}
    assert len({message_id for message_id, _ in sent}) == load.count(), "one id was acknowledged twice"
    lost = sent - {(message_id, offset) for _, offset, message_id, _ in slave["records"]}
    if lost:
        print(f"{len(lost)} acknowledged messages are missing: {sorted(lost)[:10]}")
    ordered(master["records"], sent)
    return len(lost)


def ordered(records: list[list[Any]], sent: set[tuple[str, int]]) -> None:
    """Check that queues have no gaps, and that each sender's acknowledged messages kept their order.

    A send that was given up, or tried again, may have been stored later than its successors.
    """
    next_offset: dict[int, int] = {}
    last_number: dict[tuple[int, str], int] = {}
    copies = collections.Counter(message_id for _, _, message_id, _ in records)
    for queue, offset, message_id, body in records:
        assert offset == next_offset.get(queue, 0), f"queue {queue}: offset {offset} out of turn"
        next_offset[queue] = offset + 1
        if (message_id, offset) in sent and copies[message_id] == 1:
            sender, number, *_ = body.split(".")
            assert int(number) > last_number.get((queue, sender), 0), f"queue {queue}: {body} out of order"
            last_number[queue, sender] = int(number)
