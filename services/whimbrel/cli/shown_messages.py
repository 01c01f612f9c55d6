"""How messages are shown: as a row that fits the terminal, as one line, and as an object for JSON."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.output import TEXT_CHARS_MAX, Format, body_fields, shorten, time_text, width_of_terminal
from whimbrel.cli.printing import Items, Printer, printer_of
from whimbrel.cli.template import FIELDS_HELP, Template
from whimbrel.escapes import printable

if TYPE_CHECKING:
    from whimbrel.client import ReceivedMessage

__all__ = ["FormatOption", "as_object", "message_line", "message_printer", "message_table", "template_of"]

WIDE_COLUMNS = 160  # of a terminal that has room for everything
BODY_CHARS_MIN = 12
LABEL_CHARS_MAX = 10  # of tags and keys on a narrow terminal
GAP, EDGES = 3, 2  # columns of a terminal between those of a table, and at its ends, at the most

FormatOption = Annotated[
    str | None, typer.Option("--format", "-f", metavar="TEMPLATE", help=FIELDS_HELP, show_default=False)
]


def template_of(text: str | None, output: Format) -> Template | None:
    """Return the compiled `--format`, None without one.

    Raises:
        typer.BadParameter: it does not compile, or goes with an output format.
    """
    if text is None:
        return None
    if output is not Format.TABLE:
        raise typer.BadParameter("a template is a format of its own; leave out -o", param_hint="--format")
    try:
        return Template(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def message_printer(
    output: Format, template: Template | None, *, endless: bool = False
) -> "Printer[ReceivedMessage]":
    """Return what prints messages."""
    width = width_of_terminal()
    items: Items[ReceivedMessage] = Items(
        table=lambda messages: message_table(messages, width),
        line=lambda message: message_line(message, width),
        as_object=as_object,
    )
    render: Callable[[ReceivedMessage], bytes] | None = None
    if template is not None:
        render = template.render_for_terminal if sys.stdout.isatty() else template.render
    return printer_of(items, output, render, endless=endless)


def message_table(
    messages: "Sequence[ReceivedMessage]", width: int | None
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Return columns and rows; a terminal that is not wide gets fewer columns, and shorter cells."""
    if width is None or width >= WIDE_COLUMNS:
        columns = (
            "broker",
            "queue",
            "offset",
            "message id",
            "tag",
            "keys",
            "attempt",
            "stored (UTC)",
            "body",
        )
        return columns, [
            (
                message.queue.broker_name,
                message.queue_id,
                message.queue_offset,
                message.message_id,
                message.tag,
                " ".join(message.keys) or None,
                message.delivery_attempt or None,
                time_text(message.stored_at),
                shown_body(message),
            )
            for message in messages
        ]
    narrow = ("broker", "queue", "offset", "tag", "keys", "stored", "body")
    cells = [
        (
            message.queue.broker_name,
            message.queue_id,
            message.queue_offset,
            cut(message.tag or "-", LABEL_CHARS_MAX),
            cut(" ".join(message.keys) or "-", LABEL_CHARS_MAX),
            time_text(message.stored_at)[11:19],
        )
        for message in messages
    ]
    rows: list[tuple[object, ...]] = [narrow[:-1], *cells]
    taken = sum(max(len(str(row[index])) for row in rows) + GAP for index in range(len(narrow) - 1))
    room = max(BODY_CHARS_MIN, width - taken - EDGES)
    return narrow, [
        (*row, cut(shown_body(message), room)) for row, message in zip(cells, messages, strict=True)
    ]


def message_line(message: "ReceivedMessage", width: int | None) -> str:
    """Return a message as one line; cut at the width of a terminal."""
    parts = [
        f"{message.queue.broker_name}/{message.queue_id}@{message.queue_offset}",
        time_text(message.stored_at),
        *([f"tag={printable(message.tag)}"] if message.tag else []),
        *([f"keys={printable(','.join(message.keys))}"] if message.keys else []),
        shown_body(message, width),
    ]
    line = "  ".join(parts)
    return line if width is None else cut(line, width)


def shown_body(message: "ReceivedMessage", width: int | None = TEXT_CHARS_MAX) -> str:
    """Return a message's body as `shorten` does, marked where it is not what was sent."""
    mark = "[corrupted] " if message.corrupted else ""
    return mark + shorten(message.body, width)


def cut(text: str, length: int) -> str:
    """Return a text of this many characters at the most."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def as_object(message: "ReceivedMessage") -> dict[str, Any]:
    """Return a message for JSON; its queue as broker name and id."""
    return {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "type": message.type.value,
        "message_group": message.message_group,
        "deliver_at": message.deliver_at,
        "priority": message.priority,
        "dead_letter": message.dead_letter,
        "born_at": message.born_at,
        "born_host": message.born_host,
        "stored_at": message.stored_at,
        "store_host": message.store_host,
        "delivery_attempt": message.delivery_attempt,
        "receipt_handle": message.receipt_handle,
        **({"corrupted": message.corrupted} if message.corrupted else {}),
        **body_fields(message.body),
    }
