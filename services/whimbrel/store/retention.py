"""Retention: which commitlog files are removed, by age at set hours, by age at any hour when the disk fills,
and then whatever their age.

    disk use above          what is removed
    -                       files older than `reserved_hours`, in the local hours `delete_when`
    disk_used_ratio_max     the same files, at any hour
    disk_clean_ratio        the oldest files, whatever their age
    disk_full_ratio         the same, and writes are refused

Oldest first, stopping at the first file that stays; a round removes a bounded number. RocketMQ:
CleanCommitLogService.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from whimbrel.machine import FILES, Files
from whimbrel.store.options import StoreOptions
from whimbrel.store.segment import segment_name

__all__ = ["DiskUse", "expired_segments"]

MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class DiskUse:
    """How full a file system is: the used share of what ordinary processes can use."""

    ratio: float = 0.0

    @classmethod
    def of(cls, path: Path, files: Files = FILES) -> "DiskUse":
        """Measure the file system of a path."""
        stats = files.statvfs(path)
        used = stats.f_blocks - stats.f_bfree
        usable = used + stats.f_bavail
        return cls(used / usable if usable else 0.0)


def expired_segments(
    directory: Path,
    candidates: list[int],
    now_ms: int,
    disk: DiskUse,
    options: StoreOptions,
    files: Files = FILES,
) -> list[int]:
    """Return the starts of the candidates to remove, oldest first."""
    if disk.ratio > options.disk_clean_ratio:
        return candidates
    hour = time.localtime(now_ms / 1000).tm_hour
    if hour not in options.delete_when and disk.ratio <= options.disk_used_ratio_max:
        return []
    limit_ms = now_ms - options.reserved_hours * MS_PER_HOUR
    doomed = []
    for start in candidates:
        if files.stat(directory / segment_name(start)).st_mtime * 1000 > limit_ms:
            break
        doomed.append(start)
    return doomed
