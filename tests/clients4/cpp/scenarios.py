"""Runs scenarios with librocketmq, by the wheel `rocketmq` 0.4.4: `scenarios.py NAMESERVER RUN NAME ...`.

RUN is what topics and groups are named after; the topics are there already, with two queues at each of two
brokers. Without words, the names of all scenarios are printed. Each prints one line when it has ended,
"@outcome " and a JSON object: {"outcome": {...}, "scenario": "send_sync", "seconds": 1.4}

Each runs in a process of its own: the library does not always end without a fault once its clients are shut
down.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer
from rocketmq.exceptions import ProducerSendSyncFailed
from rocketmq.ffi import MessageModel

THREADS = 4  # scenarios at a time: they mostly wait
WAIT_S = 30.0
POLL_S = 0.02
WARMING = "T_warming_cpp"  # the first send makes it
CONNECTING = 8  # sends: one for each queue of the topic at two brokers
ONE_S = 90.0  # for a scenario's process


class Scene:
    """One scenario under way: its names, and what it has to say."""

    def __init__(self, names: str, run: str, name: str) -> None:
        self.names = names
        self.topic = f"T_{run}_{name}"
        self.group = f"G_{run}_{name}"
        self.said: dict[str, Any] = {}
        self.sender: Producer | None = None
        self.ends: list[Callable[[], None]] = []

    def producer(self) -> Producer:
        """Return the producer: of a group a process can have one."""
        if self.sender is None:
            self.sender = Producer(f"{self.group}_p")
            self.sender.set_namesrv_addr(self.names)
            self.sender.start()
            self.ends.append(self.sender.shutdown)
            until(lambda: connected(self.sender), "connections to both brokers")
        return self.sender

    def message(self, body: str, tag: str = "A") -> Message:
        """Make a message."""
        made = Message(self.topic)
        made.set_keys("k")
        made.set_tags(tag)
        made.set_property("colour", "red")
        made.set_body(body)
        return made

    def push(
        self, expression: str = "*", fails: Callable[[Any], bool] = lambda _: False, **options: Any
    ) -> "Got":
        """Start a push consumer, which fails with what `fails` names."""
        got = Got()
        made = PushConsumer(self.group, **options)
        made.set_namesrv_addr(self.names)
        made.set_instance_name(f"{self.group}-{len(self.ends)}")
        made.subscribe(self.topic, lambda message: got.take(message, fails), expression)
        made.start()
        self.ends.append(made.shutdown)
        return got


def connected(sender: Producer) -> bool:
    """Tell whether sends to another topic, which go to both brokers in turn, are all taken.

    The first ones may not be: the library waits 3 ms for the lock under which another thread connects.
    """
    try:
        for _ in range(CONNECTING):
            message = Message(WARMING)
            message.set_body("warm")
            sender.send_sync(message)
    except ProducerSendSyncFailed:
        return False
    return True


class Refused(Exception):
    """What a listener raises so that a message comes again."""


class Got:
    """What a consumer was given."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: list[dict[str, Any]] = []

    def take(self, message: Any, fails: Callable[[Any], bool]) -> None:
        """Note a message."""
        noted = {
            "body": message.body.decode(),
            "tries": message.reconsume_times,
            "place": (message.queue_id, message.queue_offset),
            "store": message["CLUSTER"],
            "colour": message["colour"],
            "tags": message.tags,
            "keys": message.keys,
            "time": time.time(),
        }
        with self.lock:
            self.messages.append(noted)
        if fails(noted):
            raise Refused(noted["body"])

    def bodies(self) -> list[str]:
        """Return all bodies, those that came twice twice."""
        with self.lock:
            return sorted(each["body"] for each in self.messages)

    def wait(self, count: int) -> list[str]:
        """Wait for so many messages, and a moment longer, in which no more must come."""
        try:
            until(lambda: len(self.messages) >= count, f"{count} messages")
        except TimeoutError:
            raise TimeoutError(f"{count} messages did not come, but {self.bodies()}") from None
        time.sleep(0.3)
        return self.bodies()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {WAIT_S} s: {what}")
        time.sleep(POLL_S)


def send_sync(scene: Scene) -> None:
    """Answers, and what arrives."""
    producer = scene.producer()
    answers = [producer.send_sync(scene.message(body)) for body in ("m0", "m1", "x" * 6000)]
    scene.said["answers"] = [int(answer.status) for answer in answers]
    scene.said["ids"] = sorted({len(answer.msg_id) for answer in answers})
    got = scene.push()
    scene.said["got"] = [body.replace("x" * 6000, "+6000") for body in got.wait(3)]
    first = next(each for each in got.messages if each["body"] == "m0")
    scene.said["properties"] = [str(first[name]) for name in ("store", "colour", "tags", "keys")]


def send_oneway(scene: Scene) -> None:
    """What arrives."""
    producer = scene.producer()
    for number in range(10):
        producer.send_oneway(scene.message(f"o{number}"))
    scene.said["got"] = scene.push().wait(10)


def send_orderly(scene: Scene) -> None:
    """Those of an order are in one queue, and come in their order."""
    producer = scene.producer()
    answers = [producer.send_orderly(scene.message(f"{number:02}"), 3) for number in range(10)]
    scene.said["offsets"] = [answer.offset for answer in answers]
    got = scene.push(orderly=True)
    got.wait(10)
    scene.said["got"] = [each["body"] for each in got.messages]


def send_delayed(scene: Scene) -> None:
    """Level 1 is a second."""
    producer = scene.producer()
    got = scene.push()
    producer.send_sync(scene.message("at once"))
    got.wait(1)
    message = scene.message("after 1 s")
    message.set_delay_time_level(1)
    sent = time.time()
    producer.send_sync(message)
    scene.said["got"] = got.wait(2)
    took = got.messages[1]["time"] - sent
    scene.said["not early, not late"] = [took > 0.95, took < 5]


def fill(scene: Scene) -> None:
    """Send six messages, tagged A, B, C in turn."""
    producer = scene.producer()
    for number in range(6):
        producer.send_sync(scene.message(f"m{number}", "ABC"[number % 3]))


def push_tags(scene: Scene) -> None:
    """Two tags of three: this client's own codes of tags are all 0."""
    fill(scene)
    scene.said["got"] = scene.push("A || C").wait(4)


def push_broadcast(scene: Scene) -> None:
    """Each consumer gets each message that comes once it has begun, at the end of its queues."""
    consumers = [scene.push(message_model=MessageModel.BROADCASTING) for _ in range(2)]
    producer = scene.producer()

    def began() -> bool:
        for _ in range(4):  # one for each queue
            producer.send_sync(scene.message("first"))
        return all(len({each["place"][0] for each in got.messages}) == 2 for got in consumers)

    until(began, "all queues of both")
    fill(scene)
    until(lambda: all("m5" in got.bodies() for got in consumers), "the last message")
    time.sleep(0.3)
    scene.said["got"] = [[body for body in got.bodies() if body != "first"] for got in consumers]


def push_failing(scene: Scene) -> None:
    """A message whose listener fails comes again."""
    producer = scene.producer()
    got = scene.push(fails=lambda noted: bool(noted["body"] == "fails once" and noted["tries"] == 0))
    producer.send_sync(scene.message("fails never"))
    producer.send_sync(scene.message("fails once"))
    until(lambda: len(got.messages) >= 3, "the second try")
    scene.said["got"] = sorted([each["body"], each["tries"]] for each in got.messages)


def pull(scene: Scene) -> None:
    """All of the topic's queues."""
    fill(scene)
    consumer = PullConsumer(scene.group)
    consumer.set_namesrv_addr(scene.names)
    consumer.start()
    scene.ends.append(consumer.shutdown)
    scene.said["got"] = sorted(message.body.decode() for message in consumer.pull(scene.topic))


ALL: dict[str, Callable[[Scene], None]] = {
    each.__name__: each
    for each in (
        send_sync,
        send_oneway,
        send_orderly,
        send_delayed,
        push_tags,
        push_broadcast,
        push_failing,
        pull,
    )
}


def play(names: str, run: str, name: str) -> None:
    """Play one, tell of it, and end at once."""
    scene = Scene(names, run, name)
    began = time.monotonic()
    try:
        ALL[name](scene)
    except Exception as error:  # noqa: BLE001 - it is a result
        scene.said["error"] = f"{type(error).__name__}: {error}"
    said = {"outcome": scene.said, "scenario": name, "seconds": round(time.monotonic() - began, 1)}
    print("@outcome " + json.dumps(said), flush=True)
    for end in reversed(scene.ends):
        end()
    os._exit(0)


def apart(names: str, run: str, name: str) -> None:
    """Play one in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--one", names, run, name]) as child:
        try:
            child.wait(ONE_S)
        except subprocess.TimeoutExpired:
            child.kill()


def main(words: list[str]) -> None:
    """Play what is asked for."""
    if not words:
        print("\n".join(ALL))
    elif words[0] == "--one":
        play(*words[1:])
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            for name in words[2:]:
                threads.submit(apart, words[0], words[1], name)


if __name__ == "__main__":
    main(sys.argv[1:])
