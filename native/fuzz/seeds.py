"""Writes what fuzzing the compiled lane begins with: a good input of each kind (`make fuzz-native`).

python native/fuzz/seeds.py DIRECTORY
"""

import random
import sys
from pathlib import Path

from support.lane.brokers import PATH, STYLES, Client
from support.lane.logs import PLAIN, make_log
from support.lane.pair import request
from support.lane.remoting import ODD, odd, plain
from support.lane.remoting import STYLES as REMOTE_STYLES
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

CLIENT = "CLIENT"
EACH = 8
ACK_PATH = "/apache.rocketmq.v2.MessagingService/AckMessage"


def acknowledgement(rng: random.Random) -> bytes:
    """Return a request that acknowledges some deliveries."""
    found = messaging.AckMessageRequest()
    found.group.name, found.topic.name = "group", "topic"
    for number in range(rng.randrange(1, 4)):
        handle = f"W1:b:group:topic:{rng.randrange(4):x}:0:{number:x}:a:5c:{rng.getrandbits(63):x}:1"
        found.entries.add(message_id=f"id-{number}", receipt_handle=handle)
    return found.SerializeToString()


def main() -> None:
    """Write the inputs."""
    root, rng = Path(sys.argv[1]), random.Random(1)

    def put(target: str, name: str, data: bytes) -> None:
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    for number in range(EACH):
        put("log", f"records-{number}", bytes(make_log(rng, 5, PLAIN).data))
        sends, acks = request(rng, rng.randrange(1, 4)), acknowledgement(rng)
        put("requests", f"send-{number}", sends)
        put("requests", f"ack-{number}", acks)
        for style in REMOTE_STYLES:
            frames = b"".join(plain(rng, opaque, style) for opaque in range(3)) + odd(rng, 3, rng.choice(ODD))
            put("frames", f"{style}-{number}".replace(" ", "-"), bytes([rng.randrange(16), 255]) + frames)
        for style in STYLES:
            client = Client(rng, style, CLIENT)
            order = ((sends, PATH), (sends, PATH), (acks, ACK_PATH), (acks, ACK_PATH), (sends, PATH))
            calls = b"".join(client.call(one, pieces=rng.randrange(1, 3), path=path) for one, path in order)
            put("connection", f"{style}-{number}", bytes([rng.randrange(64), rng.randrange(256)]) + calls)
        put("replica", f"feed-{number}", b"\0" + rng.randbytes(200))
        put("replica", f"follow-{number}", b"\1" + rng.randbytes(200))


if __name__ == "__main__":
    main()
