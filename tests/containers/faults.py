"""The faults: what is done to the cluster while clients send and receive, and what must hold afterwards.

    load is steady ─► fault begins ─► held for a while ─► healed (or heals itself) ─► load is steady again
      ─► load ends ─► the slave has all ─► consumers have all ─► checks

Clients are senders and a group of the official SDK (`sdknotes.py`), and a producer, a group and a reader of
the client library (`noting.py`). Replication is synchronous, so that what was acknowledged is on the slave. A
case is a fault and a service; `run` is the same for all of them. Checked each time:

- no finding of `histories.py` stands against what the clients saw and the slave's log has: nothing is lost,
  stored twice without a reason, out of order, skipped by the reader, never delivered, ...
- offsets of each queue go on without a gap
- the logs of master and slave are equal, byte for byte
- the cluster recovered by itself, within `RECOVERY_S`
"""

import contextlib
import io
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.rig import Rig, until
from histories import Place
from noting import READER, SETTLE_S, Load
from processes import elapse
from sdknotes import SdkLoad, note_drain, note_sends
from stack import SERVICES
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.errors import WhimbrelError

__all__ = ["CASES", "Case", "Result", "run"]

RECOVERY_S = 60.0  # of which the SDK's pauses and gRPC's back-off are a part
SENDERS = 3
PER_SECOND = 400.0  # so that a table of thirty cases fits into an hour, and a case onto a small disk
PRODUCERS = 1  # of the client library
PAUSE_S = 0.02
BROKER = "broker-a"  # the name that docker-compose.yml gives both
GROUP, STANDBY = "drain", "standby"
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


Hold = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault is given.

    Attributes:
        load: senders of the SDK.
        drains: the SDK's consumers, by group; a fault may add some.
        own: clients of the client library.
        hold: waits for as long as the fault is to last.
    """

    rig: Rig
    service: str
    load: SdkLoad
    drains: dict[str, SdkLoad]
    own: Load
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
        scene.load.wait_for(SENDERS, "sends failing on a full disk", RECOVERY_S, "failed")
        scene.hold()
    finally:
        scene.rig.look(broker, "free")


def slave_gone(scene: Scene) -> None:
    """Kill the slave's broker and replicator: nothing may be acknowledged without them."""
    gone = [scene.rig.container(service) for service in ("replicator-slave", "broker-slave")]
    for container in gone:
        container.kill()
    acknowledged = scene.load.count() + scene.own.acknowledged
    scene.hold()
    # An answer may have been on its way when they were killed, one for each sender.
    now = scene.load.count() + scene.own.acknowledged
    assert now <= acknowledged + SENDERS + PRODUCERS, "acknowledged without a slave"
    for container in gone:
        container.start()


def master_gone(scene: Scene) -> None:
    """Kill the master's broker and replicator: all that was acknowledged can be read from the slave."""
    gone = [scene.rig.container(service) for service in ("broker-master", "replicator-master")]
    for container in gone:
        container.kill()
    scene.hold()
    sent, topic = scene.load.sent(), scene.load.topic
    reader = SdkLoad("drain", scene.rig.endpoint, topic, scene.folder, STANDBY)
    scene.drains[STANDBY] = reader
    try:
        until(
            lambda: sent <= reader.got(),
            RECOVERY_S,
            f"all {len(sent)} acknowledged messages coming from the slave",
        )
    finally:
        reader.end()
    for container in gone:
        container.start()


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
        scene.load.wait_for(1, f"a message after {service} was replaced", RECOVERY_S)
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
    load = SdkLoad("send", rig.endpoint, topic, folder, str(SENDERS), str(PER_SECOND))
    drain = SdkLoad("drain", rig.endpoint, topic, folder, GROUP)
    own = Load(rig.endpoint, topic, producers=PRODUCERS, pause_s=PAUSE_S)
    try:
        load.wait_for(STEADY, "a steady load before the fault", RECOVERY_S)
        own.wait_for(1, "a message of the client library", RECOVERY_S)
        scene = Scene(
            rig=rig,
            service=case.service,
            load=load,
            drains={GROUP: drain},
            own=own,
            hold=lambda: elapse(held_s),
            iptables=iptables,
            folder=folder,
        )
        failed_before = load.count("failed")
        FAULTS[case.fault](scene)
        healed = time.monotonic()
        newcomer = Newcomer(rig.endpoint)
        load.wait_for(1, "a message after the fault", RECOVERY_S)
        recovered_s = time.monotonic() - healed
        load.wait_for(STEADY, "a steady load after the fault", RECOVERY_S)
        steady_s = time.monotonic() - healed
        served_s = newcomer.served_at() - healed
        load.end()
        own.stop_sending()
        until(rig.converged, CONVERGE_S, "the slave having all that the master has")
        own.settle({body.encode() for body in load.sent()})
        drain.wait_for_all(load.sent() | {sent.id.decode() for sent in own.history.acknowledged}, SETTLE_S)
    finally:
        load.end()
        drain.end()
        own.end()
    complete = stored(rig, topic, begin)
    history = own.history
    if case.service in ("broker-master", "master"):
        history.ack_window_s = None  # a slave serves, that may lack the last acknowledgements of consumers
    note_sends(history, load, complete)
    for group, reader in scene.drains.items():
        note_drain(history, reader, group)
    findings = history.check(complete=complete, groups=[own.group, READER, GROUP])
    for finding in findings[:10]:
        print(finding)
    rig.stack.wait_healthy()
    return Result(
        case=case,
        held_s=held_s,
        acknowledged=len(history.acknowledged),
        failed=load.count("failed") - failed_before,
        delivered=len(history.deliveries),
        read=len(history.reads),
        findings=Counter(finding.kind for finding in findings),
        served_s=served_s,
        recovered_s=recovered_s,
        steady_s=steady_s,
    )


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
