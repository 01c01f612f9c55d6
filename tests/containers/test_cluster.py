"""The compose cluster as it stands: what its containers may do, how it starts, stops, and copies."""

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from containers.rig import Rig
from stack import SERVICES, Failed, Stack
from support.pages import Page
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.lane import Lane, sources

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

PAGE = Page("docs/containers.md")
GRACE_S = 15.0  # docker-compose.yml's stop_grace_period
COUNT = 200


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    return rigs()


def send(rig: Rig, topic: str, count: int = COUNT) -> None:
    with Producer(rig.endpoint) as producer:
        for number in range(count):
            producer.send(Message(topic=topic, body=b"%d" % number))


def metrics_of(rig: Rig, service: str) -> str:
    """Return what a container tells the others."""
    ask = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    address = f"http://{service}:9464/metrics"
    return str(rig.container("nameserver").exec_run(["python", "-c", ask, address]).output.decode())


def test_all_become_healthy(rig: Rig, measured: Callable[[str], None]) -> None:
    healthy = rig.stack.wait_healthy()
    assert healthy.keys() == set(SERVICES)
    measured(", ".join(f"{service} {took:.1f} s" for service, took in healthy.items()))


def test_status_is_shown_inside_the_network(rig: Rig) -> None:
    port = rig.stack.port("NAMESERVER_PORT", 8081)
    written = PAGE["docker compose exec nameserver whimbrel replication status --endpoint nameserver:8081"]
    places = {"exec": ("exec", "-T"), "nameserver:8081": f"nameserver:{port}"}  # there is no terminal
    assert "broker-a" in rig.stack.compose(*written.words(places)[2:], quiet=True)


@pytest.mark.parametrize("service", SERVICES)
def test_container_runs_one_process_without_rights(rig: Rig, service: str) -> None:
    container = rig.container(service)
    # The engine's init, and ours; a health check comes and goes.
    until(lambda: len(container.top()["Processes"]) == 2, timeout=10, what="two processes and no more")
    assert container.exec_run(["id", "-u"]).output.strip() == b"10001"
    assert container.exec_run(["touch", "/opt/whimbrel/x"]).output.endswith(b"Read-only file system\n")
    status = container.exec_run(["cat", "/proc/1/status"]).output.decode()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_health_check_names_what_is_wrong(rig: Rig) -> None:
    def check(service: str, ready: dict[str, str]) -> tuple[int, str]:
        write = f"open('/tmp/r', 'w').write({json.dumps(ready)!r})"
        assert rig.container(service).exec_run(["python", "-c", write]).exit_code == 0
        done = rig.container(service).exec_run(
            ["python", "-I", "-S", "/opt/whimbrel/healthcheck.py", "/tmp/r"]
        )
        return done.exit_code, done.output.decode()

    assert check("nameserver", {"grpc": "0.0.0.0:1"}) == (
        1,
        "not healthy: port 1: [Errno 111] Connection refused\n",
    )
    code, said = check("replicator-master", {"grpc": "", "ha": "0.0.0.0:1", "store": "/store"})
    assert (code, said) == (1, "not healthy: nothing listens on the HA port 1\n")
    code, said = check("replicator-master", {"grpc": "", "ha": "", "store": "/nowhere"})
    assert code == 1 and "No such file" in said
    done = rig.container("nameserver").exec_run(
        ["python", "-I", "-S", "/opt/whimbrel/healthcheck.py", "/tmp/nothing"]
    )
    assert done.output == b"not healthy: it is still starting: there is no ready file\n"


def test_frozen_process_is_not_healthy(rig: Rig) -> None:
    for service in ("nameserver", "replicator-slave"):
        container = rig.container(service)
        pid = json.loads(container.exec_run(["cat", "/tmp/ready.json"]).output)["pid"]
        container.exec_run(["sh", "-c", f"kill -STOP {pid}"])
        try:
            until(lambda: rig.health(service) == "unhealthy", timeout=30, what=f"{service} being unhealthy")  # noqa: B023
        finally:
            container.exec_run(["sh", "-c", f"kill -CONT {pid}"])
        rig.stack.wait_healthy([service])
    rig.stack.wait_usable()


def test_slave_copies_what_the_master_holds(rig: Rig) -> None:
    send(rig, "copied")
    until(rig.converged, timeout=30, what="the slave having it all")
    end = rig.marks("master")["written"]
    master, slave = (rig.look(f"broker-{role}", "log", 0, end, "copied") for role in ("master", "slave"))
    assert master == slave
    assert master["walked"] == end and not master["fault"]
    assert len(master["records"]) == COUNT


def test_graceful_stop_ends_within_the_grace_period_and_leaves_clean_stores(
    rig: Rig, image: str, measured: Callable[[str], None]
) -> None:
    send(rig, "stopped")
    begun = time.monotonic()
    codes = rig.stop()
    took = time.monotonic() - begun
    measured(f"all five ended {took:.1f} s after `stop`")
    assert took < GRACE_S
    assert codes == dict.fromkeys(SERVICES, 0)
    for role in ("master", "slave"):
        rig.verify(role, image)
    rig.stack.compose("start", quiet=True)
    rig.stack.wait_healthy()
    rig.stack.wait_usable()
    until(rig.converged, timeout=30, what="the slave having it all again")


def test_services_may_start_in_any_order(client: Any, image: str) -> None:
    with Rig(client, image) as rig:
        rig.stack.compose("up", "--no-start", quiet=True)
        for first in (("replicator-slave",), ("broker-slave",), ("replicator-master",), ("broker-master",)):
            rig.container(first[0]).start()
            rig.stack.wait_healthy(first)  # none waits for a peer to be healthy
        with pytest.raises(Failed):
            rig.stack.wait_healthy(["nameserver"], timeout_s=0)
        rig.container("nameserver").start()
        rig.stack.wait_healthy()
        rig.stack.wait_usable()
        send(rig, "ordered", 20)
        until(rig.converged, timeout=30, what="the slave having it all")


def test_every_container_serves_its_metrics_to_the_others(rig: Rig) -> None:
    for service in SERVICES:
        assert "whimbrel_build_info{" in metrics_of(rig, service), service


def test_the_image_has_the_compiled_lane_of_this_environment(rig: Rig) -> None:
    """Else it says why not, as this environment does."""
    lane = Lane()
    assert lane.active or not os.environ.get("REQUIRE_LANE"), f"REQUIRE_LANE is set, and the lane is {lane}"
    told = rig.container("nameserver").exec_run(["whimbrel", "--version"]).output.decode()
    assert told.rstrip().endswith(lane.described())
    if lane.active:
        ask = ["python", "-c", "import whimbrel_lane; print(whimbrel_lane.SOURCES)"]
        assert rig.container("nameserver").exec_run(ask).output.decode().strip() == sources()
    used = lane.active and os.environ.get("WHIMBREL_TEST_LANE") != "off"
    for service in ("broker-master", "broker-slave"):
        (line,) = re.findall(r"^whimbrel_lane\{.*$", metrics_of(rig, service), re.MULTILINE)
        assert line.endswith("} 1.0" if used else "} 0.0"), line
    for service in ("broker-master", "replicator-master", "broker-slave", "replicator-slave"):
        log = rig.container(service).logs().decode()
        assert ("lane on" if used else "lane off, because") in log, service


def test_profile_for_observability_is_accepted_with_pinned_images(client: Any) -> None:
    stack = Stack(client=client, project="whimbrel-test-config", environment={})
    images = [
        line.split("image:")[1].strip()
        for line in stack.compose("--profile", "observability", "config", quiet=True).splitlines()
        if line.startswith("    image:")  # of a service; version 2 shows the x- blocks as well
    ]
    assert len(images) == 9 and images.count("whimbrel:dev") == 5
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in set(images) - {"whimbrel:dev"})
