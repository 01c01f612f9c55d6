"""What acknowledgements and changes of the invisible time are answered, in the messages of the client API."""

from datetime import timedelta
from typing import Any

import pytest

from support.broker.consumption import Rig
from support.cluster.broker_api import as_messages
from whimbrel.broker.api.settle import SettleService
from whimbrel.errors import BadRequest
from whimbrel.model.limits import ACK_ENTRIES_MAX
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call

CALL = Call("m", "p", {"x-mq-client-id": "c"}, None)
NAMES: dict[str, Any] = {"group": v2.Resource(name="g"), "topic": v2.Resource(name="t")}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for _ in range(2):
        rig.store.put("t", 0)
    return rig


@pytest.mark.parametrize("invisible_ms", [-1, 12 * 3600 * 1000 + 1])
def test_changed_invisible_time_is_bounded(rig: Rig, invisible_ms: int) -> None:
    service = SettleService(rig.settles)
    [one] = rig.take(batch=1)
    written = len(rig.journal.chunks)
    request = messaging.ChangeInvisibleDurationRequest(
        **NAMES, receipt_handle=one.handle, invisible_duration=timedelta(milliseconds=invisible_ms)
    )
    response = service.change_invisible(CALL, request)
    assert (response.status.code, response.receipt_handle) == (v2.ILLEGAL_INVISIBLE_TIME, one.handle)
    assert len(rig.journal.chunks) == written
    request.invisible_duration.CopyFrom(type(request.invisible_duration)(nanos=1_000_000))
    response = service.change_invisible(CALL, request)
    assert response.status.code == v2.OK and response.receipt_handle != one.handle
    [lease] = [rig.consumption.table.by_queue["g", "t", 0].leases[0]]
    assert lease.visible_at == rig.clock.now + 1


def test_acknowledgement_answers_entry_by_entry(rig: Rig) -> None:
    service = SettleService(rig.settles)
    good = [one.handle for one in rig.take()]
    for handles, code in (
        (good, v2.OK),
        ([good[0], "x"], v2.MULTIPLE_RESULTS),
        (["x", "y"], v2.INVALID_RECEIPT_HANDLE),
    ):
        request = messaging.AckMessageRequest(**NAMES)
        for name, handle in zip("ab", handles, strict=True):
            request.entries.add(message_id=name, receipt_handle=handle)
        [response] = as_messages(messaging.AckMessageResponse, [service.acknowledge(CALL, request)])
        assert response.status.code == code
        assert [(entry.message_id, entry.receipt_handle) for entry in response.entries] == list(
            zip("ab", handles, strict=True)
        )


def test_acknowledgements_in_a_request_are_bounded(rig: Rig) -> None:
    service = SettleService(rig.settles)
    request = messaging.AckMessageRequest(**NAMES)
    for _ in range(ACK_ENTRIES_MAX + 1):
        request.entries.add()
    with pytest.raises(BadRequest, match="1025 acknowledgements in a request; at most 1024 are allowed"):
        service.acknowledge(CALL, request)
    del request.entries[-1]
    assert len(service.acknowledge(CALL, request).entries) == ACK_ENTRIES_MAX
