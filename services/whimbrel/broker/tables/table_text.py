"""The text of a table's rows, kept so that a change encodes what it changes and copies nothing else.

    members   each row's text, by name, with the row that it is of: another row of that name has another text
    body      the text of all rows together, in their order

A row that is added goes to the body's end. Any other change makes the body anew from the members, which is a
copy of bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from whimbrel.store import jsonconfig

__all__ = ["TableText"]


class Encodable(Protocol):
    """A row of a table."""

    @property
    def name(self) -> str:
        """Key in the table."""

    def bean(self) -> dict[str, Any]:
        """JSON form."""


T = TypeVar("T", bound=Encodable)


class TableText(Generic[T]):
    """The rows' text, in the pretty or in the compact form."""

    def __init__(self, *, pretty: bool) -> None:
        """Start without a body."""
        self.pretty = pretty
        self.members: dict[str, tuple[T, bytes]] = {}
        self.body: bytearray | None = None

    def member(self, row: T) -> bytes:
        """Return a row's text."""
        known = self.members.get(row.name)
        if known is None or known[0] is not row:
            text = jsonconfig.encoded_member(row.name, row.bean(), level=1, pretty=self.pretty)
            known = self.members[row.name] = row, text.encode("utf-8")
        return known[1]

    def of(self, rows: Mapping[str, T]) -> bytearray:
        """Make the body anew, of these rows."""
        texts = [self.member(row) for row in rows.values()]
        if len(self.members) > len(rows):
            self.members = {name: self.members[name] for name in rows}
        self.body = bytearray(b",".join(texts))
        return self.body

    def with_added(self, rows: Mapping[str, T], added: Iterable[T]) -> bytearray:
        """Return the body of the rows and of some more."""
        body = self.of(rows) if self.body is None else self.body
        for row in added:
            if body:
                body += b","
            body += self.member(row)
        return body

    def forget_body(self) -> None:
        """Have the body made anew: the rows are not those that it is of."""
        self.body = None

    def pieces(
        self, body: bytearray, table_key: str, content: Mapping[str, Any]
    ) -> tuple[bytes, bytearray, bytes]:
        """Return the text of a file that holds the table beside other content, as pieces.

        Args:
            body: of the rows.
            table_key: the name of the table in the file.
            content: the other fields.
        """
        before, behind = jsonconfig.split_at(table_key, dict(content), pretty=self.pretty)
        line = "\n\t" if self.pretty and body else ""
        return f"{before}{{".encode(), body, f"{line}}}{behind}".encode()
