"""Groups that elect their masters, in the simulation: what is drawn, what strikes whom, what is seen."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sim.cluster import Cluster
from sim.elected import watched
from sim.election_rules import ELECTION_PLANS, ELECTION_RULES
from sim.elections import ELECTION_FAULTS, plain_plan
from sim.invariants import Invariants, Violation
from sim.nodes import surroundings
from sim.operations import PLANS
from sim.operators import OPERATIONS
from sim.plan import BEGIN_S, QUIET_S, Fault, Plan
from sim.process import clocks_of_processes
from sim.rules import switched_off

SEED = 1


@contextmanager
def group(*faults: Fault, flush: str = "sync", **values: Any) -> Iterator[tuple[Cluster, Invariants]]:
    """Have a group, with these faults alone, and its checks."""
    plan = replace(plain_plan(SEED), faults=faults, flush=flush, **values)  # type: ignore[arg-type]
    with clocks_of_processes(), surroundings():
        cluster = Cluster(plan)
        invariants = Invariants(cluster)
        assert cluster.elections is not None
        with watched(cluster.elections):
            yield cluster, invariants
            for process in cluster.processes:
                process.die()


def test_a_seed_draws_one_plan() -> None:
    assert plain_plan(7) == plain_plan(7)
    plans = [plain_plan(seed) for seed in range(300)]
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


def test_most_plans_have_an_operator() -> None:
    plans = [PLANS["elections"](seed) for seed in range(300)]
    assert plans == [PLANS["elections"](seed) for seed in range(300)]
    assert 160 < sum(plan.operated for plan in plans) < 220
    assert {fault.kind for plan in plans for fault in plan.faults} >= {*ELECTION_FAULTS, *OPERATIONS, "gone"}
    assert {1 + plan.slaves + plan.spares for plan in plans} == {2, 3, 4, 5}
    assert {plan.copies_min for plan in plans} == {0, 1}
    assert set(ELECTION_PLANS.values()) <= set(PLANS)
    for plan in plans:
        hosts = {fault.target.partition(".")[0] for fault in plan.faults}
        assert not {f"b{number}" for number in range(1 + plan.slaves + plan.spares, 5)} & hosts
        assert not plan.loses or not plan.kinds


def test_who_votes_is_what_the_operator_says_and_a_replaced_disk_is_named_again() -> None:
    grows = Fault(4.0, "voters", "all")
    replaced = Fault(7.0, "replace", "b1", for_s=0.5)
    with group(grows, replaced, operated=True, spares=1) as (cluster, _):
        elections = cluster.elections
        assert elections is not None
        cluster.run(until=6.9)
        assert elections.record is not None
        assert [member for member, _ in elections.record.voters] == [1, 2, 3, 4]
        before = elections.seat(cluster.members["b1"])
        cluster.run(until=20.0)
        after = elections.seat(cluster.members["b1"])
        assert after != before
        assert dict(elections.record.voters)[2] == after
        assert not elections.record.prior
        assert elections.changes == 2


def test_a_disk_is_lost_only_while_enough_others_have_what_is_committed() -> None:
    with group(operated=True) as (cluster, _):
        elections = cluster.elections
        assert elections is not None and cluster.operators is not None
        cluster.run(until=3.0)
        one, other, third = cluster.members.values()
        assert elections.bears(Fault(3.0, "replace", one.name))
        cluster.operators.client.emptying.append(other.number)
        assert not elections.bears(Fault(3.0, "replace", one.name))
        assert elections.bears(Fault(3.0, "replace", other.name))
        cluster.operators.client.emptying.clear()
        cluster.operators.client.naming.append(frozenset({one.number, other.number}))
        assert not elections.bears(Fault(3.0, "replace", one.name))  # both of them have to adopt the epoch
        assert elections.bears(Fault(3.0, "replace", third.name))


def test_what_only_the_lost_members_had_is_given_up_and_nothing_after_it() -> None:
    faults = (
        Fault(5.0, "isolate", "b2", for_s=3.0),
        Fault(6.0, "gone", "b0", for_s=9.0),
        Fault(6.0, "gone", "b1", for_s=9.0, amount=1.0),
        Fault(6.5, "accept_loss", for_s=10.0),
    )
    with group(*faults, operated=True, loses=True, kinds=frozenset()) as (cluster, invariants):
        committed = invariants.committed
        assert cluster.elections is not None and committed is not None
        cluster.run(until=5.99)
        before = len(committed.log)
        lost = [sent for sent in cluster.history.acknowledged if sent.began > 5.1]
        assert lost
        cluster.run(until=13.0)
        assert cluster.elections.leader().name == "b2"
        assert invariants.looks["accepted losses"] == 1
        assert invariants.looks["lost as accepted"] >= len(lost)
        assert all(sent.outcome == "unknown" for sent in lost)
        assert cluster.elections.epochs[max(cluster.elections.epochs)].end < before
        assert cluster.history.acknowledged[-1].began > cluster.elections.accepted_at
        assert committed.excused == {"b0", "b1"}


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
