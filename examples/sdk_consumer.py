"""Receive and acknowledge with RocketMQ's official Python SDK from PyPI; knows nothing of whimbrel.

    python examples/sdk_consumer.py ENDPOINT GROUP TOPIC COUNT SECONDS

Prints one JSON object for each message received and acknowledged, and ends after COUNT messages, or after
SECONDS with exit code 1.
"""

import json
import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer
from rocketmq.v5.exception import ClientException

INVISIBLE_S = 30
AWAIT_S = 2
AT_A_TIME = 4


def main(endpoint: str, group: str, topic: str, count: int, seconds: float) -> int:
    """Receive until there are `count` messages or the time is over."""
    consumer = SimpleConsumer(
        ClientConfiguration(endpoint, Credentials()), group, {topic: FilterExpression()}, AWAIT_S
    )
    consumer.startup()
    deadline, received = time.monotonic() + seconds, 0
    try:
        while received < count and time.monotonic() < deadline:
            try:
                messages = consumer.receive(min(AT_A_TIME, count - received), INVISIBLE_S)
            except (
                ClientException
            ) as error:  # a broker that is starting or has gone; the next call asks another
                print(f"receive: {error}", file=sys.stderr)
                time.sleep(0.2)
                continue
            for message in messages or ():
                consumer.ack(message)
                received += 1
                print(
                    json.dumps(
                        {
                            "message_id": message.message_id,
                            "body": message.body.decode(),
                            "attempt": message.delivery_attempt,
                        }
                    ),
                    flush=True,
                )
    finally:
        consumer.shutdown()
    return 0 if received == count else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
