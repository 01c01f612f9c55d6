"""What the jobs cost on one store of 1 KiB bodies, as ratios within one run.

    PYTHONPATH=services:tests python bench/spark_jobs.py [--records 400000]

archive     the store into Parquet, CPU seconds over those of a scan of the same rows that keeps none
stats       counts by queue, the same
audit       two equal copies, CPU seconds over those of one Python process that sums up both with zlib.crc32
verify      queues and index against the log, CPU seconds over the scan's
replay      the archive into a cluster with a slave: messages a second, CPU a message of job and master

Each job runs twice; the second run counts, the first one warms up Java. Times are never asserted.
"""

import argparse
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_source import SPLIT, cpu_s, discard, fill

from support.cluster.processes import Cluster, Process
from support.provenance import commit
from whimbrel.spark import session
from whimbrel.spark.jobs.archive import ArchiveOptions, archive
from whimbrel.spark.jobs.audit import AuditOptions, audit
from whimbrel.spark.jobs.replay import ReplayOptions, Source, replay
from whimbrel.spark.jobs.stats import StatsOptions, stats
from whimbrel.spark.jobs.verify_index import VerifyOptions, verify_index

BODY_BYTES = 1024
REPLAYED, QUEUES = 100_000, 8
READ_BYTES = 4 << 20
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


def taken(work: Callable[[], Any]) -> tuple[float, float]:
    """Do something; return seconds and CPU seconds."""
    began, before = time.monotonic(), cpu_s()
    work()
    return time.monotonic() - began, cpu_s() - before


def twice(work: Callable[[int], Any]) -> tuple[float, float]:
    """Do something twice; return what the second time took."""
    work(0)
    return taken(lambda: work(1))


def summed(*stores: Path) -> None:
    """Sum up logs as a plain program does."""
    for store in stores:
        for path in sorted((store / "commitlog").iterdir()):
            with path.open("rb", buffering=0) as file:
                crc = 0
                while data := file.read(READ_BYTES):
                    crc = zlib.crc32(data, crc)


def clean(job: Any) -> None:
    """Check that a report has no finding."""
    findings = [row["finding"] for row in job.collect() if row["finding"]]
    assert not findings, findings


def row(job: str, seconds: float, cpu: float, size: int, base: float) -> None:
    """Print a row."""
    print(f"| {job} | {seconds:.1f} | {cpu:.1f} | {size / cpu / 1e6:,.0f} | {cpu / base:.2f} |", flush=True)


def on_files(spark: Any, root: Path, records: int) -> None:
    """Measure the jobs on files."""
    store, copy = root / "store", root / "copy"
    fill(store, BODY_BYTES, records, indexed=True)
    shutil.copytree(store, copy)
    source = {"store": str(store), "subscribe": "orders,payments,clicks", "isolation": "latest"}
    source |= {"maxBytesPerPartition": SPLIT, "verifyCrc": "false"}
    frame = spark.read.format("whimbrel").options(**source).load()
    size = int(frame.agg({"size": "sum"}).first()[0])
    scan = twice(lambda _: discard(frame))
    plain = taken(lambda: summed(store, copy))
    print(f"\n{size / 1e6:,.0f} MB of log\n")
    print("| job | s | CPU s | MB of log/CPU s | CPU, its measure = 1 |\n|---|---|---|---|---|")
    row("scan that keeps nothing", *scan, size, scan[1])
    kept = twice(lambda n: clean(archive(spark, ArchiveOptions(root=root / f"archive-{n}", source=source))))
    row("archive", *kept, size, scan[1])
    row("stats", *twice(lambda _: stats(spark, StatsOptions(source=source)).collect()), size, scan[1])
    verified = twice(lambda _: clean(verify_index(spark, VerifyOptions(store=store))))
    row("verify-index", *verified, size, scan[1])
    pair = AuditOptions(master=str(store), slaves=(str(copy),))
    row("zlib.crc32 of both copies", *plain, 2 * size, plain[1])
    row("audit of both copies", *twice(lambda _: clean(audit(spark, pair))), 2 * size, plain[1])


def into_a_cluster(spark: Any, root: Path) -> None:
    """Measure replay."""
    settings: dict[str, object] = {"commitlog_file_size": 1 << 28, "accept_replays": True}
    source = Source(archive=str(root / "archive-1"), topic="orders")
    print("\n| replayed | s | messages/s | job, us CPU a message | master, us |\n|---|---|---|---|---|")
    with Cluster(root / "cluster", broker=settings) as cluster:
        cluster.wait_usable()
        for number in range(2):
            options = ReplayOptions(
                endpoint=cluster.endpoint,
                source=source,
                create=True,
                until=REPLAYED // QUEUES,
                to=f"back-{number}",
            )
            before, others_before = cpu_of(cluster.master), sum(map(cpu_of, cluster.processes))
            began, all_before = time.monotonic(), cpu_s()
            stored = sum(each["stored"] for each in replay(spark, options).collect())
            seconds, cpu = time.monotonic() - began, cpu_s() - all_before
            job = cpu - (
                sum(map(cpu_of, cluster.processes)) - others_before
            )  # a cluster's processes are ours, too
            master = cpu_of(cluster.master) - before
    cells = (
        f"{stored:,}",
        f"{seconds:.1f}",
        f"{stored / seconds:,.0f}",
        f"{job / stored * 1e6:.0f}",
        f"{master / stored * 1e6:.0f}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def cpu_of(process: Process) -> float:
    """Return the CPU seconds of one process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400_000)
    records = parser.parse_args().records
    root = Path(tempfile.mkdtemp(prefix="whimbrel-bench-jobs-"))
    print(f"commit {commit()}, {os.cpu_count()} cores, {records:,} records of {BODY_BYTES} B")
    try:
        spark = session("local[2]", **SETTINGS)
        spark.sparkContext.setLogLevel("OFF")
        try:
            on_files(spark, root, records)
            into_a_cluster(spark, root)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
