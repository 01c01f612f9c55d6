"""Send-back, transactions, replies and queries of records. Numbers are those of the gateway's checklist."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import NOW, FakePeer, Handlers, messages_in, reply, send_fields
from whimbrel.broker.tables.remoting_clients import Identity
from whimbrel.deferred import Deferred
from whimbrel.errors import ConnectionClosed, ReplicaTimeout
from whimbrel.model.topic import GroupConfig
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.store.codec import decode_record


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Handlers]:
    handlers = Handlers(tmp_path)
    handlers.topic("T")
    handlers.groups.put(GroupConfig(name="g", retry_max=4))
    yield handlers
    handlers.close()


# 33 and 12


def test_6_1_5_a_record_is_found_by_where_it_stands_and_by_nothing_near(rig: Handlers) -> None:
    rig.send(body=b"first")
    rig.send(body=b"second")
    place = rig.stored("T")[1].physical_offset
    (found,) = messages_in(rig.call(33, {"offset": place}).body)
    assert found.body == b"second"
    for wrong in (place + 1, place - 1, -1, 1 << 40, rig.store.written - 1):
        assert rig.call(33, {"offset": wrong}).code == 1, wrong


def test_records_are_found_by_key_and_time(rig: Handlers) -> None:
    for number in range(3):
        rig.send(body=b"%d" % number, i=f"KEYS\x01k other{number}\x02UNIQ_KEY\x01ID{number}")
    fields = {"topic": "T", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": NOW}
    found = rig.call(12, fields)
    assert [each.body for each in messages_in(found.body)] == [b"2", b"1", b"0"]
    assert found.fields["indexLastUpdateTimestamp"] == str(NOW)
    assert len(messages_in(rig.call(12, fields | {"maxNum": 2}).body)) == 2
    unique = fields | {"key": "ID1", "_UNIQUE_KEY_QUERY": "true"}
    assert [each.body for each in messages_in(rig.call(12, unique).body)] == [b"1"]
    for none in ({"key": "none"}, {"beginTimestamp": NOW + 1}, {"endTimestamp": NOW - 1}, {"topic": "other"}):
        assert rig.call(12, fields | none).code == 22
    assert rig.call(12, fields | {"maxNum": "x"}).code == 1


# 36


def back(rig: Handlers, number: int = 0, *, version: int = 399, **fields: Any) -> Reply:
    place = rig.stored("T")[number].physical_offset
    known = {"offset": place, "group": "g", "delayLevel": 0, "originMsgId": "", "originTopic": "T"}
    return reply(rig.outcome(36, known | fields, version=version))


def test_6_1_36_a_message_that_is_sent_back_waits_in_a_level(rig: Handlers) -> None:
    rig.send(body=b"x", j=1, i="UNIQ_KEY\x01ID\x02KEYS\x01k", h=5)
    assert back(rig).code == 0
    (waiting,) = rig.stored("SCHEDULE_TOPIC_XXXX", 3)  # 3 + 1
    (first,) = rig.stored("T")
    assert waiting.properties == {
        "UNIQ_KEY": "ID", "KEYS": "k", "CLUSTER": "Cluster", "RETRY_TOPIC": "T", "DELAY": "4",
        "ORIGIN_MESSAGE_ID": first.offset_message_id, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0",
    }  # fmt: skip
    assert (waiting.reconsume_times, waiting.body, waiting.flag, waiting.born_host) == (
        2, b"x", 5, first.born_host,
    )  # fmt: skip
    assert rig.topics.rows["%RETRY%g"].read_queues == 1
    assert back(rig, delayLevel=99).code == 0 and len(rig.stored("SCHEDULE_TOPIC_XXXX", 17)) == 1


def test_6_1_36_what_is_used_up_goes_to_the_dead_letters(rig: Handlers) -> None:
    rig.send(j=4, i="DELAY\x010")
    assert back(rig).code == 0 and back(rig, maxReconsumeTimes=4).code == 0
    assert back(rig, maxReconsumeTimes=9, version=63).code == 0  # too old: the group's counts
    assert back(rig, delayLevel=-1, maxReconsumeTimes=9).code == 0
    assert [each.properties.get("DELAY") for each in rig.stored("%DLQ%g")] == [None] * 4
    assert back(rig, maxReconsumeTimes=9).code == 0
    assert len(rig.stored("%DLQ%g")) == 4


def test_6_1_36_the_origin_of_a_message_stays(rig: Handlers) -> None:
    """Of one that comes again; of another one a client may say what it likes."""
    said = "RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01ABC"
    rig.groups.put(GroupConfig(name="g"))
    rig.send("%RETRY%g", i=said)
    rig.send(i=said)
    for topic in ("%RETRY%g", "T"):
        back(rig, offset=rig.stored(topic)[0].physical_offset)
    again, sent = rig.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert (again.properties["RETRY_TOPIC"], again.properties["ORIGIN_MESSAGE_ID"]) == ("first", "ABC")
    assert sent.properties["RETRY_TOPIC"] == "T"
    assert sent.properties["ORIGIN_MESSAGE_ID"] == rig.stored("T")[0].offset_message_id


def test_6_1_36_what_can_not_be_sent_back(rig: Handlers) -> None:
    rig.send()
    assert back(rig, group="none").code == 26 and back(rig, offset=1).code == 1
    rig.groups.put(GroupConfig(name="g", retry_queues=0))
    assert back(rig).code == 0 and "%RETRY%g" not in rig.topics.rows
    rig.groups.put(GroupConfig(name="g"))
    rig.appender.refusal = "the disk is full"
    assert back(rig).code in (1, 14)
    rig.appender.refusal, rig.appender.waits = "", True
    place = rig.stored("T")[0].physical_offset
    waiting = rig.outcome(36, {"offset": place, "group": "g", "delayLevel": 0})
    rig.appender.waiting[-1](ReplicaTimeout("late"))
    assert reply(waiting).code == 1


# 37 and 39


def half(rig: Handlers, name: str = "ID", extra: str = "") -> dict[str, Any]:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01{name}{extra}"
    sent = rig.send(i=text, f=4, e=2)
    assert sent.code == 0 and sent.fields["queueId"] == "2"
    return {
        "producerGroup": "pg", "commitLogOffset": int(sent.fields["msgId"][16:], 16),
        "tranStateTableOffset": sent.fields["queueOffset"], "msgId": name, "fromTransactionCheck": "false",
    }  # fmt: skip


def test_6_1_39_a_half_is_seen_once_it_is_committed(rig: Handlers) -> None:
    first, second = half(rig, "A"), half(rig, "B")
    assert not rig.stored("T", 2) and rig.stored("RMQ_SYS_TRANS_HALF_TOPIC")[0].sys_flag == 0
    assert reply(rig.outcome(37, first | {"commitOrRollback": 8})).code == 0
    assert reply(rig.outcome(37, second | {"commitOrRollback": 12})).code == 0
    rig.loop.turn()
    (committed,) = rig.stored("T", 2)
    assert committed.properties["UNIQ_KEY"] == "A" and committed.sys_flag == 8
    assert committed.prepared_offset == first["commitLogOffset"]
    # Once more changes nothing, and another end is refused.
    assert reply(rig.outcome(37, first | {"commitOrRollback": 8})).code == 0
    assert reply(rig.outcome(37, first | {"commitOrRollback": 12})).code == 1
    rig.loop.turn()
    assert len(rig.stored("T", 2)) == 1


def test_6_1_39_wrong_ends_are_refused(rig: Handlers) -> None:
    fields = half(rig) | {"commitOrRollback": 8}
    for wrong in (
        {"producerGroup": "other"},
        {"commitLogOffset": fields["commitLogOffset"] + 1},
        {"tranStateTableOffset": 9},
        {"commitOrRollback": 4},
    ):
        assert reply(rig.outcome(37, fields | wrong)).code == 1, wrong
    rig.send(e=0)
    place = rig.stored("T")[0].physical_offset
    assert reply(rig.outcome(37, fields | {"commitLogOffset": place, "tranStateTableOffset": 0})).code == 1
    assert rig.outcome(37, fields | {"commitOrRollback": 0}) is None
    assert not rig.stored("T", 2)


def test_6_1_39_a_delay_begins_with_the_commit(rig: Handlers) -> None:
    fields = half(rig, extra="\x02DELAY\x012")
    assert reply(rig.outcome(37, fields | {"commitOrRollback": 8})).code == 0
    (waiting,) = rig.stored("SCHEDULE_TOPIC_XXXX", 1)
    assert waiting.properties["REAL_QID"] == "2" and not rig.stored("T", 2)


def test_6_1_39_a_producer_of_the_group_is_asked(rig: Handlers) -> None:
    fields = half(rig)
    rig.transactions.follow()
    one = rig.transactions.table.open[0]
    (stored,) = rig.stored("RMQ_SYS_TRANS_HALF_TOPIC")
    assert rig.transactions.ask(one, stored) is None and rig.asked_by_grpc == [one]
    peers = FakePeer(), FakePeer()
    for peer in peers:
        rig.clients.produces(peer, Identity(f"c{id(peer)}", "JAVA", 399), "pg", 0.0)
    for _ in range(4):
        assert rig.transactions.ask(one, stored)
    assert [len(peer.pushed) for peer in peers] == [2, 2]
    code, asked, body = peers[0].pushed[0]
    assert code == 39 and asked == {
        "commitLogOffset": str(fields["commitLogOffset"]), "tranStateTableOffset": "0", "msgId": "ID",
        "transactionId": "ID", "offsetMsgId": stored.offset_message_id,
    }  # fmt: skip
    record = decode_record(body)
    assert (record.topic, record.queue_id, record.body) == ("T", 2, b"hello")
    assert (record.physical_offset, record.queue_offset) == (stored.physical_offset, 0)
    assert record.properties == stored.properties | {"TRANSACTION_CHECK_TIMES": "1"}
    for peer in peers:
        peer.closed = True
    assert rig.transactions.ask(one, stored) is False


# 324 and 325


def answer_fields(**changes: Any) -> dict[str, Any]:
    text = "REPLY_TO_CLIENT\x01client@1\x02CORRELATION_ID\x01cid\x02MSG_TYPE\x01reply\x02UNIQ_KEY\x01ID"
    return send_fields("Cluster_REPLY_TOPIC", i=text, **changes)


def test_6_1_40_a_reply_goes_to_who_asked(rig: Handlers) -> None:
    requester = FakePeer("10.0.0.8:6000")
    rig.clients.produces(requester, Identity("client@1", "JAVA", 399), "pg", 0.0)
    waiting = rig.outcome(325, answer_fields(), b"pong")
    assert isinstance(waiting, Deferred) and not waiting.done
    code, fields, body, asked = requester.asked[0]
    assert (code, body) == (326, b"pong")
    assert (fields["bornHost"], fields["storeHost"]) == ("/10.0.0.9:5000", "/10.0.0.1:10911")
    assert "CORRELATION_ID\x01cid\x02" in fields["properties"]
    assert f"PUSH_REPLY_TIME\x01{NOW}" in fields["properties"]
    asked.complete(Command(0, 1))
    assert reply(waiting).code == 0 and reply(waiting).fields["msgId"]
    (stored,) = rig.stored("Cluster_REPLY_TOPIC")
    assert stored.body == b"pong" and "PUSH_REPLY_TIME" not in stored.properties


def test_6_1_40_a_requester_that_is_gone_is_an_error(rig: Handlers) -> None:
    assert reply(rig.outcome(325, answer_fields(), b"pong")).code == 1
    requester = FakePeer()
    rig.clients.produces(requester, Identity("client@1", "JAVA", 399), "pg", 0.0)
    for failure in (ConnectionClosed("gone"), Command(1, 1, remark="no")):
        waiting = rig.outcome(325, answer_fields(), b"pong")
        asked = requester.asked.pop()[3]
        if isinstance(failure, Command):
            asked.complete(failure)
        else:
            asked.fail(failure)
        assert reply(waiting).code == 1
    assert not rig.stored("Cluster_REPLY_TOPIC")
    assert reply(rig.outcome(325, send_fields("Cluster_REPLY_TOPIC"), b"pong")).code == 1
