"""Our names and labels of RocketMQ's metrics beside those that a real 5.3.3 broker shows."""

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from processes import until
from realbroker import Remoting, broker, free_port, name_server

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
HEART_BEAT = 34
OF_THE_PROCESS = {"cluster", "node_type", "node_id"}


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
            for suffix in ("_bucket", "_count", "_sum"):
                name = name.removesuffix(suffix)
            labels = set(sample.labels) - {"otel_scope_name", "le"}
            assert labels >= OF_THE_PROCESS or not name.startswith("rocketmq_"), name
            found.setdefault(name, set()).update(labels - OF_THE_PROCESS)
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
            Remoting(server.address) as client,
        ):
            for number in range(4):
                client.send("M", b"x", queue_id=number)
            header, _ = client.call(HEART_BEAT, {}, json.dumps(heartbeat("M", "g")).encode())
            assert header["code"] == 0, header
            assert client.pull("g", "M", 0, 0)
            wanted = ours()
            assert len(wanted) == 18
            until(lambda: wanted.keys() <= theirs(port).keys(), timeout=30, what="all names to be there")
            found = theirs(port)
    for name in ("rocketmq_messages_out_total", "rocketmq_throughput_out_total"):
        wanted[name].remove("is_retry")  # which it adds for receives (POP), as we do, and not for pulls
    assert {name: found[name] for name in wanted} == wanted


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
