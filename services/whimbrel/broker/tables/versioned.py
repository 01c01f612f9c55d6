"""A table of named configurations with a version, kept in one of RocketMQ's `config/*.json` files.

The broker's loop owns it. Every change builds a new dict, writes the file, and then swaps the dict and the
version, so that a reader never sees half a change and a crash leaves either the old table or the new one.
`on_change` is called after the swap: nameservers and slaves are then notified.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from whimbrel.errors import AlreadyExists, Forbidden, StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.model.limits import TOPICS_MAX
from whimbrel.model.topic import DataVersion
from whimbrel.store import jsonconfig

__all__ = ["Named", "VersionedTable"]


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
    ) -> None:
        """Start empty; `load` reads the file.

        Args:
            path: the file.
            table_key: name of the table inside the file.
            kind: the class of its rows.
            clock: milliseconds since the epoch, for the version.
            files: where the file is.
        """
        self.version = DataVersion(timestamp=0, counter=0)
        self.on_change: list[Callable[[], None]] = []
        self.rows: dict[str, T] = {}
        self.path, self.files = path, files
        self.table_key = table_key
        self.kind = kind
        self.clock = clock
        self.encoded: dict[bool, dict[str, tuple[T, str]]] = {True: {}, False: {}}  # by `pretty`, and name
        self.rest: dict[str, Any] = {}  # top-level fields of newer versions, written back as they are

    def load(self, defaults: Iterable[T]) -> None:
        """Read the file over the defaults, and write it when that changed something.

        Raises:
            StoreError: the file is damaged, and so is its predecessor.
        """
        found, _ = jsonconfig.open_own(self.path, self.take, self.files)
        stored = found or {}
        added = {row.name: row for row in defaults if row.name not in stored}
        self.rows = {**stored, **added}
        if added:
            self.version = self.version.after(self.clock())
            try:
                self.save(self.rows, self.version)
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

    def add(self, row: T) -> None:
        """Add a new row; raises AlreadyExists, or Forbidden as `check_room` does."""
        if row.name in self.rows:
            raise AlreadyExists(f"{row.name} exists already")
        self.check_room()
        self.put(row)

    def check_room(self) -> None:
        """Raise Forbidden when a client may add no row: nameservers and slaves get the table whole."""
        if len(self.rows) >= TOPICS_MAX:
            raise Forbidden(f"{self.path.name} has {len(self.rows)} entries, and takes no more: delete some")

    def put(self, row: T) -> None:
        """Add or replace a row; an equal one changes nothing."""
        self.put_all([row])

    def put_all(self, rows: Iterable[T]) -> None:
        """Add or replace rows in one change."""
        changed = {row.name: row for row in rows if self.rows.get(row.name) != row}
        if changed:
            self.swap({**self.rows, **changed}, self.version.after(self.clock()))

    def remove(self, name: str) -> T | None:
        """Remove a row and return it; None when there is none."""
        gone = self.rows.get(name)
        if gone is not None:
            rows = {key: row for key, row in self.rows.items() if key != name}
            self.swap(rows, self.version.after(self.clock()))
        return gone

    def replace_all(self, text: str) -> bool:
        """Take over another broker's whole table, version included; return whether that changed anything."""
        content = jsonconfig.loads(text)
        before = (self.rows, self.version)
        rows = self.take(content)
        if (rows, self.version) == before:
            return False
        self.swap(rows, self.version)
        return True

    def encode(self, *, pretty: bool = True) -> str:
        """Return the file's text."""
        return self.encoded_rows(self.rows, self.version, pretty=pretty)

    def encoded_rows(self, rows: dict[str, T], version: DataVersion, *, pretty: bool) -> str:
        """Return a file's text; that of rows which are as they were is kept, since each change writes all."""
        kept = self.encoded[pretty]
        encoded = self.encoded[pretty] = {}
        for name, row in rows.items():
            known = kept.get(name)
            if known is None or known[0] is not row:
                text = jsonconfig.encoded_member(name, row.bean(), level=1, pretty=pretty)
                known = row, text
            encoded[name] = known
        members = (text for _, text in encoded.values())
        content = {
            **self.rest,
            "dataVersion": version.bean(),
            self.table_key: jsonconfig.encoded_map(members, level=1, pretty=pretty),
        }
        return jsonconfig.dumps(dict(sorted(content.items())), pretty=pretty)

    def save(self, rows: dict[str, T], version: DataVersion) -> None:
        jsonconfig.save(self.path, self.encoded_rows(rows, version, pretty=True), self.files)

    def swap(self, rows: dict[str, T], version: DataVersion) -> None:
        self.save(rows, version)
        self.rows, self.version = rows, version
        for notify in self.on_change:
            notify()
