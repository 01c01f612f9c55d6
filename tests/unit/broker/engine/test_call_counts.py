"""How many calls of our functions a verb costs: the second of two equal calls on one connection, one message.

From the bytes of a read to the record in the log, or to the written answer of a pull, with the lane off.
`STARTED` is what it was before there was an engine (commit 64f8a2ea); a verb has at most `SHARE` of it. A
call more is no fault by itself: it is to be worth its place in `NOW`. Counted on one version of Python,
since others inline what this one calls.
"""

import asyncio
import random
import sys
from pathlib import Path

import pytest

from support.engine.calls import calls_until
from support.engine.in_process import InProcess, in_process
from support.lane.brokers import Client, plain_message
from support.remoting.handlers import frame, send_fields
from whimbrel.model.topic import GroupConfig
from whimbrel.model.wire import MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

PYTHON = (3, 11)
SHARE = 0.7
STARTED = {"send": 29, "remoting send": 28, "pull": 87, "remoting pull": 69, "receive": 127}
NOW = {"send": 19, "remoting send": 19, "pull": 58, "remoting pull": 48, "receive": 86}
MESSAGES = {"send": 0, "remoting send": 0, "pull": 1, "remoting pull": 1, "receive": 2}  # that there are
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


@pytest.mark.parametrize(
    ("verb", "run"),
    [
        ("send", send),
        ("remoting send", remoting_send),
        ("pull", pull),
        ("remoting pull", remoting_pull),
        ("receive", receive),
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
