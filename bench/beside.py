"""Measure ours, without and with the compiled lane, beside a real RocketMQ: one run, one table.

    python bench/beside.py                                   everything, with RocketMQ
    python bench/beside.py --only lane 4.9.3 --modes none,slave --points c1,c32
    python bench/beside.py --only python lane --rounds 1 --secs 1       ours alone: needs no Java
    python bench/beside.py --wheels dist ...                 ours as wheels install it (`make beside`)
    python bench/beside.py --render rows.jsonl               the tables of what `--json rows.jsonl` has kept

    system  python, lane   ours without and with the lane: apache.rocketmq.v2, by bench/load/v2calls.cc
            4x, 4x-lane    the same, by the remoting protocol: bench/native/remload.cc
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
import functools
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services"), str(REPO / "tests"), str(REPO / "bench")]

import raw  # noqa: E402
from beside_systems import (  # noqa: E402
    PEER_JAVA,
    SDK_LANGUAGES,
    System,
    fill,
    generate,
    installed,
    log_end,
    ours,
    settle,
    start,
    stored,
)
from beside_tables import BY_REMOTING, MODES, OURS, SYSTEMS, WITH_LANE, cell, tables  # noqa: E402
from raw import READS, SENDS, Row, cpu_s, log, quiet  # noqa: E402
from run import LOAD, NATIVE, TOOLS, build, probe_lag, scratch_directory, tool  # noqa: E402

from support.systems import real_broker, sdk_programs  # noqa: E402 - what starts RocketMQ, and its SDKs
from support.waiting import until  # noqa: E402

FAILURES = (RuntimeError, AssertionError, OSError, subprocess.SubprocessError)
STAGES = ("calls", "lag", "sdk", "catchup", "share")
WARM_SHARES = {"c256": 9, "batch": 5, "c32": 5, "c1": 3}  # of the time that RocketMQ is warmed up for
CALIBRATE_S = 0.5
SENDS_MAX = 400_000  # messages of a point: half a GB
CATCH_UP_S_MAX = 180.0
RECORD_BYTES = 1252  # of a message of 1 KiB in the log
LAG_RATES = (0, 3_000, 10_000)  # sends a second beside the probe
THREADS = (1, 8)  # of an SDK
SHARE_COUNT = 16_384  # messages that tell the lane's share of a point


def send(system: System, point: str, secs: float) -> Row:
    """Measure sends."""
    topic = "Beside"
    words: list[object] = ["--topic", topic, *SENDS[point]]
    warm = generate(system, point, *words, "--secs", CALIBRATE_S, "--warm", 0)
    batch = int(str(words[words.index("--batch") + 1])) if "--batch" in words else 1
    count = max(64, min(SENDS_MAX, int(warm["rate"] * secs)) // batch) * batch
    begin = settle(system, topic, 0)
    if len(set(begin)) > 1:  # calls that ended after the time are not counted: the slave lacks some yet
        begin = settle(system, topic, max(begin))
    before = {name: cpu_s(pid) for name, pid in system.pids.items()}
    row = generate(system, point, *words, "--count", count)
    end = settle(system, topic, begin[0] + row["n"])
    return result(system, point, row, before, [after - begin[0] for after in end])


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
    secs = max(1.0, secs)
    load: list[object] = ["--addr", system.address, "--topic", "Beside", "--c", 32, "--rate", rate]
    load += ["--secs", secs + 2, "--warm", 0]
    words = [str(TOOLS / system.tool), *map(str, load)]
    before = log_end(system)
    beside = subprocess.Popen(words, stdout=subprocess.DEVNULL) if rate else None
    try:
        if beside is not None:
            until(lambda: log_end(system) > before, what="the load beside the probe")
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


def catch_up(name: str, args: argparse.Namespace) -> Iterator[Row]:
    """Measure how fast an empty slave gets a log of one file, and has its queues."""
    size: dict[str, object] = {} if name in OURS else {"mappedFileSizeCommitLog": 2_147_479_552}
    with (
        scratch_directory(args.work) as scratch,
        start(name, "none", scratch, verify=False, **size) as system,
    ):
        fill(system, "Beside", int(args.log_gb * 1e9 / RECORD_BYTES))
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
                slave = real_broker.broker(name, scratch / "slave", "SLAVE", system.names, **size)
                stack.callback(slave.kill)
                starting = threading.Thread(target=slave.start)
                starting.start()
                stack.callback(starting.join)
                store = slave.store

            def holds(count: int) -> bool:
                return stored(store, "Beside") >= count

            moments = []
            for some, what in ((1, "its first message"), (wanted, "all messages")):
                until(
                    functools.partial(holds, some),
                    timeout=CATCH_UP_S_MAX,
                    what=f"{name}: the slave has {what}",
                    every_s=0.002,
                )
                moments.append(time.monotonic())
            first, ended = moments
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
        *sdk_programs.prepare(language),
        "load",
        system.access,
        topic,
        threads,
        min(10.0, args.warm),
        args.secs,
    ]
    environment = os.environ | {"HOME": str(sdk_programs.home(language)), "SDK_PLAINTEXT": "1"}
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
    return {
        "stage": "send" if point in SENDS else "read",
        "system": system.name,
        "mode": system.mode,
        "point": point,
        **raw.figures(row, used),
        "errors": sum(row["errors"].values()),
        "lost": [each - row["n"] for each in kept if each != row["n"]],
    }


def warm_up(system: System, seconds: float) -> None:
    """Let a JVM compile what sends need; its refusals meanwhile don't matter."""
    for point, share in WARM_SHARES.items():
        secs = seconds * share / sum(WARM_SHARES.values())
        generate(system, point, "--topic", "Beside", *SENDS[point], "--secs", secs, "--warm", 0)
    if system.can("receive8"):
        fill(system, "Beside-receive8", raw.READS_MAX // 2)
        generate(system, "receive8", "--topic", "Beside-receive8", *READS["receive8"], "--secs", seconds / 4)


def run_system(name: str, mode: str, args: argparse.Namespace, *, verify: bool) -> Iterator[Row]:
    """Measure all points of a system in a mode."""
    with scratch_directory(args.work) as scratch, start(name, mode, scratch, verify=verify) as system:
        if name not in OURS and args.warm > 0:
            log(name, mode, f"warms up for {args.warm:.0f} s")
            warm_up(system, args.warm)
        for point, measure in steps(system, args):
            try:
                yield measure()
            except FAILURES as error:  # one point that fails must not lose the others' hours
                yield {"stage": "failed", "system": name, "mode": mode, "point": point, "why": str(error)}


def steps(system: System, args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield what is to be measured of a system, with its name."""
    if "calls" in args.stages:
        for point in filter(system.can, args.points):
            yield point, functools.partial(send if point in SENDS else read, system, point, args.secs)
    if "lag" in args.stages and system.mode == "slave" and system.name != "proxy":
        for rate in LAG_RATES:
            yield f"lag {rate}", functools.partial(lag, system, rate, args.secs)
    if "sdk" in args.stages and system.mode == "none" and system.tool == "v2calls":
        for language in args.languages:
            for threads in THREADS:
                yield f"{language} {threads}", functools.partial(sdk, system, language, threads, args)


def told(row: Row) -> str:
    """Return a measurement as the log shows it."""
    if "rate" in row:
        return f"{cell([row])} { {k: round(v, 1) for k, v in row.get('us', {}).items()} }"
    return str({key: round(value, 4) for key, value in row.items() if isinstance(value, float)})


def facts(args: argparse.Namespace, version: str) -> Row:
    """Return what a table has to say of its run."""
    commit = subprocess.run(
        ["git", "-C", str(REPO), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    text = (
        f"Commit {commit or 'unknown'}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}, grpcio {importlib.metadata.version('grpcio')}; {version};"
        f" RocketMQ warm for {args.warm:.0f} s; points of {args.secs:g} s, medians of {args.rounds} rounds."
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


def need_sdks(parser: argparse.ArgumentParser, languages: list[str]) -> None:
    """Install the SDKs where they are not yet, and end where one can't be."""
    for language in languages:
        try:
            sdk_programs.prepare(language)
        except sdk_programs.Missing as why:
            parser.error(f"the SDK of {language}: {why}; or leave it out: --languages, --stages")


def arguments() -> argparse.Namespace:
    """Return what is asked for; end with what to do where it can't be had."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--points", default=",".join([*SENDS, *READS]))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--languages", default=",".join(SDK_LANGUAGES))
    parser.add_argument(
        "--log-gb",
        type=float,
        default=2.05,
        help="what an empty slave has to catch up with: one file, all that RocketMQ's gets",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", "--seconds", type=float, default=4.0)
    parser.add_argument("--warm", type=float, default=60.0, help="seconds for RocketMQ, after each start")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "whimbrel-beside")
    parser.add_argument(
        "--wheels", type=Path, help="let ours run from the wheels of this folder, not from the tree"
    )
    parser.add_argument("--json", type=Path, help="append each measurement to this file")
    parser.add_argument("--render", type=Path, help="measure nothing, print the tables of such a file")
    args = parser.parse_args()
    for name, there in (
        ("points", (*SENDS, *READS)),
        ("modes", MODES),
        ("stages", STAGES),
        ("languages", SDK_LANGUAGES),
    ):
        setattr(args, name, getattr(args, name).split(","))
        if unknown := set(getattr(args, name)) - set(there):
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}, but {', '.join(there)}")
    if args.render:
        return args
    # Sources of its own: another tree's tests may compile theirs into the usual cache meanwhile.
    os.environ.setdefault("WHIMBREL_SDK_CACHE", str(args.work / "sdks"))
    if set(args.only) - set(OURS):
        need_java(parser)
    if "sdk" in args.stages and "none" in args.modes and set(args.only) & {*OURS, "proxy"}:
        need_sdks(parser, args.languages)
    return args


def main() -> int:
    """Measure, and print the tables."""
    args = arguments()
    if args.render:
        print(tables([json.loads(line) for line in args.render.read_text().splitlines()]))
        return 0
    build(LOAD)
    if set(args.only) - set(OURS):
        os.environ.update(PEER_JAVA)
    if set(args.only) - set(OURS) | set(args.only) & set(BY_REMOTING):
        build(NATIVE, "remload")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # nothing that was started stays
    rows: list[Row] = []
    failed = []

    def keep(row: Row) -> None:
        rows.append(row)
        if args.json:
            with args.json.open("a") as out:
                out.write(json.dumps(row) + "\n")

    args.work.mkdir(parents=True, exist_ok=True)
    version = "ours from the tree"
    if args.wheels:
        version = installed(args.wheels.resolve(), args.work, lane=bool(set(args.only) & set(WITH_LANE)))
    keep(facts(args, version))
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
                if row["stage"] == "failed":
                    failed.append(f"{what} {row['point']}: {row['why']}")
                if row.get("lost"):
                    failed.append(f"{what} {row['point']}: stored - acknowledged = {row['lost']}")
        except FAILURES as error:
            failed.append(f"{what}: {error}")
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
