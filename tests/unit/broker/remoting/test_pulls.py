"""Pulls by the remoting protocol, at once and held. Numbers are those of the gateway's checklist."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer, Handlers, messages_in, reply
from whimbrel.broker.engine.waiting import HELD_PULLS, Waits
from whimbrel.broker.tables.remoting_clients import Consumes, Identity
from whimbrel.errors import NotReady


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Handlers]:
    handlers = Handlers(tmp_path)
    handlers.topic("T")
    yield handlers
    handlers.close()


def held(outcome: Any) -> Waits:
    assert isinstance(outcome, Waits) and not outcome.done
    return outcome


def waiting_count(rig: Handlers) -> int:
    return rig.waiting.rooms[HELD_PULLS].taken


def bodies(outcome: Any) -> list[bytes]:
    return [message.body for message in messages_in(reply(outcome).body)]


def where(outcome: Any) -> tuple[int, str | None, str, str, str]:
    found = reply(outcome)
    fields = found.fields
    assert fields["suggestWhichBrokerId"] == "0"
    return found.code, found.remark, fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]


def test_6_1_24_bodies_equal_the_logs_bytes(rig: Handlers) -> None:
    for number in range(5):
        rig.send(body=b"%d" % number, e=number % 2)
    outcome = rig.pull()
    assert where(outcome) == (0, "FOUND", "3", "0", "3")
    stored = b"".join(rig.store.read(place, size) for place, size, _ in rig.store.queue_units("T", 0, 0, 9))
    assert b"".join(reply(outcome).body) == stored
    assert bodies(rig.pull(1)) == [b"2", b"4"]


def test_6_1_22_outside_of_the_queue(rig: Handlers) -> None:
    assert where(rig.pull(0)) == (19, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")
    assert where(rig.pull(5)) == (21, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")
    rig.send()
    assert where(rig.pull(1)) == (19, "OFFSET_OVERFLOW_ONE", "1", "0", "1")
    assert where(rig.pull(9)) == (21, "OFFSET_OVERFLOW_BADLY", "1", "0", "1")
    assert where(rig.pull(-1)) == (21, "OFFSET_TOO_SMALL", "0", "0", "1")


def test_6_1_22_a_slave_corrects_nothing(tmp_path: Path) -> None:
    rig = Handlers(tmp_path, master=False)
    rig.topic("T")
    rig.send()
    assert where(rig.pull(9)) == (20, "OFFSET_OVERFLOW_BADLY", "9", "0", "1")
    assert where(rig.pull(-1)) == (20, "OFFSET_TOO_SMALL", "-1", "0", "1")
    rig.pull(0, sysFlag=5, commitOffset=1)
    assert not rig.positions.commits
    waiting = held(rig.pull(2, sysFlag=6))  # the slave lags: what comes before is not for it
    rig.send()
    rig.run_soon()
    held(waiting)
    rig.send(body=b"came")
    rig.run_soon()
    assert bodies(waiting) == [b"came"]
    lost = held(rig.pull(9, sysFlag=6))
    rig.now_ms = 16_000
    rig.waiting.expire()
    assert where(lost) == (20, "OFFSET_OVERFLOW_BADLY", "9", "0", "3")
    rig.close()


def test_6_1_23_messages_and_bytes_are_bounded(rig: Handlers) -> None:
    for number in range(40):
        rig.send(body=b"%d" % number)
    assert len(bodies(rig.pull(maxMsgNums=64))) == 32
    assert len(bodies(rig.pull(maxMsgNums=3))) == 3
    assert len(bodies(rig.pull(maxMsgBytes=400))) == 3  # of some 130 bytes each
    assert len(bodies(rig.pull(maxMsgBytes=1))) == 1  # the first one is never too large
    for _ in range(6):
        rig.send(body=b"x" * 40_000, e=1)
    assert len(bodies(rig.pull(queueId=1))) == 6
    rig.send(body=b"x" * 40_000, e=1)
    assert len(bodies(rig.pull(queueId=1))) == 6  # 256 KiB


def test_6_1_25_lite_pulls_are_the_same(rig: Handlers) -> None:
    rig.send()
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 20,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG", "maxMsgBytes": 2147483647,
    }  # fmt: skip
    assert len(messages_in(rig.call(361, fields).body)) == 1


def test_tags_are_compared_by_their_codes_and_filtered_runs_are_skipped(rig: Handlers) -> None:
    for number in range(10):
        rig.send(body=b"%d" % number, i=f"TAGS\x01{'AB'[number % 2]}")
    assert bodies(rig.pull(subscription="B")) == [b"1", b"3", b"5", b"7", b"9"]
    assert where(rig.pull(subscription="C")) == (20, "NO_MATCHED_MESSAGE", "10", "0", "10")
    assert reply(rig.pull(subscription="||")).code == 23


def test_sql_reads_properties(rig: Handlers) -> None:
    for number in range(10):
        rig.send(body=b"%d" % number, i=f"n\x01{number}")
    assert bodies(rig.pull(subscription="n > 6", expressionType="SQL92")) == [b"7", b"8", b"9"]
    assert where(rig.pull(subscription="n > 60", expressionType="SQL92"))[0] == 20
    assert reply(rig.pull(subscription="n >", expressionType="SQL92")).code == 23


def test_6_1_14_without_its_own_subscription_the_groups_counts(rig: Handlers) -> None:
    rig.send()
    assert reply(rig.pull(sysFlag=0)).code == 24
    assert reply(rig.pull(consumerGroup="")).code == 1
    assert reply(rig.pull(topic="none")).code == 17
    assert reply(rig.pull(queueId=4)).code == 1
    rig.topic("writeonly", permission=2)
    assert reply(rig.pull(topic="writeonly")).code == 16


def subscribe(rig: Handlers, expression: str, version: int, *, sql: bool = False) -> None:
    """Have a member of group g say what it wants of topic T."""
    one = rig.clients.subscription("T", version, expression, sql=sql)
    said = Consumes(group="g", topics={"T": one})
    rig.clients.consumes(rig.peer, Identity("c", "JAVA", 399), said, 0.0)


def test_a_newer_subscription_by_tags_than_is_known_gets_all_messages(rig: Handlers) -> None:
    """Its client leaves out the others; RocketMQ answers 25 until a heartbeat comes."""
    for tags in ("A", "B"):
        rig.send(i=f"TAGS\x01{tags}")

    def pull(version: int, **fields: Any) -> Any:
        return rig.pull(sysFlag=0, subscription="", subVersion=version, **fields)

    subscribe(rig, "A", 7)
    assert len(bodies(pull(7))) == 1 and len(bodies(pull(8))) == 2
    assert reply(pull(8, expressionType="SQL92")).code == 25
    subscribe(rig, "B", 8)
    assert len(bodies(pull(8))) == 1
    subscribe(rig, "TAGS = 'A'", 9, sql=True)
    assert reply(pull(10)).code == 25
    assert len(bodies(pull(9))) == 1


def test_the_offset_that_a_pull_carries_is_committed_once(rig: Handlers) -> None:
    rig.send()
    waiting = held(rig.pull(1, sysFlag=7, commitOffset=1))
    assert rig.positions.commits == [("g", "T", 0, 1)]
    rig.send()
    rig.run_soon()
    assert bodies(waiting) == [b"hello"] and len(rig.positions.commits) == 1


def test_6_1_19_a_held_pull_is_answered_by_a_message_that_it_wants(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6, subscription="A"))
    rig.send(e=1)
    assert not rig.soon  # another queue
    rig.send(i="TAGS\x01B")
    rig.run_soon()
    held(waiting)
    rig.send(body=b"wanted", i="TAGS\x01A")
    rig.run_soon()
    assert bodies(waiting) == [b"wanted"] and where(waiting)[2] == "2"
    assert not waiting_count(rig)


def test_6_1_19_nothing_new_is_told_after_the_time_that_was_asked_for(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6))
    rig.now_ms = 14_000
    rig.waiting.expire()
    held(waiting)
    rig.now_ms = 16_000
    rig.waiting.expire()
    assert where(waiting) == (19, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")


def test_6_1_20_all_held_pulls_of_a_queue_are_answered(rig: Handlers) -> None:
    waiting = [held(rig.pull(sysFlag=6)), held(rig.pull(sysFlag=6, peer=FakePeer()))]
    waiting.append(held(rig.pull(sysFlag=6, consumerGroup="h")))
    rig.send()
    rig.run_soon()
    assert [bodies(each) for each in waiting] == [[b"hello"]] * 3


def test_6_1_21_a_held_pull_dies_with_its_connection(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6))
    waiting.cancel()
    assert not waiting_count(rig) and not rig.waiting.by_reader
    rig.send()
    assert not rig.soon


def test_6_1_21_ten_thousand_held_pulls_take_less_than_five_megabytes(rig: Handlers) -> None:
    peers = [FakePeer() for _ in range(10)]
    tracemalloc.start()
    try:
        for number in range(10_000):
            held(rig.pull(sysFlag=6, queueId=number % 4, peer=peers[number % 10]))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waiting_count(rig) == 10_000 and used < 5_000_000, used


def test_held_pulls_of_a_connection_are_bounded(rig: Handlers) -> None:
    for _ in range(HELD_PULLS.each):
        held(rig.pull(sysFlag=6))
    assert reply(rig.pull(sysFlag=6)).code == 2
    held(rig.pull(sysFlag=6, peer=FakePeer()))


def test_a_peer_that_reads_too_little_gets_no_messages_and_loses_none(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6))
    rig.peer.overloaded = True
    rig.send()
    rig.run_soon()
    assert where(waiting) == (20, "NO_MATCHED_MESSAGE", "0", "0", "1") and not reply(waiting).body


def test_held_pulls_are_refused_when_the_role_ends(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6))
    rig.waiting.close("the broker changes its role")
    assert isinstance(waiting.error, NotReady) and not waiting_count(rig)


def test_a_topic_that_goes_is_told_to_those_that_wait(rig: Handlers) -> None:
    waiting = held(rig.pull(sysFlag=6))
    rig.topics.remove("T")
    rig.now_ms = 20_000
    rig.waiting.expire()
    assert reply(waiting).code == 17
