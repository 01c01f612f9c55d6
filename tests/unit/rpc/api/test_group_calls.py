"""Calls to the nameserver that keeps groups' records: what is asked, and what is taken of the answers."""

import pytest

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import GroupRecord
from whimbrel.pb.whimbrel.group.v1 import group_service_pb2 as pb
from whimbrel.rpc.api.group_calls import read_record, swap_record

RECORD = GroupRecord(group="f" * 32, epoch=3, leader=1, voters=((1, "1" * 32), (2, "2" * 32)), acks=2)


def test_a_read_names_the_group_and_how_long_it_waits() -> None:
    call = read_record("C", "b", after_revision=4, wait_ms=900)
    assert call.path == "/whimbrel.group.v1.GroupService/Read"
    assert pb.ReadRequest.FromString(call.payload) == pb.ReadRequest(
        cluster="C", broker_name="b", after_revision=4, wait_ms=900
    )
    answer = pb.ReadResponse(record=RECORD.encode(), revision=5)
    assert call.decode([answer.SerializeToString()], {}) == (RECORD, 5)
    assert call.decode([b""], {}) == (None, 0)


def test_a_swap_tells_what_stands_now() -> None:
    call = swap_record("C", "b", RECORD, 4)
    assert call.path == "/whimbrel.group.v1.GroupService/Swap"
    asked = pb.SwapRequest.FromString(call.payload)
    assert (asked.cluster, asked.broker_name, asked.revision) == ("C", "b", 4)
    assert GroupRecord.decode(asked.record) == RECORD
    for swapped in (True, False):
        answer = pb.SwapResponse(swapped=swapped, record=RECORD.encode(), revision=5)
        assert call.decode([answer.SerializeToString()], {}) == (swapped, RECORD, 5)


@pytest.mark.parametrize(
    ("record", "revision"), [(b"", 1), (b"{}", 1), (RECORD.encode(), 0), (RECORD.encode(), -1)]
)
def test_an_answer_that_holds_no_record_is_refused(record: bytes, revision: int) -> None:
    with pytest.raises(BadRequest):
        read_record("C", "b").decode(
            [pb.ReadResponse(record=record, revision=revision).SerializeToString()], {}
        )
    with pytest.raises(BadRequest):
        answer = pb.SwapResponse(swapped=True, record=record, revision=revision)
        swap_record("C", "b", RECORD, 1).decode([answer.SerializeToString()], {})
