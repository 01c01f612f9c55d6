"""Delayed messages that one implementation takes and the other one delivers: a real 5.3.3 and ours.

Nothing is delivered before its time, nothing twice, and nothing is left, whoever has the store then.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.test_transactions import SIZES, records
from support.cluster.broker_api import Api
from support.cluster.processes import Process
from support.systems.real_broker import Remoting, Server, broker, name_server
from support.waiting import until
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

TOPIC = "later"
SEND_MESSAGE = 10
SOON_S, LATER_S = 1, 22  # a real broker takes up to 15 s to stop, or to start
REAL: dict[str, object] = {
    "mappedFileSizeCommitLog": SIZES["commitlog_file_size"],
    "maxHashSlotNum": SIZES["index_slots"],
    "maxIndexNum": SIZES["index_entries"],
    "brokerName": "broker-a",
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with name_server("5.3.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def bodies(store: Path) -> list[bytes]:
    """Return what the topic holds, in the order of the log."""
    return [one.body for one in records(store, TOPIC)]


def check_times(store: Path, due_ms: dict[bytes, int]) -> None:
    """See that nothing was delivered before its time."""
    for one in records(store, TOPIC):
        assert one.store_timestamp >= due_ms[one.body], one.body


def ours(root: Path, store: Path, name: str) -> Process:
    return Process(root, "broker", name, store=store, nameservers="", **SIZES)


def received(process: Process) -> list[bytes]:
    """Return what a group gets that is new."""
    with grpc.insecure_channel(process.grpc) as channel:
        api = Api(channel)
        api.administer("CreateGroup", group=admin.Group(name="readers"))
        return api.receive(TOPIC, "readers", poll_s=3).bodies


def test_a_real_broker_delivers_what_waits_in_our_store(names: Server, tmp_path: Path) -> None:
    """Checklist 31: pending ones once, and what we delivered not again."""
    due_ms: dict[bytes, int] = {}
    with (
        ours(tmp_path, tmp_path / "store", "ours") as process,
        grpc.insecure_channel(process.grpc) as channel,
    ):
        api = Api(channel)
        api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, message_type=admin.MESSAGE_TYPE_DELAY))
        for body, delay_s in ((b"soon", SOON_S), (b"first", LATER_S), (b"second", LATER_S + 1)):
            at = int(time.time()) + delay_s
            due_ms[body] = at * 1000
            sent = api.send(
                TOPIC,
                body,
                message_id=body.decode(),
                message_type=v2.DELAY,
                delivery_timestamp=Timestamp(seconds=at),
            )
            assert sent.status.code == v2.OK
        until(lambda: bodies(tmp_path / "store") == [b"soon"], what="the first delivery")
        assert process.stop() == 0
    root = tmp_path / "real"
    shutil.copytree(tmp_path / "store", root / "store", ignore=shutil.ignore_patterns("*.sock"))
    with broker("5.3.3", root, "ASYNC_MASTER", names.address, **REAL):
        until(lambda: len(bodies(root / "store")) >= 3, timeout=60, what="the deliveries", every_s=0.2)
    assert sorted(bodies(root / "store")) == sorted(due_ms)
    check_times(root / "store", due_ms)
    with ours(tmp_path, root / "store", "again") as process:
        assert received(process) == sorted(due_ms)
        assert process.stop() == 0
    assert sorted(bodies(root / "store")) == sorted(due_ms)


def test_we_deliver_what_waits_in_the_store_of_a_real_broker(names: Server, tmp_path: Path) -> None:
    """Checklist 32: each once, whatever it had delivered."""
    store = tmp_path / "store"
    due_ms: dict[bytes, int] = {}
    with broker("5.3.3", tmp_path, "ASYNC_MASTER", names.address, **REAL) as server:
        with Remoting(server.address) as client:
            for body, delay_s in ((b"soon", SOON_S), (b"first", LATER_S), (b"second", LATER_S + 1)):
                due_ms[body] = int(time.time() + delay_s) * 1000
                pairs = {"UNIQ_KEY": body.decode(), "TIMER_DELIVER_MS": str(due_ms[body]), "WAIT": "true"}
                fields = {
                    "producerGroup": "p", "topic": TOPIC, "queueId": "0", "sysFlag": "0",
                    "bornTimestamp": str(time.time_ns() // 1_000_000), "flag": "0", "reconsumeTimes": "0",
                    "properties": "".join(f"{key}\x01{value}\x02" for key, value in pairs.items()),
                    "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "unitMode": "false",
                    "batch": "false",
                }  # fmt: skip
                header, _ = client.call(SEND_MESSAGE, fields, body)
                assert header["code"] == 0, header
        until(lambda: bodies(store) == [b"soon"], timeout=30, what="the first delivery", every_s=0.2)
    with ours(tmp_path, store, "ours") as process:
        until(lambda: len(bodies(store)) >= 3, timeout=60, what="the deliveries", every_s=0.2)
        process.kill()
    with ours(tmp_path, store, "again") as process:
        assert received(process) == sorted(due_ms)
        assert process.stop() == 0
    assert sorted(bodies(store)) == sorted(due_ms)
    check_times(store, due_ms)
