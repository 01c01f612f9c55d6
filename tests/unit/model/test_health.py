"""What is wrong with a cluster, by what its members say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from whimbrel.errors import Unavailable
from whimbrel.model.cluster import BrokerStatus, Cluster, ElectionStatus, ReplicationStatus, SlaveStatus
from whimbrel.model.health import (
    STEP_BYTES,
    Check,
    View,
    broker_checks,
    groups_without_master,
    nameserver_check,
    problem_of,
    what_may_be_lost,
)

SLAVE_CONNECTION = SlaveStatus(
    peer="10.0.0.2:5000",
    acknowledged_offset=90,
    sent_offset=100,
    sent_bytes=10,
    connected_at=1.0,
    lag_bytes=10,
)
MASTER = ReplicationStatus(
    broker_name="broker-a",
    broker_id=0,
    role="master",
    log_begin=0,
    log_end=100,
    flushed_offset=100,
    confirmed_offset=100,
    dispatched_offset=100,
    replicator_alive=True,
    ha_address="10.0.0.1:10912",
    slaves=(SLAVE_CONNECTION,),
    connected=False,
    writable=True,
    advice="",
    replication="async",
    flush="async",
    expected_slaves=1,
)
SLAVE = replace(
    MASTER, broker_id=1, role="slave", slaves=(), connected=True, writable=False, expected_slaves=0
)


def broker(role: str, broker_id: int, name: str = "broker-a") -> BrokerStatus:
    return BrokerStatus(
        cluster="c",
        broker_name=name,
        broker_id=broker_id,
        role=role,
        address=f"10.0.0.{broker_id + 1}:10911",
        ha_address="",
        log_begin=0,
        log_end=100,
        writable=role == "master",
        renewed_at=None,
        topic_count=0,
    )


BOTH = [broker("master", 0), broker("slave", 1)]


def wrong(views: Sequence[View], brokers: list[BrokerStatus] = BOTH) -> dict[str, str]:
    """Return the advice of each component that is not healthy."""
    return {check.component: check.advice for check in broker_checks(brokers, views) if not check.healthy}


def test_a_healthy_group_has_a_line_for_each_component() -> None:
    assert broker_checks(BOTH, [MASTER, SLAVE]) == [
        Check("broker-a master", True, "takes messages"),
        Check("broker-a master replicator", True, "runs"),
        Check("broker-a slaves", True, "1 connected, 1 expected"),
        Check("broker-a slave 1", True, "in step"),
        Check("broker-a slave 1 replicator", True, "runs"),
    ]


@pytest.mark.parametrize(
    ("lane", "state", "note"),
    [
        ("on", ", lane on", ""),
        (
            "off, because it is switched off: slower",
            ", lane off",
            "lane off, because it is switched off: slower",
        ),
        ("0.1.0", ", lane on", ""),  # what a broker of the first release says
        ("", "", ""),
    ],
)
def test_a_broker_s_check_says_which_lane_it_has(lane: str, state: str, note: str) -> None:
    views = [replace(MASTER, lane=lane), replace(SLAVE, lane=lane)]
    checks = {check.component: check for check in broker_checks(BOTH, views)}
    assert checks["broker-a master"] == Check("broker-a master", True, f"takes messages{state}", note=note)
    assert checks["broker-a slave 1"] == Check("broker-a slave 1", True, f"in step{state}", note=note)
    assert not checks["broker-a master replicator"].note


def test_a_broker_s_notes_are_told_and_are_no_fault() -> None:
    checks = broker_checks(BOTH, [replace(MASTER, notes=("one", "two"), lane="off, because"), SLAVE])
    (told,) = (check for check in checks if check.note)
    assert told.healthy and told.note == "lane off, because; one; two"


@pytest.mark.parametrize(
    ("change", "component", "advice"),
    [
        ({"writable": False, "advice": "its slave holds more"}, "broker-a master", "its slave holds more"),
        ({"writable": False}, "broker-a master", "takes no messages"),
        ({"advice": "slave 10.0.0.9 refused: it differs"}, "broker-a master", "slave 10.0.0.9 refused"),
        (
            {"replicator_alive": False, "advice": "start it"},
            "broker-a master replicator",
            "does not run: start it",
        ),
        ({"slaves": ()}, "broker-a slaves", "0 of 1 slaves are connected: start the missing ones"),
        ({"slaves": (), "replication": "sync"}, "broker-a slaves", "and sends are refused"),
        ({"expected_slaves": 2}, "broker-a slaves", "1 of 2 slaves are connected"),
    ],
)
def test_each_fault_of_a_master_is_that_of_one_component(
    change: dict[str, Any], component: str, advice: str
) -> None:
    view = replace(MASTER, **change)
    found = wrong([view, SLAVE])
    assert list(found) == [component]
    assert advice in found[component]
    assert problem_of(view)


@pytest.mark.parametrize(
    ("change", "component", "advice"),
    [
        ({"connected": False}, "broker-a slave 1", "not connected to the master at 10.0.0.1:10912"),
        ({"connected": False, "ha_address": ""}, "broker-a slave 1", "whose address nobody has told it"),
        ({"advice": "the disk is full"}, "broker-a slave 1", "the disk is full"),
        (
            {"replicator_alive": False, "connected": False},
            "broker-a slave 1 replicator",
            "does not run: start it",
        ),
    ],
)
def test_each_fault_of_a_slave_is_that_of_one_component(
    change: dict[str, Any], component: str, advice: str
) -> None:
    view = replace(SLAVE, **change)
    found = wrong([MASTER, view])
    assert list(found) == [component]
    assert advice in found[component]
    assert problem_of(view)


def test_a_slave_that_is_merely_behind_is_told_and_not_wrong() -> None:
    behind = [replace(MASTER, log_end=100 + 2 * STEP_BYTES), SLAVE]
    assert wrong(behind) == {}
    assert Check("broker-a slave 1", True, "catching up") in broker_checks(BOTH, behind)
    assert problem_of(SLAVE) == ""


def test_how_far_behind_a_slave_is_nobody_knows_without_its_master() -> None:
    checks = broker_checks([broker("slave", 1)], [SLAVE])
    assert Check("broker-a slave 1", True, "connected") in checks


def test_a_master_without_slaves_of_which_none_is_expected_is_healthy() -> None:
    alone = replace(MASTER, slaves=(), expected_slaves=0)
    assert wrong([alone], [broker("master", 0)]) == {}


def test_a_group_of_slaves_alone_lacks_its_master() -> None:
    brokers = [broker("slave", 2), broker("slave", 1), broker("master", 0, "broker-b")]
    missing = groups_without_master(brokers)
    assert {name: [slave.broker_id for slave in slaves] for name, slaves in missing.items()} == {
        "broker-a": [1, 2]
    }
    found = wrong([SLAVE, replace(MASTER, broker_name="broker-b")], brokers)
    assert list(found) == ["broker-a master"]
    assert "slave 1 serves its routes read-only" in found["broker-a master"]


def test_a_broker_that_does_not_answer_is_wrong() -> None:
    view = (broker("slave", 1), Unavailable("no answer from 10.0.0.2:10911"))
    assert wrong([MASTER, view]) == {"broker-a slave 1": "no answer from 10.0.0.2:10911"}
    assert problem_of(view) == "could not be asked: no answer from 10.0.0.2:10911"


def test_no_broker_is_wrong() -> None:
    assert "no broker is registered" in wrong([], [])["brokers"]


def test_a_nameserver_has_to_answer_and_to_be_settled() -> None:
    assert nameserver_check("n:1", Cluster(tuple(BOTH), settled=True)).healthy
    assert not nameserver_check("n:1", Cluster(tuple(BOTH), settled=False)).healthy
    assert nameserver_check("n:1", Unavailable("no answer from n:1")) == Check(
        "nameserver n:1", False, "no answer", "no answer from n:1"
    )


def test_connections_that_do_not_count_are_no_slaves() -> None:
    twice = (SLAVE_CONNECTION, replace(SLAVE_CONNECTION, peer="10.0.0.2:5001", uncounted=True))
    master = replace(MASTER, slaves=twice, expected_slaves=2, replication="sync")
    assert problem_of(master).startswith("1 of 2 slaves are connected: start the missing ones")
    (slaves,) = [
        check for check in broker_checks([broker("master", 0)], [master]) if "slaves" in check.component
    ]
    assert not slaves.healthy and slaves.state == "1 connected, 2 expected"


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("replication", ["sync", "async"])
def test_every_mode_says_what_may_be_lost_and_that_acknowledgements_are_in_none(
    flush: str, replication: str
) -> None:
    text = what_may_be_lost(replace(MASTER, flush=flush, replication=replication))
    assert ("in a power cut nothing that was answered" in text) == (flush == "sync")
    assert ("in a failover nothing that was answered" in text) == (replication == "sync")
    assert "acknowledgements of consumers wait for neither" in text and "come again" in text


def test_where_members_are_elected_acknowledgements_are_kept_by_a_majority() -> None:
    election = ElectionStatus(member=1, state="leading", why="", may_lead=True, promised=2, record=None)
    text = what_may_be_lost(replace(MASTER, flush="sync", replication="majority", election=election))
    assert text.endswith("acknowledgements of consumers are answered once a majority has them on its disks")
