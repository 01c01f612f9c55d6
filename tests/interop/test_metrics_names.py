"""Our names and labels of RocketMQ's metrics beside those that a real 5.3.3 broker shows.

It is sent what makes each of its metrics appear: messages that are taken by pulls and by POP, delayed ones
that wait and one that is due, transactions of every end, and one that its group gives up. It has all names
that we call RocketMQ's.
"""

import json
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.systems.real_broker import Remoting, broker, free_port, name_server
from support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
SEND, HEART_BEAT, SEND_BACK, END_TRANSACTION, POP = 10, 34, 36, 37, 200_050
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
TO_DEAD_LETTERS = -1  # a delay level
OF_THE_PROCESS = {"cluster", "node_type", "node_id"}
THEIRS_ONLY = {  # and why
    "rocketmq_consumer_lag_latency_milliseconds": "would read the log at each scrape",
    "rocketmq_consumer_queueing_latency_milliseconds": "would read the log at each scrape",
    "rocketmq_processor_watermark": "of the queues before its thread pools: there are none here",
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "of the buffer of its POP: leases need none",
    "rocketmq_pop_checkpoint_buffer_size": "as above",
    "rocketmq_pop_offset_buffer_size": "as above",
    "rocketmq_pop_revive_in_message_total": "as above",
    "rocketmq_pop_revive_lag_milliseconds": "as above",
    "rocketmq_pop_revive_latency_milliseconds": "as above",
}


class Client(Remoting):
    """A producer and consumer of the topic and the group."""

    def store(self, name: str, pairs: dict[str, str], *, flags: int = 0) -> dict[str, str]:
        """Send a message with properties, and return the fields of the answer."""
        fields = {
            "producerGroup": "p", "topic": "M", "queueId": "0", "sysFlag": str(flags),
            "bornTimestamp": str(time.time_ns() // 1_000_000), "flag": "0", "reconsumeTimes": "0",
            "properties": f"UNIQ_KEY\x01{name}\x02" + "".join(f"{key}\x01{pairs[key]}\x02" for key in pairs),
            "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        return self.ask(SEND, fields, name.encode())

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        """Return the fields of the answer to a request that is granted."""
        header, _ = self.call(code, fields, body)
        assert header["code"] == 0, header
        answered: dict[str, str] = header.get("extFields") or {}
        return answered

    def later(self, name: str, delay_s: int) -> None:
        """Send a delayed message."""
        self.store(name, {"TIMER_DELIVER_MS": str(int(time.time() + delay_s) * 1000)})

    def transaction(self, name: str, decision: int) -> None:
        """Begin a transaction, and end it where there is a decision."""
        sent = self.store(name, {"TRAN_MSG": "true", "PGROUP": "p"}, flags=PREPARED)
        if decision:
            fields = {
                "producerGroup": "p", "tranStateTableOffset": sent["queueOffset"],
                "commitLogOffset": str(place_of(sent["msgId"])), "commitOrRollback": str(decision),
                "fromTransactionCheck": "false", "msgId": name, "transactionId": name,
            }  # fmt: skip
            self.ask(END_TRANSACTION, fields)

    def give_up(self, message_id: str) -> None:
        """Have the group give a message up."""
        fields = {
            "offset": str(place_of(message_id)), "group": "g", "delayLevel": str(TO_DEAD_LETTERS),
            "originMsgId": message_id, "originTopic": "M", "unitMode": "false", "maxReconsumeTimes": "16",
        }  # fmt: skip
        self.ask(SEND_BACK, fields)

    def pop(self) -> None:
        """Receive as clients of version 5 do."""
        fields = {
            "consumerGroup": "popping", "topic": "M", "queueId": "-1", "maxMsgNums": "8",
            "invisibleTime": "60000", "pollTime": "0", "initMode": "0", "expType": "TAG",
            "bornTime": str(time.time_ns() // 1_000_000), "exp": "*", "order": "false",
        }  # fmt: skip
        self.ask(POP, fields)


def place_of(message_id: str) -> int:
    """Return the physical offset in a message id: address, port, offset, in hex."""
    return int(message_id[-16:], 16)


def ours() -> dict[str, set[str]]:
    """Return labels by name of what docs/metrics.md calls RocketMQ's; another test holds us to that table."""
    found = {}
    for line in DOCUMENTED.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`rocketmq_"):
            found[cells[0].strip("`")] = set(filter(None, cells[2].split(", ")))
    return found


def theirs(port: int) -> dict[str, set[str]]:
    """Return labels by name of what RocketMQ shows.

    Its headers leave out units, and its counters carry `_total`: the samples say what there is.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if not name.startswith("rocketmq_"):
                continue
            for suffix in ("_bucket", "_count", "_sum"):
                name = name.removesuffix(suffix)
            labels = set(sample.labels) - {"otel_scope_name", "le"}
            found.setdefault(name, set()).update(labels)
    return found


def test_names_and_labels_are_those_of_a_real_broker(tmp_path: Path) -> None:
    port = free_port()
    with name_server("5.3.3", tmp_path / "ns") as names:
        with (
            broker(
                "5.3.3",
                tmp_path / "b",
                "ASYNC_MASTER",
                names.address,
                metricsExporterType="PROM",
                metricsPromExporterHost="127.0.0.1",
                metricsPromExporterPort=port,
            ) as server,
            Client(server.address) as client,
        ):
            for number in range(4):
                client.send("M", b"x", queue_id=number)
            client.ask(HEART_BEAT, {}, json.dumps(heartbeat("M", "g")).encode())
            assert client.pull("g", "M", 0, 0)
            client.pop()
            client.later("waits", 3600)
            client.later("due", 2)
            client.transaction("undecided", 0)
            client.transaction("committed", COMMIT)
            client.transaction("rolled back", ROLLBACK)
            client.give_up(client.store("dead", {})["msgId"])
            expected = {name: labels | OF_THE_PROCESS for name, labels in ours().items()}
            assert len(expected) >= 31
            there = expected.keys() | THEIRS_ONLY.keys()
            until(lambda: there <= theirs(port).keys(), timeout=60, what="all names to be there")
            found = theirs(port)
    assert found.keys() - expected.keys() == THEIRS_ONLY.keys()
    assert {name: found[name] for name in expected} == expected


def heartbeat(topic: str, group: str) -> dict[str, object]:
    """Return the body with which a client says that it is a producer and a consumer."""
    subscription = {"topic": topic, "subString": "*", "subVersion": 0, "tagsSet": [], "codeSet": []}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription | {"expressionType": "TAG"}],
        "unitMode": False,
    }
    return {"clientID": "c@1", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}
