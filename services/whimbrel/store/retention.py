"""Retention: which commitlog files are removed, by age at set hours, by age at any hour when the disk fills,
and then whatever their age.

    disk use above          what is removed
    -                       files older than `reserved_hours`, in the local hours `delete_when`
    disk_used_ratio_max     the same files, at any hour
    disk_clean_ratio        the oldest files, whatever their age, where `full_disk` says "drop"
    disk_full_ratio         the same, and writes are refused

Oldest first, stopping at the first file that stays; a round removes a bounded number. RocketMQ:
CleanCommitLogService, and its cleanFileForciblyEnable for `full_disk`.

**Broker and replicator of a member** may both have settings; a replicator goes by the broker's where it has
none. The one that keeps longer holds (`options.keep_longer`), whichever of the two removes files: each tells
its own in the page of marks.

**Age** is not what a single look at the clock says, since what is removed does not come back. It is the time
from the file's last change to the time of `RetentionClock`, which goes forward only with the monotonic clock:

    believed   the wall clock is at most `JUMP_MS_MAX` ahead of where it should be, or behind: its time counts
    doubted    it is further ahead: the time goes on from where it was, with the monotonic clock; a clock that
               keeps its new time for `DOUBT_S` is believed

At the start it should be where the newest closed file was changed last. So a broker that was down for long,
or whose log rests, ages its files by each other for a day after a start: they stay longer, never shorter. A
file was not changed before the files ahead of it, whatever a clock said that was behind for a while.

**A doubt outlives the process**, since a file that is closed meanwhile has a time of the doubted clock, and a
start that took that for right would age all older files by it. The clock is looked at when the log is opened,
whenever a log file is closed, and at each round. While it is doubted, `STORE/whimbrel/retention-clock` says
`{"doubted_s":…,"now_ms":…,"wall_ms":…}`, as of the doubt's begin or some `SAVE_S` ago at most; the next start
goes on from that time, with the doubt as long as it was, or from its begin where the clock is further ahead
than such a while. It is removed when the clock is believed. Without room for it nothing is lost but this.

What this leaves: a clock that is ahead for longer than `DOUBT_S`, and a log that was begun while the clock
was behind, whose files look older than they are once a day has passed with the right time.
"""

import json
import logging
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.store.jsonconfig import save
from whimbrel.store.options import StoreOptions
from whimbrel.store.segment import segment_name

__all__ = [
    "FILES_REMOVED_MAX",
    "DiskTrend",
    "DiskUse",
    "Removal",
    "RetentionClock",
    "changed_ms",
    "expired_segments",
]

logger = logging.getLogger(__name__)

FILE = "retention-clock"
FILES_REMOVED_MAX = 10  # in one round; removing files of 1 GiB keeps the disk busy
MS_PER_HOUR = 3_600_000
JUMP_MS_MAX = 10 * 60_000  # of the wall clock between two rounds, which are 10 s apart; files stay for hours
SAVE_S = 600.0
TREND_S, TREND_MIN_S = 600.0, 30.0
TREND_SAMPLES_MAX = 200
DOUBT_S = 24 * 3600.0  # enough for people to notice what else a wrong clock does


@dataclass(frozen=True, slots=True)
class Removal:
    """Closed log files that are to go, by where they begin, oldest first.

    Attributes:
        starts: all of them.
        young: those of them, the last ones, that are not old enough: their room is wanted.
    """

    starts: tuple[int, ...] = ()
    young: tuple[int, ...] = ()

    def below(self, offset: int, file_size: int) -> "Removal":
        """Return those of them that end at or below an offset of the log."""
        kept = [
            tuple(start for start in starts if start + file_size <= offset)
            for starts in (self.starts, self.young)
        ]
        return Removal(*kept)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """How full a file system is: the used share of what ordinary processes can use, and how much that is."""

    ratio: float = 0.0
    usable_bytes: int = 0

    @classmethod
    def of(cls, path: Path, files: Files = FILES) -> "DiskUse":
        """Measure the file system of a path."""
        stats = files.statvfs(path)
        used = stats.f_blocks - stats.f_bfree
        usable = used + stats.f_bavail
        return cls(used / usable if usable else 0.0, usable * stats.f_frsize)


class DiskTrend:
    """Tells when a disk will be as full as a limit, by how it has filled lately. The time is handed in."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, float]] = deque()  # when, and how many bytes were used

    def look(self, disk: DiskUse, monotonic_s: float) -> None:
        """Take a measurement; those of the last `TREND_S` count."""
        self.seen.append((monotonic_s, disk.ratio * disk.usable_bytes))
        while len(self.seen) > TREND_SAMPLES_MAX or monotonic_s - self.seen[0][0] > TREND_S:
            self.seen.popleft()

    def seconds_until(self, ratio: float, disk: DiskUse) -> float | None:
        """Return in how many seconds a disk is that full at the rate of late; None where it does not fill, or
        is looked at for less than `TREND_MIN_S`."""
        (begin_s, before), (end_s, now) = (self.seen[0], self.seen[-1]) if self.seen else ((0.0, 0.0),) * 2
        if now <= before or end_s - begin_s < TREND_MIN_S:
            return None
        left = max(ratio * disk.usable_bytes - now, 0.0)
        return left * (end_s - begin_s) / (now - before)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What an earlier process has left: how long it had doubted the clock, by which time files aged, and what
    the clock said."""

    doubted_s: float
    now_ms: int
    wall_ms: int


class RetentionClock:
    """The time by which files age; see above. The times of both clocks are handed in.

    Attributes:
        now_ms: as of the last look, in epoch milliseconds; -1 before the first.
        doubted_since: when the wall clock took its present time, in seconds of the monotonic clock; None
            while it is believed.
    """

    def __init__(self, root: Path | None = None, files: Files = FILES) -> None:
        """Read what an earlier process has left; without a store's root, nothing is read or written."""
        self.path, self.files = root / "whimbrel" / FILE if root is not None else None, files
        self.now_ms = -1
        self.looked_at = 0.0
        self.doubted_since: float | None = None
        self.shift_ms = 0  # from the monotonic clock to the wall clock that is doubted
        self.saved_at: float | None = None  # None while there is no file
        self.left = self.load()

    def look(self, wall_ms: int, monotonic_s: float, changed_ms: int) -> int:
        """Return the time.

        Args:
            wall_ms: epoch milliseconds.
            monotonic_s: of a clock that nobody sets.
            changed_ms: when the newest closed file was changed last; for the first look.
        """
        first = self.now_ms < 0
        if first and self.left is not None:
            self.go_on(self.left, wall_ms, monotonic_s)
            first = False
        due_ms = changed_ms if first else self.now_ms + int((monotonic_s - self.looked_at) * 1000)
        self.looked_at = monotonic_s
        if wall_ms - due_ms <= JUMP_MS_MAX or self.outlasted(wall_ms, monotonic_s):
            if self.doubted_since is not None:
                logger.info("the clock is believed again: files of the log age by it")
            self.doubted_since = None
            self.now_ms = wall_ms
            self.forget()
            return wall_ms
        if self.doubted_since is None:
            logger.log(
                logging.INFO if first else logging.WARNING,
                "the clock is %.1f h ahead of where it should be: for %.0f h, files of the log age by the "
                "time that passes",
                (wall_ms - due_ms) / MS_PER_HOUR,
                DOUBT_S / 3600,
            )
        shift_ms = wall_ms - int(monotonic_s * 1000)
        if self.doubted_since is None or abs(shift_ms - self.shift_ms) > JUMP_MS_MAX:
            self.doubted_since, self.shift_ms = monotonic_s, shift_ms
        self.now_ms = due_ms
        if self.saved_at is None or monotonic_s - self.saved_at >= SAVE_S:
            self.save(wall_ms, monotonic_s)
        return due_ms

    def outlasted(self, wall_ms: int, monotonic_s: float) -> bool:
        """Return whether a clock that is doubted has kept its time for long enough."""
        return (
            self.doubted_since is not None
            and monotonic_s - self.doubted_since >= DOUBT_S
            and abs(wall_ms - int(monotonic_s * 1000) - self.shift_ms) <= JUMP_MS_MAX
        )

    # A doubt outlives the process

    def go_on(self, left: "Doubt", wall_ms: int, monotonic_s: float) -> None:
        """Go on from what an earlier process has left."""
        same = abs(wall_ms - left.wall_ms) <= SAVE_S * 1000 + JUMP_MS_MAX
        self.now_ms, self.looked_at = left.now_ms, monotonic_s
        self.doubted_since = monotonic_s - (left.doubted_s if same else 0.0)
        self.shift_ms = wall_ms - int(monotonic_s * 1000)
        self.saved_at = float("-inf")

    def load(self) -> "Doubt | None":
        """Return what an earlier process has left; None when it believed the clock."""
        if self.path is None or not self.files.exists(self.path):
            return None
        try:
            found = json.loads(self.files.read_bytes(self.path).decode("utf-8", "replace"))
            return Doubt(float(found["doubted_s"]), int(found["now_ms"]), int(found["wall_ms"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            logger.warning("%s is damaged, and left out: %r", self.path, error)
            return None

    def save(self, wall_ms: int, monotonic_s: float) -> None:
        """Write down that the clock is doubted; what can't be written is tried again at the next look."""
        if self.path is None or self.doubted_since is None:
            return
        doubt = {"doubted_s": monotonic_s - self.doubted_since, "now_ms": self.now_ms, "wall_ms": wall_ms}
        try:
            save(self.path, json.dumps(doubt, separators=(",", ":")), self.files)
        except (OSError, StoreFull) as error:
            logger.warning("that the clock is doubted can't be written down: %s", error)
        else:
            self.saved_at = monotonic_s

    def forget(self) -> None:
        """Remove the file: the clock is believed."""
        if self.path is None or self.saved_at is None:
            return
        try:
            self.files.discard(self.path)
        except OSError as error:
            logger.warning("%s can't be removed: %s", self.path, error)
        else:
            self.saved_at = None


def expired_segments(
    directory: Path,
    closed: list[int],
    wall_ms: int,
    monotonic_s: float,
    clock: RetentionClock,
    disk: DiskUse,
    options: StoreOptions,
    files: Files = FILES,
) -> Removal:
    """Return the closed files to remove now."""
    if not closed:
        return Removal()
    now_ms = clock.look(wall_ms, monotonic_s, changed_ms(directory, closed[-1], files))
    dropping = options.full_disk == "drop" and disk.ratio > options.disk_clean_ratio
    hour = time.localtime(wall_ms / 1000).tm_hour
    if not dropping and hour not in options.delete_when and disk.ratio <= options.disk_used_ratio_max:
        return Removal()
    candidates = closed[:FILES_REMOVED_MAX]
    limit_ms = now_ms - options.reserved_hours * MS_PER_HOUR
    aged = 0
    changed = 0
    for start in candidates:
        changed = max(changed, changed_ms(directory, start, files))
        if changed > limit_ms:
            break
        aged += 1
    if dropping:
        return Removal(tuple(candidates), tuple(candidates[aged:]))
    return Removal(tuple(candidates[:aged]))


def changed_ms(directory: Path, start: int, files: Files) -> int:
    """Return when a file was changed last, in epoch milliseconds."""
    return files.stat(directory / segment_name(start)).st_mtime_ns // 1_000_000
