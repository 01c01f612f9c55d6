"""The clients for programs without an event loop: the same calls, blocking.

All of a process's blocking clients share one thread that runs their loop; a forked child gets a thread of its
own, and must not use clients that its parent made. Safe to use from several threads.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from whimbrel.client import admin, consumer, producer, pull, transactions
from whimbrel.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from whimbrel.client.producer import QueueSelector
from whimbrel.client.session import BaseClient
from whimbrel.client.transactions import TransactionCheck
from whimbrel.errors import ClientError, WhimbrelError, WouldHide
from whimbrel.model.cluster import (
    BrokerStatus,
    Cluster,
    DeadLetter,
    DeadLetterOutcome,
    DrainStatus,
    GroupConfig,
    GroupDescription,
    GroupProgress,
    OffsetMove,
    ReplicationStatus,
    TopicConfig,
    TopicDescription,
)
from whimbrel.model.cuts import CutMark, CutPage, CutStatus, ReplayedPage
from whimbrel.model.elections import FailoverPlan
from whimbrel.model.message import (
    Filter,
    Message,
    MessageType,
    PullResult,
    ReceivedMessage,
    Resolution,
    SendReceipt,
)
from whimbrel.model.retry import Customized, Exponential
from whimbrel.model.route import Queue
from whimbrel.model.topic import OrderedBy
from whimbrel.model.unasked import Unasked

__all__ = ["Admin", "Consumer", "Producer", "PullConsumer", "Transaction"]

T = TypeVar("T")

lock = threading.Lock()
shared_loop: tuple[int, asyncio.AbstractEventLoop] | None = None  # the process that made it, and the loop


def running_loop() -> asyncio.AbstractEventLoop:
    global shared_loop
    with lock:
        if shared_loop is None or shared_loop[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="whimbrel-client", daemon=True).start()
            shared_loop = (os.getpid(), loop)
        return shared_loop[1]


class Blocking:
    """Base of the blocking clients: runs the asyncio client's coroutines on the shared loop and waits."""

    def __init__(self, client: BaseClient) -> None:
        """Wrap a client that was not started."""
        self.client = client
        self.process = os.getpid()

    def start(self) -> None:
        """Make the client usable; sends nothing yet."""
        self.wait(self.client.start())

    def close(self) -> None:
        """Report the end to the brokers, and close the connections."""
        self.wait(self.client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self.process != os.getpid():
            work.close()
            raise ClientError("this client was made before the process forked; make one in the child")
        return asyncio.run_coroutine_threadsafe(work, running_loop())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class Producer(Blocking):
    """`whimbrel.client.Producer`, blocking.

    Attributes:
        oneway_failed: one-way sends that have failed for good.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        topics: Sequence[str] = (),
        check: TransactionCheck | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """See `whimbrel.client.Producer`; a `check` that is a plain function runs in a thread."""
        self.producer = producer.Producer(endpoint, topics=topics, check=check, options=options)
        super().__init__(self.producer)

    @property
    def oneway_failed(self) -> int:
        """One-way sends that have failed for good."""
        return self.producer.oneway_failed

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of a topic that may be written."""
        return self.wait(self.producer.queues(topic))

    def send(
        self, message: Message, *, queue: Queue | None = None, selector: QueueSelector | None = None
    ) -> SendReceipt:
        """Send one message and wait for the broker's response."""
        return self.wait(self.producer.send(message, queue=queue, selector=selector))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic in one request."""
        return self.wait(self.producer.send_batch(messages, queue=queue, selector=selector))

    def send_oneway(
        self, message: Message, *, queue: Queue | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Send one message in the background; raises Throttled when too many are under way."""

        async def hand_over() -> None:
            self.producer.send_oneway(message, queue=queue, selector=selector)

        self.wait(hand_over())

    def flush(self) -> None:
        """Wait until no one-way send is under way."""
        self.wait(self.producer.flush())

    def send_in_transaction(
        self, message: Message, *, recovery_s: float | None = None, queue: Queue | None = None
    ) -> "Transaction":
        """Store one message that is delivered when its transaction, which is returned, is committed."""
        opened = self.wait(self.producer.send_in_transaction(message, recovery_s=recovery_s, queue=queue))
        return Transaction(self, opened)

    @contextmanager
    def transaction(self, message: Message, *, recovery_s: float | None = None) -> Iterator["Transaction"]:
        """Send a message before the block, commit after it, and roll back when it raises."""
        with self.send_in_transaction(message, recovery_s=recovery_s) as transaction:
            yield transaction

    def recall(self, topic: str, recall_handle: str) -> str:
        """Have a message that waits for its time never delivered; return its message id."""
        return self.wait(self.producer.recall(topic, recall_handle))


class Transaction:
    """`whimbrel.client.Transaction`, blocking."""

    def __init__(self, owner: Producer, opened: transactions.Transaction) -> None:
        """Wrap a transaction of a producer."""
        self.owner = owner
        self.opened = opened

    @property
    def receipt(self) -> SendReceipt:
        """The broker's, with the transaction's id."""
        return self.opened.receipt

    @property
    def resolution(self) -> Resolution:
        """UNKNOWN until `commit` or `rollback` were answered."""
        return self.opened.resolution

    def commit(self) -> None:
        """Let consumers have the message."""
        self.owner.wait(self.opened.commit())

    def rollback(self) -> None:
        """Drop the message."""
        self.owner.wait(self.opened.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.owner.wait(self.opened.__aexit__(kind, error, trace))


class Consumer(Blocking):
    """`whimbrel.client.Consumer`, blocking."""

    def __init__(
        self,
        endpoint: str,
        group: str,
        subscriptions: Mapping[str, Filter] | Sequence[str],
        *,
        options: ConsumerOptions | None = None,
    ) -> None:
        """See `whimbrel.client.Consumer`."""
        self.consumer = consumer.Consumer(endpoint, group, subscriptions, options=options)
        super().__init__(self.consumer)

    def receive(
        self, count: int = 32, *, wait_s: float | None = None, invisible_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Receive up to `count` messages; none after the waiting time."""
        return self.wait(self.consumer.receive(count, wait_s=wait_s, invisible_s=invisible_s))

    def unasked(self) -> list[Unasked]:
        """Return the brokers that `receive` could not ask when it did last, and the groups that are away."""
        return self.wait(self.consumer.unasked())

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message."""
        self.wait(self.consumer.ack(message))

    def ack_all(self, messages: Sequence[ReceivedMessage]) -> list[WhimbrelError | None]:
        """Acknowledge many; return None or the error for each."""
        return self.wait(self.consumer.ack_all(messages))

    def change_invisible(self, message: ReceivedMessage, invisible_s: float) -> ReceivedMessage:
        """Have a message delivered again after `invisible_s`."""
        return self.wait(self.consumer.change_invisible(message, invisible_s))

    def dead_letter(self, message: ReceivedMessage) -> None:
        """Give a message up: it goes to the group's dead letters."""
        self.wait(self.consumer.dead_letter(message))

    def run(self, handler: Callable[[ReceivedMessage], None]) -> None:
        """Consume until `stop`, `close` or Ctrl-C; handlers run in threads, `options.concurrency` at a time.

        Returns after any of them, once running handlers have ended (or `options.close_grace_s` is over) and
        their messages are acknowledged; those without a handler yet are given back. A second Ctrl-C does not
        wait, and is raised.
        """
        running = self.begin(self.consumer.run(handler))
        try:
            running.result()
        except KeyboardInterrupt:
            self.stop()
            running.result()
        finally:
            running.cancel()

    def stop(self) -> None:
        """Have every `run` that has begun end, without waiting for it; from any thread, and from handlers."""

        async def stop() -> None:  # a task, as `run` is: so it comes after one that has just begun
            self.consumer.stop()

        self.begin(stop())


class PullConsumer(Blocking):
    """`whimbrel.client.PullConsumer`, blocking."""

    def __init__(self, endpoint: str, group: str, *, options: ConsumerOptions | None = None) -> None:
        """See `whimbrel.client.PullConsumer`."""
        self.reader = pull.PullConsumer(endpoint, group, options=options)
        super().__init__(self.reader)

    def away(self) -> list[Unasked]:
        """Return the groups that no route names, since they are away."""
        return self.wait(self.reader.away())

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of a topic that may be read."""
        return self.wait(self.reader.queues(topic))

    def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        count: int = 32,
        wait_s: float = 0.0,
        expression: Filter = "*",
        follow: bool = True,
    ) -> PullResult:
        """Read from an offset on, once."""
        return self.wait(
            self.reader.pull(queue, offset, count=count, wait_s=wait_s, expression=expression, follow=follow)
        )

    def stream(
        self,
        queue: Queue,
        offset: int,
        *,
        count: int = 32,
        expression: Filter = "*",
        until: int | None = None,
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a queue from an offset on, for ever or up to the offset `until`."""
        source = self.reader.stream(queue, offset, count=count, expression=expression, until=until)

        async def step() -> ReceivedMessage | None:
            return await anext(source, None)

        while (message := self.wait(step())) is not None:
            yield message

    def offset(self, queue: Queue, at: str | float) -> int:
        """Return the offset at `earliest`, `latest` or a time."""
        return self.wait(self.reader.offset(queue, at))

    def committed(self, queue: Queue) -> int | None:
        """Return the group's offset on the queue, None when it has none."""
        return self.wait(self.reader.committed(queue))

    def commit(self, queue: Queue, offset: int) -> None:
        """Move the group's offset on the queue forward."""
        self.wait(self.reader.commit(queue, offset))


class Admin(Blocking):
    """`whimbrel.client.Admin`, blocking."""

    def __init__(self, endpoint: str, *, options: ClientOptions | None = None) -> None:
        """See `whimbrel.client.Admin`."""
        self.admin = admin.Admin(endpoint, options=options)
        super().__init__(self.admin)

    def cluster(self) -> Cluster:
        """Return the live brokers."""
        return self.wait(self.admin.cluster())

    def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType = MessageType.NORMAL,
        queues: int = 0,
        brokers: Sequence[str] = (),
        answer: str = "committed",
    ) -> TopicConfig:
        """Create a topic on the masters of these broker groups, () for all."""
        return self.wait(
            self.admin.create_topic(
                name, message_type=message_type, queues=queues, brokers=brokers, answer=answer
            )
        )

    def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: MessageType | None = None,
        answer: str | None = None,
        wait_s: float = 0.0,
        hide_messages: bool = False,
        on_wait: Callable[[WouldHide], None] = lambda error: None,
    ) -> TopicConfig:
        """Change the arguments that are given, on every master; waits so long for what would be hidden."""
        return self.wait(
            self.admin.update_topic(
                name,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                message_type=message_type,
                answer=answer,
                wait_s=wait_s,
                hide_messages=hide_messages,
                on_wait=on_wait,
            )
        )

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its messages."""
        self.wait(self.admin.delete_topic(name))

    def topics(
        self, *, include_system: bool = False, unasked: list[Unasked] | None = None
    ) -> list[TopicConfig]:
        """Return all topics by name; `unasked` takes who could not be asked."""
        return self.wait(self.admin.topics(include_system=include_system, unasked=unasked))

    def describe_topic(self, name: str, *, unasked: list[Unasked] | None = None) -> list[TopicDescription]:
        """Return the topic as each master holds it; `unasked` takes who could not be asked."""
        return self.wait(self.admin.describe_topic(name, unasked=unasked))

    def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        max_attempts: int = 0,
        ordered_by: OrderedBy = OrderedBy.QUEUE,
        retry_policy: Customized | Exponential | None = None,
        priority_percent: int | None = None,
    ) -> GroupConfig:
        """Create a consumer group on every master."""
        return self.wait(
            self.admin.create_group(
                name,
                fifo=fifo,
                max_attempts=max_attempts,
                ordered_by=ordered_by,
                retry_policy=retry_policy,
                priority_percent=priority_percent,
            )
        )

    def update_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int | None = None,
        consume_enabled: bool | None = None,
        ordered_by: OrderedBy | None = None,
        retry_policy: Customized | Exponential | None = None,
        priority_percent: int | None = None,
    ) -> GroupConfig:
        """Change the arguments that are given, on every master."""
        return self.wait(
            self.admin.update_group(
                name,
                fifo=fifo,
                max_attempts=max_attempts,
                consume_enabled=consume_enabled,
                ordered_by=ordered_by,
                retry_policy=retry_policy,
                priority_percent=priority_percent,
            )
        )

    def delete_group(self, name: str) -> None:
        """Remove a group, its offsets and leases."""
        self.wait(self.admin.delete_group(name))

    def groups(self, *, unasked: list[Unasked] | None = None) -> list[GroupConfig]:
        """Return all groups by name; `unasked` takes who could not be asked."""
        return self.wait(self.admin.groups(unasked=unasked))

    def describe_group(self, name: str, *, unasked: list[Unasked] | None = None) -> list[GroupDescription]:
        """Return the group as each master holds it; `unasked` takes who could not be asked."""
        return self.wait(self.admin.describe_group(name, unasked=unasked))

    def reset_offsets(
        self, group: str, topic: str, *, to: str | int | float, queue_id: int | None = None
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """Move a group on a topic; return its progress by broker."""
        return self.wait(self.admin.reset_offsets(group, topic, to=to, queue_id=queue_id))

    def plan_reset(
        self, group: str, topic: str, *, to: str | int | float, queue_id: int | None = None
    ) -> dict[str, tuple[OffsetMove, ...]]:
        """Return what `reset_offsets` with these arguments would do, by broker."""
        return self.wait(self.admin.plan_reset(group, topic, to=to, queue_id=queue_id))

    def drain_broker(self, name: str, *, drain: bool | None = None) -> DrainStatus:
        """Have a broker take no messages, or take them again; tell what is left; None changes nothing."""
        return self.wait(self.admin.drain_broker(name, drain=drain))

    def switchover(self, name: str, member: int = 0) -> int:
        """Have another member of a group lead, 0 for the one whose log goes on furthest; return its id."""
        return self.wait(self.admin.switchover(name, member))

    def pause_elections(self, name: str, *, paused: bool) -> None:
        """Have no member of a group stand for election, or allow it again."""
        self.wait(self.admin.pause_elections(name, paused=paused))

    def set_voters(self, name: str, members: Collection[int]) -> int:
        """Have these members of a group vote; return the epoch that completes it, 0 where nothing changes."""
        return self.wait(self.admin.set_voters(name, members))

    def reinit(self, name: str, member: int) -> None:
        """Have the store of a member of a group emptied, so that it follows anew."""
        self.wait(self.admin.reinit(name, member))

    def failover(
        self,
        name: str,
        member: int,
        voters: Collection[int] = (),
        *,
        accept_loss: bool = False,
        revision: int = 0,
    ) -> FailoverPlan:
        """Have a member lead without those that do not answer, or tell what that would come to."""
        return self.wait(
            self.admin.failover(name, member, voters, accept_loss=accept_loss, revision=revision)
        )

    def members(self, name: str = "") -> list[BrokerStatus]:
        """Return the live brokers of a group, "" for all groups."""
        return self.wait(self.admin.members(name))

    def cuts(self, broker: BrokerStatus) -> tuple[CutStatus, ...]:
        """Return what was cut off a broker's log and is kept there, the oldest first."""
        return self.wait(self.admin.cuts(broker))

    def read_cut(self, broker: BrokerStatus, name: str, position: int = 0, count: int = 0) -> CutPage:
        """Return a page of the records of a cut."""
        return self.wait(self.admin.read_cut(broker, name, position, count))

    def mark_cut(self, broker: BrokerStatus, name: str, mark: CutMark) -> None:
        """Have a broker write down how far a cut of its log was replayed."""
        self.wait(self.admin.mark_cut(broker, name, mark))

    def replay_cut(
        self,
        group: str,
        member: int,
        name: str,
        position: int,
        *,
        topics: Collection[str] = (),
        message_ids: Collection[str] = (),
        dry_run: bool = False,
        page: CutPage | None = None,
    ) -> ReplayedPage:
        """Have a group's master put a page of what a member has cut back into its topics."""
        return self.wait(
            self.admin.replay_cut(
                group,
                member,
                name,
                position,
                topics=topics,
                message_ids=message_ids,
                dry_run=dry_run,
                page=page,
            )
        )

    def forget_member(self, name: str, broker_id: int) -> None:
        """Have all nameservers let go of one broker of a group that never comes back."""
        self.wait(self.admin.forget_member(name, broker_id))

    def forget_broker(self, name: str) -> dict[str, tuple[str, ...]]:
        """Have all masters let go of a broker that never comes back; return by master whose topics' message
        groups move."""
        return self.wait(self.admin.forget_broker(name))

    def replication(
        self, brokers: Sequence[BrokerStatus] | None = None
    ) -> list[ReplicationStatus | tuple[BrokerStatus, WhimbrelError]]:
        """Return each live broker's view of its log, or why it could not be asked."""
        return self.wait(self.admin.replication(brokers))

    def dead_letters(
        self, group: str, *, with_bodies: bool = True, unasked: list[Unasked] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group that were neither put back nor dropped.

        `unasked` takes who could not be asked.
        """
        source = self.admin.dead_letters(group, with_bodies=with_bodies, unasked=unasked)

        async def step() -> DeadLetter | None:
            return await anext(source, None)

        while (letter := self.wait(step())) is not None:
            yield letter

    def replay_dead_letters(
        self, letters: Sequence[DeadLetter], *, rate: float = admin.REPLAY_RATE
    ) -> list[DeadLetterOutcome]:
        """Put dead letters of a group back into their topics; return what became of each."""
        return self.wait(self.admin.replay_dead_letters(letters, rate=rate))

    def drop_dead_letters(self, letters: Sequence[DeadLetter]) -> list[DeadLetterOutcome]:
        """Have dead letters no longer listed; return what became of each."""
        return self.wait(self.admin.drop_dead_letters(letters))
