"""Groups that elect their masters, in the simulation: what is drawn, what strikes whom, what is seen."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sim.cluster import Cluster
from sim.elected import watched
from sim.election_rules import ELECTION_RULES
from sim.elections import ELECTION_FAULTS
from sim.elections import plain_plan as elections_plan
from sim.invariants import Invariants, Violation
from sim.nodes import surroundings
from sim.plan import BEGIN_S, QUIET_S, Fault, Plan
from sim.process import clocks_of_processes
from sim.rules import switched_off

SEED = 1


@contextmanager
def group(*faults: Fault, flush: str = "sync") -> Iterator[tuple[Cluster, Invariants]]:
    """Have a group, with these faults alone, and its checks."""
    plan = replace(elections_plan(SEED), faults=faults, flush=flush)  # type: ignore[arg-type]
    with clocks_of_processes(), surroundings():
        cluster = Cluster(plan)
        invariants = Invariants(cluster)
        assert cluster.elections is not None
        with watched(cluster.elections):
            yield cluster, invariants
            for process in cluster.processes:
                process.die()


def test_a_seed_draws_one_plan() -> None:
    assert elections_plan(7) == elections_plan(7)
    plans = [elections_plan(seed) for seed in range(300)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {fault.kind for fault in faults} == set(ELECTION_FAULTS)
    assert {plan.flush for plan in plans} == {"sync", "async"}
    assert {plan.nameservers for plan in plans} == {1, 2}
    targets = {fault.target.partition(".")[0] for fault in faults}
    assert targets >= {"leader", "candidate", "follower", "b0", "b1", "b2", "n0", "n1"}
    assert any(fault.upon for fault in faults)
    for plan in plans:
        assert (plan.elected, plan.replication, plan.groups, plan.slaves) == (True, "majority", 1, 2)
        times = [fault.at for fault in plan.faults]
        assert times == sorted(times)
        assert BEGIN_S - 0.1 <= times[0] <= times[-1] < QUIET_S
        if plan.flush == "async":  # rule R9 would stop elections
            assert not any(fault.kind == "power_all" for fault in plan.faults)


def test_another_member_leads_when_the_leader_is_killed_and_the_old_one_follows() -> None:
    with group(Fault(6.0, "crash", "leader", for_s=0.5)) as (cluster, invariants):
        elections = cluster.elections
        assert elections is not None
        cluster.run(until=5.9)
        first = elections.leader()
        assert list(elections.epochs) == [1]
        cluster.run(until=14.0)
        assert elections.leader() is not first
        assert len(elections.epochs) == 2
        led = elections.epochs[max(elections.epochs)]
        assert 6.0 < led.at < 10.0
        assert any(sent.began > led.at for sent in cluster.history.acknowledged)
        assert first.page is not None and first.page.heard_epoch == max(elections.epochs)
        assert invariants.looks["I1"] == 2
        assert invariants.looks["I4"] > 5


def test_a_fault_upon_an_election_waits_for_it_and_strikes_who_stands() -> None:
    later = Fault(5.0, "kill", "candidate.broker", for_s=0.5, upon="election")
    with group(Fault(6.0, "crash", "leader", for_s=3.0), later) as (cluster, _):
        cluster.run(until=7.0)
        lost, struck = (line for line in cluster.log if " crash " in line or " kill " in line)
        assert "crash" in lost and "kill" in struck
        assert lost.split()[3] != struck.split()[3].removesuffix(".broker")


def test_under_asynchronous_flush_power_is_lost_only_while_all_others_vote() -> None:
    with group(flush="async") as (cluster, _):
        elections = cluster.elections
        assert elections is not None
        cluster.run(until=3.0)
        one, other, _ = cluster.members.values()
        assert elections.bears(Fault(3.0, "power", one.name))
        cluster.halt(other)
        assert not elections.bears(Fault(3.0, "power", one.name))
        assert elections.bears(Fault(3.0, "power", other.name))
        assert elections.bears(Fault(3.0, "crash", one.name))


def test_a_process_ends_within_a_call_of_files_and_is_started_again() -> None:
    stop = Fault(6.0, "stop", "leader.replicator", "power", for_s=0.5, amount=3.0)
    with group(stop) as (cluster, _):
        cluster.run(until=12.0)
        ended = next(line for line in cluster.log if " ends at a call of " in line)
        assert "b0.replicator" in ended or "b1.replicator" in ended or "b2.replicator" in ended
        assert ended.endswith("with its host")
        assert all(member.up for member in cluster.members.values())
        assert cluster.elections is not None and len(cluster.elections.epochs) == 2


def test_a_finding_within_production_code_ends_the_run() -> None:
    with (
        switched_off("a majority holds what is committed", ELECTION_RULES),
        group() as (cluster, invariants),
    ):
        with pytest.raises(AssertionError, match="I4"):
            cluster.run(until=12.0)
        assert isinstance(invariants.found, Violation)


@pytest.mark.parametrize("rule", ELECTION_RULES)
def test_a_rule_is_switched_off_for_a_run_alone(rule: str) -> None:
    patches = ELECTION_RULES[rule]
    before = [inspect.getattr_static(target, name) for target, name, _ in patches]
    with switched_off(rule, ELECTION_RULES):
        for target, name, instead in patches:
            assert inspect.getattr_static(target, name) is instead
    assert [inspect.getattr_static(target, name) for target, name, _ in patches] == before


def test_other_plans_elect_nobody() -> None:
    assert Cluster(Plan.draw(SEED)).elections is None
