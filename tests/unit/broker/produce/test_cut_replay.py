"""What becomes of a record that was cut off a log: each kind, and what keeps it from being there twice."""

from pathlib import Path

import pytest

from support.store.stores import OPTIONS
from whimbrel.broker.produce.cut_replay import draft_back, fate_of, holds_id
from whimbrel.broker.produce.replay import replayed_from
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import recall, waiting
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, UNDECIDED_TOPIC
from whimbrel.model.topic import TopicConfig
from whimbrel.store.codec import (
    TRANSACTION_COMMIT,
    RecordDraft,
    StoredMessage,
    decode_record,
    encode_record,
    format_properties,
    pack_host,
)
from whimbrel.store.master_store import MasterStore

HOST = pack_host("127.0.0.1", 8091)
NOW = 1_700_000_000_000
BEGIN, PLACE = 10_000, 12_000


def draft(topic: str = "t", message_id: str = "id", **fields: int) -> RecordDraft:
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=fields.pop("queue_id", 1),
        body=b"body",
        properties=format_properties([("UNIQ_KEY", message_id), ("KEYS", "k1 k2")]) + b"\x02",
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
        **fields,
    )


def stored(one: RecordDraft) -> StoredMessage:
    return decode_record(encode_record(one, PLACE, 7, NOW))


def why(one: RecordDraft) -> str:
    return fate_of(stored(one), BEGIN, NOW).why


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (draft(HALF_TOPIC), "a half of a transaction"),
        (draft(HALF_OP_TOPIC), "a decision"),
        (draft(UNDECIDED_TOPIC), "given up without a decision"),
        (draft("%DLQ%g"), "a dead letter"),
        (draft("%RETRY%g"), "a redelivery"),
        (draft("rmq_sys_REVIVE_LOG_c"), "the broker's own"),
        (draft(SCHEDULE_TOPIC), "the broker's own"),
        (draft(sys_flag=0x04), "not committed"),
        (draft(sys_flag=TRANSACTION_COMMIT, prepared_offset=BEGIN - 1), "half is in the log"),
        (draft(prepared_offset=BEGIN - 1), "the delivery of a delayed message"),
        (draft(prepared_offset=BEGIN + 1), "the delivery of a delayed message"),
        (draft(TIMER_TOPIC, prepared_offset=BEGIN), "waits on"),
    ],
)
def test_what_the_broker_had_made_is_refused(one: RecordDraft, text: str) -> None:
    assert text in why(one)


def test_a_recall_is_refused() -> None:
    one = recall("t", "id", NOW + 5000, now_ms=NOW, born_host=HOST, store_host=HOST)
    assert "recall the message again" in why(one)


def test_messages_are_put_back_where_they_were() -> None:
    plain = fate_of(stored(draft()), BEGIN, NOW)
    assert (plain.topic, plain.queue_id, plain.due_ms, plain.why) == ("t", 1, 0, "")
    committed = draft(sys_flag=TRANSACTION_COMMIT, prepared_offset=BEGIN)
    assert why(committed) == "", "its half was cut as well"
    soon = fate_of(stored(waiting(draft(), NOW + 5000)), BEGIN, NOW)
    assert (soon.topic, soon.queue_id) == ("t", 1) and NOW + 4000 < soon.due_ms <= NOW + 5000
    due = fate_of(stored(waiting(draft(), NOW - 5000)), BEGIN, NOW)
    assert (due.topic, due.queue_id, due.due_ms) == ("t", 1, 0)


@pytest.fixture
def topics(tmp_path: Path) -> TopicTable:
    table = TopicTable(tmp_path, cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW)
    table.add(TopicConfig(name="t", read_queues=2, write_queues=2))
    table.add(TopicConfig(name="closed", read_queues=1, write_queues=1, permission=4))
    return table


def back(one: RecordDraft, topics: TopicTable, now: int = NOW) -> tuple[RecordDraft | None, str]:
    message = stored(one)
    return draft_back(
        message,
        fate_of(message, BEGIN, now),
        topics=topics,
        broker="b",
        cut="3-1-2",
        store_host=HOST,
        waiting=waiting,
    )


def test_a_message_keeps_its_id_and_names_where_it_was(topics: TopicTable) -> None:
    made, text = back(draft(), topics)
    assert made is not None and text == ""
    assert (made.topic, made.queue_id, made.body, made.keys) == ("t", 1, b"body", ("id", "k1", "k2"))
    origin = replayed_from(made.properties)
    assert origin is not None and origin[0] == ("b@3-1-2", "t", 1) and origin[1] == 7
    elsewhere, _ = back(draft(queue_id=5), topics)
    assert elsewhere is not None and elsewhere.queue_id == 1, "one of the queues that there are"


def test_a_delayed_message_waits_again_until_its_time(topics: TopicTable) -> None:
    first = waiting(draft(), NOW + 5000)
    made, _ = back(waiting(draft(), NOW + 5000), topics)
    assert made is not None and made.topic == TIMER_TOPIC
    assert stored(made).properties["TIMER_OUT_MS"] == stored(first).properties["TIMER_OUT_MS"]
    assert made.properties.count(b"REAL_TOPIC\x01") == 1
    due, _ = back(waiting(draft(), NOW + 5000), topics, now=NOW + 9000)
    assert due is not None and due.topic == "t" and b"TIMER_OUT_MS" not in due.properties


@pytest.mark.parametrize(("topic", "text"), [("missing", "make it"), ("closed", "takes no messages")])
def test_a_topic_that_can_take_none_is_named(topic: str, text: str, topics: TopicTable) -> None:
    made, why_not = back(draft(topic), topics)
    assert made is None and text in why_not and "--again" in why_not


def test_an_id_is_found_in_its_topic_or_where_it_waits(tmp_path: Path) -> None:
    store = MasterStore.open(tmp_path / "s", OPTIONS, clock=lambda: NOW)
    assert not holds_id(store, "t", "id")
    store.append([draft()])
    store.append([waiting(draft(message_id="late"), NOW + 5000)])
    assert holds_id(store, "t", "id") and holds_id(store, "t", "late")
    assert not holds_id(store, "u", "id") and not holds_id(store, "u", "late")
    assert not holds_id(store, "t", "k1"), "a key is no id"
    store.close()
