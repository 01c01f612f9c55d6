"""How many calls of our functions a verb costs: the second of two equal calls on one connection, one message.

From the bytes of a read to the record in the log, or to the written answer of other verbs, with the lane off.
`STARTED` is what it was before there was an engine (commit 64f8a2ea); a verb has at most `SHARE` of it. A
call more is no fault by itself: it is to be worth its place in `NOW`. Counted on one version of Python,
since others inline what this one calls.
"""

import asyncio
import random
import sys
from pathlib import Path

import pytest

from support.cluster.broker_api import as_messages
from support.engine.calls import calls_until
from support.engine.in_process import CLIENT, InProcess, in_process
from support.lane.brokers import Client, plain_message
from support.remoting.handlers import frame, send_fields
from whimbrel.model.topic import GroupConfig
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call, ServerStreamMethod

PYTHON = (3, 11)
SHARE = 0.7
STARTED = {
    "send": 29, "remoting send": 28, "pull": 87, "remoting pull": 69, "receive": 127, "acknowledge": 56,
}  # fmt: skip
NOW = {
    "send": 19, "remoting send": 19, "pull": 58, "remoting pull": 48, "receive": 86, "acknowledge": 38,
}  # fmt: skip
MESSAGES = {  # that there are
    "send": 0, "remoting send": 0, "pull": 1, "remoting pull": 1, "receive": 2, "acknowledge": 2,
}  # fmt: skip
ANSWERED = "ReadEnd.end"  # the last call of all that a read of bytes has led to

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != PYTHON, reason=f"counted on Python {PYTHON[0]}.{PYTHON[1]}"
)


def send(broker: InProcess) -> list[str]:
    """Return the calls of a send by gRPC."""
    client, (connection, _) = Client(random.Random(1), "go"), broker.connect()
    message = plain_message("T", born_timestamp={"seconds": 1_800_000_000})
    request = messaging.SendMessageRequest(messages=[message]).SerializeToString()
    connection.data_received(client.begin() + client.call(request))
    again = client.call(request)
    return calls_until("LogWriter.put", lambda: connection.data_received(again))


def remoting_send(broker: InProcess) -> list[str]:
    """Return the calls of a send by the remoting protocol."""
    connection, _ = broker.connect_remote()
    connection.data_received(frame(310, 1, send_fields("T"), b"hello"))
    again = frame(310, 2, send_fields("T"), b"hello")
    return calls_until("LogWriter.put", lambda: connection.data_received(again))


def pull(broker: InProcess) -> list[str]:
    """Return the calls of a pull by gRPC."""
    client, (connection, sink) = Client(random.Random(1), "go"), broker.connect()
    request = messaging.PullMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = "g", "T"
    path, data = f"/{MESSAGING_SERVICE}/PullMessage", request.SerializeToString()
    connection.data_received(client.begin() + client.call(data, path=path))
    again = client.call(data, path=path)
    assert b"hello" in sink.take()
    found = calls_until(ANSWERED, lambda: connection.data_received(again))
    assert b"hello" in sink.take()
    return found


def receive(broker: InProcess) -> list[str]:
    """Return the calls of a receive of one message."""
    client, (connection, sink) = Client(random.Random(1), "go"), broker.connect()
    request = messaging.ReceiveMessageRequest(batch_size=1)
    request.group.name, request.message_queue.topic.name = "g", "T"
    request.invisible_duration.seconds = 30
    path, data = f"/{MESSAGING_SERVICE}/ReceiveMessage", request.SerializeToString()
    connection.data_received(client.begin() + client.call(data, path=path))
    again = client.call(data, path=path)
    assert b"hello" in sink.take()
    found = calls_until(ANSWERED, lambda: connection.data_received(again))
    assert b"hello" in sink.take()
    return found


def remoting_pull(broker: InProcess) -> list[str]:
    """Return the calls of a pull by the remoting protocol."""
    connection, sink = broker.connect_remote()
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip
    connection.data_received(frame(11, 1, fields))
    again = frame(11, 2, fields)
    assert b"hello" in sink.take()
    found = calls_until(ANSWERED, lambda: connection.data_received(again))
    assert b"hello" in sink.take()
    return found


def acknowledge(broker: InProcess) -> list[str]:
    """Return the calls of an acknowledgement of the second of two messages."""
    client, (connection, sink) = Client(random.Random(1), "go"), broker.connect()
    taken = messaging.ReceiveMessageRequest(batch_size=32, auto_renew=True)
    taken.group.name, taken.message_queue.topic.name = "g", "T"
    receive = broker.method("ReceiveMessage")
    assert isinstance(receive, ServerStreamMethod)
    answer = receive.handle(Call("", "", {CLIENT_ID_HEADER: CLIENT}, None), taken)
    found = as_messages(messaging.ReceiveMessageResponse, answer)
    path, calls = f"/{MESSAGING_SERVICE}/AckMessage", []
    for one in (each.message for each in found if each.HasField("message")):
        request = messaging.AckMessageRequest()
        request.group.name, request.topic.name = "g", "T"
        handle = one.system_properties.receipt_handle
        request.entries.add(message_id=one.system_properties.message_id, receipt_handle=handle)
        calls.append(client.call(request.SerializeToString(), path=path))
    assert len(calls) == 2
    connection.data_received(client.begin() + calls[0])
    sink.take()
    counted = calls_until(ANSWERED, lambda: connection.data_received(calls[1]))
    assert sink.take() and broker.role.consumption.positions.get_offset("g", "T", 0) == 2
    return counted


@pytest.mark.parametrize(
    ("verb", "run"),
    [
        ("send", send),
        ("remoting send", remoting_send),
        ("pull", pull),
        ("remoting pull", remoting_pull),
        ("receive", receive),
        ("acknowledge", acknowledge),
    ],
)
def test_calls_of_a_verb(tmp_path: Path, verb: str, run: object) -> None:
    async def count() -> list[str]:
        async with in_process(tmp_path) as broker:
            broker.topic("T", queues=1)
            broker.context.groups.put(GroupConfig(name="g"))
            for _ in range(MESSAGES[verb]):
                assert broker.request(310, send_fields("T"), b"hello").code == 0
                broker.role.store.end_tick()
                stored_ms = broker.broker.machine.wall_ms()
                while broker.broker.machine.wall_ms() == stored_ms:
                    pass  # what has another time of its own takes other calls than what shares one
            assert callable(run)
            found: list[str] = run(broker)
            return found

    found = asyncio.run(count())
    assert len(found) == NOW[verb] <= SHARE * STARTED[verb], "\n".join(found)
