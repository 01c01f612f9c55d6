"""A table of named configurations with a version, kept in one of RocketMQ's `config/*.json` files.

The broker's loop owns it. Every change writes the file, and then changes rows and version without a break, so
that the loop never sees half a change and a crash leaves either the old table or the new one. Other threads
may look one row up. `on_change` is called after that: nameservers and slaves are then notified.

A change costs what it changes, however many rows there are, but for the file, whose bytes the kernel copies.
The names of the last changes are kept, so that who has an earlier version can be told what has changed since.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

from whimbrel.broker.tables.table_text import TableText
from whimbrel.errors import AlreadyExists, Forbidden, RemoteProtocolError, StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.model.limits import TOPICS_MAX
from whimbrel.model.topic import DataVersion, TableChange
from whimbrel.store import jsonconfig

__all__ = ["CHANGED_NAMES_MAX", "Named", "VersionedTable"]

CHANGED_NAMES_MAX = 4096  # remembered of the last changes; who is further behind gets the whole table

NOTHING: Mapping[str, Any] = MappingProxyType({})

logger = logging.getLogger(__name__)


class Named(Protocol):
    """A configuration with a name and a JSON form."""

    @property
    def name(self) -> str:
        """Key in the table."""

    def bean(self) -> dict[str, Any]:
        """JSON form, fields in alphabetical order."""

    @classmethod
    def from_bean(cls, name: str, bean: Mapping[str, Any]) -> Self:
        """Read the JSON form."""


T = TypeVar("T", bound=Named)


class VersionedTable(Generic[T]):
    """Configurations by name. Read with `get` and `values`; write with `put`, `remove` and `replace_all`."""

    def __init__(
        self,
        path: Path,
        table_key: str,
        kind: type[T],
        *,
        clock: Callable[[], int],
        files: Files = FILES,
        on_predecessor: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty; `load` reads the file.

        Args:
            path: the file.
            table_key: name of the table inside the file.
            kind: the class of its rows.
            clock: milliseconds since the epoch, for the version.
            files: where the file is.
            on_predecessor: called when what was read is the file's predecessor, or nothing, since the file
                itself is damaged or gone: before anything is written.
        """
        self.version = DataVersion(timestamp=0, counter=0)
        self.on_change: list[Callable[[], None]] = []
        self.rows: dict[str, T] = {}
        self.path, self.files = path, files
        self.table_key = table_key
        self.kind = kind
        self.clock, self.on_predecessor = clock, on_predecessor
        self.of_predecessor = False  # since the start: it may lack the last change before
        self.text: TableText[T] = TableText(pretty=True)  # the file's
        self.compact_text: TableText[T] = TableText(pretty=False)  # that of brokers to each other
        self.changes: deque[tuple[DataVersion, tuple[str, ...]]] = deque()  # from a version, names
        self.changed_names = 0  # in `changes`, the oldest first, and one for each
        self.rest: dict[str, Any] = {}  # top-level fields of newer versions, written back as they are

    def load(self, defaults: Iterable[T]) -> None:
        """Read the file over the defaults, and write it when that changed something.

        Raises:
            StoreError: the file is damaged, and so is its predecessor.
        """
        found, newest = jsonconfig.open_own(self.path, self.take, self.files)
        if not newest:
            self.on_predecessor()
        self.of_predecessor = found is not None and not newest
        stored = found or {}
        added = {row.name: row for row in defaults if row.name not in stored}
        self.rows = {**stored, **added}
        for row in self.rows.values():
            self.row_changed(None, row)
        if added:
            self.version = self.version.after(self.clock())
            try:
                self.save(self.text.of(self.rows), self.version)
            except StoreFull as error:  # reads must go on; the next change writes these rows as well
                logger.warning("%s", error)

    def take(self, content: Any) -> dict[str, T]:
        """Take over version and further fields of a parsed file; return its rows."""
        try:
            rows = {}
            for name, bean in content[self.table_key].items():
                row, old = self.kind.from_bean(name, bean), self.rows.get(name)
                rows[name] = old if old is not None and old == row else row  # whose text is kept
            self.version = DataVersion.from_bean(content.get("dataVersion") or {})
            known = ("dataVersion", self.table_key)
            self.rest = {key: item for key, item in content.items() if key not in known}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self.path} holds no {self.table_key}: {error!r}") from error
        for name, row in rows.items():
            if row is self.rows.get(name):
                continue
            given = content[self.table_key][name]
            for field, value in row.bean().items():
                if isinstance(value, int) and given.get(field, value) != value:
                    logger.warning("%s: %s of %s is %d, and not %s, which is out of bounds",
                                   self.path.name, field, name, value, given[field])  # fmt: skip
        return rows

    def get(self, name: str) -> T | None:
        """Return the row, or None."""
        return self.rows.get(name)

    def row_changed(self, old: T | None, new: T | None) -> None:
        """Take note of a row that is another now, new, or gone; for what subclasses count."""

    def add(self, row: T) -> None:
        """Add a new row; raises AlreadyExists, or Forbidden as `check_room` does."""
        if row.name in self.rows:
            raise AlreadyExists(f"{row.name} exists already")
        self.check_room()
        self.put(row)

    def check_room(self) -> None:
        """Raise Forbidden when a client may add no row: nameservers and slaves may need the table whole."""
        if len(self.rows) >= TOPICS_MAX:
            raise Forbidden(f"{self.path.name} has {len(self.rows)} entries, and takes no more: delete some")

    def put(self, row: T) -> None:
        """Add or replace a row; an equal one changes nothing."""
        self.put_all([row])

    def put_all(self, rows: Iterable[T]) -> None:
        """Add or replace rows in one change."""
        changed = {row.name: row for row in rows if self.rows.get(row.name) != row}
        if changed:
            self.change(changed, (), self.version.after(self.clock()))

    def remove(self, name: str) -> T | None:
        """Remove a row and return it; None when there is none."""
        gone = self.rows.get(name)
        if gone is not None:
            self.change({}, (name,), self.version.after(self.clock()))
        return gone

    def replace_all(self, text: str) -> bool:
        """Take over another broker's whole table, version included; return whether that changed anything."""
        content = jsonconfig.loads(text)
        version, rest = self.version, self.rest
        rows = self.take(content)
        if (rows, self.version) == (self.rows, version):
            return False
        try:
            self.save(self.text.of(rows), self.version)
        except BaseException:
            self.text.forget_body()
            self.version, self.rest = version, rest
            raise
        old, self.rows = self.rows, rows
        changed = [name for name, row in rows.items() if old.get(name) is not row]
        removed = [name for name in old if name not in rows]
        for name in (*removed, *changed):
            self.row_changed(old.get(name), rows.get(name))
        self.remember(version, (*changed, *removed))
        self.notify()
        return True

    def apply(self, change: TableChange[T]) -> None:
        """Take over what has changed in another broker's table, version included.

        Raises:
            RemoteProtocolError: it is not about the version that is here.
        """
        if change.before != self.version:
            raise RemoteProtocolError(f"a change of {self.path.name} is about a version that is not here")
        removed = tuple(name for name in change.removed if name in self.rows)
        self.change({row.name: row for row in change.rows}, removed, change.after)

    def change_since(self, version: DataVersion) -> TableChange[T] | None:
        """Return what has changed since a version; None when that is not known any more, or never was."""
        names: dict[str, None] = {}
        if version != self.version:
            for before, changed in reversed(self.changes):
                names.update(dict.fromkeys(changed))
                if before == version:
                    break
            else:
                return None
        return TableChange(
            before=version,
            after=self.version,
            rows=tuple(self.rows[name] for name in names if name in self.rows),
            removed=tuple(name for name in names if name not in self.rows),
        )

    def encode(self, *, pretty: bool = True, more: Mapping[str, Any] = NOTHING) -> str:
        """Return the file's text, with more top-level fields."""
        text = self.text if pretty else self.compact_text
        whole = b"".join(self.pieces(text, text.of(self.rows), self.version, more)).decode()
        self.compact_text.forget_body()  # nothing is added to it
        return whole

    def encode_rows(self, rows: Iterable[T]) -> str:
        """Return some rows as a map by their names."""
        return jsonconfig.dumps({row.name: row.bean() for row in rows}, pretty=False)

    def decode_rows(self, text: str) -> tuple[T, ...]:
        """Return such rows.

        Raises:
            StoreError: the text is something else.
        """
        try:
            return tuple(self.kind.from_bean(name, bean) for name, bean in jsonconfig.loads(text).items())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"no rows of {self.path.name}: {error!r}") from error

    def pieces(
        self, text: TableText[T], body: bytearray, version: DataVersion, more: Mapping[str, Any] = NOTHING
    ) -> tuple[bytes, bytearray, bytes]:
        return text.pieces(body, self.table_key, {**more, **self.rest, "dataVersion": version.bean()})

    def save(self, body: bytearray, version: DataVersion) -> None:
        jsonconfig.save_pieces(self.path, self.pieces(self.text, body, version), self.files)

    def change(self, changed: dict[str, T], removed: tuple[str, ...], version: DataVersion) -> None:
        """Write the file as it is after a change, and make the change.

        Args:
            changed: rows to add or replace.
            removed: names of rows that are there and are to go.
            version: of the table afterwards.
        """
        try:
            if removed or not self.rows.keys().isdisjoint(changed):
                rows = {**self.rows, **changed}
                for name in removed:
                    del rows[name]
                body = self.text.of(rows)
            else:
                body = self.text.with_added(self.rows, changed.values())
            self.save(body, version)
        except BaseException:
            self.text.forget_body()
            raise
        self.remember(self.version, (*changed, *removed))
        self.version = version
        for name in removed:
            self.row_changed(self.rows.pop(name), None)
        for name, row in changed.items():
            old, self.rows[name] = self.rows.get(name), row
            self.row_changed(old, row)
        self.notify()

    def remember(self, before: DataVersion, names: tuple[str, ...]) -> None:
        """Keep which names a change was about, and let go of the oldest changes."""
        self.changes.append((before, names))
        self.changed_names += len(names) + 1  # a change about no name takes room, too
        while self.changed_names > CHANGED_NAMES_MAX:
            self.changed_names -= len(self.changes.popleft()[1]) + 1

    def notify(self) -> None:
        for notify in self.on_change:
            notify()
