"""A store directory as it is, read without changing anything in it.

Sizes are those of the files. While the log has a writer, the log's end is that of the shared page, else what
recovery would find.
"""

import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from whimbrel.errors import CorruptRecord, IllegalOffset, StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.codec import (
    RECORD_BYTES_MAX,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    index_key_hash,
    tag_keys_of,
    topic_and_properties,
)
from whimbrel.store.index import (
    ENTRIES_PER_SLOT,
    Index,
    IndexFile,
    entries_of,
    file_size,
    index_sizes,
    list_index_files,
)
from whimbrel.store.locking import is_locked
from whimbrel.store.mending import usual_queue_size
from whimbrel.store.options import StoreOptions
from whimbrel.store.recovery import LogState, recover_log
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.walk import Walk

__all__ = ["LogView", "check_store", "consumequeue_file_size", "open_index", "store_options"]

ENTRIES_MIN = 2  # of an index file; the first is never used
TAGS_LOOKED_FOR = 1000  # entries


def check_store(root: Path, files: Files = FILES) -> None:
    """Raise StoreError unless a directory is a store."""
    if not is_directory(files, root):
        raise StoreError(f"{root} is no store: there is no such directory")
    if not is_directory(files, root / "commitlog"):
        raise StoreError(f"{root} is no store: it has no commitlog directory")


def is_directory(files: Files, path: Path) -> bool:
    """Return whether there is a directory of that name."""
    return files.exists(path) and stat.S_ISDIR(files.stat(path).st_mode)


def store_options(root: Path, *, index_slots: int = 0) -> StoreOptions:
    """Return options with the sizes that a store's files have, and tags as keys where its index has them.

    Args:
        index_slots: of an index file that does not have RocketMQ's ratio of 1:4 of slots to entries. A store
            without one gets index files of so many slots, with four times as many entries.

    Raises:
        StoreError: there is no store, or its files have impossible sizes.
    """
    check_store(root)
    sizes: dict[str, int] = {}
    segments = Segments.open(root / "commitlog", 0)
    if segments.starts:
        sizes["commitlog_file_size"] = segments.file_size
    sizes["consumequeue_file_size"] = consumequeue_file_size(root)
    index_files = list_index_files(root / "index")
    if index_files:
        size = index_files[0].stat().st_size
        if index_slots:
            sizes["index_slots"], sizes["index_entries"] = index_slots, whole_entries(size, index_slots)
        else:
            sizes["index_slots"], sizes["index_entries"] = index_sizes(size, StoreOptions())
    elif index_slots:
        sizes["index_slots"], sizes["index_entries"] = index_slots, ENTRIES_PER_SLOT * index_slots
    try:
        options = StoreOptions(**sizes)  # type: ignore[arg-type]
    except ValueError as error:
        raise StoreError(f"{root}: {error}") from error
    return replace(options, index_tags=indexes_tags(segments, index_files, options))


def indexes_tags(segments: Segments, index_files: Sequence[Path], options: StoreOptions) -> bool:
    """Return whether tags are keys in an index: whether one of its newest entries is of its record's tag."""
    for path in reversed(index_files if segments.starts else ()):
        try:
            file = IndexFile(path, *index_sizes(path.stat().st_size, options), writable=False)
        except (StoreError, OSError, ValueError):
            continue  # whoever opens it says so
        try:
            entries = list(islice(file.newest(), TAGS_LOOKED_FOR))
        finally:
            file.close()
        if entries:
            return any(key_hash in tag_hashes(segments, place) for key_hash, place in entries)
    return False


def tag_hashes(segments: Segments, place: int) -> list[int]:
    """Return the hash of a record's tag, as an index has it; nothing where there is no tag, or no record."""
    try:
        head = segments.read(place, SIZE_AND_MAGIC.size)
        size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == SIZE_AND_MAGIC.size else (0, 0)
        if magic not in RECORD_MAGICS or size > RECORD_BYTES_MAX:
            return []
        topic, properties = topic_and_properties(segments.read(place, size), 0)
    except (CorruptRecord, IllegalOffset, struct.error):
        return []
    return [index_key_hash(topic.decode("utf-8", "replace"), key) for key in tag_keys_of(properties)]


def consumequeue_file_size(root: Path) -> int:
    """Return the size that most of a store's consume-queue files have; RocketMQ's when it has none."""
    sizes = [{0: path.stat().st_size} for path in root.glob("consumequeue/*/*/[0-9]*")]
    return usual_queue_size(sizes, StoreOptions().consumequeue_file_size)


def whole_entries(size: int, slots: int) -> int:
    """Return how many entries an index file of a size has with so many slots.

    Raises:
        StoreError: the size can't be that of a file with so many slots.
    """
    entries = entries_of(size, slots)
    if entries < ENTRIES_MIN or file_size(slots, entries) != size:
        raise StoreError(f"an index file of {size} bytes has no {slots} slots: give its own number of slots")
    return entries


@dataclass(frozen=True, slots=True)
class LogView:
    """The log of a store as it is.

    Attributes:
        begin, end: of the log.
        live: whether a process has it open for writing.
        state: what recovery would find; of a live log only its begin and end are known.
    """

    root: Path
    segments: Segments
    begin: int
    end: int
    live: bool
    state: LogState

    @classmethod
    def of(cls, root: Path) -> "LogView":
        """Read the state of a store's log.

        Raises:
            StoreError: its files can't be a log.
        """
        check_store(root)
        live = is_locked(root)
        written = written_mark(root) if live else -1
        segments = Segments.open(root / "commitlog", 0)
        if written >= 0:
            begin = min(segments.begin, written)
            state = LogState(begin, written, written, (), False, "", True)
            return cls(root, segments, begin, written, live, state)
        state = recover_log(
            segments.read,
            segments.starts,
            segments.file_size,
            clean=not (root / "abort").exists(),
            mark=LogMark.load(root),
            checkpoint=read_checkpoint(root),
        )
        return cls(root, segments, state.begin, state.end, live, state)

    def walk(self) -> Walk:
        """Return a walk over all of it."""
        return Walk(self.segments.read, self.begin, self.end, self.segments.file_size or 1)


def written_mark(root: Path) -> int:
    """Return the end of the log that the shared page shows, -1 without one."""
    page = SharedPage.snapshot(root)
    return page.written if page is not None and page.epoch else -1


def open_index(root: Path, index_slots: int) -> Index:
    """Map a store's index, read-only."""
    index = Index(root, store_options(root, index_slots=index_slots))
    for path in list_index_files(index.directory):
        slots, entries = index_sizes(path.stat().st_size, index.options)
        index.files.append(IndexFile(path, slots, entries, writable=False))
    return index
