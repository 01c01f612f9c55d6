"""`whimbrel store export`: a store whose groups have gaps, made ready for RocketMQ, and taken back."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.processes import COMMAND, Process, environment
from whimbrel.store import jsonconfig
from whimbrel.store.inspect import dump_records

pytestmark = pytest.mark.process


def export(store: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", COMMAND, "store", "export", str(store)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def test_what_a_group_holds_goes_into_its_retry_topic(tmp_path: Path) -> None:
    """Section 11.1: nothing comes twice, and nothing is lost, here or under RocketMQ."""
    store = tmp_path / "store"
    process = Process(tmp_path, "broker", "broker", store=store, nameservers="", auto_create_topics=True,
                      auto_create_groups=True, commitlog_file_size=1 << 20)  # fmt: skip
    with process as broker, grpc.insecure_channel(broker.grpc) as channel:
        api = Api(channel)
        for number in range(8):
            api.send("t", b"%d" % number, message_id=f"id-{number}", keys=["k"], tag="a")
        held: dict[bytes, str] = {}
        for _ in range(4):
            got = api.receive("t", "g", batch=2)
            held |= {one.body: handle for one, handle in zip(got.messages, got.handles, strict=True)}
        api.ack("t", "g", *(handle for body, handle in held.items() if body not in (b"1", b"4")))
        assert export(store).returncode == 1, "the store is in use"
        broker.stop()

    done = export(store)
    assert done.returncode == 0, done.stderr
    assert "2 messages copied" in done.stdout
    config = jsonconfig.load(store / "config" / "topics.json")["topicConfigTable"]["%RETRY%g_t"]
    assert (config["perm"], config["readQueueNums"], config["writeQueueNums"]) == (6, 1, 1)
    copies = [row for row in dump_records(store) if row.get("topic") == "%RETRY%g_t"]
    assert [row["reconsumeTimes"] for row in copies] == [1, 1]
    assert {row["properties"]["UNIQ_KEY"] for row in copies} == {"id-1", "id-4"}
    offsets = jsonconfig.load(store / "config" / "consumerOffset.json")["offsetTable"]["t@g"]
    assert sum(offsets.values()) == 8  # of all queues: behind all that the group took
    assert "0 messages copied" in export(store).stdout

    with process as broker, grpc.insecure_channel(broker.grpc) as channel:
        got = Api(channel).receive("t", "g")
        assert (got.bodies, got.attempts) == ([b"1", b"4"], [2, 2])
