"""Send messages with RocketMQ's official Python SDK, as it comes from PyPI; knows nothing of whimbrel.

    python examples/sdk_producer.py ENDPOINT TOPIC COUNT [PREFIX]

Prints one JSON object for each message that the broker has acknowledged.
"""

import json
import sys

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main(endpoint: str, topic: str, count: int, prefix: str = "message") -> None:
    """Send `count` messages, each with a key and a tag."""
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (topic,))
    producer.startup()
    try:
        for number in range(count):
            message = Message()
            message.topic = topic
            message.body = f"{prefix} {number}".encode()
            message.keys = f"{prefix}-{number}"
            message.tag = "tour"
            receipt = producer.send(message)
            print(
                json.dumps(
                    {
                        "message_id": receipt.message_id,
                        "offset": receipt.offset,
                        "body": f"{prefix} {number}",
                    }
                ),
                flush=True,
            )
    finally:
        producer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
