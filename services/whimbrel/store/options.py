"""Sizes, flush policy and retention of a store. Defaults without a reason of their own are RocketMQ's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whimbrel.store.codec import UNIT_SIZE

__all__ = [
    "COMMITLOG_FILE_SIZE_MIN",
    "DELAY_LEVELS",
    "Retention",
    "StoreOptions",
    "keep_longer",
    "parse_delay_levels",
]

COMMITLOG_FILE_SIZE_MIN = 64 * 1024  # in smaller files, blanks would take much of the log
PREFAULT_BYTES_MAX = 16 * 1024 * 1024  # populated pages count as resident memory of the process
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Layout and upkeep of a store.

    Sizes are those of new files: a store with commitlog files keeps their size.

    Attributes:
        commitlog_file_size: bytes of a commitlog file.
        consumequeue_file_size: bytes of a consume-queue file, a multiple of 20.
        index_slots: hash slots of an index file.
        index_entries: entries of an index file; the first is never used.
        flush: `sync` answers a send after fdatasync, `async` flushes by interval and bytes.
        flush_interval_ms: asynchronous flush: the longest time that data is only in the page cache.
        flush_bytes: asynchronous flush: flush earlier when so much is waiting.
        prefault_bytes: how far ahead of the write position pages are populated, at most 16 MiB.
        reserved_hours: age at which a commitlog file may be removed.
        delete_when: local hours of the day in which aged files are removed.
        disk_used_ratio_max: above this aged files are removed at any hour.
        full_disk: what a disk that fills does: `drop` removes the oldest files, `refuse` nothing.
        disk_clean_ratio: above this files are removed whatever their age, where `full_disk` says so.
        disk_full_ratio: above this writes are refused.
        index_enabled: whether keys are indexed.
        index_tags: whether tags are keys as well, as with RocketMQ from 5.4 on.
        append_property_crc: records get a CRC of all their bytes, as RocketMQ's with enabledAppendPropCRC.
        delay_levels: delays of levels 1, 2, ...; master and slave must share them.
    """

    commitlog_file_size: int = 1 << 30
    consumequeue_file_size: int = 6_000_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    flush: Literal["sync", "async"] = "async"
    flush_interval_ms: int = 500
    flush_bytes: int = 64 * 1024 * 1024
    prefault_bytes: int = 4 * 1024 * 1024
    reserved_hours: float = 72
    delete_when: tuple[int, ...] = (4,)
    disk_used_ratio_max: float = 0.75
    full_disk: Literal["drop", "refuse"] = "drop"
    disk_clean_ratio: float = 0.85
    disk_full_ratio: float = 0.90
    index_enabled: bool = True
    index_tags: bool = False
    append_property_crc: bool = False
    delay_levels: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        """Refuse sizes that no store can have."""
        if self.commitlog_file_size < COMMITLOG_FILE_SIZE_MIN:
            raise ValueError(f"commitlog_file_size is below {COMMITLOG_FILE_SIZE_MIN}")
        if self.consumequeue_file_size <= 0 or self.consumequeue_file_size % UNIT_SIZE:
            raise ValueError(f"consumequeue_file_size is not a multiple of {UNIT_SIZE}")
        if self.index_slots < 1 or self.index_entries < 2:
            raise ValueError("an index file needs at least 1 slot and 2 entries")
        if not 0 <= self.prefault_bytes <= PREFAULT_BYTES_MAX:
            raise ValueError(f"prefault_bytes is not within 0 and {PREFAULT_BYTES_MAX}")
        if self.flush not in ("sync", "async"):
            raise ValueError("flush is neither sync nor async")
        parse_delay_levels(self.delay_levels)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a process of a store is told to keep log files; None: it is not told.

    Attributes:
        reserved_hours, disk_used_ratio_max, disk_clean_ratio: see `StoreOptions`.
    """

    reserved_hours: float | None = None
    disk_used_ratio_max: float | None = None
    disk_clean_ratio: float | None = None

    @classmethod
    def of(cls, options: StoreOptions) -> "Retention":
        """Return what a store's options say."""
        return cls(options.reserved_hours, options.disk_used_ratio_max, options.disk_clean_ratio)


def keep_longer(options: StoreOptions, told: Sequence[Retention]) -> StoreOptions:
    """Return a store's options with the settings of retention that keep longest, of those that its processes
    are told; what none is told stays as it is."""

    def longest(kept: float, numbers: Iterable[float | None]) -> float:
        return max((number for number in numbers if number is not None), default=kept)

    return replace(
        options,
        reserved_hours=longest(options.reserved_hours, (one.reserved_hours for one in told)),
        disk_used_ratio_max=longest(options.disk_used_ratio_max, (one.disk_used_ratio_max for one in told)),
        disk_clean_ratio=longest(options.disk_clean_ratio, (one.disk_clean_ratio for one in told)),
    )


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds; level n stands at index n - 1."""
    delays = []
    for word in text.split():
        unit = SECONDS_BY_UNIT.get(word[-1])
        if unit is None or not word[:-1].isdigit():
            raise ValueError(f"not a delay level: {word!r}")
        delays.append(int(word[:-1]) * unit * 1000)
    return tuple(delays)
