"""The faults, and the table of cases: what is done to the cluster while clients send and receive.

A fault is a function of a `Scene`: it begins the fault, holds it if it lasts, and heals it, or leaves that to
the engine. A case is a fault and a service. `fault_run.py` runs a case and checks what must hold afterwards.
"""

import io
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.rig import Rig, freeze
from stack import SERVICES
from support.history.noting import Load
from support.history.sdk_notes import SdkLoad
from support.waiting import until

__all__ = ["CASES", "FAULTS", "MOMENTARY", "PRODUCERS", "RECOVERY_S", "SENDERS", "Case", "Scene"]

RECOVERY_S = 60.0  # of which the SDK's pauses and gRPC's back-off are a part
SENDERS = 3
PRODUCERS = 1  # of the client library
STANDBY = "standby"  # the group that reads from a slave
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
        timeout=RECOVERY_S,
        what="the engine starting it again",
    )


def pause(scene: Scene) -> None:
    """Freeze the process: its peers' kernels still get answers from its own."""
    freeze(scene.rig.container(scene.service))
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
            timeout=RECOVERY_S,
            what=f"all {len(sent)} acknowledged messages coming from the slave",
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
