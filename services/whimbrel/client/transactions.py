"""Transactions of a producer: a message that is stored first, and delivered when its transaction is
committed.

    send_in_transaction ──► open ──commit──► committed    consumers get the message
                             │  └───rollback──► rolled back    nobody gets it
                             └── neither: the broker asks a producer of the topic, and its `check` decides

Ending is answered when it is durable. The same end may be asked for again without harm, so a call without an
answer is repeated; the other end is refused (`InvalidTransactionId`).

A broker asks over the Telemetry stream of any producer that names the topic: `Checks` calls the producer's
`check` and sends what it returns. UNKNOWN, an exception, and a broker that can't be reached all send nothing:
the broker asks again.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from whimbrel.client.retry import decide
from whimbrel.errors import ClientError, Unavailable, WhimbrelError
from whimbrel.model.message import Message, ReceivedMessage, Resolution, SendReceipt
from whimbrel.model.route import Endpoint
from whimbrel.rpc.api import calls

if TYPE_CHECKING:
    from whimbrel.client.session import Session

__all__ = ["Checks", "Transaction", "TransactionCheck"]

# Says what became of a transaction, by its message; a plain function runs in a thread.
TransactionCheck = Callable[[ReceivedMessage], Awaitable[Resolution] | Resolution]

# Who asks, and the message's id.
Question: TypeAlias = tuple[Endpoint, str]

CHECKS_MAX = 64  # that run at a time
# Questions that wait for those, and their bodies; brokers ask again about others.
WAITING_MAX = 2000
WAITING_BYTES_MAX = 16 * 1024 * 1024

logger = logging.getLogger(__name__)


class Transaction:
    """A message that was sent, and waits for the end of its transaction.

    Used in an `async with`, its end commits it and an exception rolls it back, unless that was done before.

    Public methods: commit, rollback.

    Attributes:
        message: as it was sent.
        receipt: the broker's, with the transaction's id.
        resolution: UNKNOWN until `commit` or `rollback` were answered.
    """

    def __init__(
        self, session: "Session", message: Message, receipt: SendReceipt, endpoint: Endpoint
    ) -> None:
        """Take what was sent, and where to."""
        self.session = session
        self.message = message
        self.receipt = receipt
        self.endpoint = endpoint
        self.resolution = Resolution.UNKNOWN

    async def commit(self) -> None:
        """Let consumers have the message.

        Raises:
            InvalidTransactionId: it was rolled back, or the broker no longer knows it.
            WhimbrelError: the broker could not be asked; it will ask about the transaction.
        """
        await self.end(Resolution.COMMIT)

    async def rollback(self) -> None:
        """Drop the message; errors as `commit`."""
        await self.end(Resolution.ROLLBACK)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.resolution is not Resolution.UNKNOWN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except WhimbrelError as failure:  # the caller's own error is the one to be raised
            logger.warning("could not roll back message %s: %s", self.receipt.message_id, failure)

    async def end(self, resolution: Resolution) -> None:
        """Ask the broker that has the message, or the one that took its place, until it answers."""
        receipt, session = self.receipt, self.session
        call = calls.end_transaction(
            receipt.topic,
            receipt.message_id,
            receipt.transaction_id,
            resolution,
            namespace=session.options.namespace,
        )
        attempt = 0
        while True:
            attempt += 1
            try:
                await session.call(self.endpoint, call)
            except WhimbrelError as error:
                decision = decide(error, attempt, session.options.retry, repeatable=True)
                if not decision.again:
                    raise
                await asyncio.sleep(decision.pause_s)
                if decision.elsewhere or isinstance(error, Unavailable):
                    await self.look_for_broker()
            else:
                self.resolution = resolution
                return

    async def look_for_broker(self) -> None:
        session = self.session
        session.routes.report_error(self.receipt.topic)
        try:
            queues = (await session.route(self.receipt.topic)).queues
        except WhimbrelError as error:
            logger.debug("looking for %s: %s", self.receipt.broker_name, error)
            return
        for queue in queues:
            if queue.broker_name == self.receipt.broker_name and queue.broker_id == 0:
                self.endpoint = self.session.endpoint(queue)
                return


class Checks:
    """Answers what brokers ask about transactions: some at a time, others wait.

    A question that is repeated before its answer is the same one. One message may be at two brokers, when
    its send was repeated: each asks.

    Attributes:
        running: by who asks and message id, the checks that run.
        waiting: likewise, the messages to be checked; oldest first.
        waiting_bytes: of their bodies.
        overrun: whether a question found no room since the last time that none waited.
    """

    def __init__(self, session: "Session", check: TransactionCheck) -> None:
        """Take what decides."""
        self.session = session
        self.check = check
        self.plain = not (
            inspect.iscoroutinefunction(check)
            or inspect.iscoroutinefunction(getattr(check, "__call__", None))  # noqa: B004
        )
        self.running: dict[Question, asyncio.Task[None]] = {}
        self.waiting: dict[Question, ReceivedMessage] = {}
        self.waiting_bytes = 0
        self.overrun = False

    def asked(self, endpoint: Endpoint, message: ReceivedMessage) -> None:
        """Have a question answered, to the broker that asks."""
        question = endpoint, message.message_id
        if question in self.running or question in self.waiting:
            return
        if len(self.running) < CHECKS_MAX:
            self.start(question, message)
        elif len(self.waiting) < WAITING_MAX and self.waiting_bytes + len(message.body) <= WAITING_BYTES_MAX:
            self.waiting[question] = message
            self.waiting_bytes += len(message.body)
        elif not self.overrun:
            self.overrun = True
            logger.warning(
                "checks of transactions take too long: %d run and %d wait, so the broker has to ask again"
                " about others, message %s first",
                len(self.running), len(self.waiting), message.message_id,
            )  # fmt: skip

    def start(self, question: Question, message: ReceivedMessage) -> None:
        task = self.running[question] = asyncio.create_task(self.answer(question[0], message))
        task.add_done_callback(lambda _: self.done(question))

    def done(self, question: Question) -> None:
        """Go on with the question that has waited longest."""
        del self.running[question]
        if self.waiting:
            longest = next(iter(self.waiting))
            message = self.waiting.pop(longest)
            self.waiting_bytes -= len(message.body)
            self.start(longest, message)
        else:
            self.overrun = False

    async def answer(self, endpoint: Endpoint, message: ReceivedMessage) -> None:
        """Call the check, and send what it says."""
        try:
            outcome = await asyncio.to_thread(self.check, message) if self.plain else self.check(message)
            resolution = await outcome if inspect.isawaitable(outcome) else outcome
            if resolution is Resolution.UNKNOWN:
                return
            if not isinstance(resolution, Resolution):
                raise ClientError(f"the check returned {resolution!r}, which is no Resolution")
        except Exception as error:  # noqa: BLE001 - on any exception the broker asks again
            logger.warning("the check failed on message %s: %r", message.message_id, error)
            return
        call = calls.end_transaction(
            message.topic,
            message.message_id,
            message.transaction_id,
            resolution,
            asked=True,
            namespace=self.session.options.namespace,
        )
        try:
            await self.session.call(endpoint, call)
        except WhimbrelError as error:
            logger.warning("could not answer for message %s: %s", message.message_id, error)

    async def close(self) -> None:
        """Cancel what runs, and forget what waits."""
        self.waiting.clear()
        self.waiting_bytes = 0
        running = list(self.running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
