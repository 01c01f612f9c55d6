"""Passes of the compiled lane over what a store derives from its log: queue entries, keys, index entries.

A pass is one call of `whimbrel_lane` (`native/binding/whimbrel_lane.pyi`). It returns nothing where the lane
is not active, and where it panics; its caller then goes on in Python, from the state before the pass.

**The cell.** `lane_pass` of the page of marks is 1 during a pass. A process that dies within leaves it so,
whether the lane was the cause or not; the next start clears it and runs without the lane, and says so.
"""

from typing import Any, Protocol

from whimbrel.lane import Lane

__all__ = ["FOREIGN_BYTES", "LanePasses", "PassCell", "Reach", "Run"]

READ_BYTES = 1 << 20  # of the log, in one pass at most
FOREIGN_BYTES = 16 * 1024  # that Python does where the lane has stopped, before the lane is asked again

Header = tuple[int, int, int, int, int, int]  # of an index file: HEADER's fields
Run = tuple[bytes, int, int, bytes]  # topic as records hold it, queue id, first entry's number, entries


class PassCell(Protocol):
    """What is used of the page of marks."""

    lane_pass: int


class Reach:
    """How much of the log a pass is given: little behind what is not the lane's.

    What a pass leaves is read again.

    Attributes:
        size: bytes for the next pass.
    """

    def __init__(self) -> None:
        """Begin with as much as there may be."""
        self.size = READ_BYTES

    def passed(self, *, foreign: bool) -> None:
        """Learn whether a pass ended at what is not the lane's."""
        if foreign:
            self.size = FOREIGN_BYTES
        elif self.size < READ_BYTES:
            self.size *= 2


class LanePasses:
    """What a store's adapters call."""

    def __init__(self, lane: Lane, page: PassCell | None = None) -> None:
        """Take the lane of this process; `page` is that of the store, where its broker runs."""
        self.lane, self.page = lane, page
        if page is not None and page.lane_pass:
            page.lane_pass = 0
            lane.died_within()

    def entries(self, data: bytes, base: int) -> tuple[int, bool, int, list[Run]] | None:
        """Make the queue entries of the plain records at the begin of `data`; None without the lane.

        Args:
            data: of one file of the log.
            base: where it begins.

        Returns:
            How many bytes were plain records, whether what follows is not plain, the store time of the last
            one in ms, and the entries.
        """
        native = self.lane.native
        return None if native is None else self.run(native.entries, data, base)

    def kept(self, data: bytes, base: int) -> tuple[int, int] | None:
        """Return how many bytes at the begin of `data` recovery keeps, and where the last record of them
        stands (-1: none does); None without the lane. What follows is Python's; see `entries`."""
        native = self.lane.native
        return None if native is None else self.run(native.kept, data, base)

    def keys(self, data: bytes, base: int, *, tags: bool) -> tuple[int, bool, Any] | None:
        """Hash the keys of the plain records at the begin of `data`, and their tags if those are keys.

        None without the lane; see `entries`.
        """
        native = self.lane.native
        return None if native is None else self.run(native.keys, data, base, tags)

    def hashed(self, records: list[tuple[str, tuple[str, ...], int, int]]) -> Any | None:
        """Hash the keys of records; None without the lane, or where a text can't be encoded."""
        native = self.lane.native
        try:
            return None if native is None else self.run(native.hashed, records)
        except UnicodeEncodeError:
            return None

    def joined(self, keys: list[Any]) -> Any | None:
        """Make one of several `Keys` that follow each other; None without the lane."""
        native = self.lane.native
        return None if native is None else self.run(native.joined, keys)

    def put_keys(
        self, mapped: Any, slots: int, header: Header, keys: Any, first: int, count: int
    ) -> Header | None:
        """Add some of `keys` to a mapped index file; return its header, None without the lane."""
        native = self.lane.native
        return (
            None if native is None else self.run(native.put_keys, mapped, slots, header, keys, first, count)
        )

    def run(self, work: Any, *arguments: Any) -> Any:
        """Do a pass."""
        page = self.page
        if page is not None:
            page.lane_pass = 1
        try:
            return work(*arguments)
        except RuntimeError as error:
            native = self.lane.native
            if native is None or not isinstance(error, native.Broken):
                raise
            self.lane.broke(error)
            return None
        finally:
            if page is not None:
                page.lane_pass = 0
