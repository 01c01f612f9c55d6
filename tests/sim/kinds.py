"""Messages of other kinds in a cluster: delayed, transactional, ordered, failing. Drawn for each seed.

Each kind has a topic, which its first message makes, a producer and perhaps a consumer of its own, and a
history like the main topic's (`histories.py`), by which nothing acknowledged may be lost. Besides:

    later     delayed: none is stored in its topic before its time, by the clock of the broker that stores it;
              none twice; none whose recall was answered OK before that; in the end all that are due are
              there, and those that became due when all was well for a while were not late
    paid      transactions, committed, rolled back or left to the check: in the end each that was to be
              committed is there, once, and none that was to be rolled back. In some runs the producer dies,
              and another one, that has to answer for what it left open, goes on
    steps     ordered: an ordered group never gets a message while one before it in the queue is held
    failing   every other message is never acknowledged: in the end it is a dead letter, once

The age of halves goes by the wall clock: where one jumps by more than JUMP_S, transactions may have to wait
for as long, and need not come to their end.

They have a chance of their own, so that layout, modes and faults of a seed stay what they are. None is drawn
where acknowledged messages may be lost with a master. Where log files expire, the first two are; what is
delivered, and durable, is collected every half second then, since it may have gone by the end.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from sim.network import SimNetwork
from sim.nodes import LoopNode
from sim.process import SimProcess
from sim.upkeep import Upkeep
from support.history import noting
from support.history.histories import History, Sent, outcome_of
from whimbrel.client import Admin, Consumer, Message, Producer, Resolution
from whimbrel.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from whimbrel.errors import AlreadyExists, WhimbrelError
from whimbrel.model.message import ReceivedMessage
from whimbrel.store.codec import StoredMessage, decode_record

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member

__all__ = ["KINDS", "KIND_GROUPS", "LATER", "PAID", "Kinds", "draw_kinds"]

LATER, PAID, STEPS, FAILING = KINDS = ("later", "paid", "steps", "failing")
EXPIRING = {LATER, PAID}
KIND_GROUPS = {STEPS: "in-order", FAILING: "strict"}
SHARE = 0.3  # of seeds that have a kind
BEGIN_S, SENDING_S = 2.0, 43.0  # what is sent until then comes to its end before the run does
FAILING_S = 33.0  # likewise, with two attempts
PAUSE_S = (0.1, 1.5)
DELAY_S = (0.2, 20.0)
RECALLED, LEFT_OPEN, ROLLED_BACK = 0.25, 0.3, 0.3  # shares of messages
DIES, DIES_AT_S = 0.5, (6.0, 40.0)  # share of runs with transactions, and when
HEIR_FIRST = 10_000  # number of the first message of the producer that goes on
LATE_MS = 3000  # behind its time, by the master's clock, with nothing in the way
CALM_MS = 20_000  # before the end; faults are over for ten seconds then
CLIENT_S = 3.0  # of a call
JUMP_S = 60.0
INVISIBLE_S, GIVEN_BACK_S = 10.0, 1.0
GIVEN_BACK = 0.7  # share of what is not acknowledged
STEP_GROUPS = 3
DEAD_LETTERS = f"%DLQ%{KIND_GROUPS[FAILING]}"
Fail = Callable[[str, str], NoReturn]


def draw_kinds(seed: int, upkeep: Upkeep) -> frozenset[str]:
    """Draw the kinds of a seed."""
    rng = random.Random(f"kinds of seed {seed}")
    drawn = frozenset(kind for kind in KINDS if rng.random() < SHARE)
    return drawn & EXPIRING if upkeep.reserved_s else drawn


def draw_death(seed: int) -> float | None:
    """Draw when the producer of transactions dies."""
    rng = random.Random(f"the end of a producer of seed {seed}")
    return rng.uniform(*DIES_AT_S) if rng.random() < DIES else None


class KindClient(LoopNode):
    """Sends messages of a kind one after the other; `number` counts them."""

    until = SENDING_S

    def __init__(self, process: SimProcess, network: SimNetwork, history: History, endpoint: str) -> None:
        super().__init__(process, network)
        self.history, self.endpoint = history, endpoint
        self.rng = random.Random(process.rng.getrandbits(64))
        self.number = 0
        self.launch(self.main)

    async def main(self) -> None:
        """Send."""
        options = ProducerOptions(
            retry=noting.ONCE, send_timeout_s=8.0, request_timeout_s=CLIENT_S, route_ttl_s=5.0
        )
        scheduler = self.process.scheduler
        await asyncio.sleep(BEGIN_S)
        async with self.producer(options) as producer:
            while scheduler.now < self.until:
                await self.send(producer)
                await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            # Who has sent answers questions until the run ends.
            await asyncio.get_running_loop().create_future()

    def producer(self, options: ProducerOptions) -> Producer:
        """Return what sends."""
        return Producer(self.endpoint, options=options)

    async def send(self, producer: Producer) -> None:
        """Send one message, and note what came of it."""
        raise NotImplementedError

    def begin(self, topic: str, producer: str = "") -> Sent:
        """Note a send; without the name of a producer it has no order to others."""
        self.number += 1
        body = b"%s-%d" % (topic.encode(), self.number)
        return self.history.send(body, producer or body.decode(), topic, self.process.scheduler.now)

    def end(self, sent: Sent, error: WhimbrelError | None = None) -> None:
        """Note what came of a send."""
        sent.outcome = "ok" if error is None else outcome_of(error)
        sent.ended = self.process.scheduler.now


@dataclass(slots=True)
class Delayed:
    """A delayed message; `recalled` when a recall was answered OK."""

    due_ms: int
    recalled: bool = False
    recall_tried: bool = False


class DelayClient(KindClient):
    """Sends delayed messages, and recalls some."""

    def __init__(self, *arguments: Any) -> None:
        self.sends: dict[bytes, Delayed] = {}
        super().__init__(*arguments)

    async def send(self, producer: Producer) -> None:
        """Send one message; recall it at once, or never."""
        sent = self.begin(LATER)
        now_ms = self.process.machine.wall_ns() // 1_000_000
        due_ms = now_ms + int(self.rng.uniform(*DELAY_S) * 1000)
        one = self.sends[sent.id] = Delayed(due_ms)
        message = Message(topic=LATER, body=sent.id, deliver_at=due_ms / 1000)
        try:
            receipt = await producer.send(message)
        except WhimbrelError as error:
            self.end(sent, error)
            return
        self.end(sent)
        if receipt.recall_handle and self.rng.random() < RECALLED:
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            one.recall_tried = True
            with suppress(WhimbrelError):
                await producer.recall(LATER, receipt.recall_handle)
                one.recalled = True


class TransactionClient(KindClient):
    """Sends halves, and commits or rolls back most of them; the rest it decides when it is asked."""

    def __init__(self, *arguments: Any) -> None:
        self.rolled_back: set[bytes] = set()
        super().__init__(*arguments)

    def goes_on_for(self, other: "TransactionClient") -> None:
        """Know what another one has decided, and use other numbers."""
        self.rolled_back, self.number = other.rolled_back, HEIR_FIRST

    def producer(self, options: ProducerOptions) -> Producer:
        """Return a producer that decides as was drawn."""

        async def check(message: ReceivedMessage) -> Resolution:
            return Resolution.ROLLBACK if message.body in self.rolled_back else Resolution.COMMIT

        return Producer(self.endpoint, topics=[PAID], check=check, options=options)

    async def send(self, producer: Producer) -> None:
        """Send a half, and mostly its end."""
        sent = self.begin(PAID)
        rolls_back = self.rng.random() < ROLLED_BACK
        if rolls_back:
            self.rolled_back.add(sent.id)
            sent.outcome = "none"  # whatever comes of the half
        try:
            transaction = await producer.send_in_transaction(Message(topic=PAID, body=sent.id))
        except WhimbrelError as error:
            if not rolls_back:
                self.end(sent, error)
            return
        if not rolls_back:
            self.end(sent)
        if self.rng.random() > LEFT_OPEN:
            with suppress(WhimbrelError):
                await (transaction.rollback() if rolls_back else transaction.commit())


class StepClient(KindClient):
    """Sends messages of some message groups."""

    async def send(self, producer: Producer) -> None:
        """Send one message."""
        group = f"g{self.rng.randrange(STEP_GROUPS)}"
        sent = self.begin(STEPS, group)
        try:
            await producer.send(Message(topic=STEPS, body=sent.id, message_group=group))
        except WhimbrelError as error:
            self.end(sent, error)
        else:
            self.end(sent)


class FailingClient(KindClient):
    """Sends messages, of which the consumer fails on every other."""

    until = FAILING_S

    async def send(self, producer: Producer) -> None:
        """Send one message."""
        sent = self.begin(FAILING)
        try:
            await producer.send(Message(topic=FAILING, body=sent.id))
        except WhimbrelError as error:
            self.end(sent, error)
        else:
            self.end(sent)


def fails(message: bytes) -> bool:
    """Return whether the consumer fails on a message."""
    return message[-1] % 2 == 1


class KindConsumer(LoopNode):
    """The only member of a group, which it makes first; what it does not acknowledge it mostly gives back."""

    def __init__(
        self,
        process: SimProcess,
        network: SimNetwork,
        history: History,
        endpoint: str,
        *,
        topic: str,
        **settings: Any,
    ) -> None:
        super().__init__(process, network)
        self.history, self.endpoint, self.topic, self.settings = history, endpoint, topic, settings
        self.rng = random.Random(process.rng.getrandbits(64))
        self.launch(self.main)

    async def main(self) -> None:
        """Make the group, and receive."""
        group = KIND_GROUPS[self.topic]
        async with Admin(self.endpoint, options=ClientOptions(retry=noting.ONCE, route_ttl_s=5.0)) as admin:
            while True:
                try:
                    await admin.create_group(group, **self.settings)
                except AlreadyExists:
                    break
                except WhimbrelError:
                    await asyncio.sleep(self.rng.uniform(0.2, 1.0))
        options = ConsumerOptions(
            retry=noting.ONCE,
            request_timeout_s=CLIENT_S,
            invisible_s=INVISIBLE_S,
            route_ttl_s=5.0,
            assignment_s=5.0,
        )
        async with Consumer(self.endpoint, group, {self.topic: "*"}, options=options) as consumer:
            while True:
                try:
                    await self.take(consumer, await consumer.receive(wait_s=5.0))
                except WhimbrelError:
                    await asyncio.sleep(self.rng.uniform(0.1, 0.5))

    async def take(self, consumer: Consumer, messages: list[ReceivedMessage]) -> None:
        """Note what came, and acknowledge some."""
        now = self.process.scheduler
        for message in messages:
            place = noting.place_of(message)
            self.history.deliver(consumer.group, message.body, place, now.now)
            self.seen(message)
            if self.takes(message):
                self.acknowledging(message)
                await consumer.ack(message)
                self.history.ack(consumer.group, place, now.now)
            elif self.rng.random() < GIVEN_BACK:
                await consumer.change_invisible(message, GIVEN_BACK_S)

    def seen(self, message: ReceivedMessage) -> None:
        """A message came."""

    def takes(self, message: ReceivedMessage) -> bool:
        """Return whether a message is acknowledged."""
        return self.rng.random() < 0.97

    def acknowledging(self, message: ReceivedMessage) -> None:
        """A message is about to be acknowledged."""


class StepConsumer(KindConsumer):
    """Sees that nothing comes while something before it is held.

    Attributes:
        held: by queue, what was delivered and not acknowledged since.
    """

    def __init__(self, *arguments: Any) -> None:
        self.held: dict[tuple[str, int], set[int]] = {}
        super().__init__(*arguments, topic=STEPS, fifo=True)

    async def take(self, consumer: Consumer, messages: list[ReceivedMessage]) -> None:
        """Compare with what is held: none before the batch's own."""
        for number, message in enumerate(messages):
            topic, queue_id, offset = noting.place_of(message)
            together = {
                other.queue_offset
                for other in messages[:number]
                if noting.place_of(other)[:2] == (topic, queue_id)
            }
            before = {held for held in self.held.get((topic, queue_id), set()) if held < offset} - together
            assert not before, f"{message.body!r} at {offset} came, and {min(before)} before it is held"
            assert not any(other > offset for other in together), f"{message.body!r} came behind a later one"
        await super().take(consumer, messages)

    def seen(self, message: ReceivedMessage) -> None:
        """It is held now."""
        topic, queue_id, offset = noting.place_of(message)
        self.held.setdefault((topic, queue_id), set()).add(offset)

    def acknowledging(self, message: ReceivedMessage) -> None:
        """It may be held no longer, whatever comes of the call."""
        topic, queue_id, offset = noting.place_of(message)
        self.held[topic, queue_id].discard(offset)


class FailingConsumer(KindConsumer):
    """Never acknowledges every other message."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, topic=FAILING, max_attempts=2)

    def takes(self, message: ReceivedMessage) -> bool:
        """Return whether it does not fail."""
        return not fails(message.body)


@dataclass
class Kinds:
    """The clients of a plan's kinds, and what must hold of them in the end.

    Attributes:
        collected: by topic, and then by group, queue and offset, what was delivered.
        begins: by group, topic and queue, where the next one to be collected stands.
        looks: how many messages of each kind were looked at.
        deaths: of producers.
    """

    cluster: "Cluster"
    delays: DelayClient | None = None
    transactions: TransactionClient | None = None
    collected: dict[str, dict[tuple[str, int, int], StoredMessage]] = field(default_factory=dict)
    begins: dict[tuple[str, str, int], int] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)
    deaths: int = 0

    def start(self, endpoint: str) -> None:
        """Start the clients."""
        cluster, kinds = self.cluster, self.cluster.plan.kinds

        def client(kind: type[Any], topic: str, address: str) -> Any:
            process = cluster.process(f"{topic}-{kind.__name__}", cluster.addresses[address])
            node = kind(process, cluster.network, cluster.histories[topic], endpoint)
            cluster.nodes.append(node)
            return node

        if LATER in kinds:
            self.delays = client(DelayClient, LATER, "c0")
        if PAID in kinds:
            first = self.transactions = client(TransactionClient, PAID, "c1")

            def replace() -> None:
                cluster.note("the producer of transactions dies, and another one goes on")
                first.process.die()
                self.transactions = client(TransactionClient, PAID, "c0")
                self.transactions.goes_on_for(first)
                self.deaths += 1

            dies_at = draw_death(cluster.plan.seed)
            if dies_at is not None:
                cluster.scheduler.at(dies_at, replace)
        if STEPS in kinds:
            client(StepClient, STEPS, "c0")
            client(StepConsumer, STEPS, "c1")
        if FAILING in kinds:
            client(FailingClient, FAILING, "c1")
            client(FailingConsumer, FAILING, "c0")
        if cluster.plan.upkeep.reserved_s:
            cluster.after_step += [partial(self.collect, topic) for topic in sorted(EXPIRING & kinds)]

    def collect(self, topic: str, *, durable: bool = True) -> None:
        """Note what masters have of a topic since the last look, as far as it is on their disks."""
        found = self.collected.setdefault(topic, {})
        for group in self.cluster.groups:
            master = self.cluster.master(group)
            page, broker = master.page, master.broker
            if page is None or broker is None or broker.broker is None or broker.process.dead:
                continue
            for message in stored(master, topic, self.begins):
                if message.physical_offset + message.size > page.flushed and durable:
                    continue
                found[group, message.queue_id, message.queue_offset] = message
                self.begins[group, topic, message.queue_id] = message.queue_offset + 1

    @property
    def steady(self) -> bool:
        """Whether no clock jumps far."""
        return not any(
            fault.kind == "clock" and abs(fault.amount) > JUMP_S for fault in self.cluster.plan.faults
        )

    def finish(self, fail: Fail) -> None:
        """Check what must hold in the end, of what the masters have."""
        if self.delays is not None:
            self.check_delays(self.delays, fail)
        if self.transactions is not None:
            found = self.once(PAID, fail)
            wrong = found.keys() & self.transactions.rolled_back
            if wrong:
                fail("paid", f"{min(wrong)!r} was rolled back, and is there")
        if FAILING in self.cluster.plan.kinds:
            letters = self.once(DEAD_LETTERS, fail)
            for sent in self.cluster.histories[FAILING].acknowledged:
                if fails(sent.id) and sent.id not in letters:
                    fail("failing", f"{sent.id!r}, sent at {sent.began:.3f}, is no dead letter")

    def once(self, topic: str, fail: Fail) -> dict[bytes, StoredMessage]:
        """Return a topic's messages by their text; there is one of each."""
        self.collect(topic, durable=False)
        found: dict[bytes, StoredMessage] = {}
        for message in self.collected[topic].values():
            if message.body in found:
                fail(topic, f"{message.body!r} is there twice")
            found[message.body] = message
        self.looks[topic] += len(found)
        return found

    def check_delays(self, client: DelayClient, fail: Fail) -> None:
        """Nothing before its time, twice, or although it was recalled."""
        masters = [self.cluster.master(group) for group in self.cluster.groups]
        for message in self.once(LATER, fail).values():
            one = client.sends[message.body]
            if message.store_timestamp < one.due_ms:
                early = one.due_ms - message.store_timestamp
                fail(LATER, f"{message.body!r} was delivered {early} ms before its time")
            late = message.store_timestamp - one.due_ms
            calm = self.steady and one.due_ms > max(master.wall_ms for master in masters) - CALM_MS
            if calm and late > LATE_MS:
                fail(LATER, f"{message.body!r} was delivered {late} ms late")
            if one.recalled:
                fail(LATER, f"{message.body!r} was recalled, and is there")

    def may_be_missing(self, topic: str) -> set[bytes]:
        """Return the acknowledged messages of a topic that need not be in it."""
        missing: set[bytes] = set()
        if topic in EXPIRING and self.cluster.plan.upkeep.reserved_s:
            missing |= {message.body for message in self.collected[topic].values()}
        if topic == PAID and not self.steady:
            missing |= {sent.id for sent in self.cluster.histories[PAID].acknowledged}
        if topic == LATER and self.delays is not None:
            masters = [self.cluster.master(group) for group in self.cluster.groups]
            # Of two groups, one's clock may be far behind.
            past_ms = min(master.wall_ms for master in masters) - LATE_MS
            sends = self.delays.sends.items()
            missing |= {message for message, one in sends if one.recall_tried or one.due_ms > past_ms}
        return missing


def stored(member: "Member", topic: str, begins: dict[tuple[str, str, int], int]) -> list[StoredMessage]:
    """Return the messages of a topic's queues, from where each begins."""
    assert member.broker is not None and member.broker.broker is not None
    role = member.broker.broker.role
    if role is None:
        return []
    store, found = role.store, []
    with member.broker.process.running():
        for queue_id in sorted(store.topics_on_disk().get(topic, ())):
            low, high = store.queue_range(topic, queue_id)
            low = max(low, begins.get((member.group, topic, queue_id), 0))
            for place, size, _ in store.queue_units(topic, queue_id, low, high - low):
                if place >= store.min_offset:
                    found.append(decode_record(store.read(place, size)))
    return found
