"""Records of every kind at slaves of RocketMQ 4.9.3 and 5.3.3: both hold our master's bytes, and read them.

One master of ours with two real slaves. What it stores is made through its client API, so that each record is
the one that this kind of message becomes in life. 5.3.3 forgets the address of a master that its settings
name (4.9.3 does not), and is told it once more, as another broker of its group would.
"""

import gzip
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.test_transactions import SIZES, Checked
from support.cluster.broker_api import Api, message
from support.cluster.processes import Process
from support.cluster.rolling import RollingBroker
from support.store.master_log import same_log
from support.systems.real_broker import Remoting, Server, broker, name_server
from support.waiting import until
from whimbrel.model.names import DEAD_LETTER_PREFIX, HALF_OP_TOPIC, HALF_TOPIC, TIMER_TOPIC, UNDECIDED_TOPIC
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.codec import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    UNIT_SIZE,
    StoredMessage,
    decode_record,
)
from whimbrel.store.view import LogView

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

VERSIONS = ("4.9.3", "5.3.3")
EXCHANGE_BROKER_HA_INFO = 906
ROLL_S = 6  # a message that waits longer is rolled
SETTINGS: dict[str, object] = SIZES | {
    "nameservers": "",
    "transaction_timeout_ms": 4000,
    "transaction_check_interval_ms": 200,
    "transaction_check_max": 1,
}
REAL: dict[str, object] = {
    "mappedFileSizeCommitLog": SIZES["commitlog_file_size"],
    "maxHashSlotNum": SIZES["index_slots"],
    "maxIndexNum": SIZES["index_entries"],
    "fileReservedTime": 72,
}
TOPICS = {
    "plain": admin.MESSAGE_TYPE_NORMAL,
    "ordered": admin.MESSAGE_TYPE_FIFO,
    "later": admin.MESSAGE_TYPE_DELAY,
    "orders": admin.MESSAGE_TYPE_TRANSACTION,
    "urgent": admin.MESSAGE_TYPE_PRIORITY,
}
GROUP = "group"
DEAD = DEAD_LETTER_PREFIX + GROUP


def has(name: str) -> Callable[[StoredMessage], bool]:
    return lambda one: name in one.properties


def body(text: bytes) -> Callable[[StoredMessage], bool]:
    return lambda one: one.body == text


# Each kind by its topic and by what its record has, and how many of them there are at least.
KINDS: dict[str, tuple[str, Callable[[StoredMessage], bool], int]] = {
    "plain": ("plain", body(b"plain"), 1),
    "batch": ("plain", lambda one: one.body.startswith(b"batch"), 3),
    "compressed": ("plain", lambda one: bool(one.sys_flag & COMPRESSED), 1),
    "ordered": ("ordered", has("__SHARDINGKEY"), 2),
    "priority": ("urgent", has("_SYS_MSG_PRIORITY_"), 2),
    "delayed, waiting": (TIMER_TOPIC, body(b"soon"), 1),
    "delayed, delivered": ("later", body(b"soon"), 1),
    "rolled": (TIMER_TOPIC, has("TIMER_ROLL_TIMES"), 1),
    "rolled, delivered": ("later", body(b"long"), 1),
    "recall": (TIMER_TOPIC, has("TIMER_DEL_UNIQKEY"), 1),
    "half": (HALF_TOPIC, lambda one: True, 3),
    "op": (HALF_OP_TOPIC, lambda one: True, 2),
    "commit": ("orders", lambda one: one.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT, 1),
    "given up": (UNDECIDED_TOPIC, body(b"silence"), 1),
    "dead letter": (DEAD, body(b"plain"), 1),
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with name_server("5.3.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def records(store: Path) -> list[StoredMessage]:
    """Return what a log holds."""
    walk = LogView.of(store).walk()
    found = []
    while chunk := walk.next_chunk():
        _, data, positions = chunk
        found += [decode_record(data, at) for at in positions]
    return found


def lacking(store: Path) -> list[str]:
    """Return which kinds of records are not there, or too few of them."""
    there = records(store)
    return [
        kind
        for kind, (topic, fits, count) in KINDS.items()
        if sum(one.topic == topic and fits(one) for one in there) < count
    ]


def send_all(address: str) -> None:
    """Make one message of each kind, and what becomes of it."""
    with grpc.insecure_channel(address) as channel:
        api = Checked(channel, "producer@1", "orders")
        for name, kind in TOPICS.items():
            topic = admin.Topic(name=name, read_queues=2, write_queues=2, message_type=kind)
            api.administer("CreateTopic", topic=topic)
        api.administer("CreateGroup", group=admin.Group(name=GROUP, max_attempts=1))
        now = int(time.time())

        def send(topic: str, text: bytes, name: str, **system: Any) -> Any:
            answer = api.send(topic, text, message_id=name, **system)
            assert answer.status.code == v2.OK, answer
            return answer.entries[0]

        send("plain", b"plain", "P0", tag="tag", keys=["k1", "k2"], properties={"own": "wert ü"})
        batch = [message("plain", b"batch-%d" % n, message_id=f"B{n}", tag="tag") for n in range(3)]
        assert api("SendMessage", messages=batch).status.code == v2.OK
        send("plain", gzip.compress(b"z" * 5000), "Z0", body_encoding=v2.GZIP)
        for number in range(2):
            send("ordered", b"ordered", f"O{number}", message_type=v2.FIFO, message_group="order-1")
            send("urgent", b"urgent", f"U{number}", message_type=v2.PRIORITY, priority=number)
        handles = {}
        for text, seconds in ((b"soon", 2), (b"recalled", 5), (b"long", ROLL_S * 3 // 2 + 1)):
            sent = send(
                "later", text, f"D-{text.decode()}",
                message_type=v2.DELAY, delivery_timestamp=Timestamp(seconds=now + seconds),
            )  # fmt: skip
            handles[text] = sent.recall_handle
        answer = api("RecallMessage", topic=v2.Resource(name="later"), recall_handle=handles[b"recalled"])
        assert answer.status.code == v2.OK
        kept, dropped, _ = (
            send("orders", text, f"T-{text.decode()}", message_type=v2.TRANSACTION, tag="t").transaction_id
            for text in (b"kept", b"dropped", b"silence")
        )
        assert api.end(kept, v2.COMMIT, topic="orders") == v2.OK
        assert api.end(dropped, v2.ROLLBACK, topic="orders") == v2.OK
        used_up(api)
        api.leave()


def point_at(slave: Server, master: Server | Process) -> None:
    """Tell a slave from where its log comes."""
    with Remoting(slave.address) as client:
        header, _ = client.call(EXCHANGE_BROKER_HA_INFO, {"masterHaAddress": master.ha})
        assert header["code"] == 0, header


def used_up(api: Api) -> None:
    """Let the first message fail: one attempt is allowed, and the next receive moves it."""
    for got in api.receive("plain", GROUP, poll_s=5).messages:
        handle = got.system_properties.receipt_handle
        if got.body == b"plain":
            assert api.change("plain", GROUP, handle, 0).status.code == v2.OK
        else:
            assert api.ack("plain", GROUP, handle).status.code == v2.OK
    api.receive("plain", GROUP, poll_s=1)


def queue_bytes(store: Path, topic: str, queue_id: int) -> bytes:
    """Return the entries of a queue; what is not written yet is zeros."""
    files = sorted((store / "consumequeue" / topic / str(queue_id)).glob("*"))
    return b"".join(path.read_bytes() for path in files)


def other_queues(ours: Path, theirs: Path) -> list[str]:
    """Return the queues whose entries differ from what the log says."""
    entries: dict[tuple[str, int], int] = {}
    for one in records(ours):
        key = one.topic, one.queue_id
        entries[key] = max(entries.get(key, 0), one.queue_offset + 1)
    return [
        f"{topic}/{queue_id}"
        for (topic, queue_id), count in entries.items()
        if queue_bytes(ours, topic, queue_id)[: count * UNIT_SIZE]
        != queue_bytes(theirs, topic, queue_id)[: count * UNIT_SIZE]
    ]


def complaints(slave: Server) -> list[str]:
    """Return the lines of a server's logs that tell of an exception."""
    return [
        f"{path.name}: {line}"
        for path in sorted(slave.root.rglob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if re.search(r"Exception|Throwable| ERROR ", line)
    ]


def check_copy(store: Path, slave: Server, end: int) -> None:
    """Wait until a slave has the log and its queues, and compare the bytes."""
    with Remoting(slave.address) as client:
        until(lambda: client.log_end() == end, timeout=40, what="the slave having it all")
    until(
        lambda: not other_queues(store, slave.store),
        timeout=20,
        what=lambda: f"the slave's queues {other_queues(store, slave.store)}",
    )
    assert same_log(store, slave.store, end)


def test_a_record_of_each_kind_reaches_real_slaves(names: Server, tmp_path: Path) -> None:
    """Checklist 80: log and consume queues byte by byte, and the slaves' logs tell of no exception."""
    store = tmp_path / "store"
    feeder = Process(tmp_path, "replicator", "feeder", role="master", store=store)
    with RollingBroker(tmp_path, "master", window_s=ROLL_S, store=store, **SETTINGS) as master, feeder:
        slaves = [
            broker(version, tmp_path / version, "SLAVE:1", names.address, haMasterAddress=feeder.ha, **REAL)
            for version in VERSIONS
        ]
        with slaves[0], slaves[1]:
            point_at(slaves[1], feeder)
            send_all(master.grpc)
            until(lambda: not lacking(store), timeout=40, what=lambda: f"records of {lacking(store)}")
            end = LogView.of(store).end
            for slave in slaves:
                check_copy(store, slave, end)
            assert lacking(store) == [] and LogView.of(store).end == end
            assert [complaints(slave) for slave in slaves] == [[], []]
        assert master.stop() == 0
