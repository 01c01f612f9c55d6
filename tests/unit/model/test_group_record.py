"""The record of a group: what is kept comes back, and what no group can be is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import HISTORY_MAX, NOBODY, RECORD_BYTES_MAX, GroupRecord, majority

SEATS = {member: f"{member:032x}" for member in range(1, 64)}
RECORD = GroupRecord(
    group="f" * 32, epoch=1, leader=1, voters=tuple((member, SEATS[member]) for member in (1, 2, 3)), acks=2
)


@given(st.integers(1, 7), st.integers(1, 1000), st.integers(0, 63), st.booleans(), st.text(max_size=300))
def test_what_is_kept_comes_back(voters: int, epoch: int, prefer: int, paused: bool, why: str) -> None:
    members = tuple((member, SEATS[member]) for member in range(1, voters + 1))
    record = replace(RECORD, voters=members, acks=majority(voters), prefer=prefer, paused=paused, epoch=epoch)
    for member in range(1, voters + 1):
        record = record.led_by(member, record.epoch + 1, at_ms=5, why=why)
    assert GroupRecord.decode(record.encode()) == record
    changing = replace(record, prior=RECORD.voters, prior_acks=2)
    assert GroupRecord.decode(changing.encode()) == changing


@pytest.mark.parametrize("voters", range(1, 8))
def test_seals_meet_every_commit(voters: int) -> None:
    members = tuple((member, SEATS[member]) for member in range(1, voters + 1))
    for acks in range(majority(voters), voters + 1):
        record = replace(RECORD, voters=members, acks=acks)
        assert record.seals + acks == voters + 1


def test_the_longest_record_has_room() -> None:
    seats = tuple(sorted(SEATS.items()))
    record = replace(RECORD, voters=seats[:7], acks=4, prior=seats[7:14], prior_acks=4)
    for epoch in range(2, 2 * HISTORY_MAX):
        record = record.led_by(1, epoch, at_ms=1 << 62, why='"\\\x00\U0001f426' * 200)
    assert len(record.history) == HISTORY_MAX
    assert len(record.encode()) <= RECORD_BYTES_MAX


def test_a_prior_voter_may_lead_and_a_replaced_store_may_not() -> None:
    record = replace(RECORD, prior=((4, SEATS[4]),), prior_acks=1)
    assert record.electable(1, SEATS[1]) and record.electable(4, SEATS[4])
    assert not record.electable(1, SEATS[2]) and not record.electable(5, SEATS[5])
    assert record.resigned(4).prefer == 4 and record.resigned(4).leader == NOBODY


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"v": 2}, "version"),
        ({"group": "x"}, "uuid"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"leader": 64}, "leader"),
        ({"voters": {}}, "voters"),
        ({"voters": {"0": SEATS[1]}}, "no id"),
        ({"voters": {"1": "short"}}, "seat"),
        ({"voters": {"1": SEATS[1], "01": SEATS[1]}}, "twice"),
        ({"acks": 1}, "more than half"),
        ({"acks": 4}, "more than half"),
        ({"prior": {"voters": {"1": SEATS[1]}}}, "acks"),
        ({"prior": {"acks": 1}}, "voters"),
        ({"prior": [1]}, "prior"),
        ({"history": [1]}, "history"),
        ({"history": [{"epoch": 1, "leader": 1, "at_ms": 1}]}, "why"),
    ],
)
def test_what_no_group_can_be_is_refused(changed: dict[str, Any], said: str) -> None:
    fields = json.loads(RECORD.encode()) | changed
    with pytest.raises(BadRequest, match=said):
        GroupRecord.decode(json.dumps(fields).encode())


@given(st.binary(max_size=200))
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        GroupRecord.decode(data)
    with pytest.raises(BadRequest, match="at most"):
        GroupRecord.decode(b" " * (RECORD_BYTES_MAX + 1))
