"""Transactions through a real broker: raw calls, and what stands in its log."""

import itertools
import queue as queues
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from support import provenance
from support.cluster.broker_api import Api, duration, message
from support.cluster.processes import Cluster, Process
from support.systems.sdk_programs import Missing, Program, prepare
from support.waiting import until
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, UNDECIDED_TOPIC
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.codec import TRANSACTION_COMMIT, TRANSACTION_MASK, StoredMessage, decode_record
from whimbrel.store.view import LogView

pytestmark = pytest.mark.process

TOPIC = "orders"
SIZES: dict[str, object] = {"commitlog_file_size": 4 << 20, "index_slots": 500, "index_entries": 2000}
NEVER: dict[str, object] = {"transaction_check_interval_ms": 3_600_000}
SOON: dict[str, object] = {"transaction_check_interval_ms": 100, "transaction_timeout_ms": 100}
KILLS = 6
numbers = itertools.count(1)


class Producer(Api):
    """A raw client that sends halves and ends them."""

    def half(self, body: bytes = b"body", *, message_id: str = "", topic: str = TOPIC, **system: Any) -> str:
        name = message_id or f"{next(numbers):034d}"
        answer = self.send(topic, body, message_id=name, message_type=v2.TRANSACTION, **system)
        assert answer.status.code == v2.OK, answer
        (entry,) = answer.entries
        assert entry.transaction_id == entry.message_id == name
        return name

    def answers(self) -> bool:
        """Tell whether the broker knows its transactions."""
        try:
            return self.end("nothing", v2.COMMIT) == v2.INVALID_TRANSACTION_ID
        except grpc.RpcError:
            return False

    def end(self, name: str, resolution: Any, *, topic: str = TOPIC, source: Any = v2.SOURCE_CLIENT) -> int:
        answer = self(
            "EndTransaction",
            topic=v2.Resource(name=topic),
            message_id=name,
            transaction_id=name,
            resolution=resolution,
            source=source,
        )
        return int(answer.status.code)


class Checked(Producer):
    """A producer with a Telemetry stream: questions about transactions come in."""

    def __init__(self, channel: grpc.Channel, client: str, *topics: str) -> None:
        super().__init__(channel, client)
        self.commands: queues.SimpleQueue[Any] = queues.SimpleQueue()
        settings = v2.Settings(client_type=v2.PRODUCER)
        for name in topics or (TOPIC,):
            settings.publishing.topics.add(name=name)
        self.commands.put(messaging.TelemetryCommand(settings=settings))
        self.stream = self.telemetry(iter(self.commands.get, None))
        assert next(self.stream).WhichOneof("command") == "settings"

    def asked(self) -> Any:
        """Return the next question."""
        command = next(self.stream)
        assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
        return command.recover_orphaned_transaction_command

    def leave(self) -> None:
        self.stream.cancel()


@contextmanager
def opened(root: Path, **settings: object) -> Iterator[tuple[Process, grpc.Channel]]:
    """Run a broker, with its topics and group made."""
    with (
        Process(
            root, "broker", "broker", store=root / "store", nameservers="", **SIZES, **settings
        ) as broker,
        grpc.insecure_channel(broker.grpc) as channel,
    ):
        setup = Api(channel)
        kinds: tuple[tuple[str, Any], ...] = ((TOPIC, 4), ("mixed", 5))
        for name, kind in kinds:
            setup.administer("CreateTopic", topic=admin.Topic(name=name, read_queues=2, message_type=kind))
        setup.administer("CreateGroup", group=admin.Group(name="group"))
        yield broker, channel


def records(store: Path, topic: str) -> list[StoredMessage]:
    """Return what the log holds of a topic."""
    walk = LogView.of(store).walk()
    found = []
    while chunk := walk.next_chunk():
        _, data, positions = chunk
        found += [decode_record(data, at) for at in positions]
    return [one for one in found if one.topic == topic]


def test_commit_rollback_and_both_again(tmp_path: Path) -> None:
    """Checklist 40, 41, 42 and 43."""
    with opened(tmp_path, **NEVER) as (broker, channel):
        api = Producer(channel)
        kept, dropped = api.half(b"kept", tag="red", properties={"a": "1"}), api.half(b"dropped")
        assert api.receive(TOPIC, "group").code == v2.MESSAGE_NOT_FOUND
        assert api.end(kept, v2.COMMIT) == v2.OK
        assert api.end(dropped, v2.ROLLBACK) == v2.OK
        assert api.end(kept, v2.COMMIT) == v2.OK
        assert api.end(dropped, v2.ROLLBACK) == v2.OK
        assert api.end(dropped, v2.COMMIT) == v2.INVALID_TRANSACTION_ID
        assert api.end(kept, v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID
        assert api.end("unknown", v2.COMMIT) == v2.INVALID_TRANSACTION_ID
        assert api.end(" ", v2.COMMIT) == v2.INVALID_TRANSACTION_ID
        assert api.end(kept, v2.COMMIT, topic="a b") == v2.ILLEGAL_TOPIC
        got = api.receive(TOPIC, "group")
        assert got.bodies == [b"kept"]
        (delivered,) = got.messages
        assert delivered.system_properties.message_type == v2.TRANSACTION
        assert delivered.system_properties.message_id == kept
        assert dict(delivered.user_properties) == {"a": "1"}
        assert api.ack(TOPIC, "group", *got.handles).status.code == v2.OK
        assert broker.stop() == 0
    store = tmp_path / "store"
    half, other = records(store, HALF_TOPIC)
    assert half.queue_id == other.queue_id == 0 and not half.sys_flag & TRANSACTION_MASK
    text = half.properties
    assert (text["REAL_TOPIC"], text["__transactionId__"], text["UNIQ_KEY"]) == (TOPIC, kept, kept)
    assert (text["TRAN_MSG"], text["PGROUP"], text["TAGS"]) == ("true", TOPIC, "red")
    (record,) = records(store, TOPIC)
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert record.prepared_offset == half.physical_offset
    assert str(record.queue_id) == text["REAL_QID"]
    assert record.properties == text
    assert (record.born_timestamp, record.born_host) == (half.born_timestamp, half.born_host)
    ops = records(store, HALF_OP_TOPIC)
    assert sorted(b"".join(op.body for op in ops).split(b",")) == [b"", b"0", b"1"]
    assert all(op.properties["TAGS"] == "d" and op.queue_id == 0 for op in ops)


def test_commit_after_a_restart_and_after_a_kill(tmp_path: Path) -> None:
    """Checklist 44."""
    with opened(tmp_path, **NEVER) as (broker, channel):
        api = Producer(channel)
        names = [api.half(b"%d" % number) for number in range(4)]
        assert api.end(names[0], v2.COMMIT) == v2.OK
        assert broker.stop() == 0
        broker.start()
        until(lambda: api.end(names[1], v2.COMMIT) == v2.OK, what="a commit after a restart")
        broker.kill()
        broker.start()
        until(lambda: api.end(names[2], v2.COMMIT) == v2.OK, what="a commit after a kill")
        assert api.end(names[0], v2.COMMIT) == v2.OK  # not remembered; its record says that it was made
        assert api.end(names[0], v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID
        got = api.receive(TOPIC, "group")
        assert got.bodies == [b"0", b"1", b"2"]


def test_undecided_are_asked_about_and_the_answer_counts(tmp_path: Path) -> None:
    """Checklist 45 and 46: asked is a live producer of the topic, another one each time."""
    with opened(tmp_path, **SOON) as (broker, channel), grpc.insecure_channel(broker.grpc) as other:
        gone, first, second = Checked(channel, "gone"), Checked(other, "first"), Checked(other, "second")
        name = gone.half(b"orphan", message_group="g")
        gone.leave()
        question = first.asked()
        assert question.transaction_id == name
        asked = question.message
        assert (asked.body, asked.topic.name) == (b"orphan", TOPIC)
        system = asked.system_properties
        assert (system.message_id, system.message_type) == (name, v2.TRANSACTION)
        assert (system.message_group, system.receipt_handle) == ("g", "")
        assert second.asked().transaction_id == name
        assert second.end(name, v2.TRANSACTION_RESOLUTION_UNSPECIFIED) == v2.OK
        assert first.asked().transaction_id == name
        assert first.end(name, v2.COMMIT, source=v2.SOURCE_SERVER_CHECK) == v2.OK
        assert first.receive(TOPIC, "group").bodies == [b"orphan"]


def test_producers_that_are_connected_to_a_nameserver_are_asked(tmp_path: Path) -> None:
    """Checklist 45: the question goes through the nameserver, the answer back to the broker that has it."""
    with ExitStack() as stack:
        nameservers = [stack.enter_context(Process(tmp_path, "nameserver", f"ns-{n}")) for n in range(2)]
        addresses = ",".join(each.grpc for each in nameservers)
        broker = Process(
            tmp_path, "broker", "broker", store=tmp_path / "store", nameservers=addresses, **SIZES, **SOON
        )
        stack.enter_context(broker)
        channels = [stack.enter_context(grpc.insecure_channel(each.grpc)) for each in (*nameservers, broker)]
        api = Producer(channels[2])
        api.administer(
            "CreateTopic",
            topic=admin.Topic(name=TOPIC, read_queues=2, message_type=admin.MESSAGE_TYPE_TRANSACTION),
        )
        api.administer("CreateGroup", group=admin.Group(name="group"))
        routes = [Api(channel) for channel in channels[:2]]
        for each in routes:
            until(lambda each=each: each.route(TOPIC).message_queues, what="the route")  # type: ignore[misc]
        until(api.answers, what="the broker to know its transactions")
        kept, dropped = api.half(b"kept"), api.half(b"dropped")
        checker = Checked(channels[1], "far")  # of the second nameserver alone
        wanted = {kept: v2.COMMIT, dropped: v2.ROLLBACK}
        while wanted:
            question = checker.asked()
            assert question.message.body in (b"kept", b"dropped")
            resolution = wanted.pop(question.transaction_id, None)
            if resolution is not None:
                assert checker.end(question.transaction_id, resolution) == v2.OK
        assert api.receive(TOPIC, "group", poll_s=5).bodies == [b"kept"]


def test_silence_gives_it_up(tmp_path: Path) -> None:
    """Checklist 47: kept where people find it; a late commit is refused."""
    with opened(tmp_path, **SOON, transaction_check_max=3) as (broker, channel):
        producer = Checked(channel, "silent")
        name = producer.half(b"nobody")
        for _ in range(3):
            assert producer.asked().transaction_id == name
        until(lambda: records(tmp_path / "store", UNDECIDED_TOPIC), what="the copy of what is given up")
        assert producer.end(name, v2.COMMIT) == v2.INVALID_TRANSACTION_ID
        assert broker.stop() == 0
    (copy,) = records(tmp_path / "store", UNDECIDED_TOPIC)
    assert (copy.body, copy.properties["REAL_TOPIC"]) == (b"nobody", TOPIC)
    assert not records(tmp_path / "store", TOPIC)


def test_recovery_duration_holds_questions_back(tmp_path: Path) -> None:
    """Checklist 48: nobody is asked before, and a commit of the application counts after it, too."""
    with opened(tmp_path, **SOON) as (_, channel):
        producer = Checked(channel, "late")
        patient = producer.half(b"patient", orphaned_transaction_recovery_duration=duration(60))
        hasty = producer.half(b"hasty")
        for _ in range(3):
            assert producer.asked().transaction_id == hasty
        short = producer.half(b"short", orphaned_transaction_recovery_duration=duration(1))
        while producer.asked().transaction_id != short:
            pass
        for name in (patient, hasty, short):
            assert producer.end(name, v2.COMMIT) == v2.OK
        assert producer.receive(TOPIC, "group").bodies == [b"hasty", b"patient", b"short"]


def test_what_no_transaction_may_be(tmp_path: Path) -> None:
    """Checklist 49 and 50."""
    with opened(tmp_path, **NEVER) as (broker, channel):
        api = Producer(channel)
        due = v2.SystemProperties().delivery_timestamp
        due.seconds = int(time.time()) + 60
        late = api.send("mixed", b"x", message_type=v2.TRANSACTION, delivery_timestamp=due)
        assert late.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        both = api(
            "SendMessage",
            messages=[message("mixed", b"x", message_type=v2.TRANSACTION, message_id=name) for name in "ab"],
        )
        assert both.status.code == v2.BAD_REQUEST and not both.entries
        name = api.half(b"grouped", topic="mixed", message_group="g")
        assert api.end(name, v2.COMMIT, topic="mixed") == v2.OK
        (got,) = api.receive("mixed", "group").messages
        assert (got.system_properties.message_group, got.body) == ("g", b"grouped")
        assert broker.stop() == 0
    assert len(records(tmp_path / "store", HALF_TOPIC)) == 1


def test_slave_refuses_and_goes_on_as_the_master(tmp_path: Path) -> None:
    """Checklist 51: after the fail-over, decisions are as they were, and the answer to a question decides."""
    settings: dict[str, object] = {
        "replication": "sync", "slave_timeout_ms": 5000, "auto_create_topics": False, **SOON,
    }  # fmt: skip
    with Cluster(tmp_path, slaves=1, broker=settings) as cluster:
        cluster.wait_usable()
        slave = cluster.slaves[0]
        with (
            grpc.insecure_channel(cluster.master.grpc) as channel,
            grpc.insecure_channel(slave.grpc) as other,
        ):
            api, copy = Producer(channel), Producer(other)
            api.administer(
                "CreateTopic",
                topic=admin.Topic(name=TOPIC, read_queues=2, message_type=admin.MESSAGE_TYPE_TRANSACTION),
            )
            api.administer("CreateGroup", group=admin.Group(name="group"))
            kept, open_one, dropped, late = (
                api.half(body) for body in (b"kept", b"open", b"dropped", b"late")
            )
            assert copy.end(kept, v2.COMMIT) == v2.HA_NOT_AVAILABLE
            assert api.end(kept, v2.COMMIT) == api.end(dropped, v2.ROLLBACK) == v2.OK
            assert api.end(kept, v2.COMMIT) == api.end(dropped, v2.ROLLBACK) == v2.OK  # at rest, too
        cluster.master.kill()
        cluster.master_replicator.kill()
        slave.stop()
        cluster.slave_replicators[0].stop()
        leading = {"role": "master", "id": 0, "expected_slaves": 0, "replication": "async", "port": 0}
        with (
            Process(tmp_path, "broker", "promoted", **{**slave.settings, **leading}) as promoted,
            grpc.insecure_channel(promoted.grpc) as channel,
        ):
            producer = Checked(channel, "c")
            assert {producer.asked().transaction_id for _ in range(2)} == {open_one, late}
            assert producer.end(open_one, v2.COMMIT) == v2.OK
            assert producer.end(late, v2.ROLLBACK) == v2.OK
            assert producer.receive(TOPIC, "group").bodies == [b"kept", b"open"]
            assert promoted.stop() == 0
        assert sorted(one.body for one in records(promoted.store, TOPIC)) == [b"kept", b"open"]


def test_kills_leave_each_transaction_with_one_end(tmp_path: Path) -> None:
    """kill -9 between and in the midst of calls: what was answered OK is so, and everything is there once."""
    dice = random.Random(provenance.seed())
    decided: dict[str, Any] = {}
    with opened(tmp_path, **NEVER) as (broker, channel):
        api = Producer(channel)
        waiting: list[str] = []
        for number in range(KILLS):
            broker.start() if number else None
            until(lambda: api.answers(), what="a broker that takes transactions")
            killer = threading.Timer(dice.uniform(0.05, 0.4), broker.kill)
            killer.start()
            try:
                while True:
                    while len(waiting) < 20:
                        waiting.append(f"{next(numbers):034d}")
                        api.half(waiting[-1].encode(), message_id=waiting[-1])
                    name = dice.choice(waiting)
                    wanted = decided.setdefault(name, dice.choice((v2.COMMIT, v2.ROLLBACK)))
                    if api.end(name, wanted) == v2.OK:
                        waiting.remove(name)
            except grpc.RpcError:
                killer.join()
        broker.start()
        until(lambda: api.answers(), what="a broker that takes transactions")
        for name in waiting:  # a half may not be stored, a decision may be, both without an answer
            wanted = decided.setdefault(name, v2.COMMIT)
            assert api.end(name, wanted) in (v2.OK, v2.INVALID_TRANSACTION_ID)
        assert broker.stop() == 0
    store = tmp_path / "store"
    halves = {one.body.decode() for one in records(store, HALF_TOPIC)}
    committed = [one.body.decode() for one in records(store, TOPIC)]
    assert len(committed) == len(set(committed))
    assert set(committed) == {name for name in halves if decided[name] == v2.COMMIT}
    assert len(committed) > KILLS


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "language",
    ["python", *(pytest.param(language, marks=slow) for language in ("nodejs", "go", "java"))],
)
def test_official_sdk_commits_rolls_back_and_answers(language: str, tmp_path: Path) -> None:
    """Checklist 41, 42 and 45 with a transactional producer, unmodified."""
    try:
        prepare(language)
    except Missing as error:
        pytest.skip(f"no {language} SDK here: {error}")
    settings: dict[str, object] = {"expected_slaves": 0, "auto_create_topics": False, **SOON}
    with Cluster(tmp_path, slaves=0, broker=settings) as cluster:
        cluster.wait_usable()
        with grpc.insecure_channel(cluster.master.grpc) as channel:
            api = Producer(channel)
            kind = admin.MESSAGE_TYPE_TRANSACTION
            api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=2, message_type=kind))
            api.administer("CreateGroup", group=admin.Group(name="group"))
            words = (language, "transact", cluster.endpoint, TOPIC, "m", 6, "commit,rollback,leave", "commit")
            with Program(*words) as producer:
                producer.wait_bodies("checked", {"m-2", "m-5"})
                got: list[bytes] = []
                while len(got) < 4:
                    got += api.receive(TOPIC, "group", poll_s=5).bodies
                assert sorted(got) == [b"m-0", b"m-2", b"m-3", b"m-5"]
                assert producer.of("ended") == [
                    ("m-0", "commit"), ("m-1", "rollback"), ("m-3", "commit"), ("m-4", "rollback"),
                ]  # fmt: skip
                assert not producer.of("failed") and not producer.of("error")
        assert cluster.master.stop() == 0
        assert len(records(cluster.master.store, TOPIC)) == 4


def test_nameserver_hands_decisions_on_to_the_broker_that_has_the_transaction(tmp_path: Path) -> None:
    """Rust's SDK ends transactions at its access point."""
    settings: dict[str, object] = {"expected_slaves": 0, "auto_create_topics": False, **NEVER}
    with Cluster(tmp_path, slaves=0, broker=settings) as cluster:
        cluster.wait_usable()
        with (
            grpc.insecure_channel(cluster.master.grpc) as own,
            grpc.insecure_channel(cluster.endpoint) as names,
        ):
            api, far = Producer(own), Producer(names)
            kind = admin.MESSAGE_TYPE_TRANSACTION
            api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=2, message_type=kind))
            api.administer("CreateGroup", group=admin.Group(name="group"))
            first, second = api.half(b"first"), api.half(b"second")
            until(lambda: far.end(first, v2.COMMIT) == v2.OK, what="the topic at the nameserver")
            assert far.end(second, v2.ROLLBACK) == v2.OK
            assert far.end(second, v2.COMMIT) == far.end("unknown", v2.COMMIT) == v2.INVALID_TRANSACTION_ID
            assert far.end(second, v2.COMMIT, topic="nothing") == v2.TOPIC_NOT_FOUND
            assert api.receive(TOPIC, "group").bodies == [b"first"]
            cluster.master.kill()
            assert far.end(first, v2.COMMIT) != v2.OK
