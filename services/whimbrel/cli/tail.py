"""`whimbrel tail`: the messages of all queues of a topic, on all brokers, as they come.

It reads by offset, takes no leases and moves no offsets. Queues are read side by side, so that messages of
one queue come in its order, and those of different queues as they arrive:

    queue ──pull, from its offset──┐
    queue ──pull───────────────────┼──► results that wait to be printed (RESULTS_MAX) ──► printer
    queue ──pull───────────────────┘                                a full one makes pulls wait
      ▲
      └── every REFRESH_S the route: queues and brokers that are new are read from when the command began

A queue that can't be read is tried again, and told once; one whose offset is gone (retention, or a master
that lost its log's end) goes on at the nearest that is there.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.down import tell_who_is_down
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.filters import SqlOption, TagOption, filter_of
from whimbrel.cli.group import parse_target
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.printing import Printer, reader_gone
from whimbrel.cli.pull import TOOLS_GROUP
from whimbrel.cli.shown_messages import FormatOption, message_printer, template_of
from whimbrel.cli.unasked import saying_what_lacks
from whimbrel.model.unasked import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whimbrel.client import Filter, PullConsumer, Queue, ReceivedMessage
    from whimbrel.model.unasked import Unasked

__all__ = ["TAIL_EXAMPLES", "tail"]

REFRESH_S = 2.0  # between looks at the route, and at the reader of our output
POLLS_MAX = 64  # pulls under way; with more queues than that they take turns
POLL_S = 5.0  # how long a pull waits for a message
SHORT_POLL_S = 0.1  # the same, when queues take turns
BATCH = 32
RESULTS_MAX = 8  # that wait to be printed, of 4 MiB at most each, as each pull under way
PAUSE_S, PAUSE_MAX_S = 0.2, 2.0  # after a failure

TAIL_EXAMPLES = examples(
    "whimbrel tail orders                            new messages, until Ctrl-C",
    "whimbrel tail orders --from earliest            all that there are, and then the new ones",
    "whimbrel tail orders --from earliest --until-end -o jsonl > orders.jsonl",
    "whimbrel tail orders --from 2026-01-31T12:00:00Z -n 10",
    r"whimbrel tail orders --format '%t %q %o %k %v\n'",
    "whimbrel tail orders -o jsonl | jq .body",
)

Place = tuple[str, int]  # broker name and queue id


def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="latest, earliest, or a time (ISO 8601).")
    ] = "latest",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Stop after so many messages.", show_default=False),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at what is the end of each queue now.")
    ] = False,
    tag: TagOption = "*",
    sql: SqlOption = None,
    template: FormatOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Print the messages of all queues of a topic as they come, until Ctrl-C; no group is involved.

    With --until-end the exit code is 1 when a broker was away, whose messages lack; else that is only told.
    """
    where = parse_target(start)
    if isinstance(where, int):
        raise typer.BadParameter("queues have offsets of their own; see `whimbrel pull`", param_hint="--from")
    wanted = filter_of(tag, sql)
    printer = message_printer(output, template_of(template, output), endless=True)
    address = resolve_endpoint(endpoint)
    try:
        with traced(endpoint), saying_what_lacks() as unasked:
            unasked += asyncio.run(
                follow(address, topic, where, wanted, printer, count=count, until_end=until_end)
            )
    finally:
        if not reader_gone():
            printer.end()


async def follow(
    address: str,
    topic: str,
    where: str | float,
    wanted: "Filter",
    printer: "Printer[ReceivedMessage]",
    *,
    count: int | None,
    until_end: bool,
) -> "list[Unasked]":
    """Print until there is a reason to stop; return whose messages lack, where all were asked for."""
    from whimbrel.client import ConsumerOptions, PullConsumer

    options = ConsumerOptions(route_ttl_s=REFRESH_S)
    async with PullConsumer(address, TOOLS_GROUP, options=options) as reader:
        tailing = Tailing(reader, topic, where, wanted, until_end=until_end)
        reading = asyncio.create_task(tailing.run())
        unasked = await who_is_away(reader)
        if not until_end:
            for one in unasked:
                note(sentence(one))
        left = count
        try:
            while left is None or left > 0:
                messages = await tailing.next(reading)
                if messages is None:
                    break
                printer.add(messages[:left])
                left = None if left is None else left - len(messages)
                if reader_gone():
                    raise BrokenPipeError
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return unasked if until_end and (left is None or left > 0) else []


async def who_is_away(reader: "PullConsumer") -> "list[Unasked]":
    """Return whose queues no route names, since nobody answers for them."""
    from whimbrel.errors import WhimbrelError
    from whimbrel.model.unasked import Unasked

    try:
        return await reader.away()
    except WhimbrelError as error:
        return [Unasked("", f"can't learn whether a broker is away: {error}")]


class Tailing:
    """Reads all queues of a topic into one bounded queue of results."""

    def __init__(
        self, reader: "PullConsumer", topic: str, where: str | float, wanted: "Filter", *, until_end: bool
    ) -> None:
        """Take a started reader, and from where on queues are read."""
        self.reader = reader
        self.topic = topic
        self.where = where
        self.wanted = wanted
        self.until_end = until_end
        self.began = time.time()
        self.results: asyncio.Queue[Sequence[ReceivedMessage]] = asyncio.Queue(RESULTS_MAX)
        self.tasks: dict[Place, asyncio.Task[None]] = {}
        self.polls = asyncio.Semaphore(POLLS_MAX)

    async def next(self, reading: "asyncio.Task[None]") -> "Sequence[ReceivedMessage] | None":
        """Return the next messages, some or none; None once all has been read.

        Raises:
            WhimbrelError: reading has failed for good.
        """
        if self.results.empty() and not reading.done():
            getting = asyncio.create_task(self.results.get())
            await asyncio.wait((getting, reading), timeout=REFRESH_S, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            getting.cancel()
            if not reading.done():
                return ()
        if not self.results.empty():
            return self.results.get_nowait()
        reading.result()  # raises
        return None

    async def run(self) -> None:
        """Read the queues that there are, and those that come.

        Raises:
            WhimbrelError: the queues can't be learned at first.
        """
        from whimbrel.errors import WhimbrelError

        try:
            queues = await self.reader.queues(self.topic)
            # All starts are known before the first message is printed: what is sent from then on is shown.
            starts = await asyncio.gather(*(self.start(queue, self.where) for queue in queues))
            for queue, (first, end) in zip(queues, starts, strict=True):
                self.begin(queue, first, end)
            note(f"reading {len(queues)} queues of {self.topic} on {brokers_text(queues)}")
            if self.until_end:
                await asyncio.gather(*self.tasks.values())
                return
            failed = False
            while True:
                await asyncio.sleep(REFRESH_S)
                try:
                    for queue in await self.reader.queues(self.topic):
                        if place(queue) not in self.tasks:
                            first, end = await self.start(queue, self.began)
                            self.begin(queue, first, end)
                except WhimbrelError as error:
                    if not failed:  # once for each outage
                        note(f"can't learn whether there are new queues: {error}")
                    failed = True
                else:
                    failed = False
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def start(self, queue: "Queue", where: str | float) -> tuple[int, int | None]:
        """Return the first offset to read, and the one to stop at, if any."""
        async with self.polls:
            end = await self.reader.offset(queue, "latest") if self.until_end else None
            return await self.reader.offset(queue, where), end

    def begin(self, queue: "Queue", offset: int, end: int | None) -> None:
        """Read a queue from now on."""
        self.tasks[place(queue)] = asyncio.create_task(self.read(queue, offset, end))

    async def read(self, queue: "Queue", offset: int, end: int | None) -> None:
        """Read one queue, up to an offset or for ever."""
        from whimbrel.errors import IllegalOffset, WhimbrelError

        pause, lost = 0.0, False
        while end is None or offset < end:
            try:
                if pause:
                    await asyncio.sleep(pause)
                    queue = await self.reader.current(queue)
                if lost:
                    offset, lost = await self.nearest(queue, offset), False
                async with self.polls:
                    wait = POLL_S if len(self.tasks) <= POLLS_MAX else SHORT_POLL_S
                    result = await self.reader.pull(
                        queue,
                        offset,
                        count=BATCH,
                        wait_s=0.0 if end is not None else wait,
                        expression=self.wanted,
                    )
            except IllegalOffset:
                pause, lost = PAUSE_S, True
                continue
            except WhimbrelError as error:
                if pause <= PAUSE_S:
                    note(f"{queue.broker_name}/{queue.queue_id} can't be read, and is tried again: {error}")
                    await asyncio.to_thread(tell_who_is_down, error)
                pause = min(PAUSE_MAX_S, 2 * pause or PAUSE_S)
                self.reader.session.routes.report_error(self.topic)
                continue
            # A queue without progress before its end: the broker does not have the entry ready yet.
            pause = PAUSE_S if end is not None and result.next_offset == offset else 0.0
            messages = [message for message in result.messages if end is None or message.queue_offset < end]
            if messages:
                await self.results.put(messages)
            offset = result.next_offset

    async def nearest(self, queue: "Queue", offset: int) -> int:
        """Return the offset that there is, for one that is outside the queue."""
        low, high = await self.reader.offset(queue, "earliest"), await self.reader.offset(queue, "latest")
        note(f"{queue.broker_name}/{queue.queue_id} has no offset {offset}: it holds {low} to {high}")
        return min(max(offset, low), high)


def brokers_text(queues: "Sequence[Queue]") -> str:
    return ", ".join(sorted({queue.broker_name for queue in queues})) or "no broker"


def place(queue: "Queue") -> Place:
    return queue.broker_name, queue.queue_id
