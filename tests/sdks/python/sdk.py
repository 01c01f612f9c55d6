"""The Python SDK behind the words and lines of tests/sdks/README.md."""

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

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
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}

lock = threading.Lock()
ended = threading.Event()


def say(*words: object) -> None:
    """Write one line."""
    line = "\t".join(str(word).replace("\n", " ").replace("\t", " ") for word in words)
    with lock:
        os.write(1, f"{line}\n".encode())


def read_to_the_end() -> None:
    """Notice the end of standard input."""
    sys.stdin.read()
    ended.set()


def got(message: Any) -> str:
    """Tell of a delivery."""
    body = str(message.body.decode())
    keys = ",".join(sorted(message.keys))
    own = message.properties.get("own", "")
    group, due_ms, priority = (
        message.message_group or "",
        message.delivery_timestamp or "",
        message.priority or "",
    )
    if group or due_ms or priority:
        say("also", body, group, due_ms, priority)
    say("got", body, message.message_id, message.delivery_attempt, message.tag or "", keys, own)
    return body


def made(topic: str, prefix: str, number: int) -> Any:
    """Return message number N."""
    message = Message()
    message.topic, message.body = topic, f"{prefix}-{number}".encode()
    message.tag = "ab"[number % 2]
    message.keys = f"key-{number}"  # each assignment adds one
    message.keys = prefix
    message.add_property("own", f"value-{number}")
    message.add_property("n", str(number))
    return message


def send(producer: Any, message: Any, transaction: Any = None) -> bool:
    """Send one message, and tell of it; return whether it was taken."""
    body, started = message.body.decode(), time.monotonic()
    try:
        receipt = producer.send(message, transaction)
    except Exception as error:  # noqa: BLE001 - told to the test
        say("failed", body, f"{type(error).__name__}: {error}")
        return False
    if receipt.recall_handle:
        say("handle", body, receipt.recall_handle)
    say("sent", body, receipt.message_id, round((time.monotonic() - started) * 1000))
    return True


def produce(configuration: Any, topic: str, prefix: str, count: str, pause_ms: str) -> None:
    """Send."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    say("ready")
    number = 0
    while number < int(count) or (count == "0" and not ended.is_set()):
        send(producer, made(topic, prefix, number))
        number += 1
        if pause_ms != "0":
            ended.wait(int(pause_ms) / 1000)
    producer.shutdown()


def special(kind: str, configuration: Any, topic: str, prefix: str, count: str, words: str) -> None:
    """Send messages of a message group, with a delivery time, or with a priority."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    say("ready")
    entries = words.split(",")
    for number in range(int(count)):
        entry = entries[number % len(entries)]
        message = made(topic, prefix, number)
        if kind == "fifo":
            message.message_group = entry
        elif kind == "delay":
            message.delivery_timestamp = math.ceil(time.time() + int(entry) / 1000)  # it takes seconds
        else:
            message.priority = int(entry)
        send(producer, message)
    producer.shutdown()


class Checker(TransactionChecker):  # type: ignore[misc]
    """Answers always the same."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def check(self, message: Any) -> Any:
        """Tell what became of a transaction."""
        say("checked", message.body.decode(), self.answer)
        return RESOLUTIONS[self.answer]


def transact(configuration: Any, topic: str, prefix: str, count: str, ends: str, answer: str) -> None:
    """Send in transactions, end them, and answer checks."""
    producer = Producer(configuration, (topic,), checker=Checker(answer))
    producer.startup()
    say("ready")
    words = ends.split(",")
    for number in range(int(count)):
        transaction = producer.begin_transaction()
        body, end_it = f"{prefix}-{number}", words[number % len(words)]
        if not send(producer, made(topic, prefix, number), transaction) or end_it == "leave":
            continue
        try:
            transaction.commit() if end_it == "commit" else transaction.rollback()
        except Exception as error:  # noqa: BLE001 - told to the test
            say("failed", body, f"{type(error).__name__}: {error}")
        else:
            say("ended", body, end_it)
    ended.wait()
    producer.shutdown()


def recall(configuration: Any, topic: str, handles: str) -> None:
    """Recall messages."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    say("ready")
    for handle in handles.split(","):
        try:
            say("recalled", handle, producer.recall_message(topic, handle))
        except Exception as error:  # noqa: BLE001 - told to the test
            say("failed", handle, f"{type(error).__name__}: {error}")
    producer.shutdown()


def expression_of(text: str) -> Any:
    """Return the SDK's form of a filter."""
    kind, _, sql = text.partition(":")
    return FilterExpression(sql, FilterType.SQL) if kind == "sql" else FilterExpression(text)


def simple(configuration: Any, topic: str, group: str, expression: str) -> None:
    """Receive and acknowledge."""
    consumer = SimpleConsumer(configuration, group, {topic: expression_of(expression)}, await_duration=5)
    consumer.startup()
    say("ready")
    put: set[str] = set()
    while not ended.is_set():
        try:
            for message in consumer.receive(32, 15) or ():
                body = got(message)
                if body.startswith("later") and body not in put:
                    put.add(body)
                    consumer.change_invisible_duration(message, 10)
                    say("later", body)
                else:
                    consumer.ack(message)
                    say("acked", body)
        except Exception as error:  # noqa: BLE001 - told to the test
            say("error", f"{type(error).__name__}: {error}")
            ended.wait(0.2)
    consumer.shutdown()


def load(configuration: Any, topic: str, threads: str, warm: str, seconds: str) -> None:
    """Send 1 KiB from several threads; what is sent while it warms up is part of the total alone."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    say("ready")
    begin = time.perf_counter() + float(warm)
    end = begin + float(seconds)
    totals: list[int] = []
    failures: list[str] = []
    took: list[float] = []

    def run() -> None:
        total, mine, now = 0, [], time.perf_counter()
        while now < end:
            message = Message()
            message.topic, message.body, message.tag = topic, bytes(1024), "a"
            try:
                producer.send(message)
            except Exception as error:  # noqa: BLE001 - counted
                failures.append(str(error))
                now = time.perf_counter()
                continue
            ended_at = time.perf_counter()
            total += 1
            if now >= begin:
                mine.append((ended_at - now) * 1e3)
            now = ended_at
        totals.append(total)
        took.extend(mine)

    senders = [threading.Thread(target=run) for _ in range(int(threads))]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    took.sort()
    p50, p99 = (took[int(share * (len(took) - 1))] if took else 0.0 for share in (0.5, 0.99))
    say("load", sum(totals), len(took), seconds, p50, p99, len(failures))


class Listener(MessageListener):  # type: ignore[misc]
    """Fails some messages once."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def consume(self, message: Any) -> Any:
        """Take one message."""
        body = got(message)
        if body.startswith("dead"):
            return ConsumeResult.FAILURE
        if not body.startswith("fail") or body in self.failed:
            return ConsumeResult.SUCCESS
        self.failed.add(body)
        return ConsumeResult.FAILURE


def push(configuration: Any, topic: str, group: str, expression: str) -> None:
    """Run the push consumer."""
    consumer = PushConsumer(configuration, group, Listener(), {topic: expression_of(expression)})
    consumer.startup()
    say("ready")
    ended.wait()
    consumer.shutdown()


def main(role: str, endpoint: str, *words: str) -> None:
    """Run one role to its end."""
    threading.Thread(target=read_to_the_end, daemon=True).start()
    configuration = ClientConfiguration(endpoint, Credentials())
    roles: dict[str, Callable[..., None]] = {
        "produce": produce,
        "fifo": functools.partial(special, "fifo"),
        "delay": functools.partial(special, "delay"),
        "priority": functools.partial(special, "priority"),
        "transact": transact,
        "load": load,
        "recall": recall,
        "simple": simple,
        "push": push,
    }
    roles[role](configuration, *words)
    say("done")
    os._exit(0)  # the SDK leaves threads behind


if __name__ == "__main__":
    main(*sys.argv[1:])
