"""What an elected leader does with each call of administrators, while others lag behind.

For each method, and each code of the remoting protocol: whether it is refused before the leader serves, and
for which majorities an answer waits, in their order, where both kinds of state are behind: a good one, one
that says what is there already or gone already, and one of any other error.
"""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from support.broker.held import HeldRig
from whimbrel.broker.remoting.consume_stats import RemotingConsumeStats
from whimbrel.broker.remoting.groups import RemotingGroups
from whimbrel.broker.remoting.positions import RemotingPositions
from whimbrel.broker.remoting.resets import RemotingResets
from whimbrel.broker.remoting.topics import RemotingTopics
from whimbrel.errors import (
    AlreadyExists,
    BadRequest,
    GroupNotFound,
    NotReady,
    NotWritable,
    StoreFull,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.wire import ADMIN_SERVICE, DEAD_LETTER_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2, dead_letter_service_pb2
from whimbrel.rpc.remoting.codes import RequestCode as R

WHY = "too few members have handed their leases over"
# What these wait for, the engine knows: test_table_majority.py. Requests of the remoting protocol that change
# tables are refused here as well, before it is looked at who may ask for them.
TABLES = {
    "CreateTopic", "UpdateTopic", "DeleteTopic", "CreateGroup", "UpdateGroup", "DeleteGroup", "DrainBroker",
    "ForgetBroker",
}  # fmt: skip
# Refused before this leader serves; waits of a good answer, and of one that says what is known already.
HELD: dict[str | R, tuple[bool, str, str]] = {
    "ListTopics": (False, "", ""),
    "DescribeTopic": (False, "", ""),
    "ListGroups": (False, "", ""),
    "DescribeGroup": (False, "", ""),
    "DescribeReplication": (False, "", ""),
    "DescribePreserved": (False, "", ""),
    "AppendPreserved": (False, "", ""),
    "ListDeadLetters": (False, "", ""),
    "ReplayDeadLetters": (True, "leases", "leases"),
    "DropDeadLetters": (True, "leases", "leases"),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (False, "", ""),
    R.GET_MAX_OFFSET: (False, "", ""),
    R.GET_MIN_OFFSET: (False, "", ""),
    R.GET_EARLIEST_MSG_STORETIME: (False, "", ""),
    R.GET_CONSUME_STATS: (True, "", ""),
    R.GET_BROKER_CONSUME_STATS: (True, "", ""),
    R.QUERY_CONSUME_TIME_SPAN: (True, "", ""),
    R.QUERY_CORRECTION_OFFSET: (True, "", ""),
    R.GET_ALL_CONSUMER_OFFSET: (True, "", ""),
    R.UPDATE_AND_CREATE_TOPIC: (True, "", ""),
    R.DELETE_TOPIC_IN_BROKER: (True, "", ""),
    R.GET_TOPIC_STATS_INFO: (False, "", ""),
    R.GET_TOPIC_CONFIG: (False, "", ""),
    R.GET_ALL_TOPIC_CONFIG: (False, "", ""),
    R.QUERY_TOPIC_CONSUME_BY_WHO: (False, "", ""),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (False, "", ""),
    R.QUERY_CONSUME_QUEUE: (False, "", ""),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (True, "", ""),
    R.DELETE_SUBSCRIPTIONGROUP: (True, "", ""),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (False, "", ""),
    R.SET_MESSAGE_REQUEST_MODE: (False, "", ""),
    R.UPDATE_BROKER_CONFIG: (False, "", ""),
}
ENGINE = {  # knows of these: test_position_majority.py
    "ResetOffsets", R.QUERY_CONSUMER_OFFSET, R.UPDATE_CONSUMER_OFFSET, R.INVOKE_BROKER_TO_RESET_OFFSET,
    R.CLONE_GROUP_OFFSET,
}  # fmt: skip
ALREADY = (AlreadyExists, GroupNotFound, TopicNotFound)
OTHERS = (BadRequest, NotWritable, StoreFull)

each = pytest.mark.parametrize("what", HELD, ids=str)


def service_of(what: str) -> str:
    """Return the service that a method is one of."""
    return DEAD_LETTER_SERVICE if what.endswith("DeadLetters") else ADMIN_SERVICE


def waits(rig: HeldRig, what: str | R, answer: Any, *kinds: str) -> str:
    """Return for which majorities an answer waits, as far as these kinds of state are behind."""
    rig.answer = answer
    for kind in ("metadata", "leases"):
        if kind not in kinds:
            rig.reach(kind)
    return rig.waits(lambda: rig.ask_code(what) if isinstance(what, R) else rig.ask(what, service_of(what)))


def test_each_call_is_in_the_table() -> None:
    pairs = (
        (admin_service_pb2, "AdminService"), (dead_letter_service_pb2, "DeadLetterService"),
    )  # fmt: skip
    methods = {
        method.name for module, name in pairs for method in module.DESCRIPTOR.services_by_name[name].methods
    }
    parts = (RemotingPositions, RemotingResets, RemotingConsumeStats, RemotingTopics, RemotingGroups)
    codes = {code for part in parts for code in part.handles(Mock())}
    assert (methods | codes) - ENGINE | {R.UPDATE_BROKER_CONFIG} == set(HELD) | TABLES
    assert not TABLES & set(HELD)


@each
def test_a_good_answer_waits(tmp_path: Path, what: str | R) -> None:
    assert waits(HeldRig(tmp_path), what, "answer", "metadata", "leases") == HELD[what][1]


@each
@pytest.mark.parametrize("error", ALREADY)
def test_what_is_known_already_waits(tmp_path: Path, what: str | R, error: type[WhimbrelError]) -> None:
    assert waits(HeldRig(tmp_path), what, error("known"), "metadata", "leases") == HELD[what][2]


@each
@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_do_not_wait(tmp_path: Path, what: str | R, error: type[WhimbrelError]) -> None:
    assert waits(HeldRig(tmp_path), what, error("refused"), "metadata", "leases") == ""


@each
@pytest.mark.parametrize("kind", ["metadata", "leases"])
def test_where_one_kind_is_behind_an_answer_waits_for_that(tmp_path: Path, what: str | R, kind: str) -> None:
    """Also what is gone already, though it waits for one kind only where both are behind."""
    expected = kind if kind in HELD[what][1] else ""
    assert waits(HeldRig(tmp_path), what, "answer", kind) == expected
    for number, error in enumerate(ALREADY):
        (tmp_path / str(number)).mkdir()
        assert waits(HeldRig(tmp_path / str(number)), what, error("known"), kind) == expected


@each
def test_before_the_leader_serves(tmp_path: Path, what: str | R) -> None:
    rig = HeldRig(tmp_path)
    rig.why = WHY
    refused = ""
    try:
        waits(rig, what, "answer", "metadata", "leases")
    except NotReady as error:
        refused = str(error)
    assert refused == (WHY if HELD[what][0] else "")
    assert rig.asked == (not HELD[what][0]), "the handler is asked only where nothing is refused"
