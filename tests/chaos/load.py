"""The load of a run: clients of all kinds, by the client library, through the nameserver's routes.

    plain      producers whose calls are tried once and have `TRY_S` each, so that the outcome of
               every try is known, and one with the library's own defaults; a group of two consumers; a reader
               by pull
    ordered    a producer of each message group, which sends each message until it is acknowledged; an ordered
               group with one consumer
    delayed    messages that are due in some seconds, sent once; a group
    paid       transactions: committed, rolled back, or left to the check; a group

All of it runs on one loop, on a thread of its own. Plain and ordered messages make a history
(`histories.py`); what is known of the others stands in `notes`. `checks.py` says what must hold of all that.
"""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from support.history.histories import History, Outcome, Place, Sent, outcome_of
from support.history.noting import ONCE, PAUSE_S, READER, Reading, place_of, receive, send
from support.waiting import until
from whimbrel.client import Consumer, Message, Producer, PullConsumer, sync
from whimbrel.client.options import ConsumerOptions, ProducerOptions
from whimbrel.client.transactions import Transaction
from whimbrel.errors import InvalidTransactionId, WhimbrelError
from whimbrel.model.message import MessageType, ReceivedMessage, Resolution

__all__ = ["DELAYED", "GROUPS", "ORDERED", "PAID", "PLAIN", "Load", "Note", "Pace", "resolution_of"]

PLAIN, ORDERED, DELAYED, PAID = "Plain", "Ordered", "Delayed", "Paid"
GROUPS = {PLAIN: "plain", ORDERED: "ordered", DELAYED: "delayed", PAID: "paid"}
TYPES = {
    PLAIN: MessageType.NORMAL,
    ORDERED: MessageType.FIFO,
    DELAYED: MessageType.DELAY,
    PAID: MessageType.TRANSACTION,
}
QUEUES = {PLAIN: 8, ORDERED: 4, DELAYED: 4, PAID: 4}

TRY_S = 1.0  # of a plain send that is tried once: who hangs answers none
ROUTE_S = 1.0  # how old routes get; an error has them looked up at once
CONSUMERS = 2  # of the plain group
MESSAGE_GROUPS = 3
INVISIBLE_S = 10.0  # the least that is allowed
WAIT_S = 1.0  # of a receive
LOOK_S = 0.03  # between looks at the route
DUE_S = 1.0, 5.0  # how far ahead delayed messages are due
END_TRIES_MAX = 40  # of the end of a transaction, after which the check decides
CLOSE_S = 40.0  # for all clients to end: a call under way has its deadline
OPTIONS = ConsumerOptions(retry=ONCE, invisible_s=INVISIBLE_S, route_ttl_s=ROUTE_S, assignment_s=ROUTE_S)
ONCE_OPTIONS = ProducerOptions(retry=ONCE, route_ttl_s=ROUTE_S, send_timeout_s=TRY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long clients pause from an answer to the next call, in seconds.

    Attributes:
        plain: of each producer of plain messages.
        other: of each other producer.
    """

    plain: float = 0.015
    other: float = 0.1


@dataclass(slots=True)
class Note:
    """What is known of a delayed message, or of one of a transaction.

    Attributes:
        outcome: of its send.
        due: when a delayed one may be delivered, by the wall clock.
        wish: what its producer wants of a transaction; UNKNOWN leaves it to the check.
        ended: an end of the transaction was answered OK.
        unsure: an end of it may have been taken: a try had no answer, or the check was asked. The next leader
            does not know any more what was decided, and refuses the same end.
        delivered: places at which its group got it.
    """

    outcome: Outcome = "unknown"
    due: float = 0.0
    wish: Resolution = Resolution.UNKNOWN
    ended: bool = False
    unsure: bool = False
    delivered: set[Place] = field(default_factory=set)


def resolution_of(body: bytes, note: Note) -> Resolution:
    """Return how a transaction ends that anybody ends."""
    if note.wish is not Resolution.UNKNOWN:
        return note.wish
    return Resolution.COMMIT if int(body[-1:]) % 2 else Resolution.ROLLBACK


class Load:
    """The clients.

    Attributes:
        history: of plain and ordered messages.
        notes: of delayed ones and transactions, by topic and body.
        answered: by who sends plain messages, "once" or "default", when sends were acknowledged.
        ordered: by message group, what was acknowledged, in order.
        findings: rules that were seen broken meanwhile.
        errors: by kind of client and class, how many calls have failed.
        route: which member the plain topic's route names first, with the time at which that was seen.
    """

    def __init__(self, endpoint: str, seed: int, *, producers: int = 2, pace: Pace | None = None) -> None:
        self.endpoint, self.seed, self.pace = endpoint, seed, pace or Pace()
        self.producers = producers
        self.clock = time.monotonic
        self.history = History()
        self.notes: dict[str, dict[bytes, Note]] = {DELAYED: {}, PAID: {}}
        self.answered: dict[str, list[float]] = {"once": [], "default": []}
        self.ordered: dict[str, list[bytes]] = {f"g{number}": [] for number in range(MESSAGE_GROUPS)}
        self.findings: list[str] = []
        self.errors: Counter[str] = Counter()
        self.route: list[tuple[float, str]] = []
        self.newcomers = itertools.count()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.over = asyncio.Event()
        self.started = threading.Event()
        self.sending = self.running = True
        self.sent, self.failure = threading.Event(), ""
        self.create_topics()
        self.thread = threading.Thread(target=self.run, daemon=True, name="load")
        self.thread.start()

    def create_topics(self) -> None:
        """Make topics and groups, known to all members."""
        with sync.Admin(self.endpoint) as admin:
            for topic, kind in TYPES.items():
                admin.create_topic(topic, message_type=kind, queues=QUEUES[topic])
                admin.create_group(GROUPS[topic], fifo=topic == ORDERED, max_attempts=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Have all clients end, and wait for that."""
        self.sending = self.running = False
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join(CLOSE_S)

    # On the thread

    def run(self) -> None:
        """Run all clients to their end."""
        try:
            asyncio.run(self.main())
        except BaseException as error:
            self.failure = repr(error)
            raise
        finally:
            self.sent.set()

    async def main(self) -> None:
        """Send until `stop_sending`, consume and read until `end`."""
        self.loop = asyncio.get_running_loop()
        self.started.set()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONSUMERS):
                tasks.create_task(self.consume_plain())
            tasks.create_task(self.consume_ordered())
            tasks.create_task(self.consume_noted(DELAYED))
            tasks.create_task(self.consume_noted(PAID))
            tasks.create_task(self.read())
            tasks.create_task(self.watch_route())
            producer = Producer(self.endpoint, topics=[PAID], check=self.check, options=ONCE_OPTIONS)
            async with producer:
                async with asyncio.TaskGroup() as senders:
                    for number in range(self.producers):
                        senders.create_task(self.produce("once", f"p{number}", ONCE_OPTIONS))
                    senders.create_task(self.produce("default", "d", ProducerOptions()))
                    for group in self.ordered:
                        senders.create_task(self.produce_ordered(group))
                    senders.create_task(self.produce_delayed(producer))
                    senders.create_task(self.produce_paid(producer))
                self.sent.set()
                await self.over.wait()  # checks are answered meanwhile

    def failed(self, who: str, error: WhimbrelError) -> None:
        """Count a failed call."""
        self.errors[f"{who} {type(error).__name__}"] += 1

    async def pause(self, seconds: float) -> None:
        """Wait between half and double of a time."""
        await asyncio.sleep(seconds * random.uniform(0.5, 2.0))

    async def produce(self, kind: str, name: str, options: ProducerOptions) -> None:
        """Send plain messages."""
        async with Producer(self.endpoint, options=options) as producer:
            for number in itertools.count():
                if not self.sending:
                    return
                errors: list[WhimbrelError] = []
                body = f"{name}-{number}"
                message = Message(topic=PLAIN, body=body.encode(), keys=(body,))
                sent = await send(producer, message, self.history, name, self.clock, errors)
                # The library tries again by itself, and does not say what the first try met.
                sent.tries_unknown = options.retry is not ONCE
                for error in errors:
                    self.failed(kind, error)
                if sent.outcome == "ok":
                    self.answered[kind].append(sent.ended)
                await self.pause(self.pace.plain if sent.outcome == "ok" else PAUSE_S)

    async def produce_ordered(self, group: str) -> None:
        """Send the messages of a message group, each until it is acknowledged."""
        async with Producer(self.endpoint, options=ONCE_OPTIONS) as producer:
            for number in itertools.count():
                if not self.sending:
                    return
                body = f"{group}-{number}".encode()
                message = Message(topic=ORDERED, body=body, message_group=group)
                sent = self.history.send(body, group, ORDERED, self.clock())
                while self.sending:
                    if await self.try_ordered(producer, message, sent):
                        break
                    await asyncio.sleep(PAUSE_S)
                if sent.outcome == "ok":
                    self.ordered[group].append(body)
                await self.pause(self.pace.other)

    async def try_ordered(self, producer: Producer, message: Message, sent: Sent) -> bool:
        """Try a send once; return whether it is acknowledged."""
        try:
            await producer.send(message)
        except WhimbrelError as error:
            self.failed("ordered", error)
            outcome = outcome_of(error)
            sent.tries_unknown |= outcome != "none"
            # What an earlier try may have stored, a refusal does not undo.
            sent.outcome = "unknown" if sent.tries_unknown else outcome
            return False
        sent.outcome, sent.ended = "ok", self.clock()
        return True

    async def produce_delayed(self, producer: Producer) -> None:
        """Send messages that are due later."""
        dice = random.Random(self.seed)
        for number in itertools.count():
            if not self.sending:
                return
            body = f"d-{number}".encode()
            note = self.notes[DELAYED][body] = Note(due=time.time() + dice.uniform(*DUE_S))
            try:
                await producer.send(Message(topic=DELAYED, body=body, deliver_at=note.due))
            except WhimbrelError as error:
                self.failed("delayed", error)
                note.outcome = outcome_of(error)
                await asyncio.sleep(PAUSE_S)
            else:
                note.outcome = "ok"
            await self.pause(self.pace.other)

    async def produce_paid(self, producer: Producer) -> None:
        """Send messages of transactions, and end most of them."""
        dice = random.Random(self.seed + 1)
        wishes = Resolution.COMMIT, Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
        for number in itertools.count():
            if not self.sending:
                return
            body = f"t-{number}".encode()
            note = self.notes[PAID][body] = Note(wish=dice.choice(wishes))
            try:
                transaction = await producer.send_in_transaction(Message(topic=PAID, body=body))
            except WhimbrelError as error:
                self.failed("paid", error)
                note.outcome = outcome_of(error)
                await asyncio.sleep(PAUSE_S)
            else:
                note.outcome = "ok"
                if note.wish is not Resolution.UNKNOWN:
                    await self.end_transaction(transaction, body, note)
            await self.pause(self.pace.other)

    async def end_transaction(self, transaction: Transaction, body: bytes, note: Note) -> None:
        """Commit or roll back, until that is answered."""
        end = transaction.commit if note.wish is Resolution.COMMIT else transaction.rollback
        for _ in range(END_TRIES_MAX):
            try:
                await end()
            except InvalidTransactionId as error:
                self.failed("end", error)
                if not note.unsure:
                    self.findings.append(f"the transaction of {body!r}: {error}")
                return
            except WhimbrelError as error:
                self.failed("end", error)
                note.unsure |= outcome_of(error) != "none"
                await transaction.look_for_broker()
                await asyncio.sleep(PAUSE_S)
            else:
                note.ended = True
                return

    def check(self, message: ReceivedMessage) -> Resolution:
        """Say what becomes of a transaction that was left open."""
        note = self.notes[PAID][message.body]
        note.unsure = True
        return resolution_of(message.body, note)

    async def receiving(self, group: str, topic: str, once: Callable[[Consumer], Awaitable[None]]) -> None:
        """Run a consumer that does something again and again."""
        async with Consumer(self.endpoint, group, {topic: "*"}, options=OPTIONS) as consumer:
            while self.running:
                try:
                    await once(consumer)
                except WhimbrelError as error:
                    self.failed(f"{group} group", error)
                    await asyncio.sleep(PAUSE_S)

    async def consume_plain(self) -> None:
        """Receive plain messages, and acknowledge them."""
        group = GROUPS[PLAIN]
        await self.receiving(
            group,
            PLAIN,
            lambda consumer: receive(consumer, self.history, group, self.clock, wait_s=WAIT_S),
        )

    async def consume_ordered(self) -> None:
        """Receive message groups; a message comes when all before it are acknowledged, or stand before it."""
        done: set[bytes] = set()
        group = GROUPS[ORDERED]

        async def once(consumer: Consumer) -> None:
            before: set[bytes] = set()
            known = {name: list(bodies) for name, bodies in self.ordered.items()}
            for message in await consumer.receive(wait_s=WAIT_S):
                self.history.deliver(group, message.body, place_of(message), self.clock())
                missing = [
                    body
                    for body in known[message.message_group or ""]
                    if number_of(body) < number_of(message.body) and body not in done | before
                ]
                if missing:
                    self.findings.append(f"{message.body!r} came before {missing[:3]} were acknowledged")
                before.add(message.body)
                done.add(message.body)  # also when the call fails: it may have had its effect
                await consumer.ack(message)
                self.history.ack(group, place_of(message), self.clock())

        await self.receiving(group, ORDERED, once)

    async def consume_noted(self, topic: str) -> None:
        """Receive delayed messages, or those of transactions."""

        async def once(consumer: Consumer) -> None:
            for message in await consumer.receive(wait_s=WAIT_S):
                note = self.notes[topic].get(message.body)
                if note is None:
                    self.findings.append(f"{message.body!r} of {topic} was never sent")
                    continue
                if (early := note.due - time.time()) > 0:
                    self.findings.append(f"{message.body!r} of {topic} came {early:.3f} s early")
                note.delivered.add(place_of(message))
                await consumer.ack(message)

        await self.receiving(GROUPS[topic], topic, once)

    async def read(self) -> None:
        """Read all plain queues."""
        async with PullConsumer(self.endpoint, READER, options=OPTIONS) as reader:
            reading = Reading(reader, self.history, READER, PLAIN)
            while self.running:
                with suppress(WhimbrelError):
                    await reading.go_on()
                await asyncio.sleep(PAUSE_S)

    async def watch_route(self) -> None:
        """Note whom the route names first."""
        options = ProducerOptions(retry=ONCE, route_ttl_s=LOOK_S)
        async with Producer(self.endpoint, options=options) as producer:
            while self.running:
                with suppress(WhimbrelError):
                    queues = await producer.queues(PLAIN)
                    first = str(queues[0].endpoints[0]) if queues else ""
                    if not self.route or self.route[-1][1] != first:
                        self.route.append((self.clock(), first))
                await asyncio.sleep(LOOK_S)

    async def come(self, since: float) -> float:
        """Send once by a client that has just come; return how long that took from a moment on."""
        name = f"n{next(self.newcomers)}"
        for number in itertools.count():
            async with Producer(self.endpoint) as producer:
                message = Message(topic=PLAIN, body=f"{name}-{number}".encode())
                sent = await send(producer, message, self.history, name, self.clock)
            sent.tries_unknown = True
            if sent.outcome == "ok":
                return sent.ended - since
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("there is always a next try")

    # On the run's thread

    def newcomer(self, since: float) -> Future[float]:
        """Let a new client come now."""
        assert self.started.wait(CLOSE_S) and self.loop is not None
        return asyncio.run_coroutine_threadsafe(self.come(since), self.loop)

    def longest_pause(self, kind: str, since: float) -> float:
        """Return the longest time without an acknowledged send from then on, in seconds."""
        times = [since, *(at for at in list(self.answered[kind]) if at > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def wait_for(self, more: int, what: str, timeout: float) -> None:
        """Wait until so many more plain sends of each kind are acknowledged."""
        wanted = {kind: len(times) + more for kind, times in self.answered.items()}

        def there() -> bool:
            return bool(self.failure) or all(
                len(self.answered[kind]) >= count for kind, count in wanted.items()
            )

        until(there, timeout=timeout, what=lambda: f"{what}; errors so far {dict(self.errors)}")
        assert not self.failure, self.failure

    def stop_sending(self) -> None:
        """Let producers end; a send that is under way ends by its deadline."""
        self.sending = False
        assert self.sent.wait(CLOSE_S), "producers end"
        assert not self.failure, self.failure

    def missing(self) -> dict[str, list[bytes]]:
        """Return what is still to be delivered, by who lacks it."""
        got: dict[str, set[bytes]] = defaultdict(set)
        for delivery in list(self.history.deliveries):
            got[delivery.group].add(delivery.id)
        got[READER] = {message for _, _, message in list(self.history.reads)}
        sent = {topic: set[bytes]() for topic in (PLAIN, ORDERED)}
        for one in list(self.history.sends.values()):
            if one.outcome == "ok":
                sent[one.topic].add(one.id)
        found = {
            who: sorted(sent[topic] - got[who])
            for who, topic in ((GROUPS[PLAIN], PLAIN), (GROUPS[ORDERED], ORDERED), (READER, PLAIN))
        }
        for topic, notes in self.notes.items():
            found[GROUPS[topic]] = [
                body
                for body, note in notes.items()
                if note.outcome == "ok"
                and not note.delivered
                and (topic == DELAYED or resolution_of(body, note) is Resolution.COMMIT)
            ]
        return {who: bodies for who, bodies in found.items() if bodies}

    def settle(self, timeout: float) -> dict[str, list[bytes]]:
        """Wait until all were delivered what they are to get, and end; return what they lack then."""
        give_up = self.clock() + timeout
        until(
            lambda: self.failure or self.clock() > give_up or not self.missing(),
            timeout=timeout + CLOSE_S,
            what="the end of consumers",
            every_s=0.2,
        )
        lacking = self.missing()
        self.end()
        return lacking

    def end(self) -> None:
        """End all clients."""
        self.leave()
        assert not self.thread.is_alive(), "clients end"
        assert not self.failure, self.failure


def number_of(body: bytes) -> int:
    """Return the number in a body."""
    return int(body.rpartition(b"-")[2])
