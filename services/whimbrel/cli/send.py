"""`whimbrel send`: one message, many of the same, or each line of standard input.

Lines are sent as they come, in requests of what is there already, so that `tail -f LOG | whimbrel send T` is
not late, and a file goes in large requests. At most one request's messages and one line's beginning are in
memory. A last line without its end counts; empty lines are left out, since a message needs a body, and
counted.

With `--transaction` each message is sent in a transaction of its own, which is then ended as it says: `leave`
is for trying out what other producers of the topic answer when a broker asks them.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.printing import Items, printer_of
from whimbrel.cli.pull import chosen_queue
from whimbrel.cli.times import duration_of, moment_of
from whimbrel.model.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from whimbrel.client import Message, SendReceipt, sync

__all__ = ["SEND_EXAMPLES", "Lines", "send"]

COLUMNS = ("message id", "broker", "queue", "offset")
ROWS_MAX = 100  # of a table of receipts; the rest is counted
LINES_BATCH = 100  # lines in one request, unless told otherwise
READ_BYTES = 1 << 16
REQUEST_BYTES_MAX = 1 << 20  # of the bodies in a request; a single body may be larger


class End(StrEnum):
    """What becomes of a message's transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    LEAVE = "leave"


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]

SEND_EXAMPLES = examples(
    "whimbrel send orders 'hello'",
    "whimbrel send orders 'hello' --tag new --key 4711 --property region=eu",
    "whimbrel send orders - < orders.txt             each line is a message",
    "tail -f access.log | whimbrel send access -     as lines come",
    "whimbrel send orders --whole < body.json        standard input is one message",
    "whimbrel send orders 'load' --count 1000 --batch 32",
    "whimbrel send ledger 'debit 5' --message-group account-7",
    "whimbrel send reminders 'call back' --delay 10m     prints what `whimbrel recall` takes",
    "whimbrel send reminders 'happy new year' --at 2027-01-01T00:00:00Z",
    "whimbrel send payments 'order 4711' --transaction commit",
)


def send(
    topic: TopicArgument,
    body: Annotated[
        str, typer.Argument(metavar="BODY|-", help="Text, or -: each line of standard input.")
    ] = "-",
    whole: Annotated[bool, typer.Option("--whole", help="Standard input is one message.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag that consumers can filter by.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Key to find it by; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="User property; may be repeated.")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", help="Keeps order within it, on a fifo topic.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Deliver it so much later, as 10s, 5m, 1h.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="WHEN", help="Deliver it then (ISO 8601), on a delay topic.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, help="Greater ones go first, on a priority topic.")
    ] = None,
    end: Annotated[
        End | None,
        typer.Option("--transaction", help="Send it in a transaction, and end that so.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Send it so many times.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help=f"Messages in one request, and so one queue. Default: 1; of lines up to {LINES_BATCH}.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", min=0, help="Queue id; else by turns.")
    ] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Send a message, many of the same, or a message for each line; tells where each was stored."""
    from whimbrel.client import Message, Queue, Resolution, sync

    if whole and body != "-":
        raise typer.BadParameter("it is about standard input, and there is a BODY", param_hint="--whole")
    by_line = body == "-" and not whole
    if by_line and count > 1:
        raise typer.BadParameter("lines are sent once; use --whole, or give a BODY", param_hint="--count")
    pairs = dict(pair(text) for text in properties or ())
    check_combination(message_group, delay, at, priority, end, batch)
    delay_s = None if delay is None else duration_of(delay, "--delay")
    deliver_at = None if at is None else parse_at(at)

    def message(body: bytes) -> Message:
        return Message(
            topic=topic,
            body=body,
            tag=tag,
            keys=tuple(key or ()),
            properties=pairs,
            message_group=message_group,
            deliver_at=deliver_at,
            delay_s=delay_s,
            priority=priority,
        )

    def select(first: Message, queues: Sequence[Queue]) -> Queue:
        assert queue is not None
        return chosen_queue(queues, first.topic, queue, "")

    if body == "-" and sys.stdin.isatty():
        note("reading from standard input; end it with Ctrl-D")
    lines: Lines | None = None
    if by_line:
        lines = Lines(sys.stdin.buffer, batch or LINES_BATCH)
        requests: Iterator[list[Message]] = ([message(line) for line in part] for part in lines)
    else:
        same = message(sys.stdin.buffer.read() if body == "-" else os.fsencode(body))
        requests = repeated(same, count, batch or 1)
    selector = None if queue is None or message_group is not None else select
    report = Report(output, waiting=delay is not None or at is not None)
    check = None if end is None else lambda _: Resolution.UNKNOWN  # whoever sent it in earnest knows
    with traced(endpoint), sync.Producer(resolve_endpoint(endpoint), topics=[topic], check=check) as producer:
        try:
            for request in requests:
                if end is None:
                    report.add(producer.send_batch(request, selector=selector))
                else:
                    report.add([send_and_end(producer, one, end) for one in request])
        except BaseException:
            if report.count:
                report.end(lines)  # what was sent before
            raise
        report.end(lines)


def check_combination(
    message_group: str | None,
    delay: str | None,
    at: str | None,
    priority: int | None,
    end: End | None,
    batch: int | None,
) -> None:
    """Raise typer.BadParameter when a message would be of several kinds."""
    given = {
        "--message-group": message_group is not None,
        "--delay": delay is not None,
        "--at": at is not None,
        "--priority": priority is not None,
        "--transaction": end is not None,
    }
    if given["--message-group"] and end is not None:  # these two go together
        del given["--message-group"]
    named = [option for option, is_given in given.items() if is_given]
    if len(named) > 1:
        raise typer.BadParameter(f"a message has only one of {' and '.join(named)}", param_hint=named[-1])
    if end is not None and (batch or 1) > 1:
        raise typer.BadParameter("messages of transactions are sent one by one", param_hint="--batch")


def parse_at(text: str) -> float:
    """Return the time of --at as epoch seconds.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return moment_of(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time such as 2026-01-31T12:00:00Z", param_hint="--at"
        ) from None


def send_and_end(producer: "sync.Producer", message: "Message", end: End) -> "SendReceipt":
    """Send a message in a transaction, and end that."""
    transaction = producer.send_in_transaction(message)
    if end is End.COMMIT:
        transaction.commit()
    elif end is End.ROLLBACK:
        transaction.rollback()
    return transaction.receipt


def repeated(message: "Message", count: int, batch: int) -> "Iterator[list[Message]]":
    while count > 0:
        yield [message] * min(batch, count)
        count -= batch


class Lines:
    """The lines of a stream as lists of bodies: what one read has brought, within the bounds of a request.

    Attributes:
        empty: lines that were left out.
        count: lines that were given out.
    """

    def __init__(self, stream: BinaryIO, batch: int) -> None:
        """Take a stream, and how many lines a list may have."""
        self.read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        self.batch = batch
        self.empty = self.count = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield lists of lines until the stream ends.

        Raises:
            MessageTooLarge: a line is longer than a body may be.
        """
        rest: list[bytes] = []  # pieces of a line whose end has not come
        size = 0
        while chunk := self.read(READ_BYTES):
            first, *others = chunk.split(b"\n")
            rest.append(first)
            size += len(first)
            if size > BODY_BYTES_MAX + 1:  # a CR may be part of the line's end
                self.refuse()
            if others:
                yield from self.requests([b"".join(rest), *others[:-1]])
                rest, size = [others[-1]], len(others[-1])
        if size:
            yield from self.requests([b"".join(rest)])

    def requests(self, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Yield whole lines in lists."""
        request: list[bytes] = []
        size = 0
        for line in lines:
            body = line.removesuffix(b"\r")
            if not body:
                self.empty += 1
                continue
            if len(body) > BODY_BYTES_MAX:
                self.refuse()
            if request and (len(request) == self.batch or size + len(body) > REQUEST_BYTES_MAX):
                self.count += len(request)
                yield request
                request, size = [], 0
            request.append(body)
            size += len(body)
        if request:
            self.count += len(request)
            yield request

    def refuse(self) -> None:
        from whimbrel.errors import MessageTooLarge

        raise MessageTooLarge(
            f"after {self.count + self.empty} lines comes one of more than {BODY_BYTES_MAX} bytes,"
            " the most that a message may have"
        )


class Report:
    """Tells where messages were stored, as they are sent; and their number in the end."""

    def __init__(self, output: Format, *, waiting: bool = False) -> None:
        """Begin; `waiting`: the messages wait for their time, and can be recalled."""
        self.output = output
        columns = (*COLUMNS, "recall handle") if waiting else COLUMNS
        items: Items[SendReceipt] = Items(
            table=lambda receipts: (columns, [row(one)[: len(columns)] for one in receipts]),
            line=lambda receipt: receipt.message_id,
            as_object=lambda receipt: receipt,
        )
        self.printer = printer_of(items, output)
        self.count = 0
        self.started = time.monotonic()

    def add(self, receipts: "Sequence[SendReceipt]") -> None:
        """Take the receipts of one request."""
        room = ROWS_MAX - self.count if self.output is Format.TABLE else len(receipts)
        self.count += len(receipts)
        self.printer.add(receipts[: max(0, room)])

    def end(self, lines: Lines | None) -> None:
        """Print what is left, and how much was sent."""
        elapsed = time.monotonic() - self.started
        self.printer.end()
        if lines is not None and lines.empty:
            what = "an empty line" if lines.empty == 1 else f"{lines.empty} empty lines"
            note(f"left out {what}: a message needs a body")
        if self.output is Format.TABLE and (self.count > 1 or lines is not None):
            rate = self.count / elapsed if elapsed else 0.0
            note(f"sent {self.count} messages in {elapsed:.2f} s ({rate:.0f} a second)")


def row(receipt: "SendReceipt") -> tuple[object, ...]:
    place = receipt.broker_name, receipt.queue_id, receipt.queue_offset
    return receipt.message_id, *place, receipt.recall_handle or None


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint="--property")
    return key, value
