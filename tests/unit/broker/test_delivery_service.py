"""Records that RocketMQ wrote, as messages."""

import base64

import pytest

from goldens import golden, rows, sizes
from whimbrel.broker.delivery_service import delivered
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import StoredMessage, decode_record


def _records(name: str) -> list[StoredMessage]:
    size = sizes(name)["commitlog_file_size"]
    log = golden(name) / "commitlog"
    found = []
    for row in rows(name, "record"):
        offset = row["phyOffset"]
        data = (log / f"{offset - offset % size:020d}").read_bytes()
        found.append(decode_record(data, offset % size))
    return found


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic"])
def test_every_golden_record_can_be_delivered(name: str) -> None:
    for row, record in zip(rows(name, "record"), _records(name), strict=True):
        message = delivered(record)
        system = message.system_properties
        assert system.message_id == (row.get("uniqKey") or row["offsetMsgId"])
        if "body" in row:
            assert message.body == base64.b64decode(row["body"])
        assert system.tag == row["properties"].get("TAGS", "")
        assert "UNIQ_KEY" not in message.user_properties
        assert system.body_encoding == (v2.GZIP if row["sysFlag"] & 1 else v2.IDENTITY)


def test_types_are_read_from_the_properties() -> None:
    kinds: dict[str, set[int]] = {}
    for record in _records("v533-basic"):
        kinds.setdefault(record.topic, set()).add(delivered(record).system_properties.message_type)
    assert kinds["FiveTopicNormal"] == {v2.NORMAL}
    assert kinds["FiveTopicFifo"] == {v2.FIFO}
    assert kinds["FiveTopicDelay"] == {v2.DELAY}
    assert kinds["FiveTopicTx"] == {v2.TRANSACTION}
