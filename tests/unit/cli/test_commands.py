"""The commands against a fake cluster: results, one sentence on standard error, exit codes."""

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from support.cluster.command_line import Shell
from support.systems.fake_cluster import FakeCluster, running_in_thread
from support.waiting import until
from whimbrel.cli import endpoint as endpoints
from whimbrel.cli.endpoint import NoneRuns, default_dev_dir, running_cluster
from whimbrel.cli.output import body_fields, shorten, size_text, time_text
from whimbrel.cli.replication import COLUMNS, rows_of
from whimbrel.client import Message, ReplicationStatus
from whimbrel.client.sync import Producer
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2


def test_topics_from_creation_to_deletion(cluster: FakeCluster, shell: Shell) -> None:
    assert shell.json("topic", "create", "orders", "--queues", "3")["read_queues"] == 3
    assert "orders" in shell("topic", "list")
    assert [topic["name"] for topic in shell.json("topic", "list")] == ["orders"]
    assert len(shell.json("topic", "describe", "orders")[0]["queues"]) == 3
    assert "type normal, permission rw" in (shell("topic", "describe", "orders") and shell.error)
    assert shell.json("topic", "update", "orders", "--queues", "5")["write_queues"] == 5
    assert shell.json("topic", "delete", "orders", "--yes") == {"deleted": "orders"}
    shell("topic", "describe", "orders", code=1)
    assert shell.error.startswith("whimbrel: no topic orders; create it with `whimbrel topic create")


def test_groups_from_creation_to_deletion(cluster: FakeCluster, shell: Shell) -> None:
    assert shell.json("group", "create", "g", "--max-attempts", "5")["max_attempts"] == 5
    assert [group["name"] for group in shell.json("group", "list")] == ["g"]
    assert shell.json("group", "describe", "g")[0]["progress"][0]["lag"] == 2
    shell("group", "describe", "g")
    assert "client c1" in shell.error
    assert shell.json("group", "update", "g", "--no-consume")["consume_enabled"] is False
    moved = shell.json("group", "reset-offsets", "g", "t", "--to", "7", "--yes")
    assert moved["broker-a"][0]["committed_offset"] == 7
    shell("group", "create", "g", code=1)
    assert "use `update`" in shell.error
    shell("group", "delete", "g", "--yes")


def test_send_and_receive(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[], []]
    (receipt,) = shell.json("send", "t", "hello", "--tag", "new", "--key", "4711", "--property", "a=b=c")
    assert receipt["queue_id"] in (0, 1)
    (message,) = shell.json("receive", "t", "--group", "g", "--wait", "0")
    assert message["body"] == "hello"
    assert message["tag"] == "new"
    assert message["keys"] == ["4711"]
    assert message["properties"] == {"a": "b=c"}
    assert message["message_id"] == receipt["message_id"]
    assert cluster.acked == [receipt["message_id"]]
    assert shell.json("receive", "t", "--group", "g", "--wait", "0") == []


def test_receive_without_acknowledging(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "hello")
    assert "hello" in shell("receive", "t", "--group", "g", "--no-ack", "--wait", "0")
    assert cluster.acked == []


def test_send_many_in_batches(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    assert len(shell.json("send", "t", "x", "--count", "10", "--batch", "4")) == 10
    assert cluster.count("SendMessage") == 3
    shell("send", "t", "x", "--count", "2")
    assert "sent 2 messages" in shell.error


def test_the_body_can_come_from_standard_input(
    cluster: FakeCluster, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topics["t"] = [[]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
    shell("send", "t", "--whole")
    assert cluster.topics["t"][0][0].body == b"\xff\x00"
    (message,) = shell.json("receive", "t", "--group", "g", "--wait", "0")
    assert message["body_base64"] == "/wA="


def test_each_line_of_standard_input_is_a_message(
    cluster: FakeCluster, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topics["t"] = [[]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\r\nthree")))
    receipts = [json.loads(line) for line in shell("send", "t", "-", "-o", "jsonl").splitlines()]
    assert [receipt["queue_offset"] for receipt in receipts] == [0, 1, 2]
    assert [message.body for message in cluster.topics["t"][0]] == [b"one", b"two", b"three"]
    assert "left out an empty line" in shell.error
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n" * 250)))
    assert len(shell("send", "t", "-").splitlines()) == 102
    assert "sent 250 messages" in shell.error


def test_lines_that_were_sent_before_a_failure_are_told(
    cluster: FakeCluster, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topics["t"] = [[]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n" + b"x" * (5 << 20))))
    shell("send", "t", "-", code=1)
    assert "sent 1 messages" in shell.error
    assert "whimbrel: after 1 lines comes one of more than 4194304 bytes" in shell.error


def test_sends_of_many_processes_use_all_queues(
    cluster: FakeCluster, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topics["t"] = [[], [], []]
    for first in range(3):
        monkeypatch.setattr("whimbrel.client.producer.random.randrange", lambda _, first=first: first)
        shell("send", "t", "x")
    assert [len(queue) for queue in cluster.topics["t"]] == [1, 1, 1]
    shell("send", "t", "x", "--count", "3", "--queue", "1")
    assert [len(queue) for queue in cluster.topics["t"]] == [1, 4, 1]


def test_receive_waits_for_as_many_as_it_is_told(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "one")

    def send_more() -> None:
        until(lambda: cluster.count("ReceiveMessage") > 2, what="a receive that waits for more")
        with Producer(cluster.address) as producer:
            producer.send_batch([Message(topic="t", body=b"two"), Message(topic="t", body=b"three")])

    sender = threading.Thread(target=send_more)
    sender.start()
    messages = shell.json("receive", "t", "-g", "g", "--count", "3", "--wait", "20")
    sender.join()
    assert [message["body"] for message in messages] == ["one", "two", "three"]
    assert len(cluster.acked) == 3


def test_receive_without_a_count_takes_what_is_there(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "x", "--count", "40")
    assert len(shell.json("receive", "t", "-g", "g", "--wait", "60")) == 32
    assert len(shell.json("receive", "t", "-g", "g", "--wait", "60")) == 8
    assert not cluster.parked


def test_receive_follows_until_it_has_enough(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "x", "--count", "3")
    assert shell("receive", "t", "-g", "g", "--follow", "-n", "3").count("broker-a/0@") == 3
    assert len(cluster.acked) == 3


def test_a_format_prints_bodies_as_they_are(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "hello", "--key", "k", "--tag", "g")
    expected = "t 0 0 k g hello\n"
    template = r"%t %q %o %k %g %v\n"
    assert shell("receive", "t", "-g", "g", "--format", template, "--wait", "0") == expected
    assert shell("pull", "t", "-q", "0", "-f", template) == expected
    assert shell("tail", "t", "--from", "earliest", "-n", "1", "-f", template) == expected
    shell("receive", "t", "-g", "g", "--format", "%z", code=2)
    assert "%z is no field; there are %t topic," in " ".join(shell.error.split())
    shell("receive", "t", "-g", "g", "--format", "%v", "-o", "json", code=2)


def test_an_unknown_topic_is_said_at_once(cluster: FakeCluster, shell: Shell) -> None:
    cluster.auto_create = True
    for arguments in (
        ["receive", "nosuch", "-g", "g", "--wait", "60"],
        ["receive", "nosuch", "-g", "g", "--follow"],
        ["tail", "nosuch"],
    ):
        shell(*arguments, code=1)
        assert "whimbrel: no topic" in shell.error
    assert not cluster.parked


def test_tail_reads_all_queues(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[], [], []]
    shell("send", "t", "x", "--count", "6")
    lines = shell("tail", "t", "--from", "earliest", "--until-end", "-o", "jsonl").splitlines()
    places = [(found["queue_id"], found["queue_offset"]) for found in map(json.loads, lines)]
    assert sorted(places) == [(queue, offset) for queue in range(3) for offset in range(2)]
    assert shell("tail", "t", "--until-end") == ""
    assert "reading 3 queues of t on broker-a" in shell.error
    assert cluster.acked == []
    assert cluster.offsets == {}
    shell("tail", "t", "--from", "17", code=2)


def test_bench_measures_and_counts(cluster: FakeCluster, shell: Shell) -> None:
    sent = shell.json("bench", "send", "--count", "100", "--batch", "10", "--size", "7")
    assert (sent["messages"], sent["latency_ms"]["send"]["count"], sent["errors"]) == (100, 10, {})
    assert sum(len(queue) for queue in cluster.topics["whimbrel-bench"]) == 100
    received = shell.json("bench", "receive", "--wait", "0")
    assert received["messages"] == len(cluster.acked) == 100
    both = shell.json("bench", "e2e", "--count", "20", "-c", "2")
    assert both["messages"] == both["latency_ms"]["end to end"]["count"] == 20
    table = shell("bench", "send", "--seconds", "0.1")
    assert "messages in" in table
    assert "p99.9 ms" in table


def test_bench_says_what_failed(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    cluster.failures["SendMessage"].append(v2.SLAVE_PERSISTENCE_TIMEOUT)
    sent = json.loads(shell("bench", "send", "t", "--count", "10", "-c", "1", "-o", "json", code=1))
    assert (sent["messages"], sent["errors"]) == (9, {"SLAVE_PERSISTENCE_TIMEOUT": 1})
    assert "messages that failed: 1 SLAVE_PERSISTENCE_TIMEOUT; the last error was: as told" in shell.error


def test_json_lines_of_what_is_no_message(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics |= {"t": [[]], "u": [[]]}
    lines = shell("topic", "list", "-o", "jsonl").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["t", "u"]
    assert len(shell("cluster", "-o", "jsonl").splitlines()) == 1


def test_no_broker_is_no_missing_topic(cluster: FakeCluster, shell: Shell) -> None:
    cluster.master_registered = False
    shell("send", "t", "x", code=1)
    at = f"{cluster.address} (WHIMBREL_ENDPOINT)"
    assert f"no broker is registered with the nameserver at {at}; start one" in shell.error


def test_a_brokers_address_is_told_from_a_nameservers(shell: Shell) -> None:
    with running_in_thread(nameserver=False) as broker:
        for command in (["topic", "list"], ["cluster"], ["replication", "status"]):
            shell(*command, "--endpoint", broker.address, code=1)
            assert f"{broker.address} is the address of the broker broker-a (master)" in shell.error


def test_pull_reads_a_queue(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "x", "--count", "5")
    messages = shell.json("pull", "t", "--queue", "0", "--offset", "2", "--count", "2")
    assert [message["queue_offset"] for message in messages] == [2, 3]
    shell("pull", "t", "--queue", "0")
    assert "next offset 5" in shell.error
    shell("pull", "t", "--queue", "9", code=1)
    assert "topic t has no queue 9; it has broker-a/0" in shell.error


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "in step"),
        ({"log_end": 100}, "catching up"),
        ({"connected": False}, "not connected"),
        ({"replicator_alive": False}, "no replicator"),
        ({"role": "master"}, "reads only, no slave"),
        ({"role": "master", "writable": True}, "takes messages, no slave"),
        ({"role": "master", "replicator_alive": False}, "no replicator"),
    ],
)
def test_the_state_of_a_broker_is_said_in_words(change: dict[str, Any], state: str) -> None:
    status = ReplicationStatus(
        broker_name="broker-a",
        broker_id=1,
        role="slave",
        log_begin=0,
        log_end=5_000_000,
        flushed_offset=0,
        confirmed_offset=0,
        dispatched_offset=0,
        replicator_alive=True,
        ha_address="10.0.0.1:10912",
        slaves=(),
        connected=True,
        writable=False,
        advice="",
        replication="async",
        flush="async",
    )
    (row,) = rows_of(dataclasses.replace(status, **change), {"broker-a": 5_000_000})
    assert row[COLUMNS.index("state")] == state


def test_cluster_and_replication(cluster: FakeCluster, shell: Shell) -> None:
    assert shell.json("cluster")["brokers"][0]["broker_name"] == "broker-a"
    assert "broker-a" in shell("cluster")
    table = shell("replication", "status")
    assert "10.0.0.2:5000" in table
    assert shell.json("replication", "status")[0]["slaves"][0]["lag_bytes"] == 10
    assert "10.0.0.2:5000" in shell("replication", "status")
    cluster.writable = False
    shell("replication", "status", code=1)
    assert "its slave holds more" in shell.error
    shell("cluster")
    assert "its slave holds more" in shell.error


def test_a_group_without_a_master_is_shown_and_is_an_error(cluster: FakeCluster, shell: Shell) -> None:
    cluster.master_registered, cluster.slave_address = False, "127.0.0.1:1"
    table = shell("replication", "status", code=1)
    assert re.search(r"broker-a +master +missing, slave 1 serves reads", table)
    assert "broker-a (master): there is no master" in shell.error
    assert "start the master's broker" in shell.error
    found = json.loads(shell("replication", "status", "-o", "json", code=1))
    assert (found[0]["role"], found[0]["error"], found[0]["healthy"]) == ("master", "missing", False)
    assert re.search(r"broker-a +0 +master +missing", shell("cluster", code=1))
    assert "broker-a (master): there is no master" in shell.error
    assert json.loads(shell("cluster", "-o", "json", code=1))["missing_masters"] == ["broker-a"]


@pytest.mark.parametrize("command", ["cluster", "replication status", "health"])
def test_a_terminal_of_80_columns_shows_whole_words(cluster: FakeCluster, command: str) -> None:
    cluster.master_registered, cluster.slave_address = False, cluster.address
    shown = on_terminal(command.split(), columns=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert f"{'broker-a (master)' if command != 'health' else 'broker-a master'}: there is no master" in shown
    assert "start the master's broker and replicator again on their store" in shown.replace("\n", " ")
    assert "missing" in shown


def on_terminal(arguments: list[str], *, columns: int) -> str:
    """Return what a command writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-c", "from whimbrel.cli.main import run; run()", *arguments]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        found = b""
        with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
            while data := os.read(ours, 65536):
                found += data
        os.close(ours)
    assert child.returncode in (0, 1)
    return found.decode().replace("\r\n", "\n")


def test_no_broker_at_all_is_an_error(cluster: FakeCluster, shell: Shell) -> None:
    cluster.master_registered = False
    assert shell("replication", "status", code=1) == ""
    assert "no broker is registered" in shell.error
    assert shell("cluster", code=1) == ""
    assert "no broker is registered" in shell.error
    assert json.loads(shell("replication", "status", "-o", "json", code=1)) == []


def test_a_healthy_cluster_is_one_line_a_component(cluster: FakeCluster, shell: Shell) -> None:
    lines = shell("health").splitlines()[2:]
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        [f"nameserver {cluster.address}", "ok", "settled, knows 1 broker"],
        ["broker-a master", "ok", "takes messages"],
        ["broker-a master replicator", "ok", "runs"],
        ["broker-a slaves", "ok", "1 connected"],
    ]
    assert shell.error == ""
    assert shell.json("health")["healthy"] is True


def test_health_says_what_is_wrong_and_ends_with_1(cluster: FakeCluster, shell: Shell) -> None:
    cluster.writable = False
    found = json.loads(shell("health", "-o", "json", code=1))
    assert found["healthy"] is False
    assert [check["component"] for check in found["checks"] if not check["healthy"]] == ["broker-a master"]
    assert "its slave holds more" in shell.error
    shell("health", "--endpoint", f"{cluster.address},127.0.0.1:1", code=1)
    assert "nameserver 127.0.0.1:1: no answer from" in shell.error


def test_health_waits_until_the_cluster_is_healthy(cluster: FakeCluster, shell: Shell) -> None:
    cluster.unsettled = 2
    shell("health", "--wait", "30")
    assert cluster.count("DescribeCluster") == 3


def test_health_waits_for_a_cluster_that_is_only_being_started(
    cluster: FakeCluster, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def resolve(given: str) -> str:
        tries.append(given)
        if len(tries) < 3:
            raise NoneRuns("no cluster to talk to")
        return cluster.address

    monkeypatch.setattr("whimbrel.cli.health.resolve_endpoint", resolve)
    shell("health", code=1)
    assert shell.error == "whimbrel: no cluster to talk to\n"
    shell("health", "--wait", "30")
    assert len(tries) == 3


def test_health_does_not_wait_for_what_is_named_wrongly(cluster: FakeCluster, shell: Shell) -> None:
    shell("health", "--wait", "80000", "--endpoint", "127.0.0.1", code=1)
    assert "is not of the form HOST:PORT" in shell.error


def test_health_gives_up_waiting_in_the_end(cluster: FakeCluster, shell: Shell) -> None:
    cluster.unsettled = 1_000_000
    shell("health", "--wait", "0.3", code=1)
    assert "brokers may still be missing" in shell.error


def test_a_message_that_is_stored_but_not_confirmed_is_an_error(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    cluster.failures["SendMessage"].append(v2.SLAVE_PERSISTENCE_TIMEOUT)
    shell("send", "t", "x", code=1)
    assert shell.error == "whimbrel: as told\n"


def test_a_refused_connection_is_one_sentence(shell: Shell) -> None:
    shell("topic", "list", "--endpoint", "127.0.0.1:1", code=1)
    assert shell.error.count("\n") == 1
    assert "no answer from 127.0.0.1:1: connection refused" in shell.error


@pytest.mark.parametrize("command", ["cluster", "health"])
def test_a_malformed_endpoint_is_one_sentence(shell: Shell, command: str) -> None:
    shell(command, "--endpoint", "http://x", code=1)
    assert "HOST:PORT" in shell.error


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "update", "t", "--endpoint", "127.0.0.1:1"],
        ["topic", "create", "t", "--type", "lite"],
        ["send", "t", "x", "--property", "novalue"],
        ["group", "reset-offsets", "g", "t", "--to", "yesterday"],
        ["receive", "t"],
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], shell: Shell) -> None:
    shell(*arguments, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["topic"],
        ["topic", "create"],
        ["topic", "list"],
        ["topic", "describe"],
        ["topic", "update"],
        ["topic", "delete"],
        ["group", "create"],
        ["group", "list"],
        ["group", "describe"],
        ["group", "update"],
        ["group", "delete"],
        ["group", "reset-offsets"],
        ["send"],
        ["receive"],
        ["tail"],
        ["bench", "send"],
        ["bench", "receive"],
        ["bench", "e2e"],
        ["pull"],
        ["cluster"],
        ["health"],
        ["replication", "status"],
        ["dev"],
        ["store", "dump"],
        ["store", "verify"],
        ["store", "recover"],
    ],
)
def test_every_help_page_has_examples(arguments: list[str], shell: Shell) -> None:
    page = shell(*arguments, "--help")
    if arguments != ["topic"]:
        assert "Examples:" in page
    assert "\b" not in page


def test_help_imports_neither_grpc_nor_any_command() -> None:
    code = (
        "import sys\n"
        "from whimbrel.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "loaded = set(sys.modules)\n"
        "assert not loaded & {'grpc', 'rich', 'asyncio', 'google', 'whimbrel.client', 'whimbrel.cli.topic'}\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell("--version").startswith("whimbrel 0.")


def test_the_running_dev_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHIMBREL_ENDPOINT", raising=False)
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    assert default_dev_dir() == tmp_path
    assert running_cluster() is None
    content: dict[str, Any] = {"endpoint": "127.0.0.1:9", "processes": []}
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    assert running_cluster() is None
    content["processes"] = [{"name": "nameserver", "role": "nameserver", "pid": os.getpid()}]
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    found = running_cluster()
    assert found is not None
    assert found.endpoint == endpoints.resolve_endpoint("") == "127.0.0.1:9"
    assert endpoints.resolve_endpoint("h:1") == "h:1"


def test_a_dev_cluster_that_was_killed_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    content = {"endpoint": "127.0.0.1:9", "processes": [{"role": "nameserver", "pid": child.pid}]}
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    monkeypatch.delenv("WHIMBREL_ENDPOINT", raising=False)
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    shell("topic", "list", code=1)
    assert "start one with `whimbrel dev`" in shell.error


def test_the_default_directory_follows_the_xdg_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHIMBREL_DEV_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert default_dev_dir() == Path("/var/state/whimbrel/dev")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_dev_dir() == Path.home() / ".local/state/whimbrel/dev"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("whimbrel.cli.topic.resolve_endpoint", interrupted)
    shell("topic", "list", code=130)


def test_cells_are_short_and_printable() -> None:
    assert shorten(b"a\nb") == r"a\nb"
    assert len(shorten(b"x" * 1000)) == 60
    assert shorten(b"\xff") == r"\xff"
    assert body_fields("é".encode()) == {"body": "é"}
    assert time_text(None) == "-"
    assert time_text(0.0) == "1970-01-01 00:00:00.000"
    assert [size_text(n) for n in (0, 1023, 1536, 1 << 40)] == ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_what_a_hostile_broker_sends_reaches_no_terminal(
    cluster: FakeCluster, shell: Shell, output: str
) -> None:
    hostile = "x\x1b[2J\x9b1m\u202e\ny"
    message = v2.Message(body=b"\x1b[2J\nbody")
    system = message.system_properties
    system.message_id = system.tag = system.born_host = system.store_host = hostile
    system.keys.append(hostile)
    message.user_properties[hostile] = hostile
    cluster.topics["t"] = [[message]]
    cluster.topics[hostile] = [[]]
    for command in (
        ("topic", "list"),
        ("receive", "t", "--group", "g", "--wait", "0", "--no-ack"),
        ("pull", "t", "--queue", "0", "--offset", "0"),
    ):
        lines = (shell(*command, "-o", output) + shell.error).split("\n")
        assert any("[2J" in line for line in lines)
        assert all(line.isprintable() for line in lines)
