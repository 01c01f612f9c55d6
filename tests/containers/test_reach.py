"""Who reaches the cluster, and how: nobody configures an address.

Three ways in, with the official SDK: from the host through the published port, from the host by the address
that the nameserver has in the containers' network, and from another container by name. Each sends to the
master, receives from it, receives from the slave while the master is gone, and once more after the brokers
have other addresses.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from containers.rig import Rig
from stack import ROOT
from support.waiting import until
from whimbrel.client.sync import Admin
from whimbrel.errors import WhimbrelError

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

COUNT = 8
RECEIVE_S = 40.0
PROGRAM_S = 60.0
MASTER = ("broker-master", "replicator-master")


@dataclass(frozen=True, slots=True)
class Way:
    """One way in: runs an example program of the official SDK somewhere, with an endpoint that fits there."""

    name: str
    run: Callable[..., list[dict[str, Any]]]

    def send(self, topic: str, prefix: str) -> set[str]:
        """Send; return the ids."""
        return {row["message_id"] for row in self.run("sdk_producer.py", topic, str(COUNT), prefix)}

    def receive(self, topic: str, group: str, count: int) -> set[str]:
        """Receive and acknowledge; return the ids."""
        rows = self.run("sdk_consumer.py", group, topic, str(count), str(RECEIVE_S))
        return {row["message_id"] for row in rows}


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def on_host(endpoint: Callable[[], str]) -> Callable[..., list[dict[str, Any]]]:
    def run(program: str, *words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / program), endpoint(), *words],
            capture_output=True, text=True, timeout=PROGRAM_S, check=False, cwd=Path("/"),
        )  # fmt: skip
        assert done.returncode == 0, f"{endpoint()}: {done.stdout[-500:]}\n{done.stderr[-3000:]}"
        return rows(done.stdout)

    return run


def in_container(rig: Rig, sdk: str, endpoint: Callable[[], str]) -> Callable[..., list[dict[str, Any]]]:
    def run(program: str, *words: str) -> list[dict[str, Any]]:
        command = ["python", f"/sdk/{program}", endpoint(), *words]
        return rows(rig.run(sdk, command, timeout_s=PROGRAM_S, network=rig.network.name))

    return run


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    return rigs()


@pytest.fixture
def ways(rig: Rig, sdk: str) -> list[Way]:
    port = rig.endpoint.rpartition(":")[2]
    # Where the engine runs in a machine of its own the host has no way into its networks.
    bridged = rig.client.info()["OperatingSystem"] != "Docker Desktop"
    return [
        Way("published port", on_host(lambda: rig.endpoint)),
        Way("localhost", on_host(lambda: f"localhost:{port}")),
        *([Way("bridge address", on_host(lambda: f"{rig.address('nameserver')}:{port}"))] * bridged),
        Way("container by name", in_container(rig, sdk, lambda: f"nameserver:{port}")),
        Way("container by address", in_container(rig, sdk, lambda: f"{rig.address('nameserver')}:{port}")),
    ]


def known_where_they_are(rig: Rig) -> bool:
    """Tell whether a client that comes by address is told where both brokers are now."""
    port = rig.endpoint.rpartition(":")[2]
    try:
        with Admin(f"{rig.address('nameserver')}:{port}") as admin:
            told = {broker.address.rpartition(":")[0] for broker in admin.cluster().brokers}
    except WhimbrelError:
        return False
    return told == {rig.address("broker-master"), rig.address("broker-slave")}


@contextlib.contextmanager
def moved(rig: Rig, *services: str) -> Iterator[None]:
    """Give containers other addresses, and keep theirs taken meanwhile."""
    network = rig.network
    with contextlib.ExitStack() as thieves:
        for service in services:
            before = rig.address(service)
            network.disconnect(rig.container(service))
            # The engine gives the lowest free address: this one takes what has just become free.
            thieves.enter_context(rig.beside(rig.image, ["sleep", "300"], network=network.name))
            network.connect(rig.container(service), aliases=[service])
            assert rig.address(service) != before
        yield


def test_every_way_reaches_master_and_slave_also_after_they_moved(
    rig: Rig, ways: list[Way], measured: Callable[[str], None]
) -> None:
    sent: dict[str, set[str]] = {}
    for way in ways:
        topic = f"reach-{way.name.replace(' ', '-')}"
        sent[topic] = way.send(topic, "before")
        assert way.receive(topic, "first", COUNT) == sent[topic], way.name
    until(rig.converged, timeout=30, what="the slave having it all")

    for service in MASTER:
        rig.container(service).kill()
    for way, topic in zip(ways, sent, strict=True):
        assert way.receive(topic, "second", COUNT) == sent[topic], way.name
    for service in MASTER:
        rig.container(service).start()
    rig.stack.wait_healthy()
    rig.stack.wait_usable()

    with moved(rig, "broker-master", "broker-slave", "replicator-master", "nameserver"):
        moved_at = time.monotonic()
        until(lambda: known_where_they_are(rig), timeout=60, what="the nameserver knowing the new addresses")
        found_s = time.monotonic() - moved_at
        rig.stack.wait_usable()
        going_on_at = time.monotonic()
        until(rig.converged, timeout=60, what="replication going on after everybody moved")
        replicated_s = time.monotonic() - going_on_at
        measured(
            f"routes are right {found_s:.1f} s after the last container moved, replication goes on after"
            f" {found_s + replicated_s:.1f} s"
        )
        for way, topic in zip(ways, sent, strict=True):
            after = way.send(topic, "after")
            assert way.receive(topic, "first", COUNT) == after, way.name
        until(rig.converged, timeout=30, what="the slave having it all")
