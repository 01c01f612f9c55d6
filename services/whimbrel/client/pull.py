"""Reads queues by offset, without leases: for tools, replays, and engines that keep their own positions.

A broker that should not serve a reader (the data has left its memory) suggests another broker of its group in
the trailing metadata of a pull. The consumer then asks that one for this queue, until another is suggested or
it can't be asked; then it goes back to the master.

Where a route names several members, a pull that waits asks for a short time again and again: one that hangs
is noticed when the deadline of such a call has passed, and the next pull goes to another one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from whimbrel.client.consumer import poll_times
from whimbrel.client.options import ConsumerOptions
from whimbrel.client.retry import decide
from whimbrel.client.session import BaseClient, Session
from whimbrel.client.spans import ClientSpans
from whimbrel.errors import Unavailable, WhimbrelError
from whimbrel.model.message import Filter, PullResult, ReceivedMessage
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.unasked import Unasked, left_out
from whimbrel.rpc.api import calls
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.convert import ClientSettings

__all__ = ["PullConsumer"]

logger = logging.getLogger(__name__)


class PullConsumer(BaseClient):
    """An asyncio reader.

    async with PullConsumer("127.0.0.1:8081", "audit") as reader:
        queue = (await reader.queues("orders"))[0]
        result = await reader.pull(queue, await reader.offset(queue, "earliest"))

    Public methods: start, close, queues, away, pull, stream, offset, committed, commit.

    Attributes:
        group: the group of `commit` and `committed`.
        options: as given.
        session: connections and routes, for calls that have no method here.
    """

    def __init__(self, endpoint: str, group: str, *, options: ConsumerOptions | None = None) -> None:
        """Prepare a reader; `commit` and `committed` are about offsets of the group.

        Raises:
            IllegalAccessPoint: `endpoint` is malformed.
        """
        self.options = options or ConsumerOptions()
        super().__init__(endpoint, self.options)
        self.group = group
        self.spans = ClientSpans(self.options, group=group)
        self.topics: dict[str, None] = {}
        self.suggested: dict[tuple[str, str, int], int] = {}  # broker ids other than the route's, by queue

    def settings(self, session: Session) -> ClientSettings:
        return self.common_settings(
            "pull", group=self.group, subscriptions=tuple((topic, "*") for topic in self.topics)
        )

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of a topic that may be read.

        Raises:
            TopicNotFound: there is no such topic.
        """
        self.topics.setdefault(topic)
        return (await self.session.route(topic)).readable()

    async def away(self) -> list[Unasked]:
        """Return the groups that no route names, since they are away; their queues are not in `queues`.

        Raises:
            WhimbrelError: no nameserver could be asked.
        """
        return left_out(await self.session.cluster())

    async def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        count: int = 32,
        wait_s: float = 0.0,
        expression: Filter = "*",
        follow: bool = True,
    ) -> PullResult:
        """Read from an offset on, once; with `wait_s`, wait for a message that is not there yet.

        `follow` False asks exactly the broker of `queue`, whatever was suggested.

        Raises:
            IllegalOffset: the offset lies outside the queue.
            WhimbrelError: no broker could be asked.
        """
        end = time.monotonic() + wait_s
        while True:
            began = time.monotonic()
            left_s = max(0.0, end - began)
            result = await self.pull_once(queue, offset, count, left_s, expression, follow)
            polled_s, _ = poll_times(queue, left_s)
            has_waited = time.monotonic() - began > polled_s / 2  # else it waits for nobody
            again = len(queue.endpoints) > 1 and has_waited and time.monotonic() < end
            if result.messages or result.next_offset != offset or not again:
                return result

    async def pull_once(
        self, queue: Queue, offset: int, count: int, wait_s: float, expression: Filter, follow: bool
    ) -> PullResult:
        """Read once; where other members can be asked, wait as long as `poll_times` says."""
        endpoint, suggested = await self.endpoint(queue) if follow else (self.session.endpoint(queue), False)
        wait_s, deadline_s = poll_times(queue, wait_s)
        call = calls.pull_messages(
            queue,
            self.group,
            offset=offset,
            count=count,
            expression=expression,
            wait_s=wait_s,
            namespace=self.options.namespace,
        )
        began_ns = time.time_ns()
        try:
            result = await self.session.call(endpoint, call, deadline_s)
        except WhimbrelError as error:
            if not suggested or not (error.retry or isinstance(error, Unavailable)):
                raise
            logger.info("%s was suggested for %s and can't be asked: %s", endpoint, queue.topic, error)
            self.suggested.pop(key(queue), None)
            result = await self.session.call(self.session.endpoint(queue), call, deadline_s)
        self.spans.received(queue.topic, result.messages, began_ns)
        if follow:
            if result.suggested_broker_id != queue.broker_id:
                self.suggested[key(queue)] = result.suggested_broker_id
            else:
                self.suggested.pop(key(queue), None)
        return result

    async def stream(
        self,
        queue: Queue,
        offset: int,
        *,
        count: int = 32,
        expression: Filter = "*",
        until: int | None = None,
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of a queue from an offset on, for ever or up to the offset `until`.

        Transient failures are retried; the route is followed when the queue's broker changes.

        Raises:
            WhimbrelError: a permanent failure.
        """
        attempt = 0
        while until is None or offset < until:
            try:
                queue = await self.current(queue)
                result = await self.pull(
                    queue, offset, count=count, wait_s=self.options.long_polling_s, expression=expression
                )
            except WhimbrelError as error:
                attempt += 1
                decision = decide(error, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise
                self.session.routes.report_error(queue.topic)
                await asyncio.sleep(decision.pause_s)
                continue
            attempt = 0
            for message in result.messages:
                if until is not None and message.queue_offset >= until:
                    return
                yield message
            offset = result.next_offset

    async def offset(self, queue: Queue, at: str | float) -> int:
        """Return `earliest`, `latest` (one past the last), or the first offset at or after a time."""
        return await self.ask(queue, calls.query_offset(queue, at, self.options.namespace))

    async def committed(self, queue: Queue) -> int | None:
        """Return the group's offset on the queue, None when it has none."""
        return await self.ask(queue, calls.get_offset(queue, self.group, self.options.namespace))

    async def commit(self, queue: Queue, offset: int) -> None:
        """Move the group's offset on the queue forward: to the first one that is not done.

        A lower offset than the group has changes nothing: to go back, `Admin.reset_offsets`.
        """
        await self.ask(queue, calls.update_offset(queue, self.group, offset, self.options.namespace))

    async def ask(self, queue: Queue, call: Outbound[calls.T]) -> calls.T:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.session.call(self.session.endpoint(queue), call)
            except WhimbrelError as error:
                decision = decide(error, attempt, self.options.retry, repeatable=True)
                if not decision.again:
                    raise
                self.session.routes.report_error(queue.topic)
                await asyncio.sleep(decision.pause_s)
                queue = await self.current(queue)

    async def current(self, queue: Queue) -> Queue:
        """Return the queue as the route has it now; unchanged when the route does not have it."""
        for other in (await self.session.route(queue.topic)).readable():
            if (other.broker_name, other.queue_id) == (queue.broker_name, queue.queue_id):
                return other
        return queue

    async def endpoint(self, queue: Queue) -> tuple[Endpoint, bool]:
        """Return the endpoint to ask, and whether it is a suggested one."""
        broker_id = self.suggested.get(key(queue))
        if broker_id is not None:
            try:
                endpoint = await self.session.broker_endpoint(queue, broker_id)
            except WhimbrelError as error:
                logger.debug("can't look for broker %d of %s: %s", broker_id, queue.broker_name, error)
                endpoint = None
            if endpoint is not None:
                return endpoint, True
            self.suggested.pop(key(queue), None)
        return self.session.endpoint(queue), False


def key(queue: Queue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id
