"""What five real processes show of themselves, scraped as Prometheus would, and by Prometheus itself."""

import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.cluster.broker_api import Api
from support.cluster.processes import Cluster, Process, StartFailed
from support.systems.real_broker import free_port
from support.waiting import until
from whimbrel.client import sync
from whimbrel.client.options import ConsumerOptions
from whimbrel.model.message import Message, ReceivedMessage
from whimbrel.model.recall import RecallHandle
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
ON: dict[str, object] = {"metrics_port": 0}
SENT, TAKEN, ACKNOWLEDGED = 200, 60, 40
TOPIC, GROUP = "orders", "billing"
OF_THE_LIBRARY = ("process_", "target_info")
OF_THE_PROCESS = {"cluster", "node_type", "node_id", "role"}

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """One scrape: samples by name, and what was said about them."""

    def __init__(self, process: Process) -> None:
        with urllib.request.urlopen(f"http://{process.ready['metrics']}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        self.samples: Found = {}
        self.kinds: dict[str, str] = {}
        self.labels: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if name.startswith(OF_THE_LIBRARY) or not family.samples:
                continue
            self.kinds[name] = family.type
            for sample in family.samples:
                self.samples[sample.name, frozenset(sample.labels.items())] = sample.value
                own = set(sample.labels) - {"le"}
                # `role` is also a label of its own where a nameserver counts brokers.
                own -= OF_THE_PROCESS - (
                    {"cluster", "role"} if name == "whimbrel_nameserver_brokers" else set()
                )
                self.labels.setdefault(name, own)
                assert self.labels[name] == own, name

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the series that have these labels; -1 when there is none."""
        found = [
            value
            for (found, own), value in self.samples.items()
            if found == name and labels.items() <= dict(own).items()
        ]
        return sum(found) if found else -1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("metrics")
    with Cluster(root, broker=ON | {"flush": "sync"}, replicator=ON, nameserver=ON) as running:
        running.wait_usable()
        yield running


@pytest.fixture(scope="module")
def load(cluster: Cluster) -> Iterator[int]:
    """Send, receive, acknowledge and pull, on the master and on the slave; give the bytes that were sent."""
    with (
        sync.Admin(cluster.endpoint) as admin,
        sync.Producer(cluster.endpoint) as producer,
        sync.Consumer(
            cluster.endpoint, GROUP, [TOPIC], options=ConsumerOptions(invisible_s=600.0)
        ) as consumer,
        sync.PullConsumer(cluster.endpoint, "auditors") as reader,
        grpc.insecure_channel(cluster.slaves[0].grpc) as channel,
    ):
        admin.create_topic(TOPIC, queues=4)
        with grpc.insecure_channel(cluster.master.grpc) as master:
            end_transactions(Api(master))
            give_a_message_up(Api(master))
            send_delayed(Api(master))
            until_counted(cluster, "M", "rocketmq_messages_in_total", 1, topic="later")
            for server in (cluster.nameserver, cluster.master):
                with grpc.insecure_channel(server.grpc) as given:
                    hand_on(Api(given))
        for number in range(SENT):
            producer.send(Message(topic=TOPIC, body=b"x" * number or b"-"))
        taken: list[ReceivedMessage] = []
        while len(taken) < TAKEN:
            taken += consumer.receive(min(20, TAKEN - len(taken)), wait_s=2.0)
        assert consumer.ack_all(taken[:ACKNOWLEDGED]) == [None] * ACKNOWLEDGED
        pulled = 0
        for queue in reader.queues(TOPIC):
            pulled += len(reader.pull(queue, 0, count=5).messages)
        assert pulled == 20
        with slave_clients(Api(channel)):
            yield SENT


def end_transactions(api: Api) -> None:
    """Begin three transactions, of which one stays open."""
    kind = admin.MESSAGE_TYPE_TRANSACTION
    api.administer("CreateTopic", topic=admin.Topic(name="transfers", message_type=kind))
    for name, resolution in (("a", v2.COMMIT), ("b", v2.ROLLBACK), ("c", None)):
        sent = api.send("transfers", b"x", message_id=name, message_type=v2.TRANSACTION)
        assert sent.status.code == v2.OK, sent
        if resolution is not None:
            ended = api(
                "EndTransaction",
                topic=v2.Resource(name="transfers"), transaction_id=name, resolution=resolution,
            )  # fmt: skip
            assert ended.status.code == v2.OK, ended


def hand_on(api: Api) -> None:
    """Have calls handed on: the end of an unknown transaction, a recall at an unknown broker."""
    handle = RecallHandle(topic="later", broker_name="elsewhere", time_ms=1, message_id="m").encode()
    answer = api("RecallMessage", topic=v2.Resource(name="later"), recall_handle=handle)
    assert answer.status.code == v2.BAD_REQUEST, answer

    def unknown() -> bool:
        ended = api("EndTransaction", topic=v2.Resource(name="transfers"), transaction_id="x")
        return bool(ended.status.code == v2.INVALID_TRANSACTION_ID)

    until(unknown, what="the nameserver to know the topic")


def give_a_message_up(api: Api) -> None:
    """Have one message delivered as often as its group may get it, and received once more."""
    api.administer("CreateTopic", topic=admin.Topic(name="complaints"))
    api.administer("CreateGroup", group=admin.Group(name="deaf", max_attempts=1))
    assert api.send("complaints", b"x").status.code == v2.OK
    (handle,) = api.receive("complaints", "deaf", poll_s=5).handles
    assert api.change("complaints", "deaf", handle, 0).status.code == v2.OK
    assert api.receive("complaints", "deaf", poll_s=1).messages == []


def send_delayed(api: Api) -> None:
    """Send a message that stays undelivered, and one that is due at once."""
    api.administer("CreateTopic", topic=admin.Topic(name="later", message_type=admin.MESSAGE_TYPE_DELAY))
    for seconds in (3600, 1):
        due = Timestamp(seconds=int(time.time()) + seconds)
        sent = api.send("later", b"x", message_type=v2.DELAY, delivery_timestamp=due)
        assert sent.status.code == v2.OK, sent


class slave_clients:
    """A producer and a consumer of the slave, whose consumer pulls a little."""

    def __init__(self, api: Api) -> None:
        self.api, self.done = api, threading.Event()

    def __enter__(self) -> None:
        api = self.api
        until(lambda: api.receive(TOPIC, "readers").messages, what="the slave to have messages")
        for name, kind in (("a@1", v2.PRODUCER), ("b@1", v2.SIMPLE_CONSUMER)):
            Api(api.channel, name, x_mq_language="GO", x_mq_client_version="5.1.2")(
                "Heartbeat", client_type=kind, group=v2.Resource(name="readers")
            )
        self.stream = api.telemetry(self.commands())

    def commands(self) -> Iterator[Any]:
        """Say nothing until the end."""
        self.done.wait()
        yield from ()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.stream.cancel()


WHILE_THE_DISK_FILLS = "whimbrel_disk_limit_seconds"  # not while others on this machine make room on it


def documented() -> dict[str, dict[str, tuple[str, set[str]]]]:
    """Return the table of docs/metrics.md: kind and labels by place and name."""
    found: dict[str, dict[str, tuple[str, set[str]]]] = {place: {} for place in ("M", "S", "RM", "RS", "N")}
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            name, kind, labels, where, _ = cells
            for place in where.replace("B", "M S").split():
                assert name not in found[place], name
                found[place][name.strip("`")] = (kind, set(filter(None, labels.split(", "))))
    return found


def by_place(cluster: Cluster) -> dict[str, Process]:
    return {
        "N": cluster.nameserver,
        "M": cluster.master,
        "S": cluster.slaves[0],
        "RM": cluster.master_replicator,
        "RS": cluster.slave_replicators[0],
    }


def until_counted(cluster: Cluster, place: str, name: str, wanted: float, **labels: str) -> None:
    process = by_place(cluster)[place]
    until(
        lambda: Scrape(process).sum(name, **labels) == wanted,
        timeout=15,
        what=f"{name} of {process.name} to be {wanted}",
    )


@pytest.mark.parametrize("place", ["N", "M", "S", "RM", "RS"])
def test_processes_show_what_the_documentation_lists(cluster: Cluster, load: int, place: str) -> None:
    until_counted(
        cluster, "S", "rocketmq_consumer_inflight_messages", TAKEN - ACKNOWLEDGED, consumer_group=GROUP
    )
    process, wanted = by_place(cluster)[place], documented()[place]
    wanted_always = wanted.keys() - {WHILE_THE_DISK_FILLS}
    until(lambda: wanted_always <= Scrape(process).kinds.keys(), timeout=30, what="all names to be there")
    scrape = Scrape(process)
    shown = {name: (kind, scrape.labels[name]) for name, kind in scrape.kinds.items()}
    if WHILE_THE_DISK_FILLS not in shown:
        wanted.pop(WHILE_THE_DISK_FILLS, None)
    assert shown == wanted


def test_counts_are_what_was_sent_and_taken(cluster: Cluster, load: int) -> None:
    scrape = Scrape(cluster.master)
    assert scrape.sum("rocketmq_messages_in_total", topic=TOPIC) == SENT
    assert scrape.sum("whimbrel_append_records_total") == scrape.sum("rocketmq_messages_in_total")
    assert scrape.sum("rocketmq_message_size_count", topic=TOPIC) == SENT
    assert scrape.sum("rocketmq_throughput_in_total") == scrape.sum("whimbrel_append_bytes_total")
    size = scrape.sum("rocketmq_throughput_in_total", topic=TOPIC)
    assert size == scrape.sum("rocketmq_message_size_sum", topic=TOPIC)
    assert size > SENT * 91
    assert scrape.sum("rocketmq_messages_out_total", topic=TOPIC, consumer_group=GROUP) == TAKEN
    assert scrape.sum("rocketmq_messages_out_total", consumer_group="auditors") == 20
    assert scrape.sum("rocketmq_consumer_lag_messages", consumer_group=GROUP) == SENT - ACKNOWLEDGED
    assert scrape.sum("whimbrel_consumer_queue_lag_messages", consumer_group=GROUP) == SENT - ACKNOWLEDGED
    assert scrape.sum("rocketmq_consumer_inflight_messages", consumer_group=GROUP) == TAKEN - ACKNOWLEDGED
    assert scrape.sum("rocketmq_consumer_ready_messages", consumer_group=GROUP) == SENT - TAKEN
    latency = "rocketmq_rpc_latency_milliseconds_count"
    assert scrape.sum(latency, request_code="SendMessage", response_code="OK") >= SENT
    assert scrape.sum("rocketmq_broker_permission", role="master") == 6
    for name in ("half_messages", "commit_messages_total", "rollback_messages_total"):
        assert scrape.sum(f"rocketmq_{name}", topic="transfers") == 1
    assert scrape.sum("rocketmq_finish_message_latency_milliseconds_count", topic="transfers") == 2
    assert scrape.sum("whimbrel_flush_seconds_count") > 0
    forwarded = "whimbrel_forward_seconds_count"
    assert scrape.sum(forwarded, request_code="RecallMessage", hop="nameserver", result="answered") == 1
    nameserver = Scrape(cluster.nameserver)
    assert nameserver.sum(forwarded, request_code="EndTransaction", hop="holder", result="answered") == 1
    assert scrape.sum("whimbrel_sends_parked") == 0
    assert Scrape(cluster.slaves[0]).sum("rocketmq_broker_permission", role="slave") == 4


def test_slave_acknowledges_everything_and_takes_the_same_bytes(cluster: Cluster, load: int) -> None:
    until_counted(cluster, "RM", "whimbrel_replication_lag_bytes", 0)
    until_counted(cluster, "RM", "whimbrel_replication_lag_seconds", 0)
    until_counted(cluster, "M", "whimbrel_replication_in_sync_slaves", 1)
    until_counted(cluster, "S", "rocketmq_storage_dispatch_behind_bytes", 0)
    appended = Scrape(cluster.master).sum("whimbrel_append_bytes_total")
    assert Scrape(cluster.slave_replicators[0]).sum("whimbrel_append_bytes_total") == appended
    feeder = Scrape(cluster.master_replicator)
    assert feeder.sum("whimbrel_replication_sent_bytes_total") > appended
    assert feeder.sum("whimbrel_replication_ack_latency_seconds_count") > 0
    assert feeder.sum("whimbrel_replication_slaves") == 1
    names = Scrape(cluster.nameserver)
    assert names.sum("whimbrel_nameserver_brokers", role="master") == 1
    assert names.sum("whimbrel_nameserver_brokers", role="slave") == 1


def test_error_answers_count_by_their_code(cluster: Cluster, load: int) -> None:
    stored = Scrape(cluster.master).sum("rocketmq_messages_in_total")
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        assert Api(channel).send(TOPIC, b"").status.code == v2.MESSAGE_BODY_EMPTY
    scrape = Scrape(cluster.master)
    latency = "rocketmq_rpc_latency_milliseconds_count"
    assert scrape.sum(latency, request_code="SendMessage", response_code="MESSAGE_BODY_EMPTY") == 1
    assert scrape.sum("rocketmq_messages_in_total") == stored


def test_long_poll_is_held_and_then_counts_apart(cluster: Cluster, load: int) -> None:
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        api.send("empty-so-far", b"1")
        assert api.receive("empty-so-far", "waiters").messages
        poll = threading.Thread(target=lambda: api.receive("empty-so-far", "waiters", poll_s=1.5))
        poll.start()
        until_counted(cluster, "M", "whimbrel_long_polls_held", 1)
        poll.join()
    until_counted(cluster, "M", "whimbrel_long_polls_held", 0)
    name = "rocketmq_rpc_latency_milliseconds_sum"
    waited = Scrape(cluster.master).sum(name, is_long_polling="true", response_code="MESSAGE_NOT_FOUND")
    assert waited > 1000


def test_slave_that_hangs_is_seen_to_lag_and_to_catch_up(cluster: Cluster, load: int) -> None:
    slave = cluster.slave_replicators[0]
    until_counted(cluster, "RM", "whimbrel_replication_lag_bytes", 0)
    slave.signal(signal.SIGSTOP)
    try:
        with sync.Producer(cluster.endpoint) as producer:
            producer.send(Message(topic="lagging", body=b"x" * 1000))
        until(lambda: Scrape(cluster.master_replicator).sum("whimbrel_replication_lag_bytes") > 1000)
        until(lambda: Scrape(cluster.master_replicator).sum("whimbrel_replication_lag_seconds") > 0.3)
    finally:
        slave.signal(signal.SIGCONT)
    until_counted(cluster, "RM", "whimbrel_replication_lag_bytes", 0)
    until_counted(cluster, "RM", "whimbrel_replication_lag_seconds", 0)


@pytest.mark.parametrize("place", ["N", "M", "RM"])
def test_taken_metrics_port_ends_the_start_with_its_address(
    cluster: Cluster, load: int, place: str, tmp_path: Path
) -> None:
    model = by_place(cluster)[place]
    taken = str(model.ready["metrics"])
    settings = model.settings | {"metrics_port": int(taken.rpartition(":")[2]), "port": 0}
    if "store" in settings:
        settings["store"] = tmp_path / "store"
    second = Process(tmp_path, model.kind, "second", **settings)
    with pytest.raises(StartFailed, match=f"can't serve metrics on {taken}"):
        second.start()
    assert second.code == 1


# Prometheus itself


class Prometheus:
    """Debian's Prometheus with our configuration, pointed at these processes."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        shutil.copy(OBSERVABILITY / "alerts.yaml", root)
        text = (OBSERVABILITY / "prometheus.yaml").read_text(encoding="utf-8")
        services = {
            "nameserver:9464": "N",
            "broker-master:9464": "M",
            "broker-slave:9464": "S",
            "replicator-master:9464": "RM",
            "replicator-slave:9464": "RS",
        }
        for service, place in services.items():
            text, count = re.subn(rf"(?<=- ){service}", str(by_place(cluster)[place].ready["metrics"]), text)
            assert count == 1, service
        # So that the test need not wait: two scrapes make a rate.
        text = re.sub(r"_(interval|timeout): \d+s", r"_\1: 1s", text)
        (root / "prometheus.yaml").write_text(text, encoding="utf-8")
        self.address = f"127.0.0.1:{free_port()}"
        self.log = root / "prometheus.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={root / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={root / 'tsdb'}",
                    f"--web.listen-address={self.address}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **query: str) -> Any:
        """Ask its HTTP interface."""
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is still starting
                return None
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            assert self.child.poll() is None, self.log.read_text()
            return None

    def query(self, text: str) -> list[Any]:
        """Return the series of an instant query."""
        found = self.get("/api/v1/query", query=text)
        return [] if found is None else list(found["result"])

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait()


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, load: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    need_prometheus()
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), cluster)
    yield running
    running.close()


def need_prometheus() -> None:
    missing = [tool for tool in ("prometheus", "promtool") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found on this machine: apt install prometheus")


@pytest.fixture
def traffic(cluster: Cluster, load: int) -> Iterator[None]:
    """Keep messages flowing, so that rates are above 0."""
    done = threading.Event()

    def run() -> None:
        with (
            sync.Producer(cluster.endpoint) as producer,
            sync.Consumer(cluster.endpoint, "flow", ["flow"]) as consumer,
        ):
            while not done.wait(0.02):
                producer.send(Message(topic="flow", body=b"flow"))
                consumer.ack_all(consumer.receive(wait_s=0.0))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    done.set()
    thread.join()


def expressions() -> list[tuple[str, str]]:
    """Return (panel, expression) of the dashboard, as Grafana would send them."""
    dashboard = json.loads((OBSERVABILITY / "grafana" / "dashboards" / "whimbrel.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "10s"))
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def alerts() -> dict[str, str]:
    """Return the alerts' expressions by name; the file is flat enough for that without a parser."""
    text = (OBSERVABILITY / "alerts.yaml").read_text(encoding="utf-8")
    return dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text))


def test_configuration_and_alerts_pass_promtool() -> None:
    need_prometheus()
    for what, name in (("config", "prometheus.yaml"), ("rules", "alerts.yaml")):
        done = subprocess.run(
            ["promtool", "check", what, OBSERVABILITY / name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(alerts()) == 13


def test_prometheus_scrapes_all_five_and_every_query_of_the_dashboard_gives_a_series(
    prometheus: Prometheus, traffic: None, measured: Callable[[str], None]
) -> None:
    begun = time.monotonic()
    until(lambda: len(prometheus.query("up == 1")) == 5, timeout=20, what="all five to be scraped")
    left = dict.fromkeys(expressions())
    assert len(left) > 30

    def asked() -> bool:
        for panel, text in list(left):
            found = prometheus.query(text)
            if found and all(series["value"][1] != "NaN" for series in found):
                del left[panel, text]
        return not left

    try:
        until(asked, timeout=20)
    except AssertionError:
        raise AssertionError(f"without a series: {list(left)}") from None
    measured(f"{len(expressions())} queries of the dashboard, {time.monotonic() - begun:.1f} s")


def test_no_alert_is_raised_while_all_is_well_and_a_dead_slave_raises_some(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    until(lambda: len(prometheus.query("up == 1")) == 5, timeout=20, what="all five to be scraped")
    raised = {name for name, text in alerts().items() if prometheus.query(text)}
    assert raised == set()
    slave = cluster.slave_replicators[0]
    slave.kill()
    wanted = {"ProcessDown", "SlaveMissing", "ReplicatorDead"}
    until(
        lambda: wanted <= {name for name, text in alerts().items() if prometheus.query(text)},
        timeout=15,
        what=f"{wanted} to be raised",
    )
    slave.settings["metrics_port"] = int(str(slave.ready["metrics"]).rpartition(":")[2])
    slave.start()
    until(
        lambda: not any(prometheus.query(text) for text in alerts().values()),
        timeout=15,
        what="the alerts to end",
    )
