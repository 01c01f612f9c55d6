"""Requests that are put to a client for a tool, and the client's response."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker
from whimbrel.broker.remoting.client_calls import RemotingClientCalls, place_in
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, ConnectionClosed, RequestTimeout
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply

ID = "7F00000100002A9F0000000000000000"  # place 0 of the log


class Rig(Broker):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.topic()
        self.put(2)
        self.client = FakePeer("10.0.0.1:7")
        self.join(self.client, client="c")
        self.handles = RemotingClientCalls(self.clients, self.store, broker_name="broker-a").handles()

    def ask(self, code: int, **fields: Any) -> Deferred[Reply]:
        found = self.outcome(code, **{"consumerGroup": "G", "clientId": "c"} | fields)
        assert isinstance(found, Deferred), found
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_6_1_49_what_a_consumer_says_of_itself_is_passed_on(rig: Rig) -> None:
    answer = rig.ask(307, jstackEnable="true")
    (code, fields, body, asked) = rig.client.asked[0]
    assert (code, body) == (307, b"")
    assert fields == {"consumerGroup": "G", "clientId": "c", "jstackEnable": "true"}
    assert not answer.done
    asked.complete(Command(0, 1, body=b'{"mqTable":{{"queueId":0}:{}}}'))
    assert answer.result == Reply(0, body=[b'{"mqTable":{{"queueId":0}:{}}}'])


def test_6_1_49_a_consumer_is_given_the_message_itself(rig: Rig) -> None:
    answer = rig.ask(309, msgId=ID)
    (code, fields, body, asked) = rig.client.asked[0]
    (unit,) = rig.store.queue_units("T", 0, 0, 1)
    assert code == 309 and body == rig.store.read(*unit[:2])
    assert fields == {"consumerGroup": "G", "clientId": "c", "msgId": ID, "brokerName": "broker-a"}
    asked.complete(Command(1, 1, remark="no"))
    assert answer.result == Reply(1, remark="no")


def test_a_client_that_does_not_answer_is_207(rig: Rig) -> None:
    answer = rig.ask(307)
    rig.client.asked[0][3].fail(RequestTimeout("not within 10 s"))
    assert answer.result is not None and answer.result.code == 207


def test_a_client_that_leaves_meanwhile(rig: Rig) -> None:
    answer = rig.ask(307)
    rig.client.asked[0][3].fail(ConnectionClosed("gone"))
    assert isinstance(answer.error, ConnectionClosed)


def test_a_tool_that_leaves_meanwhile(rig: Rig) -> None:
    answer = rig.ask(307)
    answer.cancel()
    assert rig.client.asked[0][3].cancelled


def test_a_client_that_is_no_member_is_1(rig: Rig) -> None:
    assert rig(307, consumerGroup="G", clientId="d").code == 1
    assert rig(307, consumerGroup="H", clientId="c").code == 1
    assert rig(309, consumerGroup="G", clientId="d", msgId=ID).code == 1
    assert rig.client.asked == []


def test_of_two_connections_of_a_client_the_newer_one_is_asked(rig: Rig) -> None:
    newer = FakePeer("10.0.0.1:8")
    rig.join(newer, client="c")
    rig.ask(307)
    assert len(newer.asked) == 1 and rig.client.asked == []


@pytest.mark.parametrize("message_id", ["", "x", ID[:-1], "7F00000100002A9FFFFFFFFFFFFFFFFF"])
def test_an_id_that_names_no_place_is_refused(rig: Rig, message_id: str) -> None:
    assert rig(309, consumerGroup="G", clientId="c", msgId=message_id).code == 1


def test_a_place_where_no_message_begins_is_refused(rig: Rig) -> None:
    assert rig(309, consumerGroup="G", clientId="c", msgId=ID[:-1] + "7").code == 1
    assert rig.client.asked == []


def test_ids_of_both_lengths() -> None:
    assert place_in("7F00000100002A9F00000000000004D2") == 0x4D2
    assert place_in("00" * 20 + "00000000000004D2") == 0x4D2
    with pytest.raises(BadRequest, match="no id"):
        place_in("zz")
