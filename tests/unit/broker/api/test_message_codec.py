"""Records that RocketMQ wrote, as messages."""

import base64
import hashlib
import zlib

import lz4.frame
import pytest

from support.store.compressed import zstd_compressed
from support.store.goldens import golden, rows, sizes
from whimbrel.broker.api.message_codec import Inflation, delivered
from whimbrel.broker.api.response_bytes import OK_FIELD, message_frame, next_offset
from whimbrel.model.limits import BODY_BYTES_MAX, TIME_MS_MAX
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import (
    RecordDraft,
    StoredMessage,
    decode_record,
    encode_record,
    format_properties,
    pack_host,
)


def records_of(name: str) -> list[StoredMessage]:
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
    for row, record in zip(rows(name, "record"), records_of(name), strict=True):
        message = delivered(record)
        system = message.system_properties
        assert system.message_id == (row.get("uniqKey") or row["offsetMsgId"])
        if "body" in row:
            assert message.body == base64.b64decode(row["body"])
        assert system.tag == row["properties"].get("TAGS", "")
        assert "UNIQ_KEY" not in message.user_properties
        assert system.body_encoding == (v2.GZIP if row["sysFlag"] & 1 else v2.IDENTITY)


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic"])
@pytest.mark.parametrize("handle", ["", "W1:b:g:t:0:0:1f4"])
@pytest.mark.parametrize("namespace", ["", "ns"])
def test_bytes_encoded_by_hand_are_those_of_the_library(name: str, handle: str, namespace: str) -> None:
    plain = 0
    for record in records_of(name):
        frame = message_frame(record, namespace=namespace, receipt_handle=handle, attempt=200)
        message = delivered(record, namespace=namespace, receipt_handle=handle, attempt=200)
        if frame is not None:
            plain += 1
            wanted = messaging.ReceiveMessageResponse(message=message)
            assert messaging.ReceiveMessageResponse.FromString(frame) == wanted
            if len(message.user_properties) < 2:  # the order of a map's entries is anybody's
                assert frame == wanted.SerializeToString()
        else:
            assert message.system_properties.message_type != v2.NORMAL or "DLQ" in str(record.properties)
    assert plain > 20


@pytest.mark.parametrize("body", [b"", b"x", bytes(127), bytes(128), bytes(20_000)])
@pytest.mark.parametrize("at_ms", [0, 1, 999, 1000, 1_800_000_000_123])
@pytest.mark.parametrize("offset", [0, 127, 128, 16_383, 16_384, 2**40])
def test_bytes_encoded_by_hand_at_the_bounds_of_numbers(body: bytes, at_ms: int, offset: int) -> None:
    pairs = [
        ("UNIQ_KEY", "id"),
        ("TAGS", "a"),
        ("KEYS", "k1  k2 "),
        ("TRACE_CONTEXT", "00-1"),
        ("u", "é" * 70),
    ]
    draft = RecordDraft.from_properties(
        topic="t",
        queue_id=offset % 300,
        body=body,
        properties=format_properties(pairs),
        born_timestamp=at_ms,
        born_host=pack_host("1.2.3.4", 5),
        store_host=pack_host("::1", 10911),
        sys_flag=offset % 2,
    )
    record = decode_record(encode_record(draft, 0, offset, at_ms))
    frame = message_frame(record, receipt_handle="h" * (offset % 300), attempt=1)
    message = delivered(record, receipt_handle="h" * (offset % 300), attempt=1)
    assert frame == messaging.ReceiveMessageResponse(message=message).SerializeToString()


def test_types_are_read_from_the_properties() -> None:
    kinds: dict[str, set[int]] = {}
    for record in records_of("v533-basic"):
        kinds.setdefault(record.topic, set()).add(delivered(record).system_properties.message_type)
    assert kinds["FiveTopicNormal"] == {v2.NORMAL}
    assert kinds["FiveTopicFifo"] == {v2.FIFO}
    assert kinds["FiveTopicDelay"] == {v2.DELAY}
    assert kinds["FiveTopicTx"] == {v2.TRANSACTION}


@pytest.mark.parametrize("born_ms", [TIME_MS_MAX + 1, (1 << 63) - 1, -(1 << 63)])
def test_time_beyond_the_calendar_becomes_its_end(born_ms: int) -> None:
    """Earlier versions stored any; SDKs fail to read a message with such a time, and its whole answer."""
    host = pack_host("127.0.0.1", 1)
    draft = RecordDraft("t", 0, b"x", format_properties([("UNIQ_KEY", "id")]), born_ms, host, host)
    stored = decode_record(encode_record(draft, physical_offset=0, queue_offset=0, store_timestamp=2))
    message = delivered(stored)
    born = message.system_properties.born_timestamp
    assert born.seconds == (253_402_300_799 if born_ms > 0 else -62_135_596_800)
    frame = message_frame(stored)
    if frame is not None:
        assert messaging.ReceiveMessageResponse.FromString(frame).message == message


def test_due_time_of_five_thousand_digits_is_none() -> None:
    host = pack_host("127.0.0.1", 1)
    pairs = [("UNIQ_KEY", "id"), ("TIMER_DELIVER_MS", "9" * 5000)]
    draft = RecordDraft("t", 0, b"x", format_properties(pairs), 1, host, host)
    stored = decode_record(encode_record(draft, physical_offset=0, queue_offset=0, store_timestamp=2))
    assert not delivered(stored).system_properties.HasField("delivery_timestamp")


def stored_with(*pairs: tuple[str, str]) -> StoredMessage:
    host = pack_host("127.0.0.1", 1)
    draft = RecordDraft("t", 0, b"x", format_properties([("UNIQ_KEY", "id"), *pairs]), 1, host, host)
    return decode_record(encode_record(draft, physical_offset=0, queue_offset=0, store_timestamp=2))


@pytest.mark.parametrize("text", ["0", "7", "2147483647"])
def test_priority_is_delivered_also_when_it_is_zero(text: str) -> None:
    """Checklist 78."""
    stored = stored_with(("_SYS_MSG_PRIORITY_", text))
    system = delivered(stored).system_properties
    assert system.HasField("priority") and system.priority == int(text)
    assert system.message_type == v2.PRIORITY
    assert message_frame(stored) is None
    assert not delivered(stored_with()).system_properties.HasField("priority")


@pytest.mark.parametrize("text", ["-1", "x", "2147483648", "9" * 5000, ""])
def test_priority_that_no_broker_writes_is_none(text: str) -> None:
    system = delivered(stored_with(("_SYS_MSG_PRIORITY_", text))).system_properties
    assert not system.HasField("priority")


def test_bookkeeping_is_no_user_property() -> None:
    """Checklist 62: what RocketMQ returns to users although they never set it."""
    hidden = (
        "__SHARDINGKEY __transactionId__ TRANSACTION_CHECK_TIMES INNER_MULTI_DISPATCH TRACE_CONTEXT"
        " CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_MSG PGROUP _SYS_MSG_PRIORITY_ TIMER_OUT_MS REAL_TOPIC"
    ).split()
    message = delivered(stored_with(*((name, "1") for name in hidden), ("own", "2")))
    assert dict(message.user_properties) == {"own": "2"}
    assert message.system_properties.message_group == "1"


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 1 << 40, (1 << 63) - 1])
def test_the_first_and_the_last_response_to_a_pull_are_those_of_the_library(offset: int) -> None:
    response = messaging.PullMessageResponse
    assert OK_FIELD == response(status=OK).SerializeToString()
    assert OK_FIELD == messaging.ReceiveMessageResponse(status=OK).SerializeToString()
    assert next_offset(offset) == response(next_offset=offset).SerializeToString()


def zipped(sys_flag: int, body: bytes) -> StoredMessage:
    draft = RecordDraft.from_properties(
        topic="t",
        queue_id=0,
        body=body,
        properties=format_properties([("UNIQ_KEY", "id")]),
        born_timestamp=1,
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 1),
        sys_flag=sys_flag,
    )
    return decode_record(encode_record(draft, 40, 7, 1))


HELLO = b"hello" * 1000
READ_BY_SDKS = [
    (0x001, zlib.compress(HELLO), v2.GZIP, zlib.compress(HELLO)),
    (0x301, zlib.compress(HELLO), v2.GZIP, zlib.compress(HELLO)),
    (0x101, lz4.frame.compress(HELLO), v2.IDENTITY, HELLO),
    (0x201, zstd_compressed(HELLO), v2.IDENTITY, HELLO),
    (0x300, HELLO, v2.IDENTITY, HELLO),
    (0x001, b"", v2.IDENTITY, b""),
    (0x201, b"", v2.IDENTITY, b""),
    # What can't be read is labelled so that no SDK takes it for what was sent.
    (0x401, HELLO, v2.GZIP, HELLO),
    (0x101, HELLO, v2.GZIP, HELLO),
    (0x201, zstd_compressed(bytes(BODY_BYTES_MAX + 1)), v2.GZIP, zstd_compressed(bytes(BODY_BYTES_MAX + 1))),
]


@pytest.mark.parametrize(("sys_flag", "stored", "encoding", "body"), READ_BY_SDKS)
def test_a_body_comes_as_an_sdk_can_read_it(sys_flag: int, stored: bytes, encoding: int, body: bytes) -> None:
    record = zipped(sys_flag, stored)
    message = delivered(record)
    assert (message.system_properties.body_encoding, message.body) == (encoding, body)
    assert message.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()
    frame = message_frame(record)
    assert frame is None or messaging.ReceiveMessageResponse.FromString(frame).message == message
    assert (frame is None) == (sys_flag in (0x101, 0x201, 0x401))


def test_an_answer_inflates_up_to_its_bound_and_the_rest_comes_again() -> None:
    bomb = zipped(0x201, zstd_compressed(bytes(BODY_BYTES_MAX)))
    inflation = Inflation(3 * BODY_BYTES_MAX)
    encodings = [delivered(bomb, inflation=inflation).system_properties.body_encoding for _ in range(5)]
    assert encodings == [v2.IDENTITY] * 3 + [v2.GZIP] * 2
    too_large = zipped(0x201, zstd_compressed(bytes(BODY_BYTES_MAX + 1)))
    inflation = Inflation(2 * BODY_BYTES_MAX)
    for _ in range(3):
        delivered(too_large, inflation=inflation)
    assert inflation.left == 0, "what is too large was inflated up to the bound, and is not any more"
