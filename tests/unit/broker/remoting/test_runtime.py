"""What tools show of the broker itself, and the settings that they may change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remoting.tables import Broker
from support.store.stores import NOW
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.remoting.runtime import DiskState, RemotingRuntime
from whimbrel.broker.remoting.traffic import GOT, PUT
from whimbrel.metrics import Histogram
from whimbrel.model.names import TEMPLATE_TOPIC
from whimbrel.model.replication import ReplicationView, SlaveView
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.store.retention import DiskUse

# What mqadmin's clusterList of 4.9.3 and of 5.3.3 reads, and the Dashboard.
CLUSTER_LIST = (
    "brokerVersionDesc putTps getTransferedTps getTransferredTps getTotalTps sendThreadPoolQueueSize"
    " pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills"
    " pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio brokerActive bootTimestamp"
    " msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning"
    " msgGetTotalTodayMorning msgGetTotalTodayNow timerReadBehind timerOffsetBehind timerCongestNum"
    " timerEnqueueTps timerDequeueTps"
).split()


class Rig(Broker):
    def __init__(self, root: Path, *, master: bool = True) -> None:
        super().__init__(root, master=master)
        self.send_times: Histogram | None = None
        self.sends_failed = 0
        self.hours = 72.0
        self.slaves: tuple[SlaveView, ...] = ()
        self.service = RemotingRuntime(
            TableChanges(self.topics, self.groups, self.consumption, self.store, master=master),
            self.traffic,
            BrokerOptions(store=str(root / "secret"), nameservers=("10.0.0.9:8081",)),
            replication=self.replication,
            disk=lambda: DiskState(DiskUse(0.25), 4 << 30, 3 << 30),
            wall_ms=lambda: NOW + 3_723_000,
            started_ms=NOW,
            port=lambda: 8081,
            send_times=lambda: (self.send_times, self.sends_failed),
            levels=lambda: {3: (7, 9)},
            keep_hours=self.keep_hours,
        )
        self.handles = self.service.handles()

    def keep_hours(self, hours: float | None) -> float:
        self.hours = self.hours if hours is None else hours
        return self.hours

    def replication(self) -> ReplicationView:
        return ReplicationView(
            broker_name="broker-a",
            broker_id=0,
            role="MASTER",
            log_begin=0,
            log_end=1000,
            flushed=1000,
            confirmed=1000,
            dispatched=1000,
            replicator_alive=True,
            ha_address="10.0.0.1:10912",
            slaves=self.slaves,
            connected=False,
            writable=True,
            advice="",
            replication="ASYNC",
            flush="ASYNC",
        )

    def change(self, text: str) -> Reply:
        return self(25, text.encode())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_6_1_48_cluster_list_finds_what_it_reads(rig: Rig) -> None:
    table = rig.json(28)["table"]
    assert set(CLUSTER_LIST) <= set(table)
    assert all(isinstance(value, str) for value in table.values())
    for name in ("putTps", "getTransferedTps", "getTotalTps"):
        assert len([float(number) for number in table[name].split(" ")]) == 3
    assert table["brokerVersionDesc"] == "V4_9_3" and table["brokerActive"] == "true"
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["commitLogDiskRatio"] == "0.2500"
    assert table["commitLogDirCapacity"] == "Total : 4.0 GiB, Free : 3.0 GiB."
    assert table["runtime"] == "[ 0 days, 1 hours, 2 minutes, 3 seconds ]"


def test_rates_and_totals(rig: Rig) -> None:
    rig.topic()
    rig.put(3)
    for number in range(3):
        counts = {(PUT, "T"): 50 * number, (GOT, "T@G"): 10 * number}
        rig.traffic.sample(counts, 10.0 * number, day=number // 2, log_end=5000 * number)
        rig.traffic.pulled(found=True)
        rig.traffic.pulled(found=number == 2)
    table = rig.json(28)["table"]
    assert table["putTps"] == "5.00 5.00 5.00" and table["getTransferedTps"] == "1.00 1.00 1.00"
    assert (table["getFoundTps"], table["getMissTps"]) == ("0.10 0.10 0.10", "0.10 0.10 0.10")
    assert table["getTotalTps"] == "0.20 0.20 0.20"
    assert (table["putMessageSizeTotal"], table["putMessageAverageSize"]) == ("10000", "100.0")
    assert table["scheduleMessageOffset_3"] == "7,9"
    assert (table["msgPutTotalTodayMorning"], table["msgPutTotalTodayNow"]) == ("50", "100")
    assert table["earliestMessageTimeStamp"] == str(NOW)
    assert table["commitLogMaxOffset"] == str(rig.store.written)


def test_messages_of_a_topic_and_of_a_group(rig: Rig) -> None:
    for number in range(7):
        counts = {(PUT, "T"): 60 * number, (GOT, "T@G"): 6 * number}
        rig.traffic.sample(counts, 10.0 * number, day=0, log_end=6000 * number)
    topic = rig.json(315, statsName="TOPIC_PUT_NUMS", statsKey="T")
    assert topic["statsMinute"] == {"avgpt": 0.0, "sum": 360, "tps": 6.0}
    assert topic["statsHour"] == topic["statsDay"] == topic["statsMinute"]
    assert rig.json(315, statsName="GROUP_GET_NUMS", statsKey="T@G")["statsMinute"]["sum"] == 36
    assert rig(315, statsName="TOPIC_PUT_NUMS", statsKey="U").code == 1
    assert rig(315, statsName="TOPIC_PUT_AVG", statsKey="T").code == 1
    assert rig.json(315, statsName="TOPIC_PUT_SIZE", statsKey="T")["statsMinute"]["sum"] == 36_000
    assert rig.json(315, statsName="BROKER_PUT_NUMS", statsKey="DefaultCluster")["statsMinute"]["sum"] == 360


def test_times_of_sends_stand_in_rocketmqs_buckets(rig: Rig) -> None:
    """As its exporter takes them apart: names in brackets, numbers behind them."""
    names = (
        "<=0ms 0~10ms 10~50ms 50~100ms 100~200ms 200~500ms 500ms~1s 1~2s 2~3s 3~4s 4~5s 5~10s 10s~".split()
    )

    def shown() -> dict[str, int]:
        text = rig.json(28)["table"]["putMessageDistributeTime"]
        pairs = [pair[1:].split("]:") for pair in text.split(" ") if pair]
        return {name: int(count) for name, count in pairs}

    assert shown() == dict.fromkeys(names, 0)
    rig.send_times = Histogram((0.1, 1.0, 3.0, 10.0, 100.0, 3000.0))
    for milliseconds in (0.05, 0.5, 2, 2, 9, 50, 2500, 9000):
        rig.send_times.observe(milliseconds)
    counts = {"<=0ms": 2, "0~10ms": 3, "50~100ms": 1, "2~3s": 1, "10s~": 1}
    assert shown() == dict.fromkeys(names, 0) | counts
    rig.sends_failed = 3
    table = rig.json(28)["table"]
    assert table["putLatency99"] == "3000.00" and table["putMessageFailedTimes"] == "3"


def properties(reply: Reply) -> dict[str, str]:
    lines = b"".join(reply.body).decode().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_settings_are_shown_without_paths(rig: Rig) -> None:
    reply = rig(26)
    found = properties(reply)
    assert found["brokerName"] == "broker-a" and found["listenPort"] == "8081"
    assert found["brokerPermission"] == "6" and found["fileReservedTime"] == "72"
    assert "secret" not in b"".join(reply.body).decode()
    assert set(reply.fields) == {"version"} and "counter" in reply.fields["version"]


def test_three_settings_may_be_changed(rig: Rig) -> None:
    rig.topic()
    assert rig.change("#x\nfileReservedTime = 48\nbrokerPermission=4\nautoCreateTopicEnable=true\n").code == 0
    found = properties(rig(26))
    assert rig.hours == 48
    assert (found["brokerPermission"], found["autoCreateTopicEnable"]) == ("4", "true")
    topic, template = rig.topics.get("T"), rig.topics.get(TEMPLATE_TOPIC)
    assert topic is not None and not topic.writable
    assert template is not None and template.permission & 1
    assert rig.change("brokerPermission=6\nautoCreateTopicEnable=false").code == 0
    topic, template = rig.topics.get("T"), rig.topics.get(TEMPLATE_TOPIC)
    assert topic is not None and topic.writable
    assert template is not None and not template.permission & 1
    assert rig.topics.would_create("new") is None


@pytest.mark.parametrize(
    "text",
    [
        "fileReservedTime=48\nrocketmqHome=/tmp",
        "filterServerNums=1",
        "configStorePath=/etc/passwd",
        "fileReservedTime=0",
        "fileReservedTime=1e9",
        "fileReservedTime=99999999",
        "fileReservedTime=-5",
        "fileReservedTime=0000000019",
        "fileReservedTime=000000001" + "9" * 5000,
        "brokerPermission=2",
        "autoCreateTopicEnable=yes",
        "fileReservedTime",
        "",
        "#",
        "x" * (64 * 1024 + 1),
    ],
)
def test_6_1_52_another_setting_is_refused_and_nothing_changes(rig: Rig, text: str) -> None:
    before = properties(rig(26))
    assert rig.change(text).code == 1
    assert properties(rig(26)) == before and rig.hours == 72


def test_a_slave_changes_no_setting(tmp_path: Path) -> None:
    rig = Rig(tmp_path, master=False)
    assert rig.change("fileReservedTime=48").code == 14
    assert properties(rig(26))["brokerRole"] == "SLAVE"
    rig.close()


def test_replication(rig: Rig) -> None:
    rig.slaves = (
        SlaveView(
            peer="10.0.0.2:7",
            acknowledged=900,
            sent=950,
            sent_bytes=1,
            connected_at_ms=1,
            broker_id=1,
            uncounted=False,
        ),
    )
    found = rig.json(907)
    assert found["master"] is True and found["masterCommitLogMaxOffset"] == 1000
    assert found["haConnectionInfo"] == [
        {
            "addr": "10.0.0.2:7",
            "diff": 100,
            "inSync": False,
            "slaveAckOffset": 900,
            "transferFromWhere": 950,
            "transferredByteInSecond": 0,
        }
    ]
    assert found["inSyncSlaveNums"] == 0


@pytest.mark.parametrize("code", [306, 316, 329])
def test_what_is_done_by_itself_is_answered_with_0(rig: Rig, code: int) -> None:
    assert rig(code).code == 0
