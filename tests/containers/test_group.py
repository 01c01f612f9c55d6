"""The group of docker-compose.group.yml: it elects its leader by an etcd, whatever ends, hangs or is cut off.

By default it comes up; faults, and the table of them, are slow tests. Times are printed, and never
asserted.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from containers.rig import LOG_FILE, LOGS, free_ports, freeze, numbers
from stack import GROUP_SERVICES, Stack
from support.history.noting import Load, read_all
from support.pages import Page
from support.waiting import elapse, until
from whimbrel.client import sync
from whimbrel.errors import WhimbrelError

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

PAGE = Page("docs/containers.md")
RECOVERY_S = 60.0
MEMBERS = (1, 2, 3)
PAUSE_S = 0.01


class Group:
    """The group, from `up` to `down`."""

    def __init__(self, client: Any, image: str) -> None:
        ports = free_ports(6)
        names = [f"{kind}_{number}_PORT" for kind in ("NAMESERVER", "MEMBER") for number in MEMBERS]
        settings = {
            "WHIMBREL_IMAGE": image,
            "COMMITLOG_FILE_SIZE": str(LOG_FILE),
            "LANE": os.environ.get("WHIMBREL_TEST_LANE", "auto"),
            **{name: str(port) for name, port in zip(names, ports, strict=True)},
        }
        self.client, self.port = client, ports[0]
        self.stack = Stack.group(client, f"whimbrel-test-{os.getpid()}-{next(numbers)}", settings)
        self.endpoint = ";".join(f"127.0.0.1:{port}" for port in ports[:3])

    def up(self) -> dict[str, float]:
        """Start everything; return the seconds that each took to be healthy."""
        self.stack.compose("up", "-d", quiet=True)
        healthy = self.stack.wait_healthy()
        self.stack.wait_usable()
        return healthy

    def down(self) -> None:
        """Remove everything."""
        self.stack.compose("kill", quiet=True)
        self.stack.compose("down", "-v", "--remove-orphans", quiet=True)

    def container(self, service: str) -> Any:
        """Return the container of a service as it is now."""
        return self.stack.container(service)

    def leader(self) -> int:
        """Return the member that takes messages; 0 for none."""
        try:
            with sync.Admin(self.endpoint) as admin:
                return next((each.member_id for each in admin.cluster().masters() if each.writable), 0)
        except WhimbrelError:
            return 0

    def await_leader(self, *besides: int) -> int:
        """Wait until a member takes messages that is none of those."""
        until(lambda: self.leader() not in (0, *besides), timeout=RECOVERY_S, what="a leader")
        return self.leader()

    def status(self) -> tuple[int, str]:
        """Run `whimbrel replication status` in a nameserver's container."""
        written = PAGE[
            "docker exec whimbrel-group_nameserver-1_1"
            " whimbrel replication status --endpoint nameserver-1:8081"
        ]
        words = written.words({"nameserver-1:8081": f"nameserver-1:{self.port}"})
        done = self.container("nameserver-1").exec_run(words[3:])
        return done.exit_code, done.output.decode()

    def await_well(self) -> None:
        """Wait until status has nothing to complain of."""
        until(lambda: self.status()[0] == 0, timeout=RECOVERY_S, what="a status without a complaint")


@pytest.fixture(scope="module")
def group(client: Any, image: str, request: pytest.FixtureRequest) -> Iterator[Group]:
    """Give the group; its logs are saved when a test has failed."""
    made, failed = Group(client, image), request.session.testsfailed
    try:
        made.up()
        yield made
    finally:
        if request.session.testsfailed > failed:
            LOGS.mkdir(parents=True, exist_ok=True)
            text = made.stack.compose("logs", "--no-color", "--timestamps", quiet=True)
            (LOGS / f"group-{made.stack.project}.log").write_text(text, encoding="utf-8")
        made.down()


@pytest.fixture
def load(group: Group, request: pytest.FixtureRequest) -> Iterator[Load]:
    """Give clients that send and receive; afterwards all that was acknowledged must be there, once."""
    group.await_well()
    topic = f"t{next(numbers)}"
    with Load(group.endpoint, topic, pause_s=PAUSE_S) as running:
        running.wait_for(50, "the first messages")
        yield running
        running.wait_for(50, "messages after all")
        running.stop_sending()
        running.settle()
        assert running.check(read_all(group.endpoint, topic)) == []


def longest_pause(load: Load, since: float) -> float:
    """Return the longest time between two sends that were answered OK since then, in seconds."""
    times = sorted(sent.ended for sent in load.history.acknowledged if sent.ended > since)
    return max(later - before for before, later in zip([since, *times], times, strict=False))


def test_all_become_healthy_and_status_has_nothing_to_complain_of(
    group: Group, measured: Callable[[str], None]
) -> None:
    healthy = group.stack.wait_healthy()
    assert healthy.keys() == set(GROUP_SERVICES)
    group.await_well()
    said = group.status()[1]
    assert "members 1, 2, 3 vote, 2 of them commit" in said and "majority, flush sync" in said
    measured(", ".join(f"{service} {took:.1f} s" for service, took in healthy.items()))


@pytest.mark.slow
def test_the_leaders_containers_are_killed(group: Group, load: Load, measured: Callable[[str], None]) -> None:
    leader = group.leader()
    began = time.monotonic()
    for kind in ("broker", "replicator"):
        group.container(f"{kind}-{leader}").kill()
    group.await_leader(leader)
    load.wait_for(50, "messages of the next leader")
    measured(f"leader killed: no send is acknowledged for {longest_pause(load, began):.1f} s")
    for kind in ("broker", "replicator"):
        group.container(f"{kind}-{leader}").start()
    group.await_well()


@pytest.mark.slow
def test_one_etcd_may_be_stopped_and_nobody_is_elected_without_any(group: Group, load: Load) -> None:
    group.container("etcd-1").stop(timeout=5)
    leader = group.leader()
    for kind in ("broker", "replicator"):
        group.container(f"{kind}-{leader}").kill()
    second = group.await_leader(leader)
    for kind in ("broker", "replicator"):
        group.container(f"{kind}-{leader}").start()
    group.await_well()
    for number in (2, 3):
        freeze(group.container(f"etcd-{number}"))
    until(
        lambda: "the coordinator does not answer" in group.status()[1],
        timeout=RECOVERY_S,
        what="a sentence on it",
    )
    assert group.status()[0] == 1
    load.wait_for(50, "messages without a coordinator")
    assert group.leader() == second
    for number in (2, 3):
        group.container(f"etcd-{number}").unpause()
    group.container("etcd-1").start()
    group.await_well()


@pytest.mark.slow
def test_the_leader_is_cut_off_and_follows_when_it_is_back(
    group: Group, load: Load, measured: Callable[[str], None]
) -> None:
    leader = group.leader()
    services = (f"broker-{leader}", f"replicator-{leader}")
    began = time.monotonic()
    with cut_off(group, services):
        group.await_leader(leader)
        load.wait_for(50, "messages of the majority")
        measured(f"leader cut off: no send is acknowledged for {longest_pause(load, began):.1f} s")
    group.await_well()


class cut_off:
    """Takes services off the network while a block runs."""

    def __init__(self, group: Group, services: Sequence[str]) -> None:
        self.group, self.services = group, services
        self.network = group.client.networks.get(f"{group.stack.project}_default")

    def __enter__(self) -> None:
        for service in self.services:
            self.network.disconnect(self.group.container(service))

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            self.network.connect(self.group.container(service), aliases=[service])


HOLD_S = 8.0


def killed(group: Group, services: Sequence[str]) -> None:
    """Kill and start again."""
    for service in services:
        group.container(service).kill()
    for service in services:
        group.container(service).start()


def paused(group: Group, services: Sequence[str]) -> None:
    """Let them hang for a while."""
    for service in services:
        freeze(group.container(service))
    elapse(HOLD_S)
    for service in services:
        group.container(service).unpause()


def restarted(group: Group, services: Sequence[str]) -> None:
    """Stop them as an operator would, one after the other, and start them again."""
    for service in services:
        group.container(service).restart(timeout=15)


def cut(group: Group, services: Sequence[str]) -> None:
    """Take them off the network for a while."""
    with cut_off(group, services):
        elapse(HOLD_S)


WHOM: dict[str, Callable[[int], list[str]]] = {
    "the leader's broker": lambda leader: [f"broker-{leader}"],
    "the leader's replicator": lambda leader: [f"replicator-{leader}"],
    "both of the leader": lambda leader: [f"broker-{leader}", f"replicator-{leader}"],
    "both of a follower": lambda leader: [f"{kind}-{leader % 3 + 1}" for kind in ("broker", "replicator")],
    "a nameserver": lambda _: ["nameserver-2"],
    "all nameservers": lambda _: [f"nameserver-{number}" for number in MEMBERS],
    "one etcd": lambda _: ["etcd-2"],
    "all of etcd": lambda _: [f"etcd-{number}" for number in MEMBERS],
}


@pytest.mark.slow
@pytest.mark.parametrize("whom", WHOM)
@pytest.mark.parametrize("fault", [killed, paused, restarted, cut], ids=lambda fault: fault.__name__)
def test_nothing_acknowledged_is_lost_and_all_recover_by_themselves(
    group: Group,
    load: Load,
    fault: Callable[[Group, Sequence[str]], None],
    whom: str,
    measured: Callable[[str], None],
) -> None:
    leader = group.leader()
    began = time.monotonic()
    fault(group, WHOM[whom](leader))
    group.await_leader()
    load.wait_for(100, "messages after the fault")
    measured(f"{whom} {fault.__name__}: no send is acknowledged for {longest_pause(load, began):.1f} s")
    group.await_well()
