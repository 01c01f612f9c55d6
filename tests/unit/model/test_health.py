"""What is wrong with a cluster, by what its members say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.cluster.statuses import registered
from whimbrel.errors import Unavailable
from whimbrel.model.cluster import (
    AbsentBroker,
    BrokerStatus,
    Cluster,
    ElectionStatus,
    ReplicationStatus,
    SlaveStatus,
)
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.health import (
    STEP_BYTES,
    Check,
    View,
    broker_checks,
    groups_without_master,
    master_state,
    masters_down,
    missing_brokers,
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
    return registered(broker_id, name, role=role, log_end=100, writable=role == "master")


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


RECORD = GroupRecord(
    group="a" * 32,
    epoch=3,
    leader=1,
    voters=((1, "1" * 32), (2, "2" * 32), (3, "3" * 32)),
    acks=2,
)


def member(number: int, *, leads: bool = False) -> BrokerStatus:
    return replace(broker("master" if leads else "slave", 0 if leads else number), member_id=number, epoch=3)


def follower(number: int) -> ReplicationStatus:
    election = ElectionStatus(
        member=number, state="following", why="", may_lead=True, promised=3, record=RECORD
    )
    return replace(SLAVE, broker_id=number, election=election)


AWAY = AbsentBroker(cluster="c", broker_name="broker-a", broker_id=1, since=0.0)


def test_a_slave_whose_broker_is_gone_is_missed_by_its_connection() -> None:
    connected = replace(SLAVE_CONNECTION, broker_id=1)
    master = replace(MASTER, slaves=(connected,))
    lost = wrong([master], [broker("master", 0)])
    assert list(lost) == ["broker-a slave 1"]
    assert "while its replicator is connected" in lost["broker-a slave 1"]
    assert not wrong([master, SLAVE])
    stale = replace(MASTER, slaves=(replace(connected, uncounted=True),), expected_slaves=0)
    assert not wrong([stale], [broker("master", 0)])


def test_who_is_remembered_is_missed_with_since_when() -> None:
    (check,) = (
        check
        for check in broker_checks(BOTH[:1], [replace(MASTER, expected_slaves=0)], [AWAY])
        if not check.healthy
    )
    assert check.component == "broker-a slave 1"
    assert check.state == "not registered since 1970-01-01 00:00:00 UTC"
    assert "`whimbrel broker forget broker-a --member 1`" in check.advice
    assert all(check.healthy for check in broker_checks(BOTH, [MASTER, SLAVE], [AWAY]))  # it is back


def test_each_voter_of_the_record_that_is_not_registered_is_missed() -> None:
    brokers = [member(1, leads=True), member(2)]
    leader = replace(follower(1), role="master", broker_id=0, writable=True)
    away = [replace(AWAY, broker_id=0, member_id=3, since=60.0), replace(AWAY, broker_id=4, member_id=4)]
    found = missing_brokers(brokers, [leader, follower(2)], away)
    assert [(one.who, one.state) for one in found] == [
        ("member 3", "not registered since 1970-01-01 00:01:00 UTC")
    ]  # and not member 4, which the record does not have any more
    assert "`whimbrel replication voters broker-a --set IDS`" in found[0].advice
    assert not missing_brokers([*brokers, member(3)], [leader, follower(2)], away)


def test_a_group_that_is_gone_is_missed_and_one_of_slaves_is_told_once() -> None:
    gone = replace(AWAY, broker_id=0)
    (found,) = missing_brokers([], [], [gone])
    assert (found.who, found.broker_id) == ("master", 0) and "`whimbrel broker forget" in found.advice
    assert not missing_brokers([broker("slave", 1)], [SLAVE], [gone])


def test_a_nameserver_that_knows_fewer_brokers_than_another_is_wrong() -> None:
    less = nameserver_check("ns1:1", Cluster((BOTH[0],), settled=True), BOTH)
    assert not less.healthy and less.state == "does not know broker-a slave 1"
    assert nameserver_check("ns2:1", Cluster(tuple(BOTH), settled=True), BOTH).healthy


def test_who_is_down_is_told_with_since_when_and_what_to_do() -> None:
    gone = AbsentBroker(cluster="c", broker_name="broker-a", broker_id=0, since=0.0)
    with_slave = Cluster((broker("slave", 1),), settled=True, absent=(gone,))
    (told,) = masters_down(with_slave, []).values()
    assert told.startswith("broker-a: there is no master since 1970-01-01 00:00:00 UTC: slave 1 serves")
    alone = Cluster((), settled=True, absent=(gone,))
    (told,) = masters_down(alone, []).values()
    assert "no broker of broker-a is registered since 1970-01-01 00:00:00 UTC" in told
    silent = replace(broker("master", 0), renewed_at=1.0)
    (told,) = masters_down(
        Cluster((silent,), settled=True), [(silent, Unavailable("no answer within 3 s"))]
    ).values()
    assert "the master of broker-a at 10.0.0.1:10911 is silent (no answer within 3 s)" in told
    assert "last at 1970-01-01 00:00:01 UTC" in told and "log" in told
    here = Cluster((broker("master", 0),), settled=True)
    assert masters_down(here, [MASTER]) == {}
    (told,) = masters_down(here, [replace(MASTER, drained=True)]).values()
    assert told == "broker-a: drained; `whimbrel broker drain broker-a --undo` has it take messages again"
    (told,) = masters_down(here, [replace(MASTER, writable=False, advice="its disk is full")]).values()
    assert told == "broker-a: reads only; its disk is full"


@pytest.mark.parametrize(
    ("writable", "drained", "word"),
    [
        (True, False, "takes messages"),
        (True, True, "drained"),
        (False, False, "reads only"),
        (False, True, "reads only"),
    ],
)
def test_whether_a_broker_takes_messages_has_one_word(writable: bool, drained: bool, word: str) -> None:
    view = replace(MASTER, writable=writable, drained=drained)
    known = replace(broker("master", 0), writable=writable, drained=drained)
    assert view.takes == known.takes == word
    (check, *_) = broker_checks([known], [view])
    assert check.state == word
    assert master_state(view) == word
    assert check.healthy is writable
    assert ("--undo" in check.note) is (word == "drained")
