"""A client that comes at the moment of a fault, by RocketMQ's official Python SDK: a program of its own.

    python tests/chaos/newcomer.py ENDPOINT TOPIC BODY

Writes `loaded` when the SDK is imported, waits for a line, then starts a producer and sends until one send is
acknowledged. A client that could not start, or send, is left behind, and another one comes `PAUSE_S` later.
Then it writes `sent SECONDS`, from the line on, and ends.
"""

import os
import sys
import time

from rocketmq import ClientConfiguration, Credentials, Message, Producer

PAUSE_S = 0.1


def come(endpoint: str, topic: str, body: str) -> None:
    """Start and send once."""
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (topic,))
    producer.startup()
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, body.encode(), "a", body
    producer.send(message)


def main(endpoint: str, topic: str, body: str) -> None:
    """Come as often as it takes."""
    print("loaded", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    while True:
        try:
            come(endpoint, topic, body)
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it
            print("failed", f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
            time.sleep(PAUSE_S)
        else:
            break
    print("sent", time.monotonic() - began, flush=True)
    os._exit(0)  # the SDK leaves threads behind


if __name__ == "__main__":
    main(*sys.argv[1:])
