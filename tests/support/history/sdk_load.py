"""Load by RocketMQ's official SDK, as a program of its own: our classes and the SDK's share no process here.

    python tests/support/history/sdk_load.py send ENDPOINT TOPIC FILE THREADS PER_SECOND
    python tests/support/history/sdk_load.py drain ENDPOINT TOPIC FILE GROUP

Both run until SIGTERM and append one line, with one write, to FILE for each thing that happens, so that a
reader sees whole lines. AT is the machine's monotonic clock, in seconds:

    sending THREAD NUMBER AT                            a send begins
    sent THREAD NUMBER AT MESSAGE_ID OFFSET TRIES       the broker has acknowledged it
    failed THREAD NUMBER AT ERROR                       after the SDK's own three tries
    starting ERROR                                      the SDK could not start, and is tried again
    got BODY AT HANDLE                                  received
    done BODY AT HANDLE                                 acknowledged

A body is `THREAD.NUMBER`; a property makes messages larger. `sdk_notes.py` reads the file.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

PAUSE_S = 0.02  # after a failure; a dead broker refuses at once
PAD = "x" * 1024
RECEIVE_MAX = 32
INVISIBLE_S = 10  # the shortest that RocketMQ's brokers allow
AWAIT_S = 2

stopping = threading.Event()


class Notes:
    """The file of what happened."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *words: object) -> None:
        """Append a line."""
        line = " ".join(str(word).replace("\n", " ") for word in words)
        os.write(self.fd, f"{line}\n".encode())


class Tries(threading.local):
    """How often the SDK has asked a broker in the current send of this thread."""

    count = 0

    def watch(self, producer: Producer) -> None:
        """Count the tries of a producer."""
        client = producer.rpc_client
        call = client.send_message_async

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return call(*arguments, **named)

        client.send_message_async = counted


def send(configuration: Any, topic: str, notes: Notes, threads: int, per_second: float) -> None:
    """Send one message after the other from each thread, so many a second from all together at most."""
    producer = Producer(configuration, (topic,))
    while not stopping.is_set():
        try:
            producer.startup()
            break
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a cluster that is not there
            notes.add("starting", f"{type(error).__name__}: {error}")
            stopping.wait(PAUSE_S)
    tries = Tries()
    tries.watch(producer)

    def run(thread: int) -> None:
        number, due = 0, time.monotonic()
        while not stopping.is_set():
            number += 1
            message = Message()
            message.topic = topic
            message.body = f"{thread}.{number}".encode()
            message.keys = f"{thread}-{number}"
            message.add_property("pad", PAD)
            tries.count = 0
            notes.add("sending", thread, number, time.monotonic())
            try:
                receipt = producer.send(message)
            except Exception as error:  # noqa: BLE001
                notes.add("failed", thread, number, time.monotonic(), f"{type(error).__name__}: {error}")
                stopping.wait(PAUSE_S)
            else:
                at = time.monotonic()
                notes.add("sent", thread, number, at, receipt.message_id, receipt.offset, tries.count)
            due = max(due + threads / per_second, time.monotonic() - 1)
            stopping.wait(max(0.0, due - time.monotonic()))

    senders = [threading.Thread(target=run, args=(thread,), daemon=True) for thread in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def drain(configuration: Any, topic: str, notes: Notes, group: str) -> None:
    """Receive and acknowledge."""
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, AWAIT_S)
    started = False
    while not stopping.is_set():
        try:
            if not started:
                consumer.startup()
                started = True
            for message in consumer.receive(RECEIVE_MAX, INVISIBLE_S) or ():
                body, handle = message.body.decode(), message.receipt_handle
                notes.add("got", body, time.monotonic(), handle)
                consumer.ack(message)
                notes.add("done", body, time.monotonic(), handle)
        except Exception as error:  # noqa: BLE001
            notes.add("failed", "-", 0, time.monotonic(), f"{type(error).__name__}: {error}")
            stopping.wait(PAUSE_S)


def main(role: str, endpoint: str, topic: str, file: str, *words: str) -> None:
    """Run a role."""
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    configuration = ClientConfiguration(endpoint, Credentials())
    if role == "send":
        send(configuration, topic, Notes(file), int(words[0]), float(words[1]))
    else:
        drain(configuration, topic, Notes(file), words[0])
    os._exit(0)  # the SDK's shutdown would talk to brokers that may be gone


if __name__ == "__main__":
    main(*sys.argv[1:])
