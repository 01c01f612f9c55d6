"""Measure whimbrel beside a real RocketMQ in one run, and print the result as Markdown tables.

    python bench/run.py [STAGE ...]      stages: limits send lag catchup recover drop start   (default: all)
    python bench/run.py --scale 0.2      a rehearsal

The load comes from the native generators in `bench/native` (copies; their checksums stand beside them),
because a load generator in Python would measure itself. RocketMQ runs through `native/run_baseline.py` and
the kit in `tests/kit`; a target of ours takes part in the same rounds. Nothing here asserts a time.

Every stage starts fresh processes of ours, on free ports, in a scratch directory that is removed.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services"), str(REPO / "tests")]

from support.cluster.processes import Cluster, Process, environment  # noqa: E402 - the tests' way to start our processes
from whimbrel.testing.signals import send_signal  # noqa: E402

NATIVE = REPO / "bench" / "native"
LOAD = REPO / "bench" / "load"
CACHE = Path.home() / ".cache"
TOOLS = CACHE / "rocketmq-bench"
Row = dict[str, Any]
FULL_SIZES: dict[str, object] = {
    "commitlog_file_size": 1 << 30,
    "consumequeue_file_size": 6_000_000,
    "index_slots": 5_000_000,
    "index_entries": 20_000_000,
}


def log(*words: object) -> None:
    """Say what happens, on standard error."""
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def build(folder: Path, *only: str) -> None:
    """Build the load generators of a folder, or only some, that are not there yet or not up to date."""
    targets = [str(TOOLS / name) for name in only]
    subprocess.run(["make", "-s", "-C", str(folder), f"BUILD={TOOLS}", *targets], check=True)


def tool(name: str, *args: object, timeout: float = 180.0) -> Row:
    """Run one load generator; its last output line is JSON."""
    done = subprocess.run(
        [str(TOOLS / name), *map(str, args)], capture_output=True, text=True, timeout=timeout, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"failed": (done.stderr or done.stdout)[-300:]}
    return dict(json.loads(lines[-1]))


@contextlib.contextmanager
def scratch_directory(work: Path) -> Iterator[Path]:
    """A directory that is removed afterwards."""
    work.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=work))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def cluster(
    work: Path,
    *,
    slaves: int = 1,
    broker: dict[str, object] | None = None,
    every: dict[str, object] | None = None,
) -> Iterator[Cluster]:
    """A running cluster with the file sizes of production; `every` are settings of all its processes."""
    every = every or {}
    settings = FULL_SIZES | (broker or {}) | every
    with (
        scratch_directory(work) as scratch,
        Cluster(scratch, slaves=slaves, broker=settings, replicator=every, nameserver=every) as made,
    ):
        made.wait_usable()
        yield made


def memory(process: Process) -> Row:
    """Return VmRSS, RssAnon and RssFile in MiB."""
    found = {}
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "RssAnon", "RssFile"):
            found[key] = int(value.split()[0]) / 1024
    return found


def page(store: Path) -> Any:
    """Open the page of marks of a store, read only."""
    from whimbrel.store.shared_page import SharedPage

    return SharedPage.open(store)


class Bench:
    """All stages, with the results they leave."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.results: list[Row] = []

    def save(self, stage: str, target: str, point: str, **values: Any) -> None:
        """Keep one measurement and show it."""
        row = {"stage": stage, "target": target, "point": point, **values}
        self.results.append(row)
        log(
            stage,
            target,
            point,
            {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items() if k != "rss"},
        )

    def limits(self) -> None:
        """What the machine itself does: loopback and disk."""
        if shutil.which("iperf3"):
            for size in ("1M", "32K"):
                self.save("limits", "machine", f"loopback TCP, iperf3 -l {size}, GB/s", value=iperf(size))
        else:
            log("iperf3 is not installed: the loopback's own limit is left out")
        row = tool("limits", "sync", "--dir", self.args.work, "--secs", 1)
        self.save("limits", "machine", "pwrite + fdatasync of 1.1 KB, per s", value=row.get("rate", 0.0))
        row = tool("limits", "pingpong", "--c", 1, "--secs", 1)
        self.save("limits", "machine", "TCP ping-pong, one at a time, per s", value=row.get("rate", 0.0))

    def send(self) -> None:
        """Sends, receives and pulls, ours and RocketMQ's in the same rounds."""
        modes: dict[str, dict[str, object]] = {
            "whimbrel async": {},
            "whimbrel sync replication": {"replication": "sync"},
            "whimbrel sync flush": {"flush": "sync"},
        }
        out = self.args.work / "baseline.jsonl"
        out.unlink(missing_ok=True)
        for number in range(self.args.rounds):
            for name, options in modes.items():
                with cluster(self.args.work, broker=options) as made:
                    pids = f"{made.master.pid}"
                    target = f"{name},v2={made.master.grpc},pids={pids}"
                    peers = (name == "whimbrel async" and self.args.peers) or "-"
                    self.baseline("send", out, "--only", peers, "--rounds", "1", "--extra", target)
            log("send round", number + 1, "done")
        for line in out.read_text().splitlines():
            row = json.loads(line)
            if row["stage"] == "send":
                self.results.append(row)

    def baseline(self, stage: str, out: Path, *extra: str) -> None:
        """Run the script that measures RocketMQ, with targets of ours among its own."""
        command = [
            sys.executable,
            str(NATIVE / "run_baseline.py"),
            stage,
            "--kit",
            str(REPO / "tests" / "kit"),
            "--work",
            str(self.args.work / "baseline"),
            "--out",
            str(out),
            "--scale",
            str(self.args.scale),
            *extra,
        ]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            log("the RocketMQ side of stage", stage, "failed with exit code", done.returncode)

    def lag(self) -> None:
        """From a send's answer to the message's presence in the slave's PullMessage, idle and under load."""
        with cluster(self.args.work) as made:
            command = [sys.executable, "-c", "from whimbrel.cli.main import run; run()"]
            words = ["topic", "create", "Lag", "--queues", "1", "--endpoint", made.endpoint]
            subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, env=environment())
            for load in (0, self.args.lag_load):
                generator = None
                if load:
                    generator = subprocess.Popen(
                        [
                            str(TOOLS / "v2load"),
                            "--addr",
                            made.master.grpc,
                            "--topic",
                            "Bench",
                            "--c",
                            "8",
                            "--rate",
                            str(load),
                            "--secs",
                            "8",
                            "--warm",
                            "0",
                        ],
                        stdout=subprocess.DEVNULL,
                    )
                    time.sleep(1)
                row = probe_lag(made, seconds=6 * self.args.scale + 1)
                self.save("lag", "whimbrel async", "idle" if not load else f"{load}/s offered", **row)
                if generator is not None:
                    generator.terminate()
                    generator.wait()
        if self.args.peers:
            self.peers_stage("lag")

    def peers_stage(self, stage: str) -> None:
        """Run a stage of the RocketMQ script and keep its rows."""
        out = self.args.work / f"baseline-{stage}.jsonl"
        out.unlink(missing_ok=True)
        self.baseline(stage, out, "--rounds", "1", "--versions", "4.9.3", "--cc", "cubic")
        if out.exists():
            self.results.extend(json.loads(line) for line in out.read_text().splitlines())

    def fill(self, made: Cluster, size: int) -> int:
        """Fill the master's log up to `size` bytes; return its end."""
        marks = page(made.master.store)
        while marks.written < size:
            count = max(3200, min(200_000, (size - marks.written) // 1300))
            row = tool(
                "v2load",
                "--addr",
                made.master.grpc,
                "--topic",
                "Fill",
                "--c",
                8,
                "--batch",
                32,
                "--count",
                count,
            )
            if "failed" in row:
                raise RuntimeError(row["failed"])
        return int(marks.written)

    def catchup(self) -> None:
        """How fast an empty slave gets the log, and its consume queues."""
        with cluster(self.args.work, slaves=0, broker={"commitlog_file_size": 1 << 30}) as made:
            end = self.fill(made, int(2.05e9 * min(1.0, self.args.scale + 0.1)))
            for number in range(1, self.args.rounds + 1):
                fresh = fresh_file(self.args.work, end)
                started = time.monotonic()
                broker, follower = (
                    made.broker("slave", number).launch(),
                    made.replicator("slave", number).launch(),
                )
                store = broker.store
                while not (store / "whimbrel" / "watermark").exists():
                    time.sleep(0.002)
                marks = page(store)
                first = logged = queued = 0.0
                while not queued:
                    now = time.monotonic()
                    if not first and marks.written > 0:
                        first = now
                    if not logged and marks.written >= end:
                        logged = now
                    if marks.dispatched >= end:
                        queued = now
                    if now - started > 120:
                        raise RuntimeError("the slave does not catch up")
                    time.sleep(0.001)
                same = same_bytes(made.master.store, store, end)
                self.save(
                    "catchup",
                    "whimbrel",
                    "empty slave",
                    bytes=end,
                    log_gb_s=end / (logged - first) / 1e9,
                    queues_gb_s=end / (queued - first) / 1e9,
                    fresh_file_gb_s=fresh,
                    identical=same,
                    from_start_s=queued - started,
                )
                broker.kill()
                follower.kill()
                shutil.rmtree(store)
        if self.args.peers:
            self.peers_stage("ha")

    def recover(self) -> None:
        """Kill -9 the master with 1 GiB of log; how long until a send succeeds again."""
        with cluster(self.args.work, slaves=0) as made:
            end = self.fill(made, int(1.05e9 * min(1.0, self.args.scale + 0.1)))
            for _ in range(self.args.rounds):
                made.master.kill()
                made.master.launch()
                row = tool(
                    "v2load", "--addr", made.master.grpc, "--topic", "Fill", "--mode", "probe", "--secs", 30
                )
                seconds = time.monotonic() - made.master.started
                made.master.wait_ready()
                self.save(
                    "recover",
                    "whimbrel",
                    "kill -9, restart, first send",
                    seconds=seconds,
                    ok=row.get("ok"),
                    bytes=end,
                )
                time.sleep(1)
        if self.args.peers:
            self.peers_stage("recover")

    def drop(self) -> None:
        """A killed and a hung master: when the route stops naming it for writing."""
        for what, sig in (("killed", signal.SIGKILL), ("hung", signal.SIGSTOP)):
            with cluster(self.args.work, slaves=0) as made:
                tool(
                    "v2load", "--addr", made.master.grpc, "--topic", "First", "--mode", "probe", "--secs", 10
                )
                asked = route_probe(made.endpoint, "First")
                assert next(asked)  # the connection is there before the clock starts
                started = time.monotonic()
                send_signal(made.master.pid, sig)
                while next(asked) and time.monotonic() - started < 30:
                    time.sleep(0.002)
                self.save(
                    "drop", "whimbrel", f"{what} master out of the route", seconds=time.monotonic() - started
                )
                asked.close()

    def start(self) -> None:
        """Seconds to ready and memory of each process of a fresh cluster with 1 GiB files."""
        for _ in range(self.args.rounds):
            with cluster(self.args.work) as made:
                for process in made.processes:
                    self.save("start", "whimbrel", process.name, seconds=process.ready_s, **memory(process))


def iperf(size: str) -> float:
    """Loopback throughput in GB/s, congestion control cubic as our replication uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL
    )
    time.sleep(0.3)
    try:
        done = subprocess.run(
            ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-C", "cubic", "-l", size, "-t", "2", "-J"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9
    finally:
        server.terminate()
        server.wait()


def fresh_file(directory: Path, size: int) -> float:
    """Write and remove a file twice; return GB/s of the second time.

    On a virtual machine the first touch of memory can cost ten times the next: the host has to find it. What
    follows at once then finds the memory warm, as far as the host lets it, and the figure says how far.
    """
    block = bytes(1 << 20)
    for _ in range(2):
        began = time.perf_counter()
        with (directory / "fresh-file").open("wb", buffering=0) as file:
            for _ in range(size >> 20):
                file.write(block)
        seconds = time.perf_counter() - began
        (directory / "fresh-file").unlink()
    return size / seconds / 1e9


def same_bytes(master: Path, slave: Path, end: int) -> bool:
    """Compare two commitlogs up to `end`."""
    for path in sorted((master / "commitlog").iterdir()):
        begin = int(path.name)
        if begin >= end:
            break
        count = min(path.stat().st_size, end - begin)
        other = slave / "commitlog" / path.name
        if (
            subprocess.run(["cmp", "-s", "-n", str(count), str(path), str(other)], check=False).returncode
            != 0
        ):
            return False
    return True


def probe_lag(made: Cluster, seconds: float) -> Row:
    """Send one message at a time to one queue and ask the slave for it every 0.2 ms, as for RocketMQ.

    Of every second message the slave's page of marks is watched instead: `visible` is the time until it can
    be pulled, without what a pull from Python costs.
    """
    import grpc

    from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as d
    from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as s

    prefix = "/apache.rocketmq.v2.MessagingService/"
    header = (("x-mq-client-id", f"bench-lag@{os.getpid()}"),)
    ours, theirs = page(made.master.store), page(made.slaves[0].store)
    with (
        grpc.insecure_channel(made.master.grpc) as to_master,
        grpc.insecure_channel(made.slaves[0].grpc) as to_slave,
    ):
        send = to_master.unary_unary(
            prefix + "SendMessage", s.SendMessageRequest.SerializeToString, s.SendMessageResponse.FromString
        )
        pull = to_slave.unary_stream(
            prefix + "PullMessage", s.PullMessageRequest.SerializeToString, s.PullMessageResponse.FromString
        )
        topic = d.Resource(name="Lag")
        lags: list[float] = []
        visible: list[float] = []
        pulls: list[float] = []  # the same pull once more: less than that no lag can be found to be
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            message = d.Message(topic=topic, body=b"x" * 100)
            message.system_properties.message_id = f"{number:034d}"
            message.system_properties.message_type = d.NORMAL
            message.system_properties.queue_id = 0
            reply = send(s.SendMessageRequest(messages=[message]), metadata=header)
            began = time.perf_counter()
            if reply.status.code != d.OK:
                raise RuntimeError(reply.status.message)
            if number % 2:
                end_of_log = ours.written
                while theirs.dispatched < end_of_log:
                    time.sleep(0.00002)
                visible.append((time.perf_counter() - began) * 1e3)
                time.sleep(0.02)
                continue
            wanted = reply.entries[0].offset
            request = s.PullMessageRequest(group=d.Resource(name="LagGroup"), offset=wanted, batch_size=1)
            request.message_queue.topic.CopyFrom(topic)
            while not any(frame.HasField("message") for frame in pull(request, metadata=header)):
                if time.perf_counter() - began > 10:
                    raise RuntimeError("not seen in 10 s")
                time.sleep(0.0002)
            seen = time.perf_counter()
            lags.append((seen - began) * 1e3)
            list(pull(request, metadata=header))
            pulls.append((time.perf_counter() - seen) * 1e3)
            time.sleep(0.02)
    lags.sort()
    return {
        "one_pull": statistics.median(pulls),
        "visible": statistics.median(visible),
        "visible_p99": sorted(visible)[int(len(visible) * 0.99)],
        "p50": lags[len(lags) // 2],
        "p95": lags[int(len(lags) * 0.95)],
        "p99": lags[int(len(lags) * 0.99)],
        "max": lags[-1],
        "count": len(lags),
    }


def route_probe(endpoint: str, topic: str) -> Generator[bool, None, None]:
    """Yield, at each step, whether the topic can be written somewhere."""
    import grpc

    from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as d
    from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as s

    host, _, port = endpoint.rpartition(":")
    request = s.QueryRouteRequest(topic=d.Resource(name=topic))
    request.endpoints.scheme = d.IPv4
    request.endpoints.addresses.add(host=host, port=int(port))
    with grpc.insecure_channel(endpoint) as channel:
        query = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            s.QueryRouteRequest.SerializeToString,
            s.QueryRouteResponse.FromString,
        )
        while True:
            reply = query(request, metadata=(("x-mq-client-id", "bench-route"),))
            yield any(queue.permission in (d.WRITE, d.READ_WRITE) for queue in reply.message_queues)


def median(rows: list[Row], key: str, digits: int = 2) -> str:
    """The median of a value over the rounds, with its range when there are several."""
    values = [row[key] for row in rows if isinstance(row.get(key), (int, float))]
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(head: list[str], lines: list[list[str]]) -> list[str]:
    """A Markdown table, or nothing when it would be empty."""
    if not lines:
        return []
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]


COLUMNS = {
    "limits": [("value", 2)],
    "send": [("rate", 0), ("p50", 3), ("p99", 3), ("server_us", 1)],
    "lag": [("p50", 2), ("p95", 2), ("p99", 2), ("max", 2), ("one_pull", 2), ("visible", 2)],
    "catchup": [("log_gb_s", 2), ("queues_gb_s", 2), ("from_start_s", 2), ("fresh_file_gb_s", 2)],
    "ha": [("gb_s", 2)],
    "recover": [("seconds", 2), ("send_s", 2)],
    "drop": [("seconds", 3)],
    "start": [("seconds", 2), ("VmRSS", 0), ("RssAnon", 0), ("RssFile", 0)],
}
TITLES = {
    "limits": "Limits of the machine",
    "send": "Sends and receives: messages/s, latency in ms, server CPU us a message",
    "lag": "Replication lag, ms from the send's answer to the slave's read",
    "catchup": "An empty slave catches up",
    "ha": "RocketMQ: an empty slave catches up",
    "recover": "Kill -9, seconds to the first send",
    "drop": "Seconds until a lost master leaves the route",
    "start": "Seconds to ready, memory in MiB",
}


def render(results: list[Row]) -> str:
    """All results as Markdown."""
    commit = subprocess.run(
        ["git", "-C", str(REPO), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    lines = [f"Commit {commit.stdout.strip()}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores.", ""]
    for stage, columns in COLUMNS.items():
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in results:
            if row["stage"] == stage and "failed" not in row:
                groups.setdefault((row["point"], row["target"]), []).append(row)
        body = [
            [point, target, *(median(rows, key, digits) for key, digits in columns)]
            for (point, target), rows in sorted(groups.items())
        ]
        if body:
            lines += [
                f"## {TITLES[stage]}",
                "",
                *table(["what", "target", *(key for key, _ in columns)], body),
            ]
    return "\n".join(lines)


def main() -> int:
    """Run the stages asked for and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    stages = ("limits", "start", "send", "lag", "catchup", "recover", "drop")
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(stages)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="shorter runs, 0.1 for a rehearsal")
    parser.add_argument(
        "--peers", default="4.9.3 async|5.3.3 proxy v2", help="RocketMQ targets; empty leaves RocketMQ out"
    )
    parser.add_argument("--lag-load", type=int, default=3000, help="messages/s beside the lag probe")
    parser.add_argument("--work", type=Path, default=CACHE / "whimbrel-bench", help="scratch directory")
    parser.add_argument("--out", type=Path, default=None, help="also write the tables there")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    build(NATIVE)
    bench = Bench(args)
    for stage in args.stages or stages:
        if stage not in stages:
            parser.error(f"no stage {stage!r}; there are {', '.join(stages)}")
        getattr(bench, stage)()
    text = render(bench.results)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
