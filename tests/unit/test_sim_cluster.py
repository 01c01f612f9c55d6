"""The simulated cluster: a seed is one run, and what fails is shrunk."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sim.run
from sim.cluster import Cluster
from sim.plan import BEGIN_S, FAULTS, QUIET_S, TAKEOVERS, Fault, Plan
from sim.power import LOSSES, power_plan
from sim.process import clocks_of_processes
from sim.rules import RULES, switched_off

ROOT = Path(__file__).resolve().parents[2]
SEED = 17  # log files expire in it, a topic is deleted, and positions are committed


def start(*arguments: str) -> subprocess.Popen[str]:
    """Run the command, as `make sim` does."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'services'}:{ROOT / 'tests'}"}
    return subprocess.Popen(
        [sys.executable, "-m", "sim.run", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_seed_runs_through_and_is_the_same_run_again() -> None:
    runs = [start(str(SEED)) for _ in range(2)]
    first, second = (
        re.sub(r"\d+(\.\d+)? s\b|[\d.]+ seeds a minute", "TIME", run.communicate()[0]) for run in runs
    )
    assert [run.returncode for run in runs] == [0, 0], first
    assert first == second
    found = re.search(r"(\d+) acknowledged, (\d+) delivered, (\d+) steps", first)
    assert found is not None
    assert all(int(number) > 100 for number in found.groups())
    assert "0 failed: []" in first


def test_a_seed_draws_one_plan() -> None:
    assert Plan.draw(7) == Plan.draw(7)
    plans = [Plan.draw(seed) for seed in range(200)]
    assert len({replace(plan, seed=0) for plan in plans}) > 190
    assert {fault.kind for plan in plans for fault in plan.faults} == {*FAULTS, *TAKEOVERS}
    assert {(plan.groups, plan.slaves) for plan in plans} == {(1, 1), (1, 2), (2, 1)}
    assert {(plan.flush, plan.replication) for plan in plans} == {
        (flush, replication) for flush in ("sync", "async") for replication in ("sync", "async")
    }
    drawn = [plan.upkeep for plan in plans]
    assert {upkeep.late for upkeep in drawn if upkeep.reserved_s} == {"", "replace", "clock", "kill", "cut"}
    for choice in ("reserved_s", "seldom_again", "deletions", "commits"):
        assert {bool(getattr(upkeep, choice)) for upkeep in drawn} == {False, True}
    for plan in plans:
        takeovers = [fault for fault in plan.faults if fault.kind in TAKEOVERS]
        assert [fault.target in plan.masters for fault in takeovers] in ([], [True])
        if plan.flush == "async":  # a master that lost its tail without `shorter` would wait for a person
            assert not any(fault.kind == "power" and fault.target in plan.masters for fault in plan.faults)
        times = [fault.at for fault in plan.faults]
        assert times == sorted(times)
        assert BEGIN_S <= times[0] <= times[-1] < QUIET_S


def test_a_plan_of_power_losses_has_some_of_all_brokers_and_one_upon_a_send() -> None:
    assert power_plan(7) == power_plan(7)
    for plan in map(power_plan, range(100)):
        assert plan.flush == "sync"
        kinds = [fault.kind for fault in plan.faults]
        assert kinds.count("power_sending") >= 1
        assert sum(kind in LOSSES for kind in kinds) >= 2
        assert len(kinds) >= 5
        times = [fault.at for fault in plan.faults]
        assert times == sorted(times)
        assert BEGIN_S <= times[0] <= times[-1] < QUIET_S


def test_power_is_lost_while_a_send_has_no_answer() -> None:
    fault = Fault(8.0, "power_sending", for_s=1.0)
    cluster = Cluster(replace(power_plan(SEED), faults=(fault,)))
    open_sends: list[int] = []
    lose = cluster.fault_power_all

    def noted(fault: Fault) -> None:
        open_sends.append(sum(sent.ended == float("inf") for sent in cluster.history.sends.values()))
        lose(fault)

    cluster.fault_power_all = noted  # type: ignore[method-assign]
    with clocks_of_processes():
        cluster.run(until=12.0)
        for process in cluster.processes:
            process.die()
    assert cluster.caught == 1
    assert open_sends and open_sends[0] >= 1


def test_a_run_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def run(plan: Plan) -> sim.run.Result:
        if plan.seed == 3:
            os._exit(9)
        return outcome(plan, "" if os.getpid() != here else "run by the parent")

    monkeypatch.setattr(sim.run, "run", run)
    results = {result.plan.seed: result.error for result in sim.run.apart(map(Plan.draw, range(5)), 2)}
    assert results == {0: "", 1: "", 2: "", 3: "its process ended with 9", 4: ""}


def outcome(plan: Plan, error: str) -> sim.run.Result:
    return sim.run.Result(plan, error, 0, 0, 0, 0.0, [], {})


def test_shrinking_leaves_the_faults_without_which_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {Fault(6.0, "kill", "b0.broker"), Fault(9.0, "reset")}
    others = [Fault(float(at), "clock", "b0") for at in (5, 7, 8, 10)]
    plan = replace(Plan.draw(SEED), faults=tuple(sorted([*needed, *others], key=lambda fault: fault.at)))

    def run(tried: Plan) -> sim.run.Result:
        assert replace(tried, faults=()) == replace(plan, faults=())
        return outcome(tried, "failed" if needed <= set(tried.faults) else "")

    monkeypatch.setattr(sim.run, "run", run)
    assert set(sim.run.shrink(plan).faults) == needed


def test_a_failing_seed_is_told_with_its_few_faults_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim.run, "prepare", lambda **_: None)
    monkeypatch.setattr(sim.run, "run", lambda plan: outcome(plan, "Violation: lost"))
    assert sim.run.main([str(SEED)]) == 1
    told = capsys.readouterr().out
    assert f"seed {SEED} FAILED: Violation: lost" in told
    assert f"again: make sim SEED={SEED}" in told


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_switched_off_for_a_run_alone(rule: str) -> None:
    patches = RULES[rule]
    before = [inspect.getattr_static(target, name) for target, name, _ in patches]
    with switched_off(rule):
        for target, name, instead in patches:
            assert inspect.getattr_static(target, name) is instead
    assert [inspect.getattr_static(target, name) for target, name, _ in patches] == before
