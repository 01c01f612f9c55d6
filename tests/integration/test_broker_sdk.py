"""RocketMQ's official Python SDK against our processes: sends, receives, a dead master, one that comes back.

The SDK shares no process with our classes: this file is also the program that runs it, driven over pipes with
one JSON object a line. Commands: `send`, `receive` (SimpleConsumer, acknowledges unless told otherwise),
`push` and `pushed`.
"""

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent


def _program(endpoint: str) -> None:
    """Run commands from standard input until it ends."""
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        Message,
        MessageListener,
        Producer,
        PushConsumer,
        SimpleConsumer,
    )

    configuration = ClientConfiguration(endpoint, Credentials())
    producers: dict[str, Any] = {}
    consumers: dict[str, Any] = {}
    pushed: list[tuple[str, int]] = []

    class Listener(MessageListener):  # type: ignore[misc]
        def __init__(self, failures: int) -> None:
            self.failures = failures

        def consume(self, message: Any) -> Any:
            pushed.append((message.body.decode(), message.delivery_attempt))
            if self.failures > 0:
                self.failures -= 1
                return ConsumeResult.FAILURE
            return ConsumeResult.SUCCESS

    def described(message: Any) -> dict[str, Any]:
        return {
            "body": message.body.decode("latin-1"),
            "id": message.message_id,
            "tag": message.tag,
            "keys": sorted(message.keys),
            "properties": dict(message.properties),
            "attempt": message.delivery_attempt,
            "corrupted": message.corrupted,
        }

    def send(
        topic: str, bodies: list[str], tag: str | None = None, group: str | None = None
    ) -> list[list[Any]]:
        if topic not in producers:
            producers[topic] = Producer(configuration, (topic,))
            producers[topic].startup()
        receipts = []
        for number, body in enumerate(bodies):
            message = Message()
            message.topic, message.body, message.keys = topic, body.encode("latin-1"), f"key-{number}"
            if tag:
                message.tag = tag
            if group:
                message.message_group = group
            message.add_property("own", "value")
            receipt = producers[topic].send(message)
            receipts.append([receipt.message_id, receipt.offset])
        return receipts

    def receive(
        topic: str,
        group: str,
        count: int,
        seconds: float,
        *,
        ack: bool = True,
        expression: str = "*",
        await_s: int = 2,
    ) -> list[dict[str, Any]]:
        if group not in consumers:
            consumers[group] = SimpleConsumer(
                configuration, group, {topic: FilterExpression(expression)}, await_duration=await_s
            )
            consumers[group].startup()
        found: list[dict[str, Any]] = []
        end = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            for message in consumers[group].receive(min(32, count - len(found)), 10) or ():
                if ack:
                    consumers[group].ack(message)
                found.append(described(message))
        return found

    def push(topic: str, group: str, failures: int = 0) -> None:
        consumers[group] = PushConsumer(configuration, group, Listener(failures), {topic: FilterExpression()})
        consumers[group].startup()

    commands = {"send": send, "receive": receive, "push": push, "pushed": lambda: pushed}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": commands[command.pop("do")](**command)}  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - it becomes the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    # The SDK leaves non-daemon threads behind; what they would still do is of no interest.
    import os

    os._exit(0)


if __name__ == "__main__":
    _program(sys.argv[1])


import grpc  # noqa: E402
import pytest  # noqa: E402

from support.cluster.broker_api import Api  # noqa: E402
from support.cluster.processes import Cluster, Process  # noqa: E402
from support.waiting import until  # noqa: E402
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin  # noqa: E402

pytestmark = pytest.mark.process


class Refused(AssertionError):
    """The SDK has raised an error."""


class Sdk:
    """The program, as an object."""

    def __init__(self, endpoint: str, root: Path) -> None:
        self.log = (root / f"sdk-{time.monotonic_ns()}.log").open("wb")
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.kill()
        self.child.wait()
        self.log.close()

    def __call__(self, do: str, **arguments: Any) -> Any:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.child.stdin.flush()
        watchdog = threading.Timer(60, self.child.kill)
        watchdog.start()
        line = self.child.stdout.readline()
        watchdog.cancel()
        assert line, f"the SDK program ended at {do}: {Path(self.log.name).read_text()[-2000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), slaves=1) as running:
        wait_writable(running)
        yield running


@pytest.fixture
def sdk(cluster: Cluster, tmp_path: Path) -> Iterator[Sdk]:
    with Sdk(cluster.endpoint, tmp_path) as running:
        yield running


def wait_writable(cluster: Cluster) -> None:
    """Wait until a send goes through, as an operator would."""

    def writable() -> bool:
        with Sdk(cluster.endpoint, cluster.root) as probe:
            return sent(probe, "Probe", "x")

    until(writable, timeout=20, every_s=0.2, what="a send that goes through")


def sent(sdk: "Sdk", topic: str, body: str) -> bool:
    """Send a message; return whether the broker has taken it."""
    try:
        sdk("send", topic=topic, bodies=[body])
    except Refused:
        return False
    return True


def log_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_messages_come_back_as_they_were_sent(sdk: Sdk) -> None:
    sent = sdk("send", topic="Plain", bodies=[f"hello {n} \xe9" for n in range(8)], tag="a")
    assert all(len(message_id) == 34 and offset >= 0 for message_id, offset in sent)
    got = sdk("receive", topic="Plain", group="plain", count=8, seconds=15)
    assert sorted(message["id"] for message in got) == sorted(message_id for message_id, _ in sent)
    first = min(got, key=lambda message: message["body"])
    assert first == {
        "body": "hello 0 \xe9",
        "id": sent[0][0],
        "tag": "a",
        "keys": ["key-0"],
        "properties": {"own": "value"},
        "attempt": 1,
        "corrupted": False,
    }
    assert sdk("receive", topic="Plain", group="plain", count=1, seconds=2) == []


def test_two_groups_each_get_every_message_and_filters_hold(sdk: Sdk) -> None:
    sdk("send", topic="Tags", bodies=["1", "2"], tag="a")
    sdk("send", topic="Tags", bodies=["3"], tag="b")
    sdk("send", topic="Tags", bodies=["4"])
    every = sdk("receive", topic="Tags", group="tags-all", count=4, seconds=15)
    assert bodies(every) == ["1", "2", "3", "4"]
    some = sdk("receive", topic="Tags", group="tags-some", count=3, seconds=15, expression="a || b")
    assert bodies(some) == ["1", "2", "3"]


def test_push_consumer_gets_each_message_once_and_a_failed_one_again(sdk: Sdk) -> None:
    sdk("push", topic="Push", group="push", failures=1)
    sdk("send", topic="Push", bodies=[f"m{n}" for n in range(30)])
    seen = until(
        lambda: (found := sdk("pushed")) and len(found) >= 31 and found, timeout=20, what="31 deliveries"
    )
    again = [body for body, attempt in seen if attempt == 2]
    assert len(again) == 1
    assert sorted(body for body, attempt in seen if attempt == 1) == sorted(f"m{n}" for n in range(30))


def ordered(cluster: Cluster, name: str) -> None:
    """Create a FIFO topic and an ordered group of the same name."""
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        api = Api(channel)
        topic = admin.Topic(name=name, read_queues=4, write_queues=4, message_type=admin.MESSAGE_TYPE_FIFO)
        api.administer("CreateTopic", topic=topic)
        api.administer("CreateGroup", group=admin.Group(name=name, fifo=True))


def test_ordered_push_consumer_gets_each_group_in_its_order_though_it_fails(
    sdk: Sdk, cluster: Cluster
) -> None:
    """Checklist 1, 2 and 20 with the SDK's producer and push consumer."""
    ordered(cluster, "Fifo")
    sdk("push", topic="Fifo", group="Fifo", failures=2)
    groups = ("order-1", "a", "g4", "用户")
    for number in range(10):
        for group in groups:
            sdk("send", topic="Fifo", bodies=[f"{groups.index(group)} {number}"], group=group)
    seen = until(
        lambda: (found := sdk("pushed")) and len({body for body, _ in found}) >= 40 and found,
        timeout=30,
        what="all messages",
    )
    for index in range(len(groups)):
        numbers = [int(body[2:]) for body, _ in seen if body.startswith(f"{index} ")]
        assert numbers == sorted(numbers) and set(numbers) == set(range(10))
    assert len(seen) <= 42  # the two that failed came again, and nothing else
    with grpc.insecure_channel(cluster.master.grpc) as channel:
        sent = Api(channel).administer("DescribeTopic", name="Fifo").queues
        assert [queue.max_offset for queue in sent] == [10, 10, 0, 20]
        until(
            lambda: not sum(queue.lag for queue in progress(cluster.master, "Fifo")),
            what="acknowledgements",
        )


def test_parked_receive_returns_soon_after_a_send(sdk: Sdk, cluster: Cluster, tmp_path: Path) -> None:
    sdk("send", topic="Park", bodies=["first"])
    assert bodies(sdk("receive", topic="Park", group="park", count=1, seconds=10)) == ["first"]
    with Sdk(cluster.endpoint, tmp_path) as other:
        other("send", topic="Park2", bodies=["warm"])
        results: list[Any] = []
        waiting = threading.Thread(
            target=lambda: results.append(
                sdk("receive", topic="Park", group="park", count=1, seconds=12, await_s=10)
            )
        )
        waiting.start()
        other("send", topic="Park", bodies=["second"])
        waiting.join(10)
        assert bodies(results[0]) == ["second"]


def test_slave_holds_the_same_bytes(sdk: Sdk, cluster: Cluster) -> None:
    sdk("send", topic="Bytes", bodies=["x" * 1000 for _ in range(50)])
    slave = cluster.slaves[0].store
    until(
        lambda: (
            hashlib.sha256(log_of(cluster.master.store)).digest() == hashlib.sha256(log_of(slave)).digest()
        ),
        timeout=5,
        what="equal commitlogs",
    )


def progress(broker: Process, group: str = "fail") -> list[Any]:
    """Return the progress of a group as one broker has it."""
    with grpc.insecure_channel(broker.grpc) as channel:
        return list(Api(channel).administer("DescribeGroup", name=group).progress)


def test_group_goes_on_at_the_slave_and_its_progress_returns_to_the_master(
    sdk: Sdk, cluster: Cluster, tmp_path: Path
) -> None:
    sdk("send", topic="Fail", bodies=[f"{n:02}" for n in range(20)])
    early = bodies(sdk("receive", topic="Fail", group="fail", count=8, seconds=15))
    assert len(early) == 8
    # What the stream between the brokers has not carried is delivered again.
    until(lambda: progress(cluster.master) == progress(cluster.slaves[0]), what="the slave's leases")
    cluster.master.kill()
    with Sdk(cluster.endpoint, tmp_path) as fresh:
        late = bodies(fresh("receive", topic="Fail", group="fail", count=12, seconds=25))
        assert sorted(early + late) == [f"{n:02}" for n in range(20)]
    cluster.master.start()
    wait_writable(cluster)
    with Sdk(cluster.endpoint, tmp_path) as fresh:
        until(lambda: sent(fresh, "Fail", "new"), timeout=20, every_s=0.2, what="a send after the restart")
        assert bodies(fresh("receive", topic="Fail", group="fail", count=2, seconds=8)) == ["new"]


def test_running_clients_go_on_after_the_master_was_killed_and_restarted(sdk: Sdk, cluster: Cluster) -> None:
    sdk("push", topic="Again", group="again")
    sdk("send", topic="Again", bodies=["before"])
    until(lambda: ["before", 1] in sdk("pushed"), timeout=15, what="the first message")
    cluster.master.kill()
    cluster.master.start()
    until(lambda: sent(sdk, "Again", "after"), timeout=30, every_s=0.2, what="a send after the restart")
    until(
        lambda: "after" in [body for body, _ in sdk("pushed")],
        timeout=15,
        what="the message after the restart",
    )
