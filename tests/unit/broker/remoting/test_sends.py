"""Sends by the remoting protocol. Numbers are those of the gateway's checklist."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import NOW, Handlers, batch_body, send_fields
from whimbrel.deferred import Deferred
from whimbrel.errors import FlushTimeout, ReplicaTimeout
from whimbrel.model.topic import GroupConfig
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.store.codec import tags_code

LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Handlers]:
    handlers = Handlers(tmp_path)
    yield handlers
    handlers.close()


def by_long_names(fields: dict[str, Any]) -> dict[str, Any]:
    return {LONG[name]: value for name, value in fields.items()}


def test_6_1_6_both_headers_and_batches_store_the_same_properties(rig: Handlers) -> None:
    rig.topic("T")
    text = "KEYS\x01k1 k2\x02TAGS\x01A\x02UNIQ_KEY\x01ID\x02WAIT\x01true\x02own\x01ü"
    fields = send_fields("T", i=text, h=7)
    assert rig.call(310, fields, b"one").code == 0
    assert rig.call(10, by_long_names(fields), b"one").code == 0
    batch = batch_body((b"one", text.replace("\x02WAIT\x01true", "")))
    assert rig.call(320, send_fields("T", m="true", i="WAIT\x01true"), batch).code == 0
    v2, v1, batched = rig.stored("T")
    wanted = {"KEYS": "k1 k2", "TAGS": "A", "UNIQ_KEY": "ID", "own": "ü", "CLUSTER": "Cluster"}
    assert v2.properties == v1.properties == wanted
    assert batched.properties == wanted | {"WAIT": "true"}
    assert (v2.body, v2.flag, v2.born_timestamp, v2.born_host, v2.store_host) == (
        b"one", 7, NOW, "10.0.0.9:5000", "127.0.0.1:10911",
    )  # fmt: skip


def test_6_1_7_a_final_separator_makes_no_difference(rig: Handlers) -> None:
    rig.topic("T")
    for end in ("", "\x02"):
        rig.send(i="TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01ID" + end)
    first, second = rig.stored("T")
    assert first.properties_raw == second.properties_raw
    (unit, other) = rig.store.queue_units("T", 0, 0, 2)
    assert unit[2] == other[2] == tags_code("A")
    assert len(rig.store.find_by_key("T", "k")) == 2


def test_6_1_8_a_batch_gets_consecutive_offsets_and_an_id_a_message(rig: Handlers) -> None:
    rig.topic("T")
    batch = batch_body(*((b"%d" % n, f"UNIQ_KEY\x01ID{n}") for n in range(5)))
    reply = rig.call(320, send_fields("T", m="true", i=""), batch)
    assert len(reply.fields["msgId"].split(",")) == 5 and reply.fields["queueOffset"] == "0"
    assert [(each.queue_offset, each.body) for each in rig.stored("T")] == [(n, b"%d" % n) for n in range(5)]
    ids = [each.offset_message_id for each in rig.stored("T")]
    assert reply.fields["msgId"] == ",".join(ids)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00\x05x",
        batch_body((b"one", ""))[:-1],
        batch_body((b"one", "")) + b"\x00",
        b"\x00\x00\x00\x16" + b"\x00" * 12 + b"\x7f\xff\xff\xff" + b"\x00" * 6,
        b"\x00\x00\x00\x16" + b"\x00" * 12 + b"\xff\xff\xff\xff" + b"\x00" * 6,
        b"\x00" * 40,
    ],
)
def test_what_is_no_batch_is_refused_whole(rig: Handlers, body: bytes) -> None:
    rig.topic("T")
    assert rig.call(320, send_fields("T", m="true", i=""), body).code == 13
    assert not rig.stored("T")


LATER = [
    "DELAY\x013", f"TIMER_DELIVER_MS\x01{NOW + 60_000}", "TIMER_DELAY_MS\x011", "TIMER_DELAY_SEC\x011",
    "TRAN_MSG\x01true", "DELAY\x01soon", "TIMER_DELAY_SEC\x011e3",
]  # fmt: skip


@pytest.mark.parametrize("text", LATER)
def test_batches_hold_no_message_that_waits(rig: Handlers, text: str) -> None:
    rig.topic("T")
    plain = send_fields("T", m="true", i="")
    assert rig.call(320, plain | {"i": text}, batch_body((b"x", "a\x01b"))).code == 13
    assert rig.call(320, plain, batch_body((b"x", "a\x01b"), (b"y", text))).code == 13
    assert not rig.stored("T")
    now = f"DELAY\x010\x02TIMER_DELIVER_MS\x01{NOW}\x02TRAN_MSG\x01false"
    assert rig.call(320, plain | {"i": now}, batch_body((b"x", now))).code == 0


def test_each_message_of_a_batch_keeps_its_own_properties(rig: Handlers) -> None:
    """Java's clients send an id of the batch's own in the header, which is nobody's."""
    rig.topic("T")
    batch = batch_body(
        (b"1", "UNIQ_KEY\x01ID1\x02TAGS\x01A\x02k\x01own"), (b"2", "UNIQ_KEY\x01ID2"), (b"3", "")
    )
    header = "UNIQ_KEY\x01BATCH\x02TAGS\x01B\x02k\x01common\x02WAIT\x01true\x02CLUSTER\x01X"
    assert rig.call(320, send_fields("T", m="true", i=header), batch).code == 0
    first, second, third = (each.properties for each in rig.stored("T"))
    rest = {"WAIT": "true", "CLUSTER": "Cluster"}
    assert first == {"UNIQ_KEY": "ID1", "TAGS": "A", "k": "own"} | rest
    assert second == {"UNIQ_KEY": "ID2", "TAGS": "B", "k": "common"} | rest
    assert len(third["UNIQ_KEY"]) == 32


def test_marks_of_the_brokers_own_are_not_stored_of_a_send(rig: Handlers) -> None:
    rig.topic("T")
    own = "REPLAYED_FROM\x01a/b/0/1\x02HANDED_ON_FROM\x010A\x02PROPERTIES_LEFT_OUT\x01x"
    marks = f"{own}\x02k\x01v\x02UNIQ_KEY\x01ID"
    assert rig.send(i=marks).code == 0
    assert rig.call(320, send_fields("T", m="true", i=marks), batch_body((b"x", marks))).code == 0
    names = [set(each.properties) for each in rig.stored("T")]
    assert names == [{"k", "UNIQ_KEY", "CLUSTER"}] * 2


def test_6_1_2_a_new_topic_has_the_queues_that_the_producer_asks_for(rig: Handlers) -> None:
    assert rig.send("new").code == 0
    made = rig.topics.rows["new"]
    assert (made.read_queues, made.write_queues, made.permission) == (4, 4, 6)
    assert rig.send("wide", d=6).code == 0 and rig.topics.rows["wide"].write_queues == 6
    assert rig.send("widest", d=1000).code == 0 and rig.topics.rows["widest"].write_queues == 8  # TBW102's


def test_topics_are_made_where_that_is_allowed_only(tmp_path: Path) -> None:
    rig = Handlers(tmp_path, auto_create=False)
    reply = rig.send("new")
    assert reply.code == 17 and "auto_create_topics" in (reply.remark or "")
    rig.close()


def test_6_1_9_a_negative_queue_is_chosen_here_and_one_beyond_is_refused(rig: Handlers) -> None:
    rig.topic("T", queues=3)
    assert {rig.send(e=-1).fields["queueId"] for _ in range(3)} == {"0", "1", "2"}
    assert rig.send(e=2).code == 0 and rig.send(e=3).code == 1


def test_6_1_10_replies_have_five_fields_and_refusals_two(rig: Handlers) -> None:
    rig.topic("T")
    reply = rig.send(e=2)
    (stored,) = rig.stored("T", 2)
    assert reply.fields == {
        "msgId": stored.offset_message_id, "queueId": "2", "queueOffset": "0", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip
    rig.appender.refusal = "this is a slave"
    refused = rig.send()
    assert refused.code == 14 and refused.remark == "this is a slave"
    assert refused.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize(("error", "code"), [(FlushTimeout("late"), 10), (ReplicaTimeout("late"), 12)])
def test_6_1_11_what_is_not_confirmed_in_time_is_stored(rig: Handlers, error: Exception, code: int) -> None:
    rig.topic("T")
    rig.appender.waits = True
    waiting = rig.outcome(310, send_fields("T"), b"x")
    assert isinstance(waiting, Deferred) and not waiting.done
    rig.appender.waiting[0](error)
    reply = waiting.result
    assert isinstance(reply, Reply) and reply.code == code and reply.fields["queueOffset"] == "0"
    assert len(rig.stored("T")) == 1


def test_a_producer_that_does_not_wait_is_answered_at_once(rig: Handlers) -> None:
    rig.topic("T")
    rig.appender.waits = True
    assert rig.send(i="WAIT\x01false").code == 0
    assert not rig.appender.waiting


def test_6_1_13_system_topics_that_tools_send_to_take_messages(rig: Handlers) -> None:
    for topic in ("BenchmarkTest", "broker-a", "Cluster", "SELF_TEST_TOPIC", "RMQ_SYS_TRACE_TOPIC"):
        assert rig.send(topic).code == 0, topic
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        assert rig.send(topic).code == 16, topic


def test_6_1_37_a_retry_that_is_used_up_goes_to_the_dead_letters_at_once(rig: Handlers) -> None:
    assert rig.send("%RETRY%g", j=3, l=3).code == 26  # there is no such group
    rig.groups.put(GroupConfig(name="g", retry_max=2))
    text = "DELAY\x016\x02RECONSUME_TIME\x013\x02MAX_RECONSUME_TIMES\x013\x02UNIQ_KEY\x01ID"
    assert rig.send("%RETRY%g", j=3, l=3, i=text).code == 0
    (dead,) = rig.stored("%DLQ%g")
    assert dead.properties == {"UNIQ_KEY": "ID", "CLUSTER": "Cluster"} and dead.reconsume_times == 3
    # Of a client as old as librocketmq the group's own maximum counts.
    assert rig.call(310, send_fields("%RETRY%g", j=2, l=9), b"x", version=63).code == 0
    assert len(rig.stored("%DLQ%g")) == 2
    assert rig.send("%RETRY%g", j=2, l=3, i="").code == 0
    assert rig.stored("%RETRY%g")[0].reconsume_times == 2


def test_6_1_38_delay_levels_wait_in_queues_of_their_own(rig: Handlers) -> None:
    rig.topic("T")
    for level in (1, 3, 99, 0):
        assert rig.send(e=2, i=f"DELAY\x01{level}").code == 0
    for level in (1, 3, 18):
        (waiting,) = rig.stored("SCHEDULE_TOPIC_XXXX", level - 1)
        assert waiting.properties["REAL_TOPIC"] == "T" and waiting.properties["REAL_QID"] == "2"
    assert len(rig.stored("T", 2)) == 1


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        (f"TIMER_DELIVER_MS\x01{NOW + 5000}", NOW + 5000),
        ("TIMER_DELAY_SEC\x013", NOW + 3000),
        ("TIMER_DELAY_MS\x01700", NOW + 700),
    ],
)
def test_times_of_delivery_of_5x_clients_wait_for_the_timer(rig: Handlers, text: str, due_ms: int) -> None:
    rig.topic("T")
    assert rig.send(e=1, i=f"{text}\x02UNIQ_KEY\x01ID").code == 0
    (waiting,) = rig.stored("rmq_sys_wheel_timer")
    assert waiting.properties["REAL_TOPIC"] == "T" and waiting.properties["REAL_QID"] == "1"
    assert 0 <= due_ms - int(waiting.properties["TIMER_OUT_MS"]) <= 1000 and not rig.stored("T", 1)


def test_a_time_of_delivery_that_is_past_is_at_once(rig: Handlers) -> None:
    rig.topic("T")
    for text in (
        f"TIMER_DELIVER_MS\x01{NOW - 1}",
        "TIMER_DELAY_SEC\x01-3",
        "TIMER_DELAY_MS\x010",
        "DELAY\x01-1",
    ):
        assert rig.send(i=text).code == 0, text
    assert len(rig.stored("T")) == 4


# As Java reads them (Integer.parseInt, Long.parseLong): what is no number is no time.
NO_NUMBERS = [
    "",
    " ",
    "1e3",
    "soon",
    "3600s",
    "1.5",
    "+-1",
    "٣",
    "--1",
    "0x10",
    "1 000",
    "9" * 20,
    "2026-12-31",
]
TOO_FAR = ["9223372036854775807", "9223372036854776", "86400001", "1000000000000000000"]
TIMES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
WRONG = [
    *((name, text) for name in (*TIMES, "DELAY") for text in NO_NUMBERS if text),
    *((name, text) for name in TIMES for text in TOO_FAR if name != "TIMER_DELIVER_MS" or len(text) > 13),
    ("TIMER_DELIVER_MS", str(NOW + 25 * 3_600_000)),
    ("DELAY", "2147483648"),
]


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_time_or_level_that_is_none_is_refused(rig: Handlers, name: str, text: str) -> None:
    rig.topic("T")
    for more in ("", "\x02TRAN_MSG\x01true"):
        reply = rig.send(i=f"{name}\x01{text}{more}")
        assert reply.code == 13 and (name in str(reply.remark) or "hours ahead" in str(reply.remark))
    assert not rig.stored("T")


def test_of_several_times_the_one_counts_that_counts_for_rocketmq(rig: Handlers) -> None:
    rig.topic("T")
    rig.send(i=f"TIMER_DELIVER_MS\x01{NOW + 9000}\x02TIMER_DELAY_MS\x015000\x02TIMER_DELAY_SEC\x013")
    (waiting,) = rig.stored("rmq_sys_wheel_timer")
    assert 0 <= NOW + 3000 - int(waiting.properties["TIMER_OUT_MS"]) <= 1000


@pytest.mark.parametrize("later", ["TIMER_DELAY_MS\x01700", "TRAN_MSG\x01true"])
def test_what_waits_keeps_room_for_what_the_broker_adds(rig: Handlers, later: str) -> None:
    """A plain one may have more: its copies have what fits."""
    rig.topic("T")
    text = "k\x01" + "x" * 32_500
    assert rig.send(i=text).code == 0
    refused = rig.send(i=f"{text}\x02{later}")
    assert refused.code == 13 and "delayed, or of a transaction" in str(refused.remark)


def test_sizes_are_bounded(rig: Handlers) -> None:
    rig.topic("T")
    assert rig.send(body=bytes((4 << 20) + 1)).code == 13
    assert rig.send(i="a\x01" + "x" * 32_760).code == 13
    assert rig.send(body=b"").code == 0  # legal in 4.9.3


@pytest.mark.parametrize(
    "change",
    [{"e": "1.0"}, {"e": " 1"}, {"f": 1 << 40}, {"b": ""}, {"h": "x"}, {"g": -1}, {"g": 1 << 62}, {"d": ""},
     {"j": "٣"}],
)  # fmt: skip
def test_odd_headers_are_answered_with_a_sentence(rig: Handlers, change: dict[str, Any]) -> None:
    rig.topic("T")
    reply = rig.send(**{"topic": change.pop("b", "T")}, **change)
    assert reply.code in (1, 13) and reply.remark
    assert not rig.stored("T")


def test_missing_fields_are_answered_with_a_sentence(rig: Handlers) -> None:
    rig.topic("T")
    for name in "abcdefgh":
        fields = send_fields("T")
        del fields[name]
        reply = rig.call(310, fields, b"x")
        assert reply.code == 1 and f"field {name}" in (reply.remark or "")


def test_messages_without_an_id_get_one(rig: Handlers) -> None:
    rig.topic("T")
    rig.send(i="")
    (stored,) = rig.stored("T")
    assert len(stored.properties["UNIQ_KEY"]) == 32
    assert rig.store.find_by_key("T", stored.properties["UNIQ_KEY"])


def test_a_drained_broker_takes_nothing(rig: Handlers) -> None:
    rig.topic("T")
    rig.topics.put(rig.topics.rows["T"].with_drained(True))
    assert rig.send().code == 14
    rig.topics.put(replace(rig.topics.rows["T"].with_drained(False), permission=4))
    assert rig.send().code == 0  # routes say that nobody should, as in RocketMQ
