"""A send load by RocketMQ's official SDK, as a program of its own: our classes and the SDK's share no process
here.

    python tests/sdk_sender.py ENDPOINT TOPIC ACKNOWLEDGED THREADS BODY_BYTES

Each thread sends one message after the other until SIGTERM. The id of each message goes to the file
ACKNOWLEDGED as soon as the send has been acknowledged, one line with one write, so a reader sees whole lines.
A send that fails (after the SDK's own three attempts) counts as not acknowledged, and the next one follows.
The last line on standard output is a JSON object with the counts.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, Message, Producer

PAUSE_S = 0.02  # after a failed send; a dead broker refuses at once


def main(endpoint: str, topic: str, acknowledged: Path, threads: int, body_bytes: int) -> None:
    """Send until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (topic,))
    producer.startup()
    counts = {"acknowledged": 0, "failed": 0}
    lock = threading.Lock()
    out = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def send() -> None:
        payload = os.urandom(body_bytes)
        while not stop.is_set():
            message = Message()
            message.topic = topic
            message.body = payload
            message.keys = "key"
            try:
                receipt = producer.send(message)
            except Exception as error:  # noqa: BLE001  whatever the SDK makes of a dead broker
                with lock:
                    counts["failed"] += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                stop.wait(PAUSE_S)
            else:
                os.write(out, f"{receipt.message_id}\n".encode())
                with lock:
                    counts["acknowledged"] += 1

    senders = [threading.Thread(target=send, daemon=True) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    print(json.dumps(counts), flush=True)
    os._exit(0)  # the SDK's shutdown would talk to brokers that may be gone


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
