"""How many calls of our functions a verb costs: the second of two equal calls on one connection, one message.

From the bytes of a read to the record in the log, with the lane off. `STARTED` is what it was before there
was an engine (commit 64f8a2ea); a verb has at most `SHARE` of it. A call more is no fault by itself: it is to
be worth its place in `NOW`. Counted on one version of Python, since others inline what this one calls.
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
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

PYTHON = (3, 11)
SHARE = 0.7
STARTED = {"send": 29, "remoting send": 28}
NOW = {"send": 19, "remoting send": 19}

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


@pytest.mark.parametrize(("verb", "run"), [("send", send), ("remoting send", remoting_send)])
def test_calls_of_a_verb(tmp_path: Path, verb: str, run: object) -> None:
    async def count() -> list[str]:
        async with in_process(tmp_path) as broker:
            broker.topic("T", queues=1)
            assert callable(run)
            found: list[str] = run(broker)
            return found

    found = asyncio.run(count())
    assert len(found) == NOW[verb] <= SHARE * STARTED[verb], "\n".join(found)
