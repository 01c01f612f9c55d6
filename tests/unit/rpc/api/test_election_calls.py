"""Calls among members at elections: what is asked, and what is taken of the answers."""

import pytest

from whimbrel.errors import BadRequest
from whimbrel.model.elections import ANSWER_WHY_CHARS_MAX, SealAnswer, Suspicion
from whimbrel.pb.whimbrel.replica.v1 import election_service_pb2 as pb
from whimbrel.rpc.api.election_calls import seal, suspect

GROUP, SEAT = "a" * 32, "b" * 32


def test_a_suspicion_is_asked_for_and_read() -> None:
    call = suspect("b", group=GROUP, epoch=7, member=2)
    assert call.path == "/whimbrel.replica.v1.ElectionService/Suspect"
    assert pb.SuspectRequest.FromString(call.payload) == pb.SuspectRequest(
        broker_name="b", group=GROUP, epoch=7, member=2
    )
    answer = pb.SuspectResponse(
        silent=True, epoch=7, last_epoch=6, log_end=100, votes=True, seat=SEAT, group=GROUP, member=3
    )
    assert call.decode([answer.SerializeToString()], {}) == Suspicion(
        silent=True, epoch=7, last_epoch=6, log_end=100, votes=True, seat=SEAT, group=GROUP, member=3
    )


def test_a_seal_is_asked_for_and_read() -> None:
    call = seal("b", group=GROUP, epoch=8, candidate=2, log_begin=3)
    assert call.path == "/whimbrel.replica.v1.ElectionService/Seal"
    assert pb.SealRequest.FromString(call.payload) == pb.SealRequest(
        broker_name="b", group=GROUP, epoch=8, candidate=2, log_begin=3
    )
    answer = pb.SealResponse(
        sealed=True, promised=8, promised_to=2, last_epoch=6, log_end=9, seat=SEAT, member=3, votes=True,
        waiting_below=5,
    )  # fmt: skip
    assert call.decode([answer.SerializeToString()], {}) == SealAnswer(
        sealed=True,
        promised=8,
        promised_to=2,
        last_epoch=6,
        log_end=9,
        seat=SEAT,
        why="",
        member=3,
        votes=True,
        waiting_below=5,
    )


def test_a_reason_for_people_is_cut_and_printable() -> None:
    call = seal("b", group=GROUP, epoch=8, candidate=2, log_begin=3)
    why = call.decode([pb.SealResponse(why="\x1b[2J\n" * 1000).SerializeToString()], {}).why
    assert len(why) == ANSWER_WHY_CHARS_MAX and why.isprintable()


def test_answers_that_no_member_can_give_are_refused() -> None:
    with pytest.raises(BadRequest, match="member -1"):
        suspect("b", group="", epoch=0, member=2).decode(
            [pb.SuspectResponse(member=-1).SerializeToString()], {}
        )
    with pytest.raises(BadRequest, match="log_end"):
        seal("b", group=GROUP, epoch=8, candidate=2, log_begin=3).decode(
            [pb.SealResponse(log_end=2**62 + 1).SerializeToString()], {}
        )
