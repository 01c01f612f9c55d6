"""What metrics cost, with them off and on in the same run.

    python bench/metrics_cost.py [--rounds 8] [--secs 3] [--blocks 60]

Two clusters run side by side, one with metrics, which is scraped every 5 s as Prometheus would. Load goes
to one and the other by turns, so that both see the same machine; compared are the medians of the rounds'
ratios, and memory and start of each process.

Where the machine is shared that is too coarse for a cost of microseconds. So two brokers also take sends
inside this process, over connections in memory, by turns of 500; compared is the CPU time of the thread that
does it.
"""

import argparse
import asyncio
import json
import statistics
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

from front import Sink, reads_of
from run import Cluster, cluster, log, memory, scratch_directory, tool

from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.loop import run as run_loop
from whimbrel.rpc.server.native import NativeServer

ON: dict[str, object] = {"metrics_port": 0}
SCRAPE_S = 5.0
BLOCK = 500
SCRAPES = 50


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description="What metrics cost")
    parser.add_argument("--rounds", type=int, default=8, help="0 leaves the clusters out")
    parser.add_argument("--secs", type=float, default=3.0)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "whimbrel-bench")
    args = parser.parse_args()
    with scratch_directory(args.work) as scratch:
        result = run_loop(inside(scratch, args.blocks))
    if args.rounds:
        result |= clusters(args.work, args.rounds, args.secs)
    print(json.dumps(result, indent=2))


async def inside(scratch: Path, blocks: int) -> dict[str, Any]:
    """Compare two brokers in this process, and time scrapes of one."""
    brokers = [
        Broker(
            BrokerOptions(
                store=str(scratch / name), port=0, nameservers=(), auto_create_topics=True, metrics_port=port,
                commitlog_file_size=256 << 20,
            )
        )
        for name, port in (("off", -1), ("on", 0))
    ]  # fmt: skip
    for broker in brokers:
        await broker.start()
    reads = reads_of(BLOCK, 1, indexed=False)
    pairs = []
    for number in range(blocks + 2):
        order = brokers if number % 2 else brokers[::-1]
        took = {}
        for broker in order:
            took[broker.options.metrics_port] = await sends(broker, reads)
        pairs.append((took[-1], took[0]))
    pairs = pairs[2:]  # the first ones warm up
    context = brokers[1].context
    assert context is not None and context.exposition is not None
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(SCRAPES):
        await asyncio.to_thread(fetch, context.exposition.address)
    cpu, wall = (time.process_time() - cpu) / SCRAPES, (time.perf_counter() - began) / SCRAPES
    for broker in brokers:
        await broker.stop()
    return {
        "CPU us a send without sockets": {
            "off": round(statistics.median(before for before, _ in pairs), 2),
            "on": round(statistics.median(after for _, after in pairs), 2),
            "difference": round(statistics.median(after - before for before, after in pairs), 2),
            "best difference": round(
                min(after for _, after in pairs) - min(before for before, _ in pairs), 2
            ),
        },
        "scrape ms": {"cpu": round(cpu * 1000, 2), "wall": round(wall * 1000, 2)},
    }


async def sends(broker: Broker, reads: list[bytes]) -> float:
    """Return the CPU microseconds of one send."""
    assert isinstance(broker.server, NativeServer)
    connection = NativeConnection(broker.server, 0.0)
    connection.connection_made(cast(Any, Sink()))
    began = time.thread_time()
    for data in reads:
        connection.data_received(data)
        await asyncio.sleep(0)  # the end of a tick: marks, index, answers
    took = time.thread_time() - began
    assert connection.conn.error is None and not connection.conn.streams, "a send was not answered"
    connection.connection_lost(None)
    return took / BLOCK * 1e6


def clusters(work: Path, rounds: int, secs: float) -> dict[str, Any]:
    """Compare two clusters under load from outside."""
    broker: dict[str, object] = {"commitlog_file_size": 256 << 20}
    with cluster(work, broker=broker) as off, cluster(work, broker=broker, every=ON) as on:
        done = threading.Event()
        scraper = threading.Thread(target=scrape, args=(on, done))
        scraper.start()
        try:
            found = [round_of(off, on, secs, number) for number in range(rounds + 1)][1:]
        finally:
            done.set()
            scraper.join()
        result: dict[str, Any] = {"rounds": rounds}
        for load in found[0]:
            for figure in found[0][load]["off"]:
                pairs = [(each[load]["off"][figure], each[load]["on"][figure]) for each in found]
                result[f"{load}: {figure}"] = {
                    "off": round(statistics.median(before for before, _ in pairs), 2),
                    "on": round(statistics.median(after for _, after in pairs), 2),
                    "ratio": round(statistics.median(after / before for before, after in pairs), 3),
                }
        for what, number in (
            ("anonymous MiB", lambda one: memory(one)["RssAnon"]),
            ("ready s", lambda one: one.ready_s),
        ):
            result[what] = {
                before.name: [round(number(before), 2), round(number(after), 2)]
                for before, after in zip(off.processes, on.processes, strict=True)
            }
    return result


def round_of(off: Cluster, on: Cluster, secs: float, number: int) -> dict[str, dict[str, Any]]:
    """Load both clusters in each way, in changing order."""
    order = [("off", off), ("on", on)]
    if number % 2:
        order.reverse()
    loads: dict[str, tuple[object, ...]] = {
        "64 at a time": ("--c", 64, "--conns", 4),
        "one at a time": ("--c", 1),
    }
    found: dict[str, dict[str, Any]] = {load: {} for load in loads}
    for load, words in loads.items():
        for name, made in order:
            row = tool("v2load", "--addr", made.master.grpc, "--topic", "Cost", "--body", 1024,
                       "--secs", secs, "--warm", 0.5, "--pids", made.master.pid, *words)  # fmt: skip
            found[load][name] = figures(row)
            log(number, load, name, found[load][name])
    return found


def figures(row: dict[str, Any]) -> dict[str, float]:
    """Return what is compared of a generator's answer."""
    if "failed" in row:
        raise SystemExit(f"the load generator failed: {row['failed']}")
    return {"sends/s": row["rate"], "CPU us": row["server_us"], "p50 ms": row["p50"], "p99 ms": row["p99"]}


def scrape(made: Cluster, done: threading.Event) -> None:
    """Read all metrics as Prometheus would."""
    while not done.wait(SCRAPE_S):
        for process in made.processes:
            fetch(str(process.ready["metrics"]))


def fetch(address: str) -> None:
    """Scrape once."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        answer.read()


if __name__ == "__main__":
    main()
