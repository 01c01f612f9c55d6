"""One message's story across five containers: every process finds the context in the record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from containers.rig import Rig
from support.waiting import until
from whimbrel.cli.message_trace import MessageTrace, trace_of
from whimbrel.cli.trace import FileReader
from whimbrel.client import Message
from whimbrel.client.sync import Producer
from whimbrel.telemetry import STAGES

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

SPANS = "/tmp/spans.jsonl"  # in each container's own memory
TRACED = ("broker-master", "replicator-master", "broker-slave", "replicator-slave")


def test_a_message_is_followed_through_all_containers(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    rig = rigs(TRACE_TO=f"file:{SPANS}", TRACE_RATIO="1", REPLICATION="sync")
    with Producer(rig.endpoint) as producer:
        message_id = producer.send(Message(topic="orders", body=b"hello")).message_id
    read = FileReader(tmp_path)
    told: list[MessageTrace] = []

    def complete() -> bool:
        for service in TRACED:
            done = rig.container(service).exec_run(["cat", SPANS])
            (tmp_path / f"{service}.jsonl").write_bytes(done.output if done.exit_code == 0 else b"")
        trace = trace_of(message_id, read())
        told[:] = [] if trace is None else [trace]
        return trace is not None and trace.root is not None and not trace.missing and bool(trace.linked)

    until(complete, timeout=30, what="the whole story")
    (trace,) = told
    found = [(span.name, span.process) for span in trace.spans]
    processes = ("master broker", "master broker", "master replicator", "slave replicator")
    assert found == [
        ("create orders", "master broker"),
        *zip(STAGES, (*processes, "master replicator", "slave broker"), strict=True),
        ("whimbrel.ha.frame", "master replicator"),
    ]
