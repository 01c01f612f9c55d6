"""What reading topics with Spark costs, as ratios within one run.

    PYTHONPATH=services:tests python bench/spark_source.py [--records 400000] [--rounds 5]

scan          CPU seconds of the JVM and all Python workers for a scan to a sink that discards, over those of
              Spark reading the same rows from snappy Parquet; bodies of random bytes, 100 B and 1 KiB.
raw batches   CPU seconds of a client a record: ReadRecords against PullMessage (`bulk_reading.py`).
micro-batch   median duration of a batch over 32 queues over that of one over one queue, 500 messages/s.

The first two rounds of each way warm up and do not count; the rest go round by round through all ways, and
the median counts. Times are never asserted: machines differ, ratios of one run can be compared.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bulk_reading import SIZES, measure

from support.cluster.processes import Cluster
from support.provenance import commit
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer
from whimbrel.spark import session
from whimbrel.store.codec import RecordDraft, format_properties, pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

HEADERS = "topic string, queueId int, queueOffset long, storeTimestamp timestamp, size int"
WARM_UP = 2
STREAM_RATE, STREAM_S, STREAM_BATCHES_SKIPPED = 500, 25, 10
FILE_SIZE = 1 << 28
SPLIT = "64m"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def processes_below(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += parents.get(one, [])


def cpu_s() -> float:
    """Return the CPU seconds of this process and all below it, those that have ended among them."""
    total = 0
    for pid in processes_below(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total * TICK_S


def fill(root: Path, body_bytes: int, records: int, *, indexed: bool = False) -> None:
    """Make a store of messages with five properties in 24 queues."""
    options = StoreOptions(commitlog_file_size=FILE_SIZE, index_enabled=indexed, prefault_bytes=0)
    store = MasterStore.open(root, options, clock=lambda: int(time.time() * 1000))
    chance = random.Random(1)
    host = pack_host("10.0.0.1", 40_000)
    now = int(time.time() * 1000)
    for number in range(records):
        pairs = [
            ("TAGS", "TagA" if number % 2 else "created"),
            ("KEYS", f"order-{number}"),
            ("UNIQ_KEY", f"{number:032X}"),
            ("CLUSTER", "DefaultCluster"),
            ("user", f"u{number % 100}"),
        ]
        draft = RecordDraft.from_properties(
            topic=("orders", "payments", "clicks")[number % 3],
            queue_id=number % 8,
            body=chance.randbytes(body_bytes),
            properties=format_properties(pairs),
            born_timestamp=now,
            born_host=host,
            store_host=host,
        )
        store.append([draft])
    while indexed and store.indexer.step(store.written):
        pass
    store.close()


def discard(frame: Any) -> None:
    """Read all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def scans(spark: Any, root: Path, records: int, rounds: int) -> None:
    """Measure scans of a store beside Parquet."""
    print("\n| body | way | CPU s | CPU, Parquet = 1 | records/CPU s |\n|---|---|---|---|---|")
    for body_bytes in SIZES:
        store, parquet = root / f"store-{body_bytes}", root / f"parquet-{body_bytes}"
        fill(store, body_bytes, records)

        def reader(store: Path = store, **options: str) -> Any:
            found = spark.read.format("whimbrel").option("store", str(store))
            for name, value in {"isolation": "latest", "maxBytesPerPartition": SPLIT, **options}.items():
                found = found.option(name, value)
            return found

        rows = reader().load()
        rows.write.option("compression", "snappy").parquet(str(parquet))
        assert spark.read.parquet(str(parquet)).count() == rows.count() == records
        ways: dict[str, Callable[[], Any]] = {
            "snappy Parquet, all columns": lambda p=parquet: spark.read.parquet(str(p)),  # type: ignore[misc]
            "all columns": lambda r=reader: r(verifyCrc="false").load(),  # type: ignore[misc]
            "all columns, verifyCrc": lambda r=reader: r(verifyCrc="true").load(),  # type: ignore[misc]
            "five header columns": lambda r=reader: r(verifyCrc="false").schema(HEADERS).load(),  # type: ignore[misc]
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + WARM_UP):
            for way, frame in ways.items():
                before = cpu_s()
                discard(frame())
                taken[way].append(cpu_s() - before)
        medians = {way: statistics.median(found[WARM_UP:]) for way, found in taken.items()}
        base = next(iter(medians.values()))
        for way, seconds in medians.items():
            cells = (
                f"{body_bytes} B",
                way,
                f"{seconds:.2f}",
                f"{seconds / base:.2f}",
                f"{records / seconds:,.0f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)
        shutil.rmtree(store)
        shutil.rmtree(parquet)


def raw_batches(root: Path) -> None:
    """Measure bulk reading beside PullMessage."""
    print("\n| body | client messages/CPU s, bulk | PullMessage | ratio |\n|---|---|---|---|")
    for body_bytes in SIZES:
        found = measure(root / f"bulk-{body_bytes}", body_bytes, 20_000)
        bulk, pulled = found["bulk"][0], found["pull"][0]
        print(f"| {body_bytes} B | {bulk:,.0f} | {pulled:,.0f} | {bulk / pulled:.0f} |", flush=True)


def produce(endpoint: str, topic: str, stop: threading.Event) -> None:
    """Send at the rate until told to stop."""
    with Producer(endpoint) as producer:
        due = time.monotonic()
        for number in itertools.count():
            if stop.is_set():
                return
            batch = [Message(topic=topic, body=b"%d" % number * 20) for _ in range(STREAM_RATE // 50)]
            producer.send_batch(batch)
            due += 1 / 50
            stop.wait(max(due - time.monotonic(), 0))


def micro_batches(spark: Any, root: Path) -> None:
    """Measure the length of micro-batches over one queue and over many."""
    print("\n| queues | batches | median ms | one queue = 1 |\n|---|---|---|---|")
    medians: list[float] = []
    with Cluster(root / "cluster", slaves=0, broker={"commitlog_file_size": 1 << 26}) as cluster:
        cluster.wait_usable()
        with Admin(cluster.endpoint) as admin:
            for queues in (1, 32):
                admin.create_topic(f"stream-{queues}", queues=queues)
        for queues in (1, 32):
            stop = threading.Event()
            sender = threading.Thread(target=produce, args=(cluster.endpoint, f"stream-{queues}", stop))
            sender.start()
            reader = spark.readStream.format("whimbrel").option("servers", cluster.endpoint)
            writer = reader.option("subscribe", f"stream-{queues}").load().writeStream.format("noop")
            query = writer.option("checkpointLocation", str(root / f"checkpoint-{queues}")).start()
            query.awaitTermination(STREAM_S)
            durations = [
                progress["durationMs"]["triggerExecution"]
                for progress in query.recentProgress
                if progress["numInputRows"]
            ][STREAM_BATCHES_SKIPPED:]
            stop.set()
            sender.join()
            query.stop()
            medians.append(statistics.median(durations))
            ratio = medians[-1] / medians[0]
            print(f"| {queues} | {len(durations)} | {medians[-1]:.0f} | {ratio:.2f} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="whimbrel-bench-spark-"))
    print(f"commit {commit()}, {os.cpu_count()} cores, {options.records:,} records, {options.rounds} rounds")
    try:
        spark = session(
            "local[2]",
            **{
                "spark.driver.memory": "4g",
                "spark.sql.streaming.numRecentProgressUpdates": "1000",
                "spark.ui.showConsoleProgress": "false",
            },
        )
        spark.sparkContext.setLogLevel("OFF")
        try:
            scans(spark, root, options.records, options.rounds)
            micro_batches(spark, root)
        finally:
            spark.stop()
        raw_batches(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
