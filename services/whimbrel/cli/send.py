"""`whimbrel send`: one message, many of the same, or each line of standard input.

Lines are sent as they come, in requests of what is there already, so that `tail -f LOG | whimbrel send T` is
not late, and a file goes in large requests. At most one request's messages and one line's beginning are in
memory. A last line without its end counts; empty lines are left out, since a message needs a body, and
counted.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.printing import Items, printer_of
from whimbrel.cli.pull import chosen_queue
from whimbrel.model.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from whimbrel.client import Message, SendReceipt

__all__ = ["SEND_EXAMPLES", "Lines", "send"]

COLUMNS = ("message id", "broker", "queue", "offset")
ROWS_MAX = 100  # of a table of receipts; the rest is counted
LINES_BATCH = 100  # lines in one request, unless told otherwise
READ_BYTES = 1 << 16
REQUEST_BYTES_MAX = 1 << 20  # of the bodies in a request; a single body may be larger

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]

SEND_EXAMPLES = examples(
    "whimbrel send orders 'hello'",
    "whimbrel send orders 'hello' --tag new --key 4711 --property region=eu",
    "whimbrel send orders - < orders.txt             each line is a message",
    "tail -f access.log | whimbrel send access -     as lines come",
    "whimbrel send orders --whole < body.json        standard input is one message",
    "whimbrel send orders 'load' --count 1000 --batch 32",
)


def send(
    topic: TopicArgument,
    body: Annotated[
        str, typer.Argument(metavar="BODY|-", help="Text, or -: each line of standard input.")
    ] = "-",
    whole: Annotated[bool, typer.Option("--whole", help="Standard input is one message.")] = False,
    tag: Annotated[str | None, typer.Option(help="Tag that consumers can filter by.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Key to find it by; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="User property; may be repeated.")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", help="Keeps order within it, on a fifo topic.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Send it so many times.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help=f"Messages in one request, and so one queue. Default: 1; of lines up to {LINES_BATCH}.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Queue id; else by turns.")] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Send a message, many of the same, or a message for each line; tells where each was stored."""
    from whimbrel.client import Message, Queue, sync

    if whole and body != "-":
        raise typer.BadParameter("it is about standard input, and there is a BODY", param_hint="--whole")
    by_line = body == "-" and not whole
    if by_line and count > 1:
        raise typer.BadParameter("lines are sent once; use --whole, or give a BODY", param_hint="--count")
    pairs = dict(pair(text) for text in properties or ())

    def message(body: bytes) -> Message:
        return Message(
            topic=topic,
            body=body,
            tag=tag,
            keys=tuple(key or ()),
            properties=pairs,
            message_group=message_group,
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
        same = message(sys.stdin.buffer.read() if body == "-" else body.encode())
        requests = repeated(same, count, batch or 1)
    selector = None if queue is None or message_group is not None else select
    report = Report(output)
    with traced(endpoint), sync.Producer(resolve_endpoint(endpoint), topics=[topic]) as producer:
        try:
            for request in requests:
                report.add(producer.send_batch(request, selector=selector))
        except BaseException:
            if report.count:
                report.end(lines)  # what was sent before
            raise
        report.end(lines)


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

    def __init__(self, output: Format) -> None:
        """Begin."""
        self.output = output
        items: Items[SendReceipt] = Items(
            table=lambda receipts: (COLUMNS, [row(one) for one in receipts]),
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
    return receipt.message_id, receipt.broker_name, receipt.queue_id, receipt.queue_offset


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint="--property")
    return key, value
