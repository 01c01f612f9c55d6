"""Requests about the broker itself: what `clusterList`, `brokerStatus`, `haStatus` and the Dashboard show.

    28   GET_BROKER_RUNTIME_INFO       texts by name: rates, totals, the log, the disk
    315  VIEW_BROKER_STATS_DATA        what `traffic.py` knows by a name and key; 1 where that is nothing
    26   GET_BROKER_CONFIG             settings as properties under RocketMQ's names; no path of this machine
    25   UPDATE_BROKER_CONFIG          three of them may be changed, until the role or the process ends
    907  GET_BROKER_HA_STATUS (5.x)    replication, as this broker sees it
    306  CLEAN_EXPIRED_CONSUMEQUEUE    0: it is done by itself
    316  CLEAN_UNUSED_TOPIC            0 likewise
    329  DELETE_EXPIRED_COMMITLOG      0 likewise

In RocketMQ 25 sets any of some hundred settings, with which a stranger had programs run and files written.
Here it takes

    fileReservedTime         hours that log files are kept
    brokerPermission         4 drains the broker: it takes no messages; 6 ends that
    autoCreateTopicEnable    whether sends make topics

and nothing changes where a request names another one. Some keys of 28 tools want as numbers, though nothing
here corresponds to them: queues of requests, locks of a page cache. They are 0. Times of sends
(`putMessageDistributeTime`) are known where metrics are on, since the start, as RocketMQ's buckets hold the
upper bounds of those of the metric. Left out is what has a path of this machine in its name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.remoting.traffic import Traffic, View
from whimbrel.errors import BadRequest
from whimbrel.metrics import Histogram
from whimbrel.model.names import TRACE_TOPIC
from whimbrel.model.replication import ReplicationView
from whimbrel.model.topic import READ, WRITE
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import VERSION, Command
from whimbrel.rpc.remoting.fastjson import dump_body
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply
from whimbrel.store.retention import DiskUse

__all__ = ["DiskState", "RemotingRuntime", "parse_properties"]

PROPERTIES_BYTES_MAX = 64 * 1024
HOURS_MAX = 24 * 366 * 10  # of fileReservedTime
HOURS_DIGITS_MAX = len(str(HOURS_MAX))
UNKNOWN = "0"
# What nothing here corresponds to.
POOLS = ("send", "pull", "query", "litePull", "ack")
ZEROES = (
    *(f"{pool}ThreadPoolQueueSize" for pool in POOLS),
    *(f"{pool}ThreadPoolQueueCapacity" for pool in POOLS),
    *(f"{pool}ThreadPoolQueueHeadWaitTimeMills" for pool in POOLS),
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity",
    "EndTransactionThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills",
    "dispatchMaxBuffer", "remainTransientStoreBufferNumbs", "putMessageEntireTimeMax",
    "getMessageEntireTimeMax", "timerReadBehind", "timerOffsetBehind", "timerCongestNum",
    "startAcceptSendRequestTimeStamp",
)  # fmt: skip


# Times of sends, in ms: what RocketMQ calls each bucket, and its end.
PUT_TIMES = (
    ("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200), ("200~500ms", 500),
    ("500ms~1s", 1000), ("1~2s", 2000), ("2~3s", 3000), ("3~4s", 4000), ("4~5s", 5000), ("5~10s", 10_000),
    ("10s~", float("inf")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiskState:
    """The file system of the store.

    Attributes:
        use: how full it is.
        total, free: its size, and what ordinary processes may still use, in bytes.
    """

    use: DiskUse
    total: int
    free: int


class RemotingRuntime:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self,
        changes: TableChanges,
        traffic: Traffic,
        options: BrokerOptions,
        *,
        replication: Callable[[], ReplicationView],
        disk: Callable[[], DiskState],
        wall_ms: Callable[[], int],
        started_ms: int,
        port: Callable[[], int],
        send_times: Callable[[], tuple[Histogram | None, int]],
        levels: Callable[[], Mapping[int, tuple[int, int]]],
        keep_hours: Callable[[float | None], float],
    ) -> None:
        """Take what is shown.

        Args:
            changes: the tables, the store, and what changes the tables.
            traffic: rates and totals.
            options: the broker's settings.
            replication: returns the state of replication.
            disk: measures the disk.
            wall_ms: the clock, in epoch milliseconds.
            started_ms: when the process began.
            port: returns where this broker listens.
            send_times: returns how long sends took, in ms, and how many failed, where that is known.
            levels: returns the position and the end of each delay level with messages, by level.
            keep_hours: returns for how long log files are kept, after setting it where one is given.
        """
        self.changes, self.topics, self.store = changes, changes.topics, changes.store
        self.traffic, self.options = traffic, options
        self.replication, self.disk, self.wall_ms = replication, disk, wall_ms
        self.started_ms, self.port, self.keep_hours = started_ms, port, keep_hours
        self.send_times, self.levels = send_times, levels

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.show,
            RequestCode.VIEW_BROKER_STATS_DATA: self.show_stats,
            RequestCode.GET_BROKER_CONFIG: self.show_settings,
            RequestCode.UPDATE_BROKER_CONFIG: self.change_settings,
            RequestCode.GET_BROKER_HA_STATUS: self.show_replication,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.nothing,
            RequestCode.CLEAN_UNUSED_TOPIC: self.nothing,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.nothing,
        }

    def nothing(self, peer: Peer, request: Command) -> Reply:
        """Answer that it is done."""
        return Reply()

    # 28

    def show(self, peer: Peer, request: Command) -> Reply:
        """Show rates, totals, the log and the disk."""
        table = {
            **dict.fromkeys(ZEROES, UNKNOWN),
            **self.rates(),
            **self.totals(),
            **self.log(),
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": "V4_9_3",
            "brokerActive": "true" if self.replication().writable else "false",
            "bootTimestamp": str(self.started_ms),
            "runtime": since(self.wall_ms() - self.started_ms),
        }
        return Reply(body=[dump_body({"table": table})])

    def rates(self) -> Mapping[str, str]:
        """Return messages by the second, and pulls (found, missed, all), over 10, 60 and 600 s."""
        rates = self.traffic.rates()
        put, got, found, missed, total = (
            " ".join(f"{number:.2f}" for number in numbers)
            for numbers in (*zip(*rates, strict=True), [found + missed for _, _, found, missed in rates])
        )
        return {
            "putTps": put,
            "getTransferedTps": got,
            "getTransferredTps": got,
            "getTotalTps": total,
            "getFoundTps": found,
            "getMissTps": missed,
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }

    def totals(self) -> Mapping[str, str]:
        """Return messages since the start, and as they were at the last two midnights."""
        traffic = self.traffic
        times, failed = self.send_times()
        return {
            "putMessageTimesTotal": str(traffic.put),
            "putMessageSizeTotal": str(traffic.put_size),
            "putMessageAverageSize": str(traffic.put_size / traffic.put if traffic.put else 0.0),
            "putMessageFailedTimes": str(failed),
            "putMessageDistributeTime": distribution(times),
            "putLatency99": f"{0.0 if times is None else quantile(times, 0.99):.2f}",
            "putLatency999": f"{0.0 if times is None else quantile(times, 0.999):.2f}",
            "msgPutTotalYesterdayMorning": str(traffic.put_at_midnight[0]),
            "msgPutTotalTodayMorning": str(traffic.put_at_midnight[1]),
            "msgPutTotalTodayNow": str(traffic.put),
            "msgGetTotalYesterdayMorning": str(traffic.got_at_midnight[0]),
            "msgGetTotalTodayMorning": str(traffic.got_at_midnight[1]),
            "msgGetTotalTodayNow": str(traffic.got),
        }

    def log(self) -> Mapping[str, str]:
        """Return how far the log goes, and how full its disk is."""
        store, disk = self.store, self.disk()
        ratio = f"{disk.use.ratio:.4f}"
        begin = store.min_offset
        return {
            "commitLogMinOffset": str(begin),
            "commitLogMaxOffset": str(store.written),
            "dispatchBehindBytes": str(max(store.written - store.dispatched, 0)),
            "remainHowManyDataToFlush": readable(max(store.written - store.flushed, 0)),
            "earliestMessageTimeStamp": str(store.store_time_of(begin) if store.written > begin else -1),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {readable(disk.total)}, Free : {readable(disk.free)}.",
            **{f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in self.levels().items()},
        }

    # 315

    def show_stats(self, peer: Peer, request: Command) -> Reply:
        """Show a statistic."""
        name, text = request.text("statsName"), request.text("statsKey")
        spans = self.traffic.spans.get((name, text))
        if spans is None:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"nothing is known as {name} of {text}")
        body = {
            "statsDay": snapshot(spans.last_day()),
            "statsHour": snapshot(spans.last_hour()),
            "statsMinute": snapshot(spans.last_minute()),
        }
        return Reply(body=[dump_body(body)])

    # 26 and 25

    def settings(self) -> Mapping[str, str]:
        """Return settings under RocketMQ's names."""
        options, topics = self.options, self.topics
        roles = {
            "slave": "SLAVE",
            "master": "ASYNC_MASTER" if options.replication == "async" else "SYNC_MASTER",
        }
        return {
            "autoCreateSubscriptionGroup": boolean(self.changes.groups.auto_create),
            "autoCreateTopicEnable": boolean(topics.auto_create),
            "brokerClusterName": options.cluster,
            "brokerId": str(self.replication().broker_id),
            "brokerName": options.name,
            "brokerPermission": str(READ if topics.drained else READ | WRITE),
            "brokerRole": roles["master" if self.changes.master else "slave"],
            "defaultTopicQueueNums": "8",
            "diskMaxUsedSpaceRatio": f"{options.disk_used_ratio_max * 100:.0f}",
            "enablePropertyFilter": "true",
            "fileReservedTime": f"{self.keep_hours(None):g}",
            "filterServerNums": "0",
            "flushDiskType": f"{options.flush.upper()}_FLUSH",
            "listenPort": str(self.port()),
            "mappedFileSizeCommitLog": str(options.commitlog_file_size),
            "maxMessageSize": str(4 * 1024 * 1024),
            "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
            "msgTraceTopicName": TRACE_TOPIC,
            "namesrvAddr": ";".join(options.nameservers),
            "slaveReadEnable": boolean(options.slave_read_enable),
            "traceOn": "true",
            "traceTopicEnable": boolean(TRACE_TOPIC in topics.rows),
            "transactionCheckInterval": str(options.transaction_check_interval_ms),
            "transactionCheckMax": str(options.transaction_check_max),
            "transactionTimeOut": str(options.transaction_timeout_ms),
            "useTLS": boolean(bool(options.tls_certificate)),
        }

    def show_settings(self, peer: Peer, request: Command) -> Reply:
        """Show settings, with the version of the topics, as RocketMQ does."""
        version = self.topics.version
        fields = {"version": dump_body({"counter": version.counter, "timestamp": version.timestamp}).decode()}
        text = "".join(f"{name}={value}\n" for name, value in self.settings().items())
        return Reply(fields=fields, body=[text.encode()])

    def change_settings(self, peer: Peer, request: Command) -> Reply:
        """Change settings; all that are named, or none."""
        self.changes.set_all(self.steps(request.body))
        return Reply(remark="this lasts until the broker is started again, or has another role")

    def steps(self, body: bytes) -> Iterator[Callable[[], object]]:
        """Yield what changes each of the settings of a body."""
        for name, value in parse_properties(body).items():
            yield self.step(name, value)

    def step(self, name: str, value: str) -> Callable[[], object]:
        """Return what changes one setting.

        Raises:
            BadRequest: it can't be changed, or not to that.
        """
        if name == "fileReservedTime" and value.isdecimal() and len(value) <= HOURS_DIGITS_MAX:
            if 1 <= int(value) <= HOURS_MAX:
                return lambda: self.keep_hours(int(value))
        if name == "brokerPermission" and value in ("4", "6"):
            return lambda: self.changes.set_drained(drained=value == "4")
        if name == "autoCreateTopicEnable" and value in ("true", "false"):
            return lambda: self.topics.set_auto_create(enabled=value == "true")
        raise BadRequest(
            f"{name[:64]!r} can't be set to {value[:64]!r} here, and nothing was changed: fileReservedTime"
            " takes hours, brokerPermission 4 or 6, autoCreateTopicEnable true or false; others are set where"
            " the broker is started"
        )

    # 907

    def show_replication(self, peer: Peer, request: Command) -> Reply:
        """Show the state of replication."""
        view = self.replication()
        slaves = [
            {
                "addr": slave.peer,
                "diff": max(view.log_end - max(slave.acknowledged, 0), 0),
                "inSync": not slave.uncounted and max(view.log_end - slave.acknowledged, 0) == 0,
                "slaveAckOffset": slave.acknowledged,
                "transferFromWhere": slave.sent,
                "transferredByteInSecond": 0,
            }
            for slave in view.slaves
        ]
        body: dict[str, Any] = {
            "haClientRuntimeInfo": {
                "isActivated": view.connected,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterAddr": view.ha_address,
                "masterFlushOffset": 0,
                "maxOffset": view.log_end,
                "transferredByteInSecond": 0,
            },
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(slave["inSync"] is True for slave in slaves),
            "master": self.changes.master,
            "masterCommitLogMaxOffset": view.log_end,
        }
        return Reply(body=[dump_body(body)])


def distribution(times: Histogram | None) -> str:
    """Return how many sends took how long, as RocketMQ writes it."""
    counts = dict.fromkeys((name for name, _ in PUT_TIMES), 0)
    if times is not None:
        for bound, count in zip((*times.bounds, float("inf")), times.counts, strict=True):
            counts[next(name for name, end in PUT_TIMES if bound <= end)] += count
    return "".join(f"[{name}]:{count} " for name, count in counts.items())


def quantile(times: Histogram, share: float) -> float:
    """Return the bound below which such a share of the times lies; the last one for what is beyond."""
    wanted, seen = share * sum(times.counts), 0
    for bound, count in zip(times.bounds, times.counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound if seen else 0.0
    return times.bounds[-1]


def snapshot(found: View) -> Mapping[str, Any]:
    """Return messages in a time; how many came at a time (`avgpt`) is not known."""
    return {"avgpt": 0.0, "sum": found.sum, "tps": found.tps}


def boolean(value: bool) -> str:
    return "true" if value else "false"


def readable(size: int) -> str:
    """Return a number of bytes as people write it."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{size} B"
        amount /= 1024
    return f"{amount:.1f} TiB"


def since(passed_ms: int) -> str:
    """Return a time as RocketMQ writes it."""
    seconds = max(passed_ms, 0) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def parse_properties(body: bytes) -> dict[str, str]:
    """Return the lines of a properties text, `name=value`, by name; lines that begin with # are comments.

    Raises:
        BadRequest: it is no such text.
    """
    if len(body) > PROPERTIES_BYTES_MAX:
        raise BadRequest(f"the settings have {len(body)} bytes; {PROPERTIES_BYTES_MAX} are the most")
    found = {}
    for line in body.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise BadRequest(f"no setting: {text[:64]!r}")
        found[name.strip()] = value.strip()
    if not found:
        raise BadRequest("the request names no setting")
    return found
