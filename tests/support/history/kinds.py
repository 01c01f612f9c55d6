"""Clients of all kinds of messages at once, and what must hold of what they saw, whatever was killed.

    with KindsLoad(cluster.master.grpc, seed) as load:
        load.wait_for(30, "the first messages")       # acknowledged, of each kind
        ...                                           # whatever is to go wrong
        load.stop_sending()
        load.settle(120)                              # consumers have everything, or time is over
    assert load.check(messages_in_log(cluster.master.store)) == []

The rules:

    ordered        message n of a message group goes out only when all before it, that are known to be stored,
                   were acknowledged, or stand before it in the same answer
    delayed        not before its time; once in its topic, however often brokers died
    transaction    committed: once in its topic, and delivered; rolled back: never; left open: as the check
                   answered, at most once
    dead letters   a message that is never acknowledged is once in the dead-letter topic; one that was
                   acknowledged is not there
    all            what was acknowledged to its producer is delivered; a message does not come again before
                   its invisible time is over, and not at all after an acknowledgement that was answered OK

Every client is one thread with a channel of its own to the master, which keeps its address. A call that
fails has an unknown outcome: producers of ordered messages repeat it, the others go on with another message,
and the rules allow both outcomes.

When a broker delivered is known as well as its clients can know it: not before the receive was sent, and not
after its answer came. So an invisible time that is too short by less than a receive took is not seen, and
nothing else is forgiven.
"""

import itertools
import queue
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from support.cluster.broker_api import Api
from support.store.master_log import records_in_log
from support.waiting import until
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = ["DELAYED", "FAILING", "ORDERED", "PAID", "KindsLoad", "messages_in_log"]

ORDERED, DELAYED, PAID, FAILING = "Ordered", "Delayed", "Paid", "Failing"
GROUPS = {ORDERED: "ordered", DELAYED: "delayed", PAID: "paid", FAILING: "failing"}
ATTEMPTS = 2  # of the group of failing messages
MESSAGE_GROUPS = 5
PAUSE_S = 0.03  # between two messages of a producer, and after a failed call
CALL_S = 5.0  # a call's deadline, longer than the broker waits for flush and slaves
INVISIBLE_S = 10  # the least that is allowed

COMMIT, ROLLBACK = v2.COMMIT, v2.ROLLBACK


Place = tuple[int, int]  # queue id and offset


@dataclass
class Note:
    """What is known of one message.

    Attributes:
        sent: its send was answered OK.
        due_ms: when a delayed one may be delivered.
        wish: what its producer wanted of a transaction: COMMIT, ROLLBACK, or 0 for leaving it to the check.
        never_acked: its consumer never acknowledges it.
        deliveries: attempts, in the order in which they came.
        hidden_until: by its place in a queue, before what moment (monotonic) it must not come again.
            A message that was sent twice, for want of an answer, has two places.
        acked: it was acknowledged, or may have been: the call failed.
        done: places of which an acknowledgement was answered OK.
    """

    sent: bool = False
    due_ms: int = 0
    wish: int = 0
    never_acked: bool = False
    deliveries: list[int] = field(default_factory=list)
    hidden_until: dict[Place, float] = field(default_factory=dict)
    acked: bool = False
    done: set[Place] = field(default_factory=set)

    def delivered(self, place: Place, attempt: int, asked: float, answered: float) -> str:
        """Take note of a delivery; return what must not have happened, if anything.

        Args:
            asked, answered: when the receive was sent, and when its answer was there.
        """
        early = self.hidden_until.get(place, 0.0) - answered
        self.hidden_until[place] = asked + INVISIBLE_S
        self.deliveries.append(attempt)
        if place in self.done:
            return "came again after its acknowledgement"
        return f"came again at least {early:.1f} s before its invisible time was over" if early > 0 else ""


@dataclass(frozen=True)
class Refused(Exception):
    """A call was answered with an error, or not at all."""

    why: str


def messages_in_log(store: Path) -> Iterator[StoredMessage]:
    """Yield all messages in a commitlog."""
    return map(decode_record, records_in_log(store))


class KindsLoad:
    """Producers and consumers of all kinds, each on a thread of its own.

    Attributes:
        notes: by topic and message id. findings: rules that were seen broken while it ran.
    """

    def __init__(self, address: str, seed: int) -> None:
        """Make topics and groups at the master, and start."""
        self.address, self.seed = address, seed
        self.notes: dict[str, dict[str, Note]] = defaultdict(dict)
        self.findings: list[str] = []
        self.late_ms: list[int] = []  # of delayed messages, beyond their second
        self.sent: Counter[str] = Counter()
        self.ordered: dict[str, list[str]] = {f"g{n}": [] for n in range(MESSAGE_GROUPS)}  # ids, acknowledged
        self.dead: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.stopped, self.ended = threading.Event(), threading.Event()
        self.prepare()
        self.producers = [
            *(self.start(self.send_ordered, group) for group in self.ordered),
            self.start(self.send_delayed),
            self.start(self.send_paid),
            self.start(self.send_failing),
        ]
        self.consumers = [
            self.start(self.consume_ordered),
            self.start(self.consume_delayed),
            self.start(self.consume_paid),
            self.start(self.consume_failing),
            self.start(self.consume_dead),
            self.start(self.answer_checks),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # Threads

    def start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Run work on a thread; what it raises fails the test."""

        def run() -> None:
            try:
                with grpc.insecure_channel(
                    self.address, options=[("grpc.max_reconnect_backoff_ms", 500)]
                ) as channel:
                    work(Api(channel, f"{work.__name__}{arguments}@{self.seed}"), *arguments)
            except BaseException as error:  # noqa: BLE001  the test's thread raises it
                self.failures.put(error)

        thread = threading.Thread(target=run, daemon=True, name=work.__name__)
        thread.start()
        return thread

    def prepare(self) -> None:
        """Make topics and groups."""
        kinds = {
            ORDERED: admin.MESSAGE_TYPE_FIFO,
            DELAYED: admin.MESSAGE_TYPE_DELAY,
            PAID: admin.MESSAGE_TYPE_TRANSACTION,
            FAILING: admin.MESSAGE_TYPE_NORMAL,
        }
        with grpc.insecure_channel(self.address) as channel:
            api = Api(channel)
            for name, kind in kinds.items():
                topic = admin.Topic(name=name, read_queues=4, write_queues=4, message_type=kind)
                api.administer("CreateTopic", topic=topic)
                group = admin.Group(
                    name=GROUPS[name], fifo=name == ORDERED, max_attempts=ATTEMPTS if name == FAILING else 100
                )
                api.administer("CreateGroup", group=group)

    def pause(self) -> None:
        """Let a moment pass, shorter when all is to end."""
        self.ended.wait(PAUSE_S)

    def call(self, name: str, make: Callable[[], Any]) -> Any:
        """Make a call; return its answer.

        Raises:
            Refused: it failed, whatever that means for its effect.
        """
        try:
            answer = make()
        except grpc.RpcError as error:
            why = f"{name} {error.code().name}"
        else:
            code = answer.code if hasattr(answer, "code") else answer.status.code
            if code in (v2.OK, v2.MESSAGE_NOT_FOUND):
                return answer
            why = f"{name} {code}"
        self.errors[why] += 1
        self.pause()
        raise Refused(why)

    # Producers

    def send(self, api: Api, topic: str, message_id: str, **system: Any) -> Any:
        """Send one message, whose body is its id; return its entry of the answer."""
        properties = {"message_id": message_id, **system}
        answer = self.call(f"send {topic}", lambda: api.send(topic, message_id.encode(), **properties))
        self.notes[topic][message_id].sent = True
        self.sent[topic] += 1
        return answer.entries[0]

    def send_ordered(self, api: Api, group: str) -> None:
        """Send the messages of one message group, each until it is acknowledged."""
        for number in itertools.count():
            message_id = f"{group}-{number:05}"
            self.notes[ORDERED][message_id] = Note()
            while not self.stopped.is_set():
                try:
                    self.send(api, ORDERED, message_id, message_type=v2.FIFO, message_group=group)
                except Refused:
                    continue
                self.ordered[group].append(message_id)
                break
            if self.stopped.wait(PAUSE_S * MESSAGE_GROUPS):
                return

    def send_delayed(self, api: Api) -> None:
        """Send messages that are due within some seconds."""
        dice = random.Random(self.seed)
        for number in itertools.count():
            if self.stopped.wait(PAUSE_S):
                return
            message_id = f"d-{number:05}"
            due_ms = int(time.time() * 1000) + dice.randrange(500, 6000)
            self.notes[DELAYED][message_id] = Note(due_ms=due_ms)
            due = Timestamp(seconds=due_ms // 1000, nanos=due_ms % 1000 * 1_000_000)
            try:
                self.send(api, DELAYED, message_id, message_type=v2.DELAY, delivery_timestamp=due)
            except Refused:
                continue

    def send_paid(self, api: Api) -> None:
        """Send messages of transactions, and end most of them."""
        dice = random.Random(self.seed + 1)
        for number in itertools.count():
            if self.stopped.wait(PAUSE_S):
                return
            wish = dice.choice((COMMIT, COMMIT, ROLLBACK, 0))
            message_id = f"t-{number:05}"
            self.notes[PAID][message_id] = Note(wish=wish)
            try:
                entry = self.send(api, PAID, message_id, message_type=v2.TRANSACTION)
                if wish:  # else, and when that fails, the check decides
                    self.end_transaction(api, message_id, entry.transaction_id, wish, v2.SOURCE_CLIENT)
            except Refused:
                continue

    def end_transaction(self, api: Api, message_id: str, transaction_id: str, wish: Any, source: Any) -> None:
        """Commit or roll back."""
        self.call(
            "end",
            lambda: api(
                "EndTransaction",
                timeout=CALL_S,
                topic=v2.Resource(name=PAID),
                message_id=message_id,
                transaction_id=transaction_id,
                resolution=wish,
                source=source,
            ),
        )

    def send_failing(self, api: Api) -> None:
        """Send messages of which some are never acknowledged."""
        dice = random.Random(self.seed + 2)
        for number in itertools.count():
            if self.stopped.wait(PAUSE_S):
                return
            message_id = f"f-{number:05}"
            self.notes[FAILING][message_id] = Note(never_acked=dice.random() < 0.3)
            try:
                self.send(api, FAILING, message_id)
            except Refused:
                continue

    def answer_checks(self, api: Api) -> None:
        """Answer what the broker asks about transactions: as their producer wished, else by their number."""
        while not self.ended.is_set():
            commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
            settings = v2.Settings(client_type=v2.PRODUCER)
            settings.publishing.topics.add(name=PAID)
            commands.put(messaging.TelemetryCommand(settings=settings))
            try:
                stream = api.telemetry(iter(commands.get, None))
                for answer in stream:
                    if answer.WhichOneof("command") == "recover_orphaned_transaction_command":
                        self.answer_check(api, answer.recover_orphaned_transaction_command)
                    if self.ended.is_set():
                        break
            except grpc.RpcError:
                self.pause()
            finally:
                commands.put(None)

    def answer_check(self, api: Api, asked: Any) -> None:
        """Answer one check."""
        message_id = asked.message.system_properties.message_id
        wish = self.notes[PAID][message_id].wish or decision(message_id)
        try:
            self.end_transaction(api, message_id, asked.transaction_id, wish, v2.SOURCE_SERVER_CHECK)
        except Refused:
            return

    # Consumers

    def receive(self, api: Api, topic: str, group: str) -> list[Any]:
        """Receive once, and take note of what came; nothing also when the call failed."""
        asked = time.monotonic()
        try:
            got = self.call(
                f"receive {topic}",
                lambda: api.receive(topic, group, batch=8, poll_s=1, invisible_s=INVISIBLE_S, timeout=CALL_S),
            )
        except Refused:
            return []
        answered = time.monotonic()
        for message in got.messages if topic in GROUPS else ():
            message_id = message.body.decode()
            attempt = message.system_properties.delivery_attempt
            if wrong := self.notes[topic][message_id].delivered(place_of(message), attempt, asked, answered):
                self.findings.append(f"{message_id} of {topic} {wrong}, as attempt {attempt}")
        return list(got.messages)

    def ack(self, api: Api, topic: str, group: str, message: Any) -> bool:
        """Acknowledge, and take note of it; return whether that was answered OK."""
        handle = message.system_properties.receipt_handle
        try:
            self.call(f"ack {topic}", lambda: api.ack(topic, group, handle))
        except Refused:
            return False
        if topic in GROUPS:
            note = self.notes[topic][message.body.decode()]
            note.acked = True
            note.done.add(place_of(message))
        return True

    def consume_ordered(self, api: Api) -> None:
        """Consume message groups; while they are sent, a part is left to come again."""
        dice = random.Random(self.seed + 3)
        done: set[str] = set()
        while not self.ended.is_set():
            known = {group: list(sent) for group, sent in self.ordered.items()}
            before: set[str] = set()
            for message in self.receive(api, ORDERED, GROUPS[ORDERED]):
                message_id, group = message.body.decode(), message.system_properties.message_group
                missing = [one for one in known[group] if one < message_id and one not in done | before]
                if missing:
                    self.findings.append(f"{message_id} was delivered before {missing[:3]} were acknowledged")
                before.add(message_id)
                if dice.random() < 0.05 and not self.stopped.is_set():
                    break  # this one and what comes behind it are to come again, in order
                done.add(message_id)  # also when the call fails: it may have had its effect
                self.ack(api, ORDERED, GROUPS[ORDERED], message)

    def consume_delayed(self, api: Api) -> None:
        """Consume delayed messages, and look at the time."""
        while not self.ended.is_set():
            for message in self.receive(api, DELAYED, GROUPS[DELAYED]):
                now_ms = int(time.time() * 1000)
                message_id = message.body.decode()
                note = self.notes[DELAYED][message_id]
                if now_ms < note.due_ms:
                    self.findings.append(f"{message_id} was delivered {note.due_ms - now_ms} ms early")
                if len(note.deliveries) == 1:
                    self.late_ms.append(now_ms - note.due_ms)
                self.ack(api, DELAYED, GROUPS[DELAYED], message)

    def consume_paid(self, api: Api) -> None:
        """Consume what was committed."""
        while not self.ended.is_set():
            for message in self.receive(api, PAID, GROUPS[PAID]):
                self.ack(api, PAID, GROUPS[PAID], message)

    def consume_failing(self, api: Api) -> None:
        """Acknowledge some messages, and never the others."""
        while not self.ended.is_set():
            for message in self.receive(api, FAILING, GROUPS[FAILING]):
                note = self.notes[FAILING][message.body.decode()]
                if not note.never_acked:
                    self.ack(api, FAILING, GROUPS[FAILING], message)
                    note.acked = True  # also when the call fails: it may have had its effect

    def consume_dead(self, api: Api) -> None:
        """Read dead letters."""
        topic = DEAD_LETTER_PREFIX + GROUPS[FAILING]
        while not self.ended.is_set():
            for message in self.receive(api, topic, "dead-letter-reader"):
                self.dead[message.body.decode()] += 1
                self.ack(api, topic, "dead-letter-reader", message)

    # The test's thread

    def wait_for(self, more: int, what: str, timeout: float = 60.0) -> None:
        """Wait until so many more messages of each kind are acknowledged."""
        wanted = {topic: self.sent[topic] + more for topic in GROUPS}
        until(
            lambda: (
                all(self.sent[topic] >= count for topic, count in wanted.items()) or not self.failures.empty()
            ),
            timeout=timeout,
            what=lambda: f"{what} ({dict(self.sent)}, errors {dict(self.errors)})",
        )
        self.raise_failure()

    def stop_sending(self) -> None:
        """End the producers; those with a transaction to end go on until it is."""
        self.stopped.set()
        for thread in self.producers:
            thread.join(60)
            assert not thread.is_alive(), thread.name

    def missing(self) -> dict[str, list[str]]:
        """Return the messages that are to be delivered still, or to be dead letters, by topic."""
        found: dict[str, list[str]] = defaultdict(list)
        for topic, notes in self.notes.items():
            for message_id, note in notes.items():
                if not note.sent or (topic == PAID and not is_committed(message_id, note)):
                    continue
                if (note.never_acked and not self.dead[message_id]) or (
                    not note.never_acked and not note.acked
                ):
                    found[topic].append(message_id)
        return found

    def settle(self, timeout: float) -> None:
        """Wait until consumers have all, and end; what they lack then, a check says."""
        give_up = time.monotonic() + timeout
        until(
            lambda: not self.missing() or time.monotonic() > give_up or not self.failures.empty(),
            timeout=timeout + 10,
            what="the end of consumers",
            every_s=0.1,
        )
        self.end()

    def end(self) -> None:
        """End all clients."""
        self.stopped.set()
        self.ended.set()
        for thread in (*self.producers, *self.consumers):
            if thread.name != "answer_checks":  # its stream ends by its deadline
                thread.join(60)
                assert not thread.is_alive(), thread.name
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what a thread raised."""
        if not self.failures.empty():
            raise self.failures.get()

    @property
    def summary(self) -> str:
        """What was sent, and how late delayed messages were."""
        late = sorted(self.late_ms) or [0]
        sent = ", ".join(f"{count} {topic}" for topic, count in sorted(self.sent.items()))
        return (
            f"acknowledged: {sent}; {sum(self.dead.values())} dead letters; delayed ones late by"
            f" {late[len(late) // 2]} ms in the middle, {late[-1]} ms at most"
        )

    def check(self, stored: Iterator[StoredMessage]) -> list[str]:
        """Return what must not have happened; after `settle`."""
        findings = list(self.findings)
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for message in stored:
            found[message.topic][message.body.decode(errors="replace")] += 1
        findings += [f"{one} of {topic} never came" for topic, ones in self.missing().items() for one in ones]
        findings += self.check_once(DELAYED, found[DELAYED])
        findings += self.check_once(PAID, found[PAID])
        for message_id, note in self.notes[PAID].items():
            allowed = is_committed(message_id, note) or not note.sent
            if (note.deliveries or found[PAID][message_id]) and (note.wish == ROLLBACK or not allowed):
                findings.append(f"{message_id} was rolled back and is in the topic")
        letters = found[DEAD_LETTER_PREFIX + GROUPS[FAILING]]
        for message_id, note in self.notes[FAILING].items():
            copies = letters[message_id]
            if copies > 1:
                findings.append(f"{message_id} is in the dead-letter topic {copies} times")
            if note.never_acked and len([attempt for attempt in note.deliveries if attempt > ATTEMPTS]):
                findings.append(f"{message_id} was delivered as attempt {max(note.deliveries)}")
            if copies and not note.never_acked and len(note.deliveries) < ATTEMPTS:
                findings.append(f"{message_id} is a dead letter after {len(note.deliveries)} deliveries")
        return findings

    def check_once(self, topic: str, found: Counter[str]) -> list[str]:
        """Return which messages are in a topic more than once."""
        return [f"{one} is in {topic} {count} times" for one, count in found.items() if count > 1]


def place_of(message: Any) -> Place:
    """Return where a message that was received stands."""
    return message.system_properties.queue_id, message.system_properties.queue_offset


def decision(message_id: str) -> Any:
    """Return what the check says of a transaction that its producer left open."""
    return COMMIT if int(message_id[-1]) % 2 else ROLLBACK


def is_committed(message_id: str, note: Note) -> bool:
    """Tell whether a transaction is to be committed in the end."""
    return (note.wish or decision(message_id)) == COMMIT
