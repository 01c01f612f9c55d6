"""Measure what a send costs a master that has much to look after, and how long it is away after a kill.

    python bench/scale.py                                  all cases, without and with the compiled lane
    python bench/scale.py --cases queues,kill --lanes off --rounds 5 --secs 2

    case     clients   1,000 consumers with a connection each, whose long polls wait on another topic
             idle      1,000 connections that have made one call each, and nothing else
             queues    12,000 queues in three topics, and sends to all of them in turn
             beside    the same 12,000 queues, and sends to a topic of 8
             groups    1,000 groups that have received and acknowledged of the topic that is sent to
             log       100 files of 1 GiB before the one that is written; they are sparse
             kill      kill -9 to the next send that is answered OK, with 8 and with 12,000 queues

Two clusters run side by side, each a nameserver and a master: one has what the case says, the other one, the
base, has a topic of 8 queues. They are measured in turn, `--rounds` times, so that an hour in which the
machine is slow is one for both. A measurement is single sends of 1 KiB, 32 at a time over one connection, by
the generator of `raw.py`. Its figure is the master's CPU a message, in us, until the index has caught up. The
table has the medians, and the median of the ratios of neighbours. Memory, descriptors and mappings are those
of the case's master after its last measurement, in brackets those of the base's.

Nothing here asserts a time.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from raw import Row, cpu_s, generate, log, settle
from run import FULL_SIZES, LOAD, TOOLS, build, page, scratch_directory

from support.cluster import processes
from support.cluster.broker_api import Api
from support.http2.blocking import idle_caller
from support.waiting import until
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.codec import BLANK_MAGIC, SIZE_AND_MAGIC
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.segment import segment_name

CLIENTS, GROUPS, LOG_FILES = 1000, 1000, 100
TOPICS, QUEUES = ("Many-1", "Many-2", "Many-3"), 4000  # a topic has 4,096 at most
BASE = ("Raw",)
BASE_QUEUES = 8
WARM_S = 1.0
POLL_MS = 30_000
CONNECT_S_MAX, KILL_S_MAX, MARK_S_MAX = 30.0, 120.0, 120.0


@dataclass
class Load:
    """A cluster, and what is sent to.

    Attributes:
        topics: sent to one after the other.
        kept: what has to live as long as it is measured.
    """

    made: processes.Cluster
    topics: tuple[str, ...] = BASE
    kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def api(self) -> Api:
        """Calls of the master."""
        options = [("grpc.initial_reconnect_backoff_ms", 5), ("grpc.max_reconnect_backoff_ms", 5)]
        return Api(grpc.insecure_channel(self.made.master.grpc, options=options))

    def make_topic(self, name: str, queues: int) -> None:
        """Make a topic with so many queues."""
        topic = admin.Topic(name=name, read_queues=queues, write_queues=queues)
        self.api.administer("CreateTopic", topic=topic)

    def send(self, topic: str, *arguments: object) -> Row:
        """Run the generator over a topic."""
        return generate(topic, "--addr", self.made.master.grpc, "--topic", topic, "--c", 32, *arguments)


# The cases: each makes of a cluster that has only just started what is to be measured.


def base(load: Load) -> None:
    """A topic of 8 queues."""
    for topic in load.topics:
        load.make_topic(topic, BASE_QUEUES)


def idle(load: Load) -> None:
    """Connections that have made a call."""
    base(load)
    for _ in range(CLIENTS):
        load.kept.enter_context(idle_caller(load.made.master.grpc))


def clients(load: Load) -> None:
    """Consumers that wait for messages of another topic."""
    base(load)
    load.make_topic("Idle", BASE_QUEUES)
    load.api.administer("CreateGroup", group=admin.Group(name="idle"))
    words = ["--mode", "receive", "--conns", CLIENTS, "--group", "idle", "--poll-ms", POLL_MS]
    words += ["--addr", load.made.master.grpc, "--topic", "Idle", "--secs", 500, "--warm", 0]
    waiting = subprocess.Popen([str(TOOLS / "v2calls"), *map(str, words)], stdout=subprocess.DEVNULL)
    load.kept.callback(waiting.wait)
    load.kept.callback(waiting.kill)
    until(
        lambda: waiting.poll() is not None or descriptors(load.made.master.pid) >= CLIENTS,
        timeout=CONNECT_S_MAX,
        what="the consumers' connections",
    )
    if waiting.poll() is not None:
        raise RuntimeError("the consumers have ended")


def many(load: Load) -> None:
    """Queues by the thousand, each with a message."""
    for topic in TOPICS:
        load.make_topic(topic, QUEUES)
        load.send(topic, "--count", QUEUES)
    wait_for_mark(load)


def queues(load: Load) -> None:
    """They are sent to."""
    many(load)
    load.topics = TOPICS


def beside(load: Load) -> None:
    """They are there."""
    many(load)
    base(load)


def groups(load: Load) -> None:
    """Groups that have acknowledged a message."""
    base(load)
    api = load.api
    for topic in load.topics:
        load.send(topic, "--count", 1000)
        for number in range(GROUPS):
            group = f"group-{number}"
            api.administer("CreateGroup", group=admin.Group(name=group))
            received = api.receive(topic, group, batch=1)
            api.ack(topic, group, *received.handles)


def sparse(store: Path) -> None:
    """Make log files of which each is one blank, as the end of a file is marked."""
    size = int(str(FULL_SIZES["commitlog_file_size"]))
    directory = store / "commitlog"
    directory.mkdir(parents=True)
    for number in range(LOG_FILES):
        with (directory / segment_name(number * size)).open("wb") as file:
            file.write(SIZE_AND_MAGIC.pack(size, BLANK_MAGIC))
            file.truncate(size)


CASES = {"clients": clients, "idle": idle, "queues": queues, "beside": beside, "groups": groups, "log": base}


# Measuring.


def wait_for_mark(load: Load) -> None:
    """Wait until a mark says that what was sent so far is on disk: so many new files take the disk long.

    Messages are sent meanwhile: a master looks whether a mark is due after one.
    """
    store, api = load.made.master.store, load.api
    with contextlib.closing(page(store)) as marks:
        wanted = marks.written

    def written() -> bool:
        api.send(TOPICS[0], b"is it due?")
        mark = QueueMark.load(store)
        return mark is not None and mark.offset >= wanted

    until(written, timeout=MARK_S_MAX, what="the mark of the queues", every_s=0.2)


def descriptors(pid: int) -> int:
    """Count a process's descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def held(pid: int) -> Row:
    """Return what a process holds: resident memory in MiB, descriptors, mappings."""
    return {
        "rss": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20),
        "descriptors": descriptors(pid),
        "mappings": Path(f"/proc/{pid}/maps").read_text().count("\n"),
    }


@contextlib.contextmanager
def started(work: Path, *, files: bool = False) -> Iterator[Load]:
    """A cluster without slaves; `files`: whose log has many files."""
    with (
        scratch_directory(work) as scratch,
        processes.Cluster(scratch, slaves=0, start=False, broker=FULL_SIZES) as made,
    ):
        if files:
            sparse(scratch / "store-master-0")
        made.start()
        made.wait_usable()
        load = Load(made)
        with load.kept:
            yield load


def measure(load: Load, secs: float) -> Row:
    """Send to each topic in turn; return rate and the master's CPU a message, in us."""
    pids = {process.name: process.pid for process in load.made.processes}
    settle(load.made, pids)
    before = cpu_s(load.made.master.pid)
    rows = [load.send(topic, "--secs", secs / len(load.topics), "--warm", 0) for topic in load.topics]
    settle(load.made, pids)
    count = sum(row["n"] for row in rows)
    used = cpu_s(load.made.master.pid) - before
    return {"rate": statistics.fmean(row["rate"] for row in rows), "us": used * 1e6 / count}


def run_case(case: str, args: argparse.Namespace) -> Row:
    """Measure a case and its base in turn."""
    with started(args.work) as plain, started(args.work, files=case == "log") as full:
        base(plain)
        CASES[case](full)
        for load in (plain, full):
            for topic in load.topics:
                load.send(topic, "--secs", WARM_S / len(load.topics), "--warm", 0)
        rows = [
            (measure(plain, args.secs), measure(full, args.secs))
            if number % 2 == 0
            else (measure(full, args.secs), measure(plain, args.secs))[::-1]
            for number in range(args.rounds)
        ]
        holds, base_holds = held(full.made.master.pid), held(plain.made.master.pid)
    return {
        "case": case,
        "rate": statistics.median(row["rate"] for _, row in rows),
        "us": statistics.median(row["us"] for _, row in rows),
        "base us": statistics.median(row["us"] for row, _ in rows),
        "ratio": statistics.median(row["us"] / other["us"] for other, row in rows),
        **holds,
        "base rss": base_holds["rss"],
        "base descriptors": base_holds["descriptors"],
    }


def killed(load: Load) -> float:
    """Kill the master; return the seconds until a send to it is answered OK again."""
    topic, master = load.topics[0], load.made.master
    began = time.monotonic()
    master.kill()
    master.launch()
    host, _, port = master.grpc.rpartition(":")
    calls: list[Api] = []

    def answered() -> bool:
        with contextlib.suppress(OSError, grpc.RpcError):
            if not calls:
                # From another address: who connects to a free port of the own host may get that very port for
                # the own end, and be connected to itself; the master then finds its port taken.
                socket.create_connection((host, int(port)), 1, source_address=("127.0.0.2", 0)).close()
                calls.append(load.api)
            return bool(calls[0].send(topic, b"again").status.code == 20000)
        return False

    until(answered, timeout=KILL_S_MAX, what="a send to the master", every_s=0.002)
    seconds = time.monotonic() - began
    master.wait_ready()
    return seconds


def run_kills(args: argparse.Namespace) -> list[Row]:
    """Kill masters with few and with many queues in turn."""
    with started(args.work) as plain, started(args.work) as full:
        base(plain)
        queues(full)
        for load in (plain, full):
            for topic in load.topics:
                load.send(topic, "--secs", args.secs / len(load.topics), "--warm", 0)
        rows = [(killed(plain), killed(full)) for _ in range(args.rounds)]
    few, all_of_them = zip(*rows, strict=True)
    return [
        {"case": f"kill, {BASE_QUEUES} queues", "seconds": few},
        {"case": f"kill, {len(TOPICS) * QUEUES:,} queues", "seconds": all_of_them},
    ]


def table(rows: list[Row]) -> str:
    """Return all rows as Markdown."""
    lines = [
        "| case | lane | messages/s | us of the master | its base | ratio | MiB | descriptors | mappings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['case']} | {row['lane']} | {row['rate']:,.0f} | {row['us']:.1f} | {row['base us']:.1f} |"
        f" {row['ratio']:.2f} | {row['rss']:.0f} ({row['base rss']:.0f}) |"
        f" {row['descriptors']} ({row['base descriptors']}) | {row['mappings']} |"
        for row in rows
        if "us" in row
    ]
    if kills := [row for row in rows if "seconds" in row]:
        lines += ["", "| case | lane | seconds to the next send: median (all) |", "|---|---|---|"]
        lines += [
            f"| {row['case']} | {row['lane']} | {statistics.median(row['seconds']):.2f}"
            f" ({', '.join(f'{one:.2f}' for one in row['seconds'])}) |"
            for row in kills
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join((*CASES, "kill")))
    parser.add_argument("--lanes", default="off,auto", help="settings of the compiled lane")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=2.0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "whimbrel-scale")
    args = parser.parse_args()
    wanted = args.cases.split(",")
    if unknown := set(wanted) - CASES.keys() - {"kill"}:
        parser.error(f"no cases {sorted(unknown)}; there are {[*CASES, 'kill']}")
    build(LOAD)
    rows: list[dict[str, Any]] = []
    for lane in args.lanes.split(","):
        os.environ["WHIMBREL_TEST_LANE"] = lane
        for case in wanted:
            for row in run_kills(args) if case == "kill" else [run_case(case, args)]:
                rows.append({"lane": lane, **row})
                log(json.dumps(rows[-1]))
    print(table(rows))


if __name__ == "__main__":
    main()
