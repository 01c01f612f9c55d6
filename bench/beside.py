"""Measure ours, without and with the compiled lane, beside a real RocketMQ: one run, one table.

    python bench/beside.py                                   everything, with RocketMQ
    python bench/beside.py --only lane 4.9.3 --modes none,slave --points c1,c32
    python bench/beside.py --only python lane --rounds 1 --secs 1       ours alone: needs no Java
    python bench/beside.py --render rows.jsonl               the tables of what `--json rows.jsonl` has kept

    system  python, lane   ours without and with the lane: apache.rocketmq.v2, by bench/load/v2calls.cc
            4.9.3, 5.3.3   RocketMQ's brokers: their own protocol, by bench/native/remload.cc
            proxy          RocketMQ 5.3.3's proxy in local mode: the same calls as ours, same generator
    mode    none   no slave      slave   asynchronous replication to one
            sync   synchronous replication      flush   synchronous flush, no slave (neither of the proxy)
    point   those of bench/raw.py; SDKs' header blocks, TLS and receives are of apache.rocketmq.v2 alone
    stage   calls    all points                     lag   from a send's answer until its slave can serve it
            catchup  an empty slave gets the log    sdk   official SDKs with one thread and eight
            share    the lane's, as its metrics say

Each system runs alone: it is started anew, warmed up (RocketMQ for `--warm` seconds, then each point once
more), measured and stopped. Rounds go through the systems in turn, every second one backwards.

A point sends as many messages as take `--secs`, and counts what was acknowledged. Its CPU is that of all
server processes, nameserver and slave among them, from before the first call until the queues of master and
slave hold all these messages and no process has work left. Their queue files are counted then: stored =
acknowledged, else the table says so and the program ends with exit code 1, as it does where
`whimbrel store verify` finds something in a store of ours (after the first round).

Nothing here asserts a time.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services"), str(REPO / "tests"), str(REPO / "bench")]

import raw  # noqa: E402 - its points, and its way to count CPU
from raw import READS, SENDS, Row, cpu_s, log, quiet  # noqa: E402
from run import FULL_SIZES, LOAD, NATIVE, TOOLS, build, page, probe_lag, scratch_directory, tool  # noqa: E402

import processes  # noqa: E402 - the tests' ways to start our processes, and RocketMQ's
import realbroker  # noqa: E402
import sdkkit  # noqa: E402

OURS = ("python", "lane")
SYSTEMS = (*OURS, "4.9.3", "5.3.3", "proxy")
MODES = ("none", "slave", "sync", "flush")
ORDER = ("", *MODES)
LONG_NAMES = {
    "python": "whimbrel",
    "lane": "whimbrel, lane",
    "4.9.3": "4.9.3 remoting",
    "5.3.3": "5.3.3 remoting",
    "proxy": "5.3.3 proxy",
}
PEER_SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "slave": {},
    "sync": {"inSyncReplicas": 2, "totalReplicas": 2},
    "flush": {"flushDiskType": "SYNC_FLUSH"},
}
# What RocketMQ's own start script gives a broker, as far as a machine with few cores allows it.
PEER_JAVA = {
    "RMQ_HEAP": "2g",
    "JAVA_OPT_EXTRA": "-XX:-UseSerialGC -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25"
    " -XX:InitiatingHeapOccupancyPercent=30 -XX:SoftRefLRUPolicyMSPerMB=0",
}
PEER_QUIET_CPU_S = 0.04  # in `raw.QUIET_S`: idle JVMs take some of it
WARM_SHARES = {"c256": 9, "batch": 5, "c32": 5, "c1": 3}  # of the time that RocketMQ is warmed up for
CORE = ("c1", "c32", "c32x32", "c256", "c256x256", "batch")  # of all systems in all modes
CALIBRATE_S = 0.5
SENDS_MAX = 400_000  # messages of a point: half a GB
SETTLE_S_MAX = 60.0
CATCH_UP_S_MAX = 180.0
STAGES = ("calls", "lag", "sdk", "catchup", "share")
LAG_RATES = (0, 3_000, 10_000)  # sends a second beside the probe
THREADS = (1, 8)  # of an SDK
SDK_LANGUAGES = ("java", "go", "python")
SHARE_COUNT = 16_384  # messages that tell the lane's share of a point
ENTRY = struct.Struct(">qiq")  # of a queue file: position, size, hash of the tag


@dataclass
class System:
    """What is measured: one master, perhaps a slave, and the generator that calls it."""

    name: str
    mode: str
    tool: str
    address: str
    pids: dict[str, int]
    stores: list[Path]
    quiet_cpu_s: float = raw.QUIET_CPU_S
    made: processes.Cluster | None = None
    access: str = ""  # what an SDK is given
    remoting: tuple[str, ...] = ()  # a RocketMQ's addresses: the master's, the slave's
    names: str = ""  # its name server's

    def can(self, point: str) -> bool:
        """Tell whether there are such calls, and whether they are measured in this mode."""
        if point in CORE:
            return True
        if self.mode != "none":
            return False
        if self.name == "proxy":
            return not point.startswith("pull")
        return self.tool == "v2calls" or point.startswith("pull")


def entries(path: Path) -> int:
    """Count the entries of a queue file; those behind them are zeroes."""
    with path.open("rb") as file:
        low, high = 0, path.stat().st_size // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = os.pread(file.fileno(), ENTRY.size, middle * ENTRY.size)
            if len(data) == ENTRY.size and ENTRY.unpack(data)[1] > 0:
                low = middle + 1
            else:
                high = middle
    return low


def stored(store: Path, topic: str) -> int:
    """Count what the queues of a topic hold."""
    return sum(map(entries, (store / "consumequeue" / topic).glob("*/*")))


def settle(system: System, topic: str, wanted: int) -> list[int]:
    """Wait until all stores have so many messages of a topic and no process has work left.

    Returns:
        How many each store has: more or less than was wanted is for the caller to tell.
    """
    deadline = time.monotonic() + SETTLE_S_MAX
    while any(stored(store, topic) < wanted for store in system.stores) and time.monotonic() < deadline:
        time.sleep(0.01)
    if system.made is not None:
        raw.caught_up(system.made)
    quiet(system.pids.values(), system.quiet_cpu_s)
    return [stored(store, topic) for store in system.stores]


def generate(system: System, point: str, *arguments: object) -> Row:
    """Run the generator of a system; what it counts as errors is left to the caller."""
    row = tool(system.tool, "--addr", system.address, *arguments)
    if "failed" in row:
        raise RuntimeError(f"{system.name} {system.mode} {point}: {row['failed']}")
    return row


def send(system: System, point: str, secs: float) -> Row:
    """Measure sends."""
    topic = "Beside"
    words: list[object] = ["--topic", topic, *SENDS[point]]
    warm = generate(system, point, *words, "--secs", CALIBRATE_S, "--warm", 0)
    batch = int(str(words[words.index("--batch") + 1])) if "--batch" in words else 1
    count = max(64, min(SENDS_MAX, int(warm["rate"] * secs)) // batch) * batch
    begin = settle(system, topic, 0)
    if (
        len(set(begin)) > 1
    ):  # calls that ended after the time are not counted: the slave's log is not all queued yet
        begin = settle(system, topic, max(begin))
    before = {name: cpu_s(pid) for name, pid in system.pids.items()}
    row = generate(system, point, *words, "--count", count)
    end = settle(system, topic, begin[0] + row["n"])
    return result(system, point, row, before, [after - begin[0] for after in end])


def fill(system: System, topic: str, count: int) -> None:
    """Send so many messages in batches."""
    generate(system, topic, "--topic", topic, *SENDS["batch"], "--count", count // raw.BATCH * raw.BATCH)


def read(system: System, point: str, secs: float) -> Row:
    """Measure pulls of a whole topic; or receives, each message acknowledged, of a topic that has more.

    A consumer does not read its topic to the end: what a long poll of RocketMQ's finds after its caller went
    away is given to nobody for a minute.
    """
    topic = f"Beside-{point}"
    words: list[object] = ["--topic", topic, *READS[point]]
    pulls = "pull" in words
    fill(system, topic, raw.WARM_READS if pulls else raw.READS_MAX // 8)
    once: list[object] = [] if pulls and system.tool == "remload" else ["--secs", CALIBRATE_S]
    rate = generate(system, point, *words, *once)["rate"]
    fill(system, topic, min(raw.READS_MAX, int(rate * secs * (1 if pulls else 1.5))))
    held = settle(system, topic, 0)
    before = {name: cpu_s(pid) for name, pid in system.pids.items()}
    if not pulls:
        words += ["--secs", secs, "--warm", 0]
    elif system.tool == "v2calls":
        words += ["--count", held[0]]
    row = generate(system, point, *words)
    quiet(system.pids.values(), system.quiet_cpu_s)
    return result(system, point, row, before, held if pulls else []) | {"empty": row.get("empty", 0)}


def lag(system: System, rate: int, secs: float) -> Row:
    """Measure how long after a send's answer the slave can serve it, beside so many sends a second."""
    load: list[object] = ["--addr", system.address, "--topic", "Beside", "--c", 32, "--rate", rate]
    load += ["--secs", secs + 2, "--warm", 0]
    words = [str(TOOLS / system.tool), *map(str, load)]
    beside = subprocess.Popen(words, stdout=subprocess.DEVNULL) if rate else None
    try:
        time.sleep(1)  # the load has begun
        if system.made is not None:
            found = probe_lag(system.made, secs)
            row = {"p50": found["visible"], "p99": found["visible_p99"]}
        else:
            master, slave = system.remoting
            row = tool(
                "remload",
                "--addr",
                master,
                "--slave",
                slave,
                "--topic",
                "Lag",
                "--mode",
                "lag",
                "--secs",
                secs,
            )
            if row.get("errors"):
                raise RuntimeError(f"lag: {row}")
    finally:
        if beside is not None:
            beside.terminate()
            beside.wait()
    point = f"{rate:,}/s" if rate else "idle"
    kept = {key: row[key] for key in ("p50", "p99")}
    return {"stage": "lag", "system": system.name, "mode": system.mode, "point": point} | kept


def log_end(system: System) -> int:
    """Return how long the master's log is."""
    if system.made is None:
        with realbroker.Remoting(system.remoting[0]) as broker:
            return broker.log_end()
    with contextlib.closing(page(system.stores[0])) as marks:
        return int(marks.written)


def catch_up(name: str, args: argparse.Namespace) -> Iterator[Row]:
    """Measure how fast an empty slave gets a log of one file, and has its queues."""
    size: dict[str, object] = {} if name in OURS else {"mappedFileSizeCommitLog": 2_147_479_552}
    with (
        scratch_directory(args.work) as scratch,
        start(name, "none", scratch, verify=False, **size) as system,
    ):
        fill(system, "Beside", int(args.log_gb * 1e9 / 1150))
        (wanted,) = settle(system, "Beside", 0)
        size_b = log_end(system)
        with contextlib.ExitStack() as stack:
            began = time.monotonic()
            if system.made is not None:
                broker, follower = system.made.broker("slave", 1), system.made.replicator("slave", 1)
                for process in (broker, follower):
                    stack.callback(process.kill)
                    process.launch()
                store = broker.store
            else:
                slave = realbroker.broker(name, scratch / "slave", "SLAVE", system.names, **size)
                stack.callback(slave.kill)
                starting = threading.Thread(target=slave.start)
                starting.start()
                stack.callback(starting.join)
                store = slave.store
            first = 0.0
            while (found := stored(store, "Beside")) < wanted:
                now = time.monotonic()
                first = first or (now if found else 0.0)
                if now - began > CATCH_UP_S_MAX:
                    raise RuntimeError(f"{name}: the slave has {found} of {wanted} messages")
                time.sleep(0.002)
            ended = time.monotonic()
            yield {
                "stage": "catchup",
                "system": name,
                "gb": size_b / 1e9,
                "from_start_s": ended - began,
                "gb_s": size_b / max(ended - first, 1e-3) / 1e9,
            }


def sdk(system: System, language: str, threads: int, args: argparse.Namespace) -> Row:
    """Measure sends by an official SDK, without TLS; CPU is that of all it has sent, warming up as well."""
    topic = f"Beside-{language}"
    command = [
        *sdkkit.prepare(language),
        "load",
        system.access,
        topic,
        threads,
        min(10.0, args.warm),
        args.secs,
    ]
    environment = os.environ | {"HOME": str(sdkkit.home(language)), "SDK_PLAINTEXT": "1"}
    (begin, *_) = settle(system, topic, 0)
    before = {name: cpu_s(pid) for name, pid in system.pids.items()}
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        input="",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("load\t")]
    if not lines:
        raise RuntimeError(f"{language}: {(done.stdout + done.stderr)[-400:]}")
    total, count, seconds, p50, p99, failed = map(float, lines[0])
    (end, *_) = settle(system, topic, begin + int(total))
    used = {name: cpu_s(pid) - before[name] for name, pid in system.pids.items()}
    return {
        "stage": "sdk",
        "system": system.name,
        "mode": system.mode,
        "point": f"{language} {threads}",
        "rate": count / seconds,
        "p50": p50,
        "p99": p99,
        "all_us": sum(used.values()) / max(1.0, total) * 1e6,
        "errors": int(failed),
        "lost": [end - begin - int(total)] if end - begin != int(total) else [],
    }


def share(mode: str, args: argparse.Namespace) -> Iterator[Row]:
    """Ask the metrics what the lane has done itself: of the messages sent, or of those given to consumers.

    In a run of its own: metrics cost a send some microseconds.
    """
    with (
        scratch_directory(args.work) as scratch,
        ours("lane", mode, scratch, verify=False, metrics_port=0) as system,
    ):
        assert system.made is not None
        for point in (each for each in args.points if system.can(each) and not each.startswith("pull")):
            kind = "messages" if point in SENDS else "acknowledged"
            topic = f"Share-{point}"
            words: list[object] = ["--topic", topic, *(SENDS | READS)[point], "--count", SHARE_COUNT]
            fill(system, topic, SHARE_COUNT if point in READS else raw.BATCH)  # the first one makes the topic
            before = system.made.master.metric(f"whimbrel_lane_{kind}_total")
            row = generate(system, point, *words)
            by_lane = system.made.master.metric(f"whimbrel_lane_{kind}_total") - before
            yield {
                "stage": "share",
                "system": "lane",
                "mode": mode,
                "point": point,
                "share": by_lane / row["n"],
            }


def result(system: System, point: str, row: Row, before: dict[str, float], kept: list[int]) -> Row:
    """Return what a table shows of a point."""
    used = {name: cpu_s(pid) - before[name] for name, pid in system.pids.items()}
    scale = 1e6 / max(1, row["n"])
    return {
        "stage": "send" if point in SENDS else "read",
        "system": system.name,
        "mode": system.mode,
        "point": point,
        "rate": row["rate"],
        "p50": row["p50"],
        "p99": row["p99"],
        "us": {name: value * scale for name, value in used.items()},
        "all_us": sum(used.values()) * scale,
        "client_us": row["client_us"],
        "messages": row["n"],
        "errors": sum(row["errors"].values()),
        "lost": [each - row["n"] for each in kept if each != row["n"]],
    }


def kind_of(process: processes.Process) -> str:
    """Return what a process of ours is in the table."""
    role = process.name.partition("-")[0]
    return f"{role}'s replicator" if process.kind == "replicator" else role


@contextlib.contextmanager
def ours(name: str, mode: str, scratch: Path, *, verify: bool = True, **more: object) -> Iterator[System]:
    """A cluster of ours, verified at its end."""
    slaves, options = raw.MODES[mode]
    os.environ["WHIMBREL_TEST_LANE"] = "required" if name == "lane" else "off"
    with processes.Cluster(scratch, slaves=slaves, broker=FULL_SIZES | options | more) as made:
        made.wait_usable()
        pids = {kind_of(process): process.pid for process in made.processes}
        stores = [process.store for process in (made.master, *made.slaves)]
        words = ["topic", "create", "Lag", "--queues", "1", "--endpoint", made.endpoint]
        command = [sys.executable, "-c", processes.COMMAND, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=processes.environment())
        yield System(name, mode, "v2calls", made.master.grpc, pids, stores, made=made, access=made.endpoint)
        if verify and (why := raw.verify(made)):
            raise RuntimeError(f"{name} {mode}: {why}")


@contextlib.contextmanager
def theirs(name: str, mode: str, scratch: Path, **more: object) -> Iterator[System]:
    """A RocketMQ."""
    version = "5.3.3" if name == "proxy" else name
    settings = PEER_SETTINGS[mode] | more
    with contextlib.ExitStack() as stack:

        def started(server: realbroker.Server) -> realbroker.Server:
            stack.callback(server.kill)
            server.start()
            return server

        registry = started(realbroker.name_server(version, scratch / "names"))
        names = registry.address
        role = "SYNC_MASTER" if mode == "sync" else "ASYNC_MASTER"
        if name == "proxy":
            master = started(realbroker.proxy(scratch / "master", names, **settings))
        else:
            master = started(realbroker.broker(version, scratch / "master", role, names, **settings))
        servers = [master]
        if mode in ("slave", "sync"):
            servers.append(started(realbroker.broker(version, scratch / "slave", "SLAVE", names, **more)))
        make_topics(master.address, "Beside", *(f"Beside-{each}" for each in (*READS, *SDK_LANGUAGES)))
        make_topics(master.address, "Lag", queues=1)
        follow(servers)
        pids = {"nameserver": registry.pid}
        pids |= {("master", "slave")[at]: server.pid for at, server in enumerate(servers)}
        yield System(
            name,
            mode,
            "v2calls" if name == "proxy" else "remload",
            master.grpc or master.address,
            pids,
            [server.store for server in servers],
            PEER_QUIET_CPU_S,
            access=master.grpc,
            remoting=tuple(server.address for server in servers),
            names=names,
        )


def make_topics(address: str, *topics: str, queues: int = 4) -> None:
    """Create topics in a RocketMQ broker."""
    with realbroker.Remoting(address) as broker:
        for topic in topics:
            fields = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
                "attributes": "+message.type=NORMAL",
            }
            header, _ = broker.call(17, fields)
            if header["code"]:
                raise RuntimeError(f"RocketMQ does not make topic {topic}: {header.get('remark')}")


def follow(servers: list[realbroker.Server]) -> None:
    """Wait until a RocketMQ takes messages and its slave has them."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while time.monotonic() < deadline:
        sent = tool(
            "remload", "--addr", servers[0].address, "--topic", "First", "--mode", "probe", "--secs", 30
        )
        ends = set()
        for server in servers:
            with realbroker.Remoting(server.address) as broker:
                ends.add(broker.log_end())
        if sent.get("ok") and len(ends) == 1 and min(ends) > 0:
            return
        time.sleep(0.3)
    raise RuntimeError("RocketMQ takes no messages, or its slave does not follow")


def warm_up(system: System, seconds: float) -> None:
    """Let a JVM compile what sends need; its refusals meanwhile don't matter."""
    for point, share in WARM_SHARES.items():
        secs = seconds * share / sum(WARM_SHARES.values())
        generate(system, point, "--topic", "Beside", *SENDS[point], "--secs", secs, "--warm", 0)
    if system.can("receive8"):
        fill(system, "Beside-receive8", raw.READS_MAX // 2)
        generate(system, "receive8", "--topic", "Beside-receive8", *READS["receive8"], "--secs", seconds / 4)


def start(name: str, mode: str, scratch: Path, *, verify: bool, **more: object) -> Any:
    """Start a system."""
    return (
        ours(name, mode, scratch, verify=verify, **more)
        if name in OURS
        else theirs(name, mode, scratch, **more)
    )


def run_system(name: str, mode: str, args: argparse.Namespace, *, verify: bool) -> Iterator[Row]:
    """Measure all points of a system in a mode."""
    with scratch_directory(args.work) as scratch, start(name, mode, scratch, verify=verify) as system:
        if name not in OURS and args.warm > 0:
            log(name, mode, f"warms up for {args.warm:.0f} s")
            warm_up(system, args.warm)
        for point in filter(system.can, args.points):
            if "calls" in args.stages:
                yield (send if point in SENDS else read)(system, point, args.secs)
        if "lag" in args.stages and mode == "slave" and name != "proxy":
            for rate in LAG_RATES:
                yield lag(system, rate, args.secs)
        if "sdk" in args.stages and mode == "none" and system.tool == "v2calls":
            for language in args.languages:
                for threads in THREADS:
                    yield sdk(system, language, threads, args)


# ---- tables


def median(rows: list[Row], key: str) -> float:
    """Return the median of a figure over the rounds."""
    return float(statistics.median(row[key] for row in rows))


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table; "" without lines."""
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def cell(rows: list[Row]) -> str:
    """Return what stands in the table for a system at a point."""
    text = f"**{median(rows, 'rate'):,.0f}**, {median(rows, 'p50'):.2f} / {median(rows, 'p99'):.2f}"
    text += f", {median(rows, 'all_us'):.1f}"
    lost = [each for row in rows for each in row["lost"]]
    errors = sum(row["errors"] for row in rows)
    if any(row.get("empty", 0) for row in rows):
        text += " (ran dry)"
    return (
        text
        + (f", errors {errors}" if errors else "")
        + (f", NOT STORED = ACKNOWLEDGED {lost}" if lost else "")
    )


def told(row: Row) -> str:
    """Return a measurement as the log shows it."""
    if "rate" in row:
        return f"{cell([row])} { {k: round(v, 1) for k, v in row.get('us', {}).items()} }"
    return str({key: round(value, 4) for key, value in row.items() if isinstance(value, float)})


def grid(rows: list[Row], stage: str, shown: Callable[[list[Row]], str]) -> str:
    """Return the table of a stage with a column for each system."""
    rows = [row for row in rows if row["stage"] == stage]
    systems = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    keys = dict.fromkeys((row.get("mode", ""), row.get("point", "")) for row in rows)
    order = [*SENDS, *READS]
    lines = []
    for key in sorted(
        keys, key=lambda key: ORDER.index(key[0]) * 100 + (order.index(key[1]) if key[1] in order else 0)
    ):
        some = [
            [
                row
                for row in rows
                if (row.get("mode", ""), row.get("point", ""), row["system"]) == (*key, name)
            ]
            for name in systems
        ]
        lines.append([*key, *(shown(each) if each else "-" for each in some)])
    return markdown(["mode", "point", *(LONG_NAMES[name] for name in systems)], lines)


def overview(rows: list[Row], stage: str) -> str:
    """Return the table of all systems."""
    return grid(rows, stage, cell)


def by_process(rows: list[Row]) -> str:
    """Return the table of CPU by process; the nameserver's is part of the sum alone."""
    kinds = ("master", "master's replicator", "slave", "slave's replicator")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if "us" in row:
            groups.setdefault((row["mode"], row["point"], row["system"]), []).append(row)
    lines = []
    for mode in MODES:
        for point in SENDS | READS:
            for name in SYSTEMS:
                if some := groups.get((mode, point, name)):
                    cells = [
                        f"{statistics.median(row['us'][kind] for row in some):.1f}"
                        if kind in some[0]["us"]
                        else "-"
                        for kind in kinds
                    ]
                    lines.append([mode, point, LONG_NAMES[name], f"{median(some, 'all_us'):.1f}", *cells])
    return markdown(["mode", "point", "system", "all", *kinds], lines)


def shares(rows: list[Row]) -> str:
    """Return the table of the lane's share."""
    rows = [row for row in rows if row["stage"] == "share"]
    points = list(dict.fromkeys(row["point"] for row in rows))
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        found = {row["point"]: f"{row['share']:.2%}" for row in rows if row["mode"] == mode}
        lines.append([mode, *(found.get(point, "-") for point in points)])
    return markdown(["mode", *points], lines)


def tables(rows: list[Row]) -> str:
    """Return everything as Markdown."""
    facts = next((row for row in rows if row["stage"] == "facts"), {})
    parts = [str(facts.get("text", "")), ""]
    figures = [row for row in rows if row["stage"] != "facts"]
    for stage, title in (
        ("send", "Sends: messages/s, p50 / p99 in ms, us of all servers a message"),
        ("read", "Reads: the same; p50 and p99 are those of a receive or a pull"),
    ):
        if text := overview(figures, stage):
            parts += [f"**{title}**", "", text]
    if text := overview(figures, "sdk"):
        parts += ["**Official SDKs, sends of 1 KiB by so many threads: the same**", "", text]
    if text := grid(figures, "lag", lambda some: f"{median(some, 'p50'):.2f} / {median(some, 'p99'):.2f}"):
        parts += ["**Replication lag beside so many sends a second: p50 / p99 in ms**", "", text]
    if text := grid(
        figures,
        "catchup",
        lambda some: f"{median(some, 'from_start_s'):.2f} s, {median(some, 'gb_s'):.2f} GB/s",
    ):
        parts += [
            "**An empty slave: from its start until its queues are there; GB/s from the first entry on**",
            "",
            text,
        ]
    if text := shares(figures):
        parts += ["**The lane's share of messages sent, or acknowledged, in a run with metrics**", "", text]
    if text := by_process(figures):
        parts += ["**CPU by process**", "", text]
    return "\n".join(parts)


def facts(args: argparse.Namespace) -> Row:
    """Return what a table has to say of its run."""
    commit = subprocess.run(
        ["git", "-C", str(REPO), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    text = (
        f"Commit {commit or 'unknown'}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}, grpcio {importlib.metadata.version('grpcio')}; RocketMQ warmed up for"
        f" {args.warm:.0f} s, points of {args.secs:g} s, medians of {args.rounds} rounds."
    )
    return {"stage": "facts", "text": text}


def need_java(parser: argparse.ArgumentParser) -> None:
    """End where RocketMQ can't be run."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        parser.error(
            f"RocketMQ needs {' and '.join(missing)}, not found on the PATH: install Java 17 and Maven"
            " (apt-get install openjdk-17-jre-headless maven), or leave it out: --only python lane"
        )


def main() -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--points", default=",".join([*SENDS, *READS]))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--languages", default=",".join(SDK_LANGUAGES))
    parser.add_argument("--log-gb", type=float, default=2.05, help="what an empty slave has to catch up with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", "--seconds", type=float, default=4.0)
    parser.add_argument("--warm", type=float, default=60.0, help="seconds for RocketMQ, after each start")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "whimbrel-beside")
    parser.add_argument("--json", type=Path, help="append each measurement to this file")
    parser.add_argument("--render", type=Path, help="measure nothing, print the tables of such a file")
    args = parser.parse_args()
    for name in ("points", "modes", "stages", "languages"):
        setattr(args, name, getattr(args, name).split(","))
    if args.render:
        print(tables([json.loads(line) for line in args.render.read_text().splitlines()]))
        return 0
    for name, there in (
        ("points", (*SENDS, *READS)),
        ("modes", MODES),
        ("stages", STAGES),
        ("languages", SDK_LANGUAGES),
    ):
        if unknown := set(getattr(args, name)) - set(there):
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}, but {', '.join(there)}")
    build(LOAD)
    if set(args.only) - set(OURS):
        need_java(parser)
        os.environ.update(PEER_JAVA)
        remload = f"{TOOLS}/remload"
        subprocess.run(["make", "-s", "-C", str(NATIVE), f"BUILD={TOOLS}", remload], check=True)
    rows: list[Row] = []
    failed = []

    def keep(row: Row) -> None:
        rows.append(row)
        if args.json:
            with args.json.open("a") as out:
                out.write(json.dumps(row) + "\n")

    keep(facts(args))
    cases = [
        (name, mode)
        for mode in args.modes
        for name in SYSTEMS
        if name in args.only and not (name == "proxy" and mode in ("sync", "flush"))
    ]

    def run(what: str, number: int, found: Iterator[Row]) -> None:
        try:
            for row in found:
                keep(row | {"round": number})
                log(what, row["stage"], row.get("point", ""), told(row))
                if row.get("lost"):
                    failed.append(f"{what} {row['point']}: stored - acknowledged = {row['lost']}")
        except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(f"{what}: {error}")  # one broken system must not lose the others' hour
            log("FAILED", failed[-1])

    for number in range(args.rounds):
        for name, mode in cases if number % 2 == 0 else cases[::-1]:
            run(f"{name} {mode}", number, run_system(name, mode, args, verify=number == 0))
        for name in args.only if "catchup" in args.stages else ():
            if name != "proxy":  # its broker is 5.3.3's
                run(name, number, catch_up(name, args))
    if "lane" in args.only and "share" in args.stages:
        for mode in args.modes:
            run(f"lane {mode}", 0, share(mode, args))
    print(tables(rows))
    for text in failed:
        log("FAILED", text)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
