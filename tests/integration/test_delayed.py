"""Delayed messages and recalls through broker processes: restarts, kills, and a change of the master.

`tests/unit/broker/timing/` has the rules with a clock that is turned.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerapi import Api
from processes import Process, elapse
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = [pytest.mark.process]

LATE_MS = 1200  # checklist 21
SLOW_MS = 2000  # what a loaded machine of a test may add


class Delays:
    """One broker, and a client that sends to it and receives."""

    def __init__(self, root: Path) -> None:
        settings: dict[str, object] = {"commitlog_file_size": 16 << 20, "index_slots": 500}
        settings |= {"index_entries": 20_000, "store": root / "store", "nameservers": ""}
        self.process = Process(root, "broker", "broker", **settings)
        self.number = 0

    def __enter__(self) -> "Delays":
        self.process.__enter__()
        self.setup("CreateTopic", topic=admin.Topic(name="later", read_queues=2, message_type=3))
        self.setup("CreateTopic", topic=admin.Topic(name="plain", read_queues=1, message_type=1))
        self.setup("CreateGroup", group=admin.Group(name="group"))
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)

    def setup(self, call: str, **fields: Any) -> None:
        with self.channel() as channel:
            Api(channel).administer(call, **fields)

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.process.grpc)

    def send(self, *bodies: bytes, due_ms: int) -> list[Any]:
        """Send in one request; return the entries of its answer."""
        with self.channel() as channel:
            messages = []
            for body in bodies:
                self.number += 1
                messages.append(delayed("later", body, f"{self.number:034X}", due_ms))
            return list(Api(channel)("SendMessage", messages=messages).entries)

    def receive(self, poll_s: float = 0) -> list[Any]:
        with self.channel() as channel:
            return Api(channel).receive("later", "group", poll_s=poll_s, invisible_s=600).messages

    def wait(self, count: int, seconds: float = 20) -> list[Any]:
        """Receive until so many have come."""
        found: list[Any] = []
        end = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            found += self.receive(poll_s=1)
        return found


def delayed(topic: str, body: bytes, message_id: str, due_ms: int) -> Any:
    made = v2.Message(topic=v2.Resource(name=topic), body=body)
    system = made.system_properties
    system.message_id, system.body_encoding, system.message_type = message_id, v2.IDENTITY, v2.DELAY
    system.delivery_timestamp.FromMilliseconds(due_ms)
    return made


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[Delays]:
    with Delays(tmp_path) as running:
        yield running


def test_a_delayed_message_comes_on_time_as_it_was_sent(delays: Delays) -> None:
    """Checklist 21 and 36."""
    due = now_ms() + 2500
    (entry,) = delays.send(b"later", due_ms=due)
    assert entry.recall_handle
    (got,) = delays.wait(1)
    came = now_ms()
    assert due <= came <= due + LATE_MS + SLOW_MS
    assert got.system_properties.message_type == v2.DELAY
    assert got.system_properties.delivery_timestamp.ToMilliseconds() == due
    assert got.system_properties.message_id == entry.message_id


def test_a_broker_that_is_killed_when_messages_are_due_delivers_each_once(delays: Delays) -> None:
    """Checklist 28 and 29."""
    due = now_ms() + 3000
    sent = {entry.message_id for entry in delays.send(*[b"x"] * 30, due_ms=due)}
    sent |= {entry.message_id for entry in delays.send(*[b"x"] * 2, due_ms=due + 4000)}
    elapse(max(0, floor(due) + 1000 - now_ms()) / 1000)
    delays.process.kill()
    delays.process.start()
    got = delays.wait(len(sent))
    elapse(1.5)
    got += delays.receive()
    assert sorted(one.system_properties.message_id for one in got) == sorted(sent)


def floor(time_ms: int) -> int:
    return time_ms // 1000 * 1000
