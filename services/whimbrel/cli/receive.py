"""`whimbrel receive`: messages of a group, acknowledged once they are printed.

Without `--count`: those that are there (`--wait` is for the first one). With it: until there are so many, or
none came for `--wait` seconds. With `--follow`: until Ctrl-C, or so many.

A table is printed at the end, or before the leases of its messages would end; everything else as it comes.
What was not printed is not acknowledged, and what the reader of a pipe did not stay for is not, either.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.down import tell_who_is_down
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.filters import SqlOption, TagOption, filter_of
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.printing import Printer, portions, reader_gone, was_read
from whimbrel.cli.shown_messages import FormatOption, message_printer, template_of
from whimbrel.cli.unasked import saying_what_lacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from whimbrel.client import ReceivedMessage, sync

__all__ = ["RECEIVE_EXAMPLES", "receive"]

COUNT = 32  # messages, unless told otherwise
BATCH_MAX = 32  # that brokers give at once
SLICE_S = 1.0  # of waiting, between looks whether the reader of our output is still there
LEASE_SHARE = 0.5  # of the invisible time, for which messages wait for the rest of their table

RECEIVE_EXAMPLES = examples(
    "whimbrel receive orders --group billing",
    "whimbrel receive orders --group billing --count 10 --wait 30      wait for ten",
    "whimbrel receive orders --group billing --follow                  until Ctrl-C",
    "whimbrel receive orders --group billing --follow -o jsonl | jq .body",
    r"whimbrel receive orders --group billing --format '%o %k %v\n'",
    "whimbrel receive orders --group billing --tag 'new || paid'",
    "whimbrel receive orders --group billing --sql \"price > 100 AND region = 'eu'\"",
    "whimbrel receive orders --group billing --no-ack      others get them again after --invisible",
)


def receive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group.")],
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            help=f"Wait for so many messages. Default: those that are there, {COUNT} at most.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until Ctrl-C, which ends with exit code 130.")
    ] = False,
    acknowledge: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Whether the group is done with what was printed.")
    ] = True,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Stop when none came for so many seconds.")
    ] = 5.0,
    tag: TagOption = "*",
    sql: SqlOption = None,
    invisible: Annotated[
        float, typer.Option(min=10, help="Seconds until messages that are not acknowledged come again.")
    ] = 30.0,
    template: FormatOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Receive messages as a member of a consumer group, and acknowledge them once they are printed.

    Exit code 1 when there were fewer than asked for, and a broker could not be asked or is away.
    """
    from whimbrel.client import sync

    wanted = filter_of(tag, sql)
    printer = message_printer(output, template_of(template, output), endless=follow)
    address = resolve_endpoint(endpoint)
    with traced(endpoint), sync.Consumer(address, group, {topic: wanted}) as consumer:
        receiving = Receiving(consumer, printer, acknowledge=acknowledge, strict=not follow)
        try:
            found = receive_until(
                receiving,
                most=count or (None if follow else COUNT),
                wait=None if follow else wait,
                linger=follow or count is not None,
                invisible=invisible,
                check=lambda: check_topic(address, topic),
            )
        except BaseException as error:
            if not isinstance(error, BrokenPipeError):
                receiving.end()
            raise
        receiving.end()
        most = count or COUNT
        if follow or found >= most:
            return
        with saying_what_lacks() as unasked:
            unasked += consumer.unasked()
            if not found:
                where = " at the brokers that could be asked" if unasked else ""
                note(f"no message for group {group}{where} within {wait:g} s")


def receive_until(
    receiving: "Receiving",
    *,
    most: int | None,
    wait: float | None,
    linger: bool,
    invisible: float,
    check: "Callable[[], None]",
) -> int:
    """Receive and print; return how many messages came.

    Args:
        receiving: what receives.
        most: stop after so many; None for no end.
        wait: stop when none came for so many seconds; None for never.
        linger: whether to wait for more once there were some.
        invisible: of the messages, seconds.
        check: called once, when there is no message at first; raises if there never will be.
    """
    from whimbrel.errors import TopicNotFound, WhimbrelError

    found, checked, failed = 0, False, False
    until = None if wait is None else time.monotonic() + wait
    while most is None or found < most:
        now = time.monotonic()
        left = SLICE_S if until is None else max(0.0, min(SLICE_S, until - now))
        batch = BATCH_MAX if most is None else min(BATCH_MAX, most - found)
        try:
            messages = receiving.consumer.receive(
                batch, wait_s=left if checked else 0.0, invisible_s=invisible
            )
        except WhimbrelError as error:
            # While the only broker of a topic restarts, nameservers do not know the topic.
            lasting = not (error.retry or (checked and isinstance(error, TopicNotFound)))
            if until is not None or lasting:
                raise
            if not failed:  # once for each outage
                note(f"{error}; trying on")
                tell_who_is_down(error)
            failed = True
            time.sleep(SLICE_S)
            continue
        failed = False
        if messages:
            receiving.take(messages, until=now + LEASE_SHARE * invisible)
            found, checked = found + len(messages), True
            if wait is not None:
                until = time.monotonic() + (wait if linger else 0.0)
        elif not checked:
            check()
            checked = True
        elif until is not None and time.monotonic() >= until:
            break
        receiving.look()
    return found


class Receiving:
    """Prints received messages, and settles those that are printed."""

    def __init__(
        self,
        consumer: "sync.Consumer",
        printer: "Printer[ReceivedMessage]",
        *,
        acknowledge: bool,
        strict: bool,
    ) -> None:
        """Take a consumer and what prints; `strict`: a failed acknowledgement ends the command."""
        self.consumer = consumer
        self.printer = printer
        self.acknowledge = acknowledge
        self.strict = strict
        self.first = True
        self.hold_until: float | None = None  # of the oldest message that is not printed

    def take(self, messages: "Sequence[ReceivedMessage]", *, until: float) -> None:
        """Print messages, or hold them until this time at the most."""
        for part in portions(messages, first=self.first):
            self.first = False
            printed = self.printer.add(part)
            self.settle(printed)
        self.hold_until = (self.hold_until or until) if self.printer.held else None

    def look(self) -> None:
        """Print what was held long enough.

        Raises:
            BrokenPipeError: nobody reads our output any more.
        """
        if self.hold_until is not None and time.monotonic() >= self.hold_until:
            self.hold_until = None
            self.settle(self.printer.end())
        if reader_gone():
            raise BrokenPipeError

    def end(self) -> None:
        """Print what is held."""
        self.settle(self.printer.end())

    def settle(self, printed: "Sequence[ReceivedMessage]") -> None:
        """Acknowledge what is printed, if it was read.

        Raises:
            BrokenPipeError: it was not.
            WhimbrelError: some could not be acknowledged.
        """
        if not printed:
            return
        if not was_read(len(printed)):
            raise BrokenPipeError
        if not self.acknowledge:
            return
        failed = [error for error in self.consumer.ack_all(printed) if error is not None]
        if failed:
            text = f"{len(failed)} of {len(printed)} messages could not be acknowledged: {failed[0]}"
            if self.strict:
                raise type(failed[0])(text)
            note(f"{text}; they come again")


def check_topic(address: str, topic: str) -> None:
    """Raise TopicNotFound if the brokers have no such topic, though a first send might create it.

    Consumers may subscribe to a topic before its first message, so that brokers let them wait.
    """
    from whimbrel.cli.pull import TOOLS_GROUP
    from whimbrel.client import sync
    from whimbrel.errors import TopicNotFound, WhimbrelError

    with sync.PullConsumer(address, TOOLS_GROUP) as reader:
        try:
            for queue in reader.queues(topic)[:1]:
                reader.offset(queue, "latest")
        except TopicNotFound:
            raise
        except WhimbrelError:
            return  # receiving says what is wrong
