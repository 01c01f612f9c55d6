"""A command of RocketMQ's remoting protocol: a request or a response, without its bytes.

Fields of a request (RocketMQ: `CommandCustomHeader`, ext fields) are texts by name, whatever their type. They
are read one by one, by the handler that wants them, which says what is wrong with one in a sentence: Java's
servers leave such fields null, and answer with the text of a NullPointerException.

Sources: RocketMQ 4.9.3, `RemotingCommand`, `LanguageCode`, `MQVersion`; what clients send is recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from whimbrel.errors import BadRequest

__all__ = [
    "INT_MAX",
    "INT_MIN",
    "LANGUAGES",
    "LONG_MAX",
    "LONG_MIN",
    "NO_FIELDS",
    "ONEWAY",
    "RESPONSE",
    "VERSION",
    "Command",
]

RESPONSE, ONEWAY = 1, 2  # bits of the flag
VERSION: Final = 399  # V4_9_3 as a number of `MQVersion`, which all our commands carry
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})  # written as none at all, `{}` as an empty object

# By code; `RUST` and `NODE_JS` are of 5.x.
LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)

DIGITS_FEW = 10  # fewer are a number of 32 bits
SHOWN_CHARS = 40  # of a value, in a message


@dataclass(slots=True)
class Command:
    """A request or a response.

    Attributes:
        code: of a request, what it wants; of a response, how that went.
        opaque: chosen by who asks, the same in the response; both ends number their own requests.
        fields: by name, in the order in which they came or are to be written.
        body: empty for none.
        flag: bits `RESPONSE` and `ONEWAY`.
        language: of the sender, as in `LANGUAGES`; "" for one that nobody knows.
        version: of the sender, a number of `MQVersion`.
        remark: text for people; None for none.
    """

    code: int
    opaque: int
    fields: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)
    body: bytes = b""
    flag: int = 0
    language: str = "JAVA"
    version: int = VERSION
    remark: str | None = None

    @property
    def is_response(self) -> bool:
        """Whether it answers a request of ours."""
        return bool(self.flag & RESPONSE)

    @property
    def oneway(self) -> bool:
        """Whether nobody waits for a response."""
        return bool(self.flag & ONEWAY)

    def text(self, name: str) -> str:
        """Return a field that has to be there.

        Raises:
            BadRequest: it is not.
        """
        value = self.fields.get(name)
        if value is None:
            raise BadRequest(f"request {self.code} has no field {name}")
        return value

    def int32(self, name: str, default: int | None = None) -> int:
        """Return a field as a number of 32 bits; see `number`."""
        return self.number(name, default, INT_MIN, INT_MAX)

    def int64(self, name: str, default: int | None = None) -> int:
        """Return a field as a number of 64 bits; see `number`."""
        return self.number(name, default, LONG_MIN, LONG_MAX)

    def numbers(self, wanted: Sequence[tuple[str, int | None, int, int]]) -> list[int]:
        """Return several fields as numbers: of each the arguments of `number`."""
        found, get = [], self.fields.get
        for name, default, least, most in wanted:
            value = get(name)
            if value is None and default is not None:
                found.append(default)
            elif value is not None and len(value) < DIGITS_FEW and value.isdigit() and value.isascii():
                found.append(int(value))
            else:
                found.append(self.number(name, default, least, most))
        return found

    def number(self, name: str, default: int | None, least: int, most: int) -> int:
        """Return a field as a number.

        Args:
            default: where it is not there; None: it has to be.

        Raises:
            BadRequest: it is no such number, written as Java's `Long.parseLong` takes it.
        """
        value = self.fields.get(name)
        if value is None:
            if default is None:
                raise BadRequest(f"request {self.code} has no field {name}")
            return default
        if len(value) < DIGITS_FEW and value.isdigit() and value.isascii():  # within both ranges
            return int(value)
        digits = value[1:] if value[:1] in ("-", "+") else value
        # The length comes first: reading a number of many digits takes long.
        if len(digits) <= 20 and digits.isascii() and digits.isdigit() and least <= int(value) <= most:
            return int(value)
        shown = value if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]}..."
        raise BadRequest(
            f"field {name} of request {self.code} is no number of {most.bit_length() + 1} bits: {shown!r}"
        )

    def boolean(self, name: str) -> bool:
        """Return a field as Java reads it: true where it says so, in any case (librocketmq sends "1")."""
        return self.fields.get(name, "").lower() == "true"
