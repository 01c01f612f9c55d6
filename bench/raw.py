"""Measure sends and reads with a generator of 1 to 2 us a call, in strict rounds over trees of our code.

    python bench/raw.py                                    this tree, all modes and points
    python bench/raw.py --trees before=REVISION,now=.      the same beside another revision of the repository
    python bench/raw.py --trees python=.@off,lane=.        without and with the compiled lane
    python bench/raw.py --modes slave,sync --points c1,c32 --rounds 3 --secs 4
    python bench/raw.py --modes none --points fifo32,delay32          what the lane leaves to Python
    python bench/raw.py --modes traced --points c32,traced32

    mode    none   a master without slaves        slave  asynchronous replication to one slave
            sync   synchronous replication        flush  synchronous flush, no slave
            slaves2, sync2   as slave and sync, with two slaves
            majority         the same three members, committed by two of them
            elected          three that elect their leader: acknowledgements wait for two of them, too
            traced           no slave; the broker traces into a file, one in 100 of messages without a context
    point   c1, c32, c256: single sends of 1 KiB so many at a time, over 1, 1 and 4 connections
            c32x32, c256x256: the same over so many connections      batch: 8 calls of 32 messages at a time
            java32, go32, python32, nodejs32: c32 with the header blocks of an SDK, a key, three properties
            tls32: c32 under TLS
            receive1, receive8: so many consumers with a connection each, receives of 32 messages, and a call
            for each acknowledgement      receive-batch: one that acknowledges all of a receive at once
            pull1, pull4: pulls of 32 over so many connections, from the begin of each queue to its end
        of what the lane leaves to Python, each with a topic of its own:
            fifo32: c32 of 64 message groups         delay32: c32, due in an hour
            transaction32: c32 of halves, each committed after its answer: a message, and its time, is both
            priority32: c32 of priorities 0 to 3     digest32: c32 with the CRC32 of the body
            large: bodies of 256 KiB, 4 at a time, so that a call is larger than what the lane takes
            traced32: c32 with trace contexts, one in 100 sampled; Python's in the mode traced only
        by the remoting protocol, over one connection, pulls over four, each with a topic of its own:
            remote1, remote32, remote-batch, remote-pull4: as c1, c32, batch and pull4
            remote-delay32: c32 with a delay level, that of two hours, which is Python's as well

Each round starts a fresh cluster for each tree and mode, the trees in alternating order. CPU is that of all
server processes, from before the first counted call until queues, index and slave have caught up, so what a
broker puts off counts as well; a generator that is stopped before it counts (`--count`) would hide it. After
the points of a mode the stores are verified. Points that read fill a topic of their own first, with about as
much as takes `--secs`; a message is then one that was acknowledged, or pulled, and p50 and p99 are those of a
receive or a pull. What is delayed becomes due long after all points of a mode: sending it is measured.

Servers have the settings of malloc that `whimbrel` starts them with: without them a large block is kept, or
mapped anew each time, by the luck of a run, and a message of a batch costs 1.5 or 3.0 us in any tree.

The generators are `bench/load/v2calls.cc`, and `bench/native/remload.cc` for the remoting protocol. They are
built when they are not there (g++, make; libssl-dev for tls32).

Nothing here asserts a time.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services"), str(REPO / "tests"), str(REPO / "bench")]

from run import FULL_SIZES, LOAD, NATIVE, build, page, scratch_directory, tool  # noqa: E402

from support.cluster import elections, processes  # noqa: E402 - the tests' way to start our processes
from support.waiting import until  # noqa: E402
from whimbrel.cli import malloc  # noqa: E402

ELECTED = "elected"
TRACED = "traced"
MODES: dict[str, tuple[int, dict[str, object]]] = {
    "none": (0, {}),
    "slave": (1, {}),
    "sync": (1, {"replication": "sync"}),
    "flush": (0, {"flush": "sync"}),
    "slaves2": (2, {}),
    "sync2": (2, {"replication": "sync"}),
    "majority": (2, {"replication": "majority", "voters": ["0", "1", "2"]}),
    ELECTED: (2, {}),
    TRACED: (0, {"trace_ratio": 0.01}),
}
SDK: list[object] = ["--c", 32, "--keys", 1, "--properties", 3, "--headers"]
SENDS: dict[str, list[object]] = {
    "c1": ["--c", 1],
    "c32": ["--c", 32],
    "c256": ["--c", 256, "--conns", 4],
    "c32x32": ["--c", 32, "--conns", 32],
    "c256x256": ["--c", 256, "--conns", 256],
    "batch": ["--c", 8, "--batch", 32],
    "java32": [*SDK, "java"],
    "go32": [*SDK, "go"],
    "python32": [*SDK, "python"],
    "nodejs32": [*SDK, "nodejs"],
    "tls32": ["--c", 32, "--tls", 1],
}
READS: dict[str, list[object]] = {
    "receive1": ["--mode", "receive", "--conns", 1, "--ack", "one"],
    "receive8": ["--mode", "receive", "--conns", 8, "--ack", "one"],
    "receive-batch": ["--mode", "receive", "--conns", 1, "--ack", "batch"],
    "pull1": ["--mode", "pull", "--conns", 1],
    "pull4": ["--mode", "pull", "--conns", 4],
}
# The lane leaves these to Python.
UNUSUAL: dict[str, list[object]] = {
    "fifo32": ["--c", 32, "--kind", "fifo"],
    "delay32": ["--c", 32, "--kind", "delay"],
    "transaction32": ["--c", 32, "--kind", "transaction"],
    "priority32": ["--c", 32, "--kind", "priority"],
    "digest32": ["--c", 32, "--digest", "crc32"],
    "large": ["--c", 4, "--size", 256 << 10],
    "traced32": ["--c", 32, "--traced", 0.01],
}
# Arguments of `remload`, not of `v2calls`.
REMOTE: dict[str, list[object]] = {
    "remote1": ["--c", 1],
    "remote32": ["--c", 32],
    "remote-batch": ["--c", 8, "--batch", 32],
    "remote-delay32": ["--c", 32, "--delay", 18],
    "remote-pull4": ["--mode", "pull", "--conns", 4],
}
POINTS = SENDS | READS | UNUSUAL | REMOTE
BATCH = 32
WARM_S = 1.0
WARM_READS = 4096  # messages read before: they tell how many to measure with
READS_MAX = 400_000  # messages of a point: half a GB
QUIET_S = 0.2  # without work: all that was put off is done
QUIET_CPU_S = 0.02
Row = dict[str, Any]


def log(*words: object) -> None:
    """Say what happens, on standard error."""
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds: the scheduler's, which counts nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


class Elected:
    """A group that elects its leader, as the fixed clusters are seen here; a context that ends it."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.group = elections.ElectedGroup(root, flush="async", **settings)
        leader = self.group.await_leader()
        followers = [one for one in self.group.members.values() if one is not leader]
        self.master, self.slaves = leader.broker, [one.broker for one in followers]
        brokers, replicators = zip(*(one.processes for one in (leader, *followers)), strict=True)
        self.processes = [self.group.nameserver, *brokers, *replicators]
        for name, process in zip(
            ("nameserver", "leader", "follower-1", "follower-2", "leader's", "1's", "2's"),
            self.processes,
            strict=True,
        ):
            process.name = name  # the same in each round, whoever leads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_error: Any) -> None:
        self.group.__exit__(*of_error)

    def wait_usable(self) -> None:
        """Wait until a member leads: it does."""


Made = processes.Cluster | Elected


def caught_up(made: Made) -> None:
    """Wait until slaves have dispatched the whole log."""
    marks = [page(process.store) for process in (made.master, *made.slaves)]
    try:
        until(
            lambda: all(one.dispatched >= marks[0].written for one in marks[1:]),
            timeout=60,
            what="a slave to catch up",
        )
    finally:
        for one in marks:
            one.close()


def quiet(pids: Iterable[int], cpu_s_max: float = QUIET_CPU_S, within_s: float = 60.0) -> None:
    """Wait until processes have no work left: until they take so little CPU in QUIET_S.

    Raises:
        RuntimeError: they go on.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        before = sum(map(cpu_s, pids))
        time.sleep(QUIET_S)
        if sum(map(cpu_s, pids)) - before < cpu_s_max:
            return
    raise RuntimeError(f"the servers do not come to rest within {within_s:.0f} s")


def settle(made: Made, pids: dict[str, int]) -> None:
    """Wait until slaves have dispatched the whole log and no process has work left."""
    caught_up(made)
    quiet(pids.values())


def generate(point: str, *arguments: object) -> Row:
    """Run the point's generator; fail with what it says where not all of its calls went well."""
    row = tool("remload" if point in REMOTE else "v2calls", *arguments)
    if "failed" in row or row["errors"]:
        raise RuntimeError(f"{point}: {row}")
    if "pull" in arguments and row["n"] != arguments[arguments.index("--count") + 1]:  # remload does not look
        raise RuntimeError(f"{point}: not all of the topic was pulled: {row}")
    return row


def fill(made: Made, topic: str, count: int) -> None:
    """Send so many messages in batches."""
    batches: list[object] = ["--c", 8, "--batch", BATCH, "--count", count]
    generate(topic, "--addr", made.master.grpc, "--topic", topic, *batches)


def prepare(made: Made, point: str, secs: float) -> list[object]:
    """Warm everything up; return the arguments of the run that is measured."""
    topic = "Raw" if point in SENDS else f"Raw-{point}"  # its first message makes it, of the type that it has
    words: list[object] = ["--addr", made.master.grpc, "--topic", topic, *POINTS[point]]
    if "--mode" not in words:
        generate(point, *words, "--secs", 0.5, "--warm", WARM_S)
        return [*words, "--secs", secs, "--warm", 0]
    fill(made, topic, WARM_READS)
    warm = generate(point, *words, "--count", WARM_READS)
    count = max(WARM_READS, min(READS_MAX, int(warm["rate"] * secs))) // BATCH * BATCH
    fill(made, topic, count)
    return [*words, "--count", count + (WARM_READS if "pull" in words else 0)]


def figures(row: Row, used: dict[str, float]) -> Row:
    """Return what tables show of a run of the generator, given the CPU time of each process in seconds."""
    # Calls that were under way at the end are answered, but not counted; the log knows them.
    scale = 1e6 / max(1, row["n"])
    return {
        "rate": row["rate"],
        "p50": row["p50"],
        "p99": row["p99"],
        "us": {name: value * scale for name, value in used.items()},
        "all_us": sum(used.values()) * scale,
        "client_us": row["client_us"],
        "messages": row["n"],
    }


def measure(made: Made, point: str, secs: float) -> Row:
    """Run one point; return rate, latencies and CPU a message by process."""
    pids = {process.name: process.pid for process in made.processes}
    arguments = prepare(made, point, secs)
    settle(made, pids)
    marks = page(made.master.store)
    begin = marks.written
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    row = generate(point, *arguments)
    settle(made, pids)
    used = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    stored, _ = marks.written - begin, marks.close()
    return {"point": point, "redelivered": row.get("redelivered", 0), "bytes": stored} | figures(row, used)


def verify(made: Made) -> str:
    """Stop the cluster and check its stores; return what is wrong with them, "" for nothing."""
    for process in reversed(made.processes):
        process.stop()
    found = []
    words = [sys.executable, "-c", processes.COMMAND, "store", "verify"]
    checks = {
        process.name: subprocess.Popen(
            [*words, str(process.store)],
            env=processes.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in (made.master, *made.slaves)
    }
    for name, check in checks.items():
        said, _ = check.communicate()
        if check.returncode:
            found.append(f"{name}: {said.strip()[-300:]}")
    return "; ".join(found)


@contextlib.contextmanager
def checked_out(revision: str, work: Path) -> Iterator[Path]:
    """A directory with the services of a revision, or of a directory that is there."""
    if (Path(revision) / "services").is_dir():
        yield (Path(revision) / "services").resolve()
        return
    tree = Path(tempfile.mkdtemp(dir=work))
    subprocess.run(["git", "worktree", "add", "--detach", str(tree), revision], cwd=REPO, check=True)
    try:
        yield tree / "services"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=REPO, check=True)


def check_tree(pid: int, services: Path) -> None:
    """Raise RuntimeError unless a process takes the package from this directory."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    path = next((one for one in variables if one.startswith(b"PYTHONPATH=")), b"").decode()
    if path.removeprefix("PYTHONPATH=").split(os.pathsep)[0] != str(services):
        raise RuntimeError(f"process {pid} runs another tree's code: {path}, not {services}")


def run_mode(services: Path, lane: str, mode: str, args: argparse.Namespace) -> list[Row]:
    """Measure the points of a mode with a fresh cluster of a tree."""
    slaves, options = MODES[mode]
    processes.SERVICES = services
    os.environ[processes.EXEC] = "1"  # a process that is forked has this tree's code
    os.environ["WHIMBREL_TEST_LANE"] = lane
    os.environ.update(malloc.with_settings(os.environ))  # as the servers of users have them
    settings = FULL_SIZES | options
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory(args.work))
        if mode == TRACED:
            settings["trace_to"] = f"file:{scratch / 'spans.jsonl'}"
        made: Made
        if mode == ELECTED:
            made = stack.enter_context(Elected(scratch, dict(settings)))
        else:
            made = stack.enter_context(processes.Cluster(scratch, slaves=slaves, broker=settings))
        made.wait_usable()
        for process in made.processes:
            check_tree(process.pid, services)
        rows = [{"mode": mode, **measure(made, point, args.secs)} for point in args.points]
        if not args.no_verify and (why := verify(made)):
            raise RuntimeError(f"{mode}: {why}")
    return rows


def median(rows: list[Row], key: str) -> float:
    """Return the median of a figure over the rounds."""
    return float(statistics.median(row[key] for row in rows))


def table(rows: list[Row], trees: list[str]) -> str:
    """Return medians as a Markdown table, with ratios to the first tree."""
    lines = [
        "| mode | point | tree | messages/s | p50 ms | p99 ms | us of all | by process | rate | us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((row["mode"], row["point"]) for row in rows))
    for mode, point in keys:
        base: list[Row] = []
        for tree in trees:
            some = [r for r in rows if (r["mode"], r["point"], r["tree"]) == (mode, point, tree)]
            if not some:
                continue
            base = base or some
            shares = " / ".join(
                f"{statistics.median(r['us'][name] for r in some):.1f}"
                for name in some[0]["us"]
                if name != "nameserver"
            )
            lines.append(
                f"| {mode} | {point} | {tree} | {median(some, 'rate'):,.0f} | {median(some, 'p50'):.3f} |"
                f" {median(some, 'p99'):.2f} | {median(some, 'all_us'):.1f} | {shares} |"
                f" {median(some, 'rate') / median(base, 'rate'):.2f} |"
                f" {median(some, 'all_us') / median(base, 'all_us'):.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trees", default="now=.", help="NAME=REVISION or NAME=DIRECTORY, by commas; @off: no lane"
    )
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--points", default="c1,c32,c256,batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=4.0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "whimbrel-raw")
    parser.add_argument("--json", type=Path, help="append each measurement to this file")
    parser.add_argument("--no-verify", action="store_true", help="do not check the stores afterwards")
    args = parser.parse_args()
    args.points = args.points.split(",")
    if unknown := set(args.points) - POINTS.keys():
        parser.error(f"no points {sorted(unknown)}; there are {[*POINTS]}")
    build(LOAD)
    if not REMOTE.keys().isdisjoint(args.points):
        build(NATIVE, "remload")
    args.work.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        trees = {}
        for text in args.trees.split(","):
            name, _, revision = text.partition("=")
            revision, _, lane = revision.partition("@")
            trees[name] = stack.enter_context(checked_out(revision, args.work)), lane or "auto"
        names = list(trees)
        for number in range(args.rounds):
            for mode in args.modes.split(","):
                for name in names if number % 2 == 0 else names[::-1]:
                    for row in run_mode(*trees[name], mode, args):
                        row |= {"tree": name, "round": number}
                        rows.append(row)
                        log(
                            name,
                            mode,
                            row["point"],
                            f"{row['rate']:.0f}/s p50 {row['p50']:.3f} p99 {row['p99']:.2f}",
                            f"{row['all_us']:.1f} us",
                            {k: round(v, 1) for k, v in row["us"].items()},
                        )
                        if args.json:
                            with args.json.open("a") as out:
                                out.write(json.dumps(row) + os.linesep)
    print(table(rows, names))


if __name__ == "__main__":
    main()
