"""What a process says of its health."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence

import pytest

from whimbrel.exposition import serve_metrics
from whimbrel.http_port import Request
from whimbrel.metrics import build_info
from whimbrel.probes import STALL_S, Condition, Probes, serve_health


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probes(clock: Clock) -> Probes:
    return Probes("broker", clock=clock)


def ask(probes: Probes, path: str) -> tuple[int, dict[str, object]]:
    answer = probes.answer(Request("GET", path, "", {}))
    assert answer is not None
    return answer.status, json.loads(answer.body)


def met() -> Sequence[Condition]:
    return [Condition("writable", True)]


def test_a_process_that_starts_lives_however_long_it_takes(probes: Probes, clock: Clock) -> None:
    clock.now += 3600
    assert ask(probes, "/healthz") == (200, {"process": "broker", "alive": True, "state": "starting"})
    assert ask(probes, "/readyz")[0] == 503


def test_a_process_lives_while_its_loop_turns(probes: Probes, clock: Clock) -> None:
    probes.turn()
    clock.now += STALL_S
    assert ask(probes, "/healthz")[0] == 200
    clock.now += 0.1
    status, told = ask(probes, "/healthz")
    assert (status, told["alive"], told["state"]) == (503, False, "its loop has not turned for 3.1 s")


def test_it_is_ready_when_all_conditions_are_met(probes: Probes) -> None:
    probes.serve("master", met)
    probes.turn()
    assert ask(probes, "/readyz") == (
        200,
        {
            "process": "broker",
            "role": "master",
            "ready": True,
            "conditions": [{"name": "writable", "met": True, "why": ""}],
        },
    )


def test_what_is_missing_is_said(probes: Probes) -> None:
    probes.serve("slave", lambda: [*met(), Condition("connected", False, "no connection")])
    probes.turn()
    status, told = ask(probes, "/readyz")
    assert (status, told["ready"]) == (503, False)
    assert {"name": "connected", "met": False, "why": "no connection"} in told["conditions"]  # type: ignore[operator]


def test_a_process_whose_loop_hangs_is_not_ready(probes: Probes, clock: Clock) -> None:
    probes.serve("master", met)
    probes.turn()
    clock.now += 60
    assert ask(probes, "/readyz")[0] == 503


def test_conditions_that_were_taken_away_are_not_read(probes: Probes) -> None:
    def closed() -> Sequence[Condition]:
        raise AssertionError("read after it was taken away")

    probes.serve("master", closed)
    probes.withdraw()
    probes.turn()
    status, told = ask(probes, "/readyz")
    assert (status, told["ready"]) == (503, False)


def test_other_paths_are_somebody_elses(probes: Probes) -> None:
    assert probes.answer(Request("GET", "/metrics", "", {})) is None


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_health_port_serves_health_alone(probes: Probes) -> None:
    port = serve_health(probes, host="127.0.0.1", port=0)
    assert port is not None
    try:
        assert fetch(port.address, "/healthz")[0] == 200
        assert fetch(port.address, "/readyz")[0] == 503
        assert fetch(port.address, "/") == (404, "health is at /healthz and /readyz\n")
    finally:
        port.close()


def test_the_metrics_port_serves_health_too(probes: Probes) -> None:
    probes.serve("master", met)
    served = serve_metrics([build_info()], host="127.0.0.1", port=0, service="t", labels={}, probes=probes)
    try:
        assert fetch(served.address, "/healthz")[0] == 200
        assert fetch(served.address, "/readyz")[0] == 200
        assert "whimbrel_build_info" in fetch(served.address, "/metrics")[1]
    finally:
        served.close()


def test_without_a_port_nothing_is_served(probes: Probes) -> None:
    assert serve_health(probes, host="127.0.0.1", port=-1) is None
