"""Memory of a broker under clients that take much and give nothing: printed, and bounded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, duration, queue
from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = [pytest.mark.process, pytest.mark.slow]

POLLS = 1000
QUEUES = 1000
STREAMS = 300


def anonymous_kib(pid: int) -> int:
    """Return what a process holds besides pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def test_parked_polls_many_queues_and_clients_that_never_read_take_bounded_memory(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    with Cluster(tmp_path, broker={"commitlog_file_size": 16 << 20}) as cluster:
        channels = [
            grpc.insecure_channel(cluster.master.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(4)
        ]
        api = Api(channels[0])
        until(lambda: api.administer("DescribeReplication").writable, timeout=15)
        steps: list[tuple[str, int]] = []

        def step(name: str) -> None:
            assert api.send("wide", b"alive").status.code == v2.OK
            steps.append((name, anonymous_kib(cluster.master.pid)))

        api.administer("CreateTopic", topic=admin.Topic(name="wide", read_queues=QUEUES, write_queues=QUEUES))
        step("fresh")
        for _ in range(QUEUES):
            assert api.send("wide", b"x").status.code == v2.OK
        step(f"{QUEUES} queues written")
        api.administer("CreateTopic", topic=admin.Topic(name="empty"))
        polls: list[Any] = []
        for number in range(POLLS):
            polls.append(  # noqa: PERF401
                Api(channels[number % 4], f"client@{number}").start(
                    "ReceiveMessage",
                    group=v2.Resource(name="g"),
                    message_queue=queue("empty", -1),
                    batch_size=1,
                    invisible_duration=duration(30),
                    long_polling_timeout=duration(15),
                    timeout=30,
                )
            )
        step(f"{POLLS} parked receives")
        # Answers of 4 MiB that nobody reads: the transport's windows are full, the rest waits in the broker.
        body = b"x" * (4 << 20)
        assert api.send("large", body).status.code == v2.OK
        hung = []
        for number in range(STREAMS):
            stream: Any = Api(channels[1 + number % 3], f"hung@{number}").start(
                "PullMessage",
                group=v2.Resource(name="g"),
                message_queue=queue("large", 0),
                offset=0,
                batch_size=32,
                timeout=30,
            )
            hung.append(stream)
        step(f"{STREAMS} pulls of 4 MiB that nobody reads")
        for stream in [*polls, *hung]:
            stream.cancel()
        step("all gone")
        measured(", ".join(f"{name}: {kib >> 10} MiB" for name, kib in steps))
        others = {process.name: anonymous_kib(process.pid) >> 10 for process in cluster.processes}
        measured(f"anonymous MiB of all processes: {others}")
        assert dict(steps)[f"{POLLS} parked receives"] < 200 << 10
        assert max(kib for _, kib in steps) < 600 << 10
