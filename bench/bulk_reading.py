"""What reading costs, in bulk and one message in each response: CPU seconds of reader and broker.

    PYTHONPATH=services:tests python bench/bulk_reading.py [MESSAGES]

One broker with four queues, bodies of 100 B and of 1 KiB. Each reader is a process of its own and reads all
of them, the bulk reader several times over, since once takes too little time to be measured. Neither decodes
records or bodies: ReadRecords hands over pieces of the log, PullMessage messages as protobuf has parsed them.
CPU time is compared, not time on the clock, and the two of one run with each other: machines differ.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from support.cluster.broker_api import Api, message, queue
from support.cluster.processes import Cluster, environment
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.api.bulk_calls import open_bulk_channel, read_records, stream_blocking

TOPIC, QUEUES, BATCH = "bulk", 4, 32
ROUNDS = 3
REPEATS = {"bulk": 6, "pull": 1}  # so that both take long enough to be measured
SIZES = (100, 1024)


def processor_s(pid: int) -> float:
    """Return the CPU seconds that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_in_bulk(address: str) -> int:
    """Read everything with ReadRecords; return how many messages that was."""
    count = 0
    with open_bulk_channel(address) as channel:
        for queue_id in range(QUEUES):
            for frame in stream_blocking(channel, read_records(TOPIC, queue_id, start=0)):
                last = frame.next_offset
            count += last
    return count


def pull(address: str) -> int:
    """Read everything with PullMessage; return how many messages that was."""
    count = 0
    with grpc.insecure_channel(address) as channel:
        api = Api(channel)
        for queue_id in range(QUEUES):
            offset, before = 0, -1
            while offset != before:
                before = offset
                for frame in api.start(
                    "PullMessage",
                    group=v2.Resource(name="bench"),
                    message_queue=queue(TOPIC, queue_id),
                    offset=offset,
                    batch_size=BATCH,
                ):
                    if frame.HasField("message"):
                        count += 1
                    elif frame.WhichOneof("content") == "next_offset":
                        offset = frame.next_offset
    return count


def reader(kind: str, address: str, broker: int) -> None:
    """Be a reader: print what it cost."""
    read = read_in_bulk if kind == "bulk" else pull
    if kind == "bulk":
        read(address)
    before, ours = processor_s(broker), time.process_time()
    count = sum(read(address) for _ in range(REPEATS[kind]))
    ours = time.process_time() - ours
    print(json.dumps({"count": count, "reader": ours, "broker": processor_s(broker) - before}))


def fill(cluster: Cluster, size: int, messages: int) -> None:
    """Send the messages."""
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        batch = [message(TOPIC, bytes(size)) for _ in range(BATCH)]
        for _ in range(messages // BATCH):
            assert api("SendMessage", messages=batch).status.code == v2.OK


def measure(directory: Path, size: int, messages: int) -> dict[str, tuple[float, float]]:
    """Return messages for each CPU second of reader and broker, by kind; the median of the rounds."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in REPEATS}
    large = {"commitlog_file_size": 1 << 28, "consumequeue_file_size": 6_000_000}
    with Cluster(directory, slaves=0, broker=dict(large)) as cluster:
        cluster.wait_usable()
        fill(cluster, size, messages)
        for _ in range(ROUNDS):
            for kind, results in found.items():
                command = [sys.executable, __file__, kind, cluster.master.grpc, str(cluster.master.pid)]
                paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
                output = subprocess.run(command, env=environment() | paths, capture_output=True, check=True)
                one = json.loads(output.stdout)
                results.append((one["count"] / one["reader"], one["count"] / max(one["broker"], 0.01)))
    return {
        kind: (
            statistics.median(ours for ours, _ in results),
            statistics.median(theirs for _, theirs in results),
        )
        for kind, results in found.items()
    }


def main() -> None:
    """Measure and print the table."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    print("body      messages/CPU s of reader: bulk, pull, ratio      of broker: bulk, pull, ratio")
    for size in SIZES:
        directory = Path(tempfile.mkdtemp(prefix="whimbrel-bulk-"))
        try:
            found = measure(directory, size, messages)
        finally:
            shutil.rmtree(directory)
        (ours, theirs), (ours_pulled, theirs_pulled) = found["bulk"], found["pull"]
        print(
            f"{size:5} B {ours:22,.0f} {ours_pulled:10,.0f} {ours / ours_pulled:6.1f}x"
            f" {theirs:20,.0f} {theirs_pulled:10,.0f} {theirs / theirs_pulled:6.1f}x"
        )


if __name__ == "__main__":
    if sys.argv[1:2] in (["bulk"], ["pull"]):
        reader(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
