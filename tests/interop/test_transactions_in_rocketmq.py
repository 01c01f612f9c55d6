"""Transactions that one implementation begins and the other one ends: a real 5.3.3 and ours.

A small remoting client is the producer that a real broker asks. It asks by the message's producer group, for
which we store the topic's name.
"""

import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.test_transactions import NEVER, SIZES, SOON, Checked, opened, records
from support.cluster.processes import Process
from support.systems.real_broker import Remoting, Server, broker, name_server
from support.waiting import until
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import decode_record

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

TOPIC = "orders"
END_TRANSACTION, CHECK, HEART_BEAT = 37, 39, 34
COMMIT, ROLLBACK, PREPARED = 8, 12, 4
FAST: dict[str, object] = {
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 500,
    "transactionCheckMax": 1000,
    "mappedFileSizeCommitLog": SIZES["commitlog_file_size"],
    "maxHashSlotNum": SIZES["index_slots"],
    "maxIndexNum": SIZES["index_entries"],
    "brokerName": "broker-a",
}


class Producer(Remoting):
    """A producer of a group, which is asked about its transactions."""

    def begin(self, group: str) -> None:
        self.group = group
        beat = {"clientID": "p@1", "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
        header, _ = self.call(HEART_BEAT, {}, json.dumps(beat).encode())
        assert header["code"] == 0, header

    def asked(self) -> tuple[str, dict[str, str]]:
        """Return the id of the next transaction that is asked about, and the fields of the question."""
        while True:
            (length,) = struct.unpack(">i", self.stream.read(4))
            frame = self.stream.read(length)
            size = struct.unpack_from(">i", frame)[0] & 0xFFFFFF
            found = json.loads(frame[4 : 4 + size])
            if found["code"] == CHECK:
                half = decode_record(frame[4 + size :])
                return half.properties["UNIQ_KEY"], found["extFields"]

    def end(self, fields: dict[str, str], decision: int) -> None:
        header, _ = self.call(
            END_TRANSACTION,
            {
                "producerGroup": self.group,
                "tranStateTableOffset": fields["tranStateTableOffset"],
                "commitLogOffset": fields["commitLogOffset"],
                "commitOrRollback": str(decision),
                "fromTransactionCheck": "true",
                "msgId": fields["msgId"],
                "transactionId": fields["transactionId"],
            },
        )
        assert header["code"] == 0, header

    def half(self, name: str, body: bytes) -> None:
        """Send a half as RocketMQ's own clients do."""
        pairs = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": self.group, "WAIT": "true"}
        fields = {
            "producerGroup": self.group, "topic": TOPIC, "queueId": "1", "sysFlag": str(PREPARED),
            "bornTimestamp": str(time.time_ns() // 1_000_000), "flag": "0", "reconsumeTimes": "0",
            "properties": "".join(f"{key}\x01{value}\x02" for key, value in pairs.items()),
            "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        header, _ = self.call(10, fields, body)
        assert header["code"] == 0, header


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with name_server("5.3.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def bodies(store: Path, topic: str) -> list[bytes]:
    return sorted(one.body for one in records(store, topic))


def test_a_real_broker_goes_on_with_our_transactions(names: Server, tmp_path: Path) -> None:
    """Checklist 52: it asks about what is undecided, and nothing else; ours takes the rest over."""
    with opened(tmp_path, **NEVER) as (ours, channel):
        api = Checked(channel, "c")
        kept, first, dropped, second = (api.half(body) for body in (b"kept", b"first", b"dropped", b"second"))
        assert api.end(kept, v2.COMMIT) == api.end(dropped, v2.ROLLBACK) == v2.OK
        assert ours.stop() == 0
    root = tmp_path / "real"
    shutil.copytree(tmp_path / "store", root / "store", ignore=shutil.ignore_patterns("*.sock"))
    with broker("5.3.3", root, "ASYNC_MASTER", names.address, **FAST) as server:
        with Producer(server.address) as producer:
            producer.begin(TOPIC)
            seen: dict[str, int] = {}
            for _ in range(4):
                name, fields = producer.asked()
                seen[name] = seen.get(name, 0) + 1
                if name == first and seen[name] == 1:
                    producer.end(fields, COMMIT)
            assert seen.keys() == {first, second}
    assert bodies(root / "store", TOPIC) == [b"first", b"kept"]
    settings = {"store": root / "store", "nameservers": "", **SIZES, **SOON}
    with (
        Process(tmp_path, "broker", "again", **settings) as again,
        grpc.insecure_channel(again.grpc) as channel,
    ):
        checked = Checked(channel, "c")
        assert [checked.asked().transaction_id for _ in range(3)] == [second] * 3  # nor about its copies
        assert checked.end(second, v2.COMMIT) == v2.OK
        assert again.stop() == 0
    assert bodies(root / "store", TOPIC) == [b"first", b"kept", b"second"]


def test_we_go_on_with_the_transactions_of_a_real_broker(names: Server, tmp_path: Path) -> None:
    """Halves that it has stored again at each check are one transaction, and nothing is committed twice."""
    store = tmp_path / "store"
    with broker("5.3.3", tmp_path, "ASYNC_MASTER", names.address, **FAST) as server:
        with Producer(server.address) as producer:
            producer.begin(TOPIC)
            for name in ("committed", "dropped", "left", "also"):
                producer.half(name, name.encode())
            ended: set[str] = set()
            times = 0
            while len(ended) < 2 or times < 6:
                name, fields = producer.asked()
                times += 1
                if name in ("committed", "dropped") and name not in ended:
                    producer.end(fields, COMMIT if name == "committed" else ROLLBACK)
                    ended.add(name)
            until(lambda: records(store, HALF_OP_TOPIC), timeout=20, what="its op, which comes late")
    assert bodies(store, TOPIC) == [b"committed"]
    assert len(records(store, HALF_TOPIC)) > 6
    settings = {"store": store, "nameservers": "", **SIZES, **SOON}
    with (
        Process(tmp_path, "broker", "ours", **settings) as ours,
        grpc.insecure_channel(ours.grpc) as channel,
    ):
        checked = Checked(channel, "c")
        asked = {checked.asked().transaction_id for _ in range(9)}
        assert asked - {"dropped"} == {"left", "also"}  # its op of a rollback may name an older half
        assert checked.end("left", v2.COMMIT) == checked.end("also", v2.ROLLBACK) == v2.OK
        assert checked.end("committed", v2.COMMIT) == v2.OK  # as it was
        assert checked.end("committed", v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID
        assert ours.stop() == 0
    assert bodies(store, TOPIC) == [b"committed", b"left"]
