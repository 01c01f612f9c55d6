r"""Templates of `--format`: how a message is printed, in the letters that kcat and rpk use. Pure.

    %t topic      %b broker     %q queue (also %p)      %o offset     %i message id
    %k keys       %g tag        %h properties as k=v    %a delivery attempt
    %v body as it is (also %s)  %S its size in bytes    %T time stored, epoch ms     %d the same, ISO 8601
    %% a percent sign           \n \t \r \0 \\ \xHH     characters

Keys are joined by spaces, properties by commas; what a message has not is empty. No end of line is added:
bodies go out byte for byte, and a template without `\n` can put them together again. On a terminal the
control characters of a message are escaped, but for lines and tabs; those of the template itself never are.
"""

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from whimbrel.escapes import printable_lines

if TYPE_CHECKING:
    from whimbrel.client import ReceivedMessage

__all__ = ["FIELDS_HELP", "Template"]

Field = Callable[["ReceivedMessage"], bytes]

FIELDS: dict[str, tuple[str, Field]] = {
    "t": ("topic", lambda message: message.topic.encode()),
    "b": ("broker", lambda message: message.queue.broker_name.encode()),
    "q": ("queue", lambda message: b"%d" % message.queue_id),
    "o": ("offset", lambda message: b"%d" % message.queue_offset),
    "i": ("message id", lambda message: message.message_id.encode()),
    "k": ("keys", lambda message: " ".join(message.keys).encode()),
    "g": ("tag", lambda message: (message.tag or "").encode()),
    "h": ("properties", lambda message: pairs(message).encode()),
    "a": ("delivery attempt", lambda message: b"%d" % message.delivery_attempt),
    "v": ("body", lambda message: message.body),
    "S": ("size of the body", lambda message: b"%d" % len(message.body)),
    "T": ("time stored in epoch ms", lambda message: milliseconds(message).encode()),
    "d": ("time stored in ISO 8601", lambda message: moment(message).encode()),
}
ALIASES = {"p": "q", "s": "v"}  # kcat's letters
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
TOKEN = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)

FIELDS_HELP = (
    "Print each message by this template instead: "
    + ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in FIELDS.items())
    + r", %% percent, \n \t \xHH. No end of line is added."
)


class Template:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        """Compile.

        Raises:
            ValueError: the template has an unknown field or escape; the text names it and those that there
            are.
        """
        self.parts: list[bytes | Field] = []
        for token in TOKEN.finditer(text):
            letter, escape, plain = token.groups()
            if plain is not None:
                self.parts.append(os.fsencode(plain))
            elif escape is not None:
                self.parts.append(escaped(escape))
            elif letter == "%":
                self.parts.append(b"%")
            else:
                self.parts.append(field(letter or ""))

    def render(self, message: "ReceivedMessage") -> bytes:
        """Return the message as bytes."""
        return b"".join(part if isinstance(part, bytes) else part(message) for part in self.parts)

    def render_for_terminal(self, message: "ReceivedMessage") -> bytes:
        """Return the message as bytes, with its own control characters escaped."""
        return b"".join(part if isinstance(part, bytes) else shown(part(message)) for part in self.parts)


def field(letter: str) -> Field:
    found = FIELDS.get(ALIASES.get(letter, letter))
    if found is None:
        known = ", ".join(f"%{known} {meaning}" for known, (meaning, _) in FIELDS.items())
        raise ValueError(f"%{letter} is no field; there are {known}, and %% for a percent sign")
    return found[1]


def shown(data: bytes) -> bytes:
    return printable_lines(data.decode(errors="backslashreplace")).encode()


def escaped(text: str) -> bytes:
    if text.startswith("x") and len(text) == 3:
        return bytes.fromhex(text[1:])
    found = ESCAPES.get(text)
    if found is None:
        raise ValueError(rf"\{text} is no escape; there are \n, \t, \r, \0, \xHH, and \\ for a backslash")
    return found


def pairs(message: "ReceivedMessage") -> str:
    return ",".join(f"{key}={value}" for key, value in message.properties.items())


def milliseconds(message: "ReceivedMessage") -> str:
    return "" if message.stored_at is None else str(round(message.stored_at * 1000))


def moment(message: "ReceivedMessage") -> str:
    if message.stored_at is None:
        return ""
    try:
        return datetime.fromtimestamp(message.stored_at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # no calendar has it
        return f"{message.stored_at:g} s"
