"""The Python SDK behind the words and lines of tests/sdks/README.md."""

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
)

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
    say("got", body, message.message_id, message.delivery_attempt, message.tag or "", keys, own)
    return body


def produce(configuration: Any, topic: str, prefix: str, count: str, pause_ms: str) -> None:
    """Send."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    say("ready")
    number = 0
    while number < int(count) or (count == "0" and not ended.is_set()):
        message = Message()
        message.topic, message.body = topic, f"{prefix}-{number}".encode()
        message.tag = "ab"[number % 2]
        message.keys = f"key-{number}"  # each assignment adds one
        message.keys = prefix
        message.add_property("own", f"value-{number}")
        started = time.monotonic()
        try:
            receipt = producer.send(message)
        except Exception as error:  # noqa: BLE001 - told to the test
            say("failed", f"{prefix}-{number}", f"{type(error).__name__}: {error}")
        else:
            took = (time.monotonic() - started) * 1000
            say("sent", f"{prefix}-{number}", receipt.message_id, round(took))
        number += 1
        if pause_ms != "0":
            ended.wait(int(pause_ms) / 1000)
    producer.shutdown()


def simple(configuration: Any, topic: str, group: str, expression: str) -> None:
    """Receive and acknowledge."""
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression(expression)}, await_duration=5)
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


class Listener(MessageListener):  # type: ignore[misc]
    """Fails some messages once."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def consume(self, message: Any) -> Any:
        """Take one message."""
        body = got(message)
        if not body.startswith("fail") or body in self.failed:
            return ConsumeResult.SUCCESS
        self.failed.add(body)
        return ConsumeResult.FAILURE


def push(configuration: Any, topic: str, group: str, expression: str) -> None:
    """Run the push consumer."""
    consumer = PushConsumer(configuration, group, Listener(), {topic: FilterExpression(expression)})
    consumer.startup()
    say("ready")
    ended.wait()
    consumer.shutdown()


def main(role: str, endpoint: str, *words: str) -> None:
    """Run one role to its end."""
    threading.Thread(target=read_to_the_end, daemon=True).start()
    configuration = ClientConfiguration(endpoint, Credentials())
    roles: dict[str, Callable[..., None]] = {"produce": produce, "simple": simple, "push": push}
    roles[role](configuration, *words)
    say("done")
    os._exit(0)  # the SDK leaves threads behind


if __name__ == "__main__":
    main(*sys.argv[1:])
