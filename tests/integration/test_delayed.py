"""Delayed messages and recalls through broker processes: restarts, kills, and a change of the master.

`tests/unit/broker/timing/` has the rules with a clock that is turned.
"""

import base64
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.test_transactions import records
from support.cluster.broker_api import Api
from support.cluster.processes import Cluster, Process, lone_broker
from support.waiting import elapse, until
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.timer_layout import out_time

pytestmark = [pytest.mark.process]

LATE_MS = 1200  # checklist 21
SLOW_MS = 2000  # what a loaded machine of a test may add


class Delays:
    """One broker, and a client that sends to it and receives."""

    def __init__(self, root: Path, **own: object) -> None:
        self.process = lone_broker(root, index_entries=20_000, **own)
        self.number, self.group = 0, "group"

    @classmethod
    def of(cls, process: Process) -> "Delays":
        """Use a broker that runs."""
        delays = cls.__new__(cls)
        delays.process, delays.number, delays.group = process, 0, "group"
        return delays

    def __enter__(self) -> "Delays":
        self.process.__enter__()
        self.prepare()
        return self

    def prepare(self) -> None:
        """Make topics and group."""
        self.setup(
            "CreateTopic",
            topic=admin.Topic(name="later", read_queues=2, message_type=admin.MESSAGE_TYPE_DELAY),
        )
        self.setup(
            "CreateTopic",
            topic=admin.Topic(name="plain", read_queues=1, message_type=admin.MESSAGE_TYPE_NORMAL),
        )
        self.setup("CreateGroup", group=admin.Group(name="group"))

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)

    def end(self, how: str) -> None:
        """Stop the broker, or kill it."""
        if how == "kill":
            self.process.kill()
        else:
            assert self.process.stop() == 0

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

    def recall(self, topic: str, handle: str) -> tuple[int, str]:
        """Recall a message; return the code and the id of the answer."""
        with self.channel() as channel:
            answer = Api(channel)("RecallMessage", topic=v2.Resource(name=topic), recall_handle=handle)
            return answer.status.code, answer.message_id

    def receive(self, poll_s: float = 0) -> list[Any]:
        with self.channel() as channel:
            return Api(channel).receive("later", self.group, poll_s=poll_s, invisible_s=600).messages

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


def test_a_time_that_is_past_is_no_delay(delays: Delays) -> None:
    """Checklist 24: at once, without a handle, and without a record in the timer topic."""
    entries = [*delays.send(b"past", due_ms=now_ms() - 5000), *delays.send(b"zero", due_ms=0)]
    assert [entry.recall_handle for entry in entries] == ["", ""]
    got = delays.wait(2)
    assert sorted(one.body for one in got) == [b"past", b"zero"]
    assert {one.system_properties.message_type for one in got} == {v2.DELAY}
    assert records(delays.process.store, TIMER_TOPIC) == []


def test_a_time_is_at_most_a_day_ahead(delays: Delays) -> None:
    """Checklist 25: a minute less than 24 hours is taken, a minute more is not."""
    for minutes, code in ((-1, v2.OK), (1, v2.ILLEGAL_DELIVERY_TIME)):
        with delays.channel() as channel:
            message = delayed("later", b"x", "1" * 34, now_ms() + 86_400_000 + minutes * 60_000)
            assert Api(channel)("SendMessage", messages=[message]).status.code == code


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_that_is_down_when_messages_are_due_delivers_them_at_its_start(
    delays: Delays, end: str
) -> None:
    """Checklist 29: each once, in order, also after another restart."""
    due = now_ms() + 3000
    sent = delays.send(*(b"%d" % number for number in range(6)), due_ms=due)
    sent += delays.send(*(b"%d" % number for number in range(6, 9)), due_ms=due + 1000)
    delays.end(end)
    assert records(delays.process.store, "later") == [] and now_ms() < due
    elapse((due + 3000 - now_ms()) / 1000)  # nothing runs that could be asked
    for _ in range(2):
        delays.process.start()
        until(lambda: len(records(delays.process.store, "later")) == 9, what="the deliveries")
        delays.process.kill()
    delays.process.start()
    sent += delays.send(b"last", due_ms=now_ms() + 1000)  # when it comes, all before would have come again
    assert len(delays.wait(10)) == 10
    found = records(delays.process.store, "later")
    assert [one.properties["UNIQ_KEY"] for one in found] == [entry.message_id for entry in sent]
    assert all(one.store_timestamp > due + 2000 for one in found)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_restart_before_messages_are_due_changes_nothing(delays: Delays, end: str) -> None:
    """Checklist 28: each once, and none before its time."""
    due = now_ms() + 4000
    sent = delays.send(*[b"x"] * 9, due_ms=due)
    delays.end(end)
    delays.process.start()
    assert records(delays.process.store, "later") == [] and now_ms() < due
    got = delays.wait(9)
    assert [one.properties["UNIQ_KEY"] for one in records(delays.process.store, "later")] == [
        entry.message_id for entry in sent
    ]
    assert len(got) == 9
    assert all(one.store_timestamp >= due for one in records(delays.process.store, "later"))


def test_a_broker_that_is_killed_when_messages_are_due_delivers_each_once(delays: Delays) -> None:
    """Checklist 28: kill -9 in the second in which they are delivered; others are due later."""
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


def test_recalls_hold_and_answer_what_they_mean(delays: Delays) -> None:
    """Checklist 36, 37 and 38."""
    due = now_ms() + 4000
    first, second, _ = delays.send(b"a", b"b", b"c", due_ms=due)
    (past,) = delays.send(b"now", due_ms=0)
    assert not past.recall_handle
    text = base64.urlsafe_b64decode(first.recall_handle).decode()
    assert text == f"v1 later broker-a {out_time(due) + 1} {first.message_id}"
    assert delays.recall("later", first.recall_handle) == (v2.OK, first.message_id)
    assert delays.recall("later", first.recall_handle) == (v2.OK, first.message_id)
    nobody = base64.urlsafe_b64encode(f"v1 later broker-a {out_time(due) + 1} nobody".encode()).decode()
    assert delays.recall("later", nobody) == (v2.OK, "nobody")
    assert delays.recall("plain", first.recall_handle)[0] == v2.BAD_REQUEST
    assert delays.recall("later", "garbage")[0] == v2.BAD_REQUEST
    plain = base64.urlsafe_b64encode(f"v1 plain broker-a {out_time(due) + 1} x".encode()).decode()
    assert delays.recall("plain", plain)[0] == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    delays.process.kill()
    delays.process.start()
    assert sorted(one.body for one in delays.wait(3)) == [b"b", b"c", b"now"]
    assert delays.recall("later", second.recall_handle)[0] == v2.BAD_REQUEST
    elapse(1)
    assert not delays.receive()


def test_a_recall_finds_its_broker(tmp_path: Path) -> None:
    """Checklist 39: through the nameserver, and through a broker that is not meant."""
    with contextlib.ExitStack() as stack:
        nameserver = stack.enter_context(Process(tmp_path, "nameserver", "nameserver"))
        brokers = [
            stack.enter_context(
                named(Process(tmp_path, "broker", name, store=tmp_path / name, nameservers=nameserver.grpc))
            )
            for name in ("one", "two")
        ]
        apis = [
            Api(stack.enter_context(grpc.insecure_channel(process.grpc)))
            for process in (nameserver, *brokers)
        ]
        for api in apis[1:]:
            api.administer(
                "CreateTopic", topic=admin.Topic(name="later", message_type=admin.MESSAGE_TYPE_DELAY)
            )
        until(lambda: len(apis[0].route("later").message_queues) == 16, what="both brokers are in the route")
        due = now_ms() + 60_000
        message = delayed("later", b"x", "01" * 17, due)

        def entries() -> list[Any]:
            return list(apis[1]("SendMessage", messages=[message]).entries)

        until(entries, what="a master that takes messages")
        for number in range(2):
            (entry,) = entries()
            answer = apis[2 * number](
                "RecallMessage", topic=v2.Resource(name="later"), recall_handle=entry.recall_handle
            )
            assert (answer.status.code, answer.message_id) == (v2.OK, entry.message_id)
        foreign = base64.urlsafe_b64encode(f"v1 later three {due} x".encode()).decode()
        for api in apis:
            answer = api("RecallMessage", topic=v2.Resource(name="later"), recall_handle=foreign)
            assert answer.status.code == v2.BAD_REQUEST


def named(process: Process) -> Process:
    """Give a broker the name of its process."""
    process.settings["name"] = process.name
    return process


def test_a_slave_that_becomes_the_master_delivers_each_once(tmp_path: Path) -> None:
    """Checklist 33 and 37: some were delivered by the old master, some are due later, one was recalled."""
    settings: dict[str, object] = {"replication": "sync", "auto_create_topics": False}
    with Cluster(tmp_path, broker=settings) as cluster:
        cluster.wait_usable()
        delays = Delays.of(cluster.master)
        delays.prepare()
        due = now_ms() + 3000
        sent = [entry.message_id for entry in delays.send(*[b"x"] * 20, due_ms=due)]
        later = delays.send(*[b"x"] * 5, due_ms=due + 9000)
        assert delays.recall("later", later[0].recall_handle)[0] == v2.OK
        sent += [entry.message_id for entry in later[1:]]
        until(lambda: delays.receive() != [], timeout=20, what="the first are delivered")
        cluster.master.kill()
        cluster.master_replicator.kill()
        leading = {"role": "master", "id": 0, "expected_slaves": 0, "replication": "async"}
        slave, replicator = cluster.slaves[0], cluster.slave_replicators[0]
        for process in (slave, replicator):
            process.kill()
        replicator.settings["role"] = "master"
        slave.settings |= leading
        slave.launch()
        replicator.start()
        slave.wait_ready()
        delays = Delays.of(slave)
        delays.setup("CreateGroup", group=admin.Group(name="all"))
        delays.group = "all"
        got = delays.wait(len(sent), seconds=30)
        elapse(1.5)
        got += delays.receive()
        assert sorted(one.system_properties.message_id for one in got) == sorted(sent)
