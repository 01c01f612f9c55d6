"""The commitlog: its only writer; any number of processes read it.

`LogWriter` owns the files of `commitlog/`, `lock`, `abort`, the checkpoint's log time, the log mark, and the
log section of the shared page. On a master it belongs to the broker's `MasterStore` and appends records; on a
slave it belongs to the replicator and appends bytes of the master's log as they are received. Offsets count
all bytes that the log has ever had; file number n holds [n * file_size, (n + 1) * file_size).

All calls come from one thread, except the flusher's. `end` moves with every append; other processes see it
when `publish` is called, once a tick.

**Group commit**: a worker flushes, with one sync for all appends that wait. A flush takes the log's current
end, syncs the files that hold data below it, and reports that everything below is on disk. Requests made
while a sync runs are served together by the next one. With asynchronous flush there are no requests: it
flushes by interval, and earlier when much data is waiting.

The writer lists a file as sealed before it leaves it, and the flusher looks at the current file first and at
the sealed ones afterwards. So it meets every file with bytes below the end that it took before, in one of the
two places or in both.

A sync that fails is final: `failed_sync.py` says what follows.

The other processes read the log with a `LogReader` (`log_reader.py`).
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.errors import IllegalOffset, MessageTooLarge, NotWritable, StoreError, StoreFull
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.checkpoint import read_checkpoint, write_checkpoint
from whimbrel.store.codec import BLANK_MAGIC, BLANK_SIZE_MIN, SIZE_AND_MAGIC
from whimbrel.store.copying import check_copied
from whimbrel.store.cut import keep_cut
from whimbrel.store.damage import check_whole
from whimbrel.store.failed_sync import (
    FailedSync,
    RewriteState,
    clear_marker,
    read_marker,
    rewrite_file,
    set_marker,
    whole_records_end,
)
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.locking import StoreLock
from whimbrel.store.offline_vote import take_vote
from whimbrel.store.options import Retention, StoreOptions, keep_longer
from whimbrel.store.pages import FULL_ADVICE, free_bytes, refusing_when_full, zero
from whimbrel.store.preallocation import RESIDENT_BEHIND_BYTES, Preallocator
from whimbrel.store.recovery import LogState, is_boundary, recover_log, store_time_at
from whimbrel.store.recovery_marks import CHECK_BYTES, MARK_BYTES, MARK_INTERVAL_S, LogMark
from whimbrel.store.retention import DiskTrend, DiskUse, RetentionClock, changed_ms, expired_segments
from whimbrel.store.segment import Segment, segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.walk import Walk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["LogWriter"]

logger = logging.getLogger(__name__)

SYNC_PREFAULT_BYTES_MAX = 512 * 1024  # synchronous flush would write every populated page once more
RETRY_ALLOCATE_S = 0.5  # on a full disk: how often an append tries again to get a file, or looks at the disk
# So much at once is written by a system call: no page faults, no pages to populate, none made of zeros first.
PWRITE_BYTES_MIN = 8 * 1024
# Of a slave's log, between two marks: counting off its records takes some milliseconds of the flush thread.
MS_PER_HOUR = 3_600_000
BOUNDARY_WALK_BYTES = 4 * 1024 * 1024


class LogWriter:
    """The log's only writer.

    Attributes:
        begin, end: the log is [begin, end); on a master, `end` is a boundary between records.
        flushed: bytes below are on disk.
        file_size: of every file.
        page: where other processes see the log's range.
        replicated: whether bytes of a master's log were appended, so that `end` may lie within a record.
        lent: the compiled lane appends to the current file: until `grown`, the page's `written` says how far.
        state: what recovery found.
        recovering: until recovery has put the log on disk.
        full_reason: why there is no file for the next record, "" when there is one.
        failed: why nothing is written at the moment (the disk refused a sync), "" normally.
        failed_syncs: how many syncs failed since the start.
        on_flushed: called from the flush thread with the new `flushed`.
        on_failed: called from the flush thread when a sync has failed, and when `mend` can go on.
        before_removal: called with the offset below which retention would remove files; returns below which
            one it may now.
        retentions: returns what the processes of this store are told of how long the log is kept.
        before_dropping: called with the part of the log that retention removes next though it is not old
            enough, its begin and its end: what is in it is still there.
        on_flush_timed: called with the seconds that each flush took, one at a time.
        store_time_ms: of the last record; for the checkpoint.
    """

    def __init__(
        self, root: Path, options: StoreOptions, lock: StoreLock, segments: Segments, machine: Machine
    ) -> None:
        self.root, self.options, self.lock = root, options, lock
        self.machine, self.files = machine, machine.files
        self.segments = segments
        self.file_size = segments.file_size
        self.flush_segments = Segments(
            segments.directory, segments.file_size, self.files
        )  # the flush thread's own
        self.page = SharedPage.open(root, machine)
        self.begin = self.end = self.flushed = self.limit = self.base = 0
        self.segment: Segment | None = None
        self.sealed: list[Segment] = []  # left by the writer, not flushed yet
        self.flush_lock = machine.lock()
        self.flush_bytes = options.flush_bytes
        self.failure: FailedSync | None = None  # set by the flush thread, withdrawn by the writer's
        self.failed_syncs = 0
        self.on_flushed: Callable[[int], None] | None = None
        self.on_failed: Callable[[], None] | None = None
        self.on_flush_timed: Callable[[float], None] | None = None
        self.before_removal: Callable[[int], int] | None = None
        self.retentions: Callable[[], Sequence[Retention]] = tuple
        self.before_dropping: Callable[[int, int], None] | None = None
        self.mark = LogMark()
        self.boundaries: list[int] = []  # recent boundaries, oldest first; for the mark's `check`
        self.marked_at = 0.0
        self.replicated = self.lent = False
        self.dispatched = 0  # by the page, before the last sync
        self.store_time_ms = 0
        self.full_reason = self.failed = ""
        self.retry_at = 0.0
        self.retention_clock = RetentionClock(root, self.files)
        self.disk, self.disk_trend = DiskUse(), DiskTrend()
        self.disk_retry_at = 0.0  # when the fill level is measured again for an append that it refuses
        self.state = LogState(0, 0, 0, (), False, "", False)
        self.was_clean = self.recovering = True
        self.was_doubtful = False  # a sync had failed before: what was in the page cache only may be gone
        window = options.prefault_bytes
        if options.flush == "sync":
            window = min(window, SYNC_PREFAULT_BYTES_MAX)
        self.preallocator = Preallocator(machine, window, self.create_segment)
        self.flusher = machine.worker("log-flush", self.flush, options.flush_interval_ms / 1000)

    @classmethod
    def open(
        cls,
        root: Path,
        options: StoreOptions,
        *,
        machine: Machine = MACHINE,
        set_aside: bool = False,
        by_lane: bool = False,
        by_member: bool = False,
    ) -> "LogWriter":
        """Lock the store, recover the log, truncate its torn tail, and publish its range as a new epoch.

        Args:
            set_aside: also cut a log that ends below what was on disk.
            by_member: the caller is a process of the member whose store it is, where a group elects its
                leader; anybody else takes the member's vote (`offline_vote.py`).
            by_lane: have the compiled lane look at records, where there is one; for a master's broker, whose
                cell of the page of marks it needs.

        Raises:
            StoreError: the store is in use, its files can't be a log, or the log ends below what was on disk;
                nothing of it was changed then.
        """
        files = machine.files
        files.make_directory(root / "whimbrel")
        files.make_directory(root / "commitlog")
        lock = StoreLock.acquire(root, files)
        try:
            check_copied(root, files)
            if not by_member:
                take_vote(root, machine)
            segments = Segments.open(root / "commitlog", options.commitlog_file_size, files)
            writer = cls(root, options, lock, segments, machine)
        except BaseException:
            lock.release()
            raise
        try:
            passes = LanePasses(machine.lane, writer.page) if by_lane else None
            writer.recover(set_aside=set_aside, passes=passes)
        except BaseException:
            writer.close(clean=False)
            raise
        return writer

    def recover(self, *, set_aside: bool, passes: LanePasses | None) -> None:
        """Find the log's end, remove what is behind it, and start an epoch."""
        root, segments = self.root, self.segments
        self.page.recovering()
        self.measure_disk()
        self.was_clean = not self.files.exists(root / "abort")
        mark = LogMark.load(root, self.files)
        self.state = state = recover_log(
            segments.read,
            segments.starts,
            self.file_size,
            clean=self.was_clean,
            mark=mark,
            checkpoint=read_checkpoint(root, self.files),
            passes=passes,
        )
        if not set_aside:
            check_whole(root, segments, state)
        self.mark = mark or LogMark()
        self.begin, self.end = state.begin, state.end
        self.truncate_tail(state)
        self.make_durable(state, mark.offset if mark is not None and state.marked else state.verified_from)
        self.flushed = state.end
        self.mark.offset = state.end
        self.mark.check = state.verified_from
        self.boundaries = [self.mark.check, state.end]
        self.mark.add_recovery(state.end)
        try:
            self.mark.save(root, self.files)
            write_checkpoint(root, files=self.files)
            self.files.touch(root / "abort")
            for directory in (root / "whimbrel", root):
                self.files.sync_directory(directory)  # the marks' names, and the directories themselves
        except OSError as error:  # a few bytes each, but without them the log can't be opened for writing
            raise StoreError(
                f"the marks of the store {root} can't be written: {error}; see to it, then start again"
            ) from error
        self.look_at_clock()
        if state.begin < state.end:
            self.open_tail()
        epoch = self.page.recovered(
            begin=self.begin,
            written=self.end,
            flushed=self.flushed,
            file_size=self.file_size,
            pid=os.getpid(),
        )
        self.recovering = False
        logger.info(
            "log %s: %d to %d, epoch %d, verified from %d%s",
            root,
            self.begin,
            self.end,
            epoch,
            state.verified_from,
            f", cut before {state.fault}" if state.fault else "",
        )

    def make_durable(self, state: LogState, durable: int) -> None:
        """Have the recovered log on disk: after a kill the page cache may be ahead of it.

        Where a sync fails, or one has failed in this boot before, the files in question are written again.

        Args:
            durable: bytes below are on disk.

        Raises:
            StoreError: they can't be; the next start finds a marker that says so.
        """
        files, segments = self.files, self.segments
        marked = read_marker(self.root, self.page, self.machine)
        self.was_doubtful = marked is not None
        doubtful = None if marked is None else max(marked, durable)
        try:
            for start in segments.starts:
                if start + self.file_size > state.verified_from and doubtful is None:
                    files.fdatasync(segments.fd(start))
        except OSError as error:
            logger.error("log %s: the disk refused to sync it: %s; it is written again", self.root, error)
            doubtful = durable
            set_marker(self.root, self.page, self.machine, doubtful)
        if doubtful is not None:
            doubtful = min(doubtful, state.end)
            try:
                for start in [start for start in segments.starts if start + self.file_size > doubtful]:
                    # What recovery has read, the cache may have let go of since: the copy is verified, too.
                    self.rewrite(start, state.end, boundary=max(start, state.verified_from))
            except (OSError, StoreFull, StoreError) as error:
                raise StoreError(
                    f"the disk refused a sync of the log {self.root}, and what it covered, from {doubtful}"
                    f" on, can't be written again: {error}; see to the disk, then start again"
                ) from error
            segments.close()
            logger.warning("log %s: written again from %d on, after a failed sync", self.root, doubtful)
        clear_marker(self.root, self.page, files)

    def rewrite(self, start: int, end: int, *, boundary: int) -> None:
        """Put a new file in a file's place; see `failed_sync.rewrite_file`."""
        rewrite_file(
            self.files,
            self.segments.directory,
            start,
            self.file_size,
            self.root / "whimbrel",
            end=end,
            boundary=boundary,
        )

    def truncate_tail(self, state: LogState) -> None:
        """Make the log end where recovery found its end; what is cut off is kept (`cut.py`).

        Bytes behind the end are made zeros. Otherwise, when a later record ends exactly where an old record
        begins, recovery after a crash would take the old one for a part of the log.
        """
        directory = self.segments.directory
        files, scratch = self.files, self.root / "whimbrel"
        if state.removed or state.dirty or not self.was_clean:
            keep_cut(self.root, self.segments, state, self.machine)
        for place in (scratch, directory):
            for name in files.names(place):
                if name.startswith("segment-"):
                    files.unlink(place / name)  # it was being created when its writer was killed
        if self.segments.leftover is not None:
            files.unlink(directory / segment_name(self.segments.leftover), missing_ok=True)
            files.sync_directory(directory)
        for start in sorted(state.removed, reverse=True):  # a stop in between leaves no gap
            files.unlink(directory / segment_name(start))
            files.sync_directory(directory)
            self.segments.starts.remove(start)
        if state.removed:
            self.segments.close()  # new files will have their names
        last = self.segments.starts[-1] if self.segments.starts else 0
        if self.segments.starts and (state.dirty or not self.was_clean) and state.end < last + self.file_size:
            fd = files.open(directory / segment_name(last), os.O_RDWR | os.O_CLOEXEC)
            try:
                zero(files, fd, state.end - last, last + self.file_size - state.end)
            finally:
                files.close(fd)

    def create_segment(self, start: int) -> Segment:
        """Create a file; called by the preallocator's thread and by the writer, one at a time."""
        if free_bytes(self.files, self.segments.directory) < self.file_size:
            raise StoreFull(
                f"the disk is full (no {self.file_size} bytes left for the next log file); {FULL_ADVICE}"
            )
        with refusing_when_full("no room for the next log file"):
            segment = Segment.create(
                self.files, self.segments.directory, start, self.file_size, self.root / "whimbrel"
            )
        self.measure_disk()  # the store fills a disk no faster than by new log files
        return segment

    def open_tail(self) -> None:
        """Map the file that holds the end, or create it; sets `full_reason` when the disk has no room.

        At the end of a full file this is the next one.
        """
        position = self.end % self.file_size
        start = self.end - position
        try:
            if start in self.segments.starts:
                self.switch_to(
                    Segment.open(self.files, self.segments.directory, start, self.file_size, position)
                )
            else:
                self.switch_to(self.take_file(start))
        except StoreFull as error:
            self.full_reason = str(error)
            self.retry_at = self.machine.monotonic() + RETRY_ALLOCATE_S
        else:
            self.full_reason = ""

    def take_file(self, start: int) -> Segment:
        """Return the file that begins at an offset, a new one.

        Raises:
            StoreFull: there is none, for want of room or whatever else the disk says.
        """
        try:
            return self.preallocator.take(start)
        except OSError as error:
            raise StoreFull(
                f"the next log file can't be made: {error}; writing goes on by itself once it can be"
            ) from error

    def switch_to(self, segment: Segment) -> None:
        """Continue writing in a file."""
        if not self.segments.starts or self.segments.starts[-1] < segment.start:
            self.segments.starts.append(segment.start)
        self.base, self.limit, self.segment = segment.start, segment.start + segment.size, segment
        self.preallocator.wake(segment, max(self.end, segment.start))

    def ensure_segment(self) -> None:
        """Make sure that there is a file to write in.

        Raises:
            StoreFull: the disk has no room for it.
            NotWritable: the disk refused a sync earlier.
        """
        if self.failed:
            raise NotWritable(self.failed)
        if self.segment is None or self.end == self.limit:
            if self.full_reason and self.machine.monotonic() < self.retry_at:
                raise StoreFull(self.full_reason)
            self.seal()
            self.open_tail()
            if self.full_reason:
                raise StoreFull(self.full_reason)

    def reserve(self, size: int) -> int:
        """Return where a record of `size` bytes goes; where it does not fit, after a blank in a new file.

        Raises:
            StoreFull: there is no room for it; nothing was written.
            MessageTooLarge: it fits into no file.
        """
        end = self.end
        if end + size + BLANK_SIZE_MIN > self.limit or self.failed:
            if size + BLANK_SIZE_MIN > self.file_size:
                raise MessageTooLarge(f"{size} bytes fit into no log file of {self.file_size}")
            self.ensure_segment()
            if self.end + size + BLANK_SIZE_MIN > self.limit:
                self.roll()
            end = self.end
        return end

    def roll(self) -> None:
        """Close the current file with a blank and continue in the next.

        Raises:
            StoreFull: there is no next file; nothing was written, and smaller records may still fit.
        """
        current = self.segment
        assert current is not None
        if self.full_reason and self.machine.monotonic() < self.retry_at:
            raise StoreFull(self.full_reason)
        try:
            following = self.take_file(self.limit)
        except StoreFull as error:
            self.full_reason = str(error)
            self.retry_at = self.machine.monotonic() + RETRY_ALLOCATE_S
            raise
        self.full_reason = ""
        SIZE_AND_MAGIC.pack_into(current.mapped, self.end - self.base, self.limit - self.end, BLANK_MAGIC)
        self.end = self.limit
        self.seal()
        self.switch_to(following)

    def seal(self) -> None:
        """Leave the current file to the flusher, which closes it."""
        if self.segment is not None:
            self.preallocator.leave(self.segment)
            self.sealed.append(self.segment)
            self.segment = None
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Have a wall clock that is far ahead doubted before a file that it has given its time is closed."""
        closed = [start for start in self.segments.starts if start + self.file_size < self.end]
        now_ms = self.machine.wall_ms()
        changed = changed_ms(self.segments.directory, closed[-1], self.files) if closed else now_ms
        self.retention_clock.look(now_ms, self.machine.monotonic(), changed)

    def put(self, record: bytes) -> None:
        """Append a record for which `reserve` has made room."""
        segment = self.segment
        assert segment is not None
        position = self.end - self.base
        length = len(record)
        segment.mapped[position : position + length] = record
        self.end = end = self.end + length
        if end >= self.preallocator.wake_at:
            self.preallocator.wake(segment, end)

    def put_packed(self, records: bytes) -> None:
        """Append several records for which there is room in the file.

        Raises:
            OSError: the system refuses to write; nothing was appended.
        """
        length = len(records)
        if length < PWRITE_BYTES_MIN:
            self.put(records)
            return
        segment = self.segment
        assert segment is not None
        position = self.end - self.base
        segment.write(position, memoryview(records))
        segment.written(position + length)
        self.end = end = self.end + length
        if end >= self.preallocator.wake_at:
            self.preallocator.wake(segment, end, populate=False)

    def append_raw(self, offset: int, data: "ReadableBuffer") -> int:
        """Append bytes of a master's log, which may begin and end in the middle of a record.

        Args:
            offset: where they stand in the master's log; must be `end`, or the start of a file when the log
                is empty.
            data: must not cross a file's end.

        Returns:
            The new end.

        Raises:
            StoreFull: no room; nothing was written.
            StoreError: `offset` is not where this log ends, or `data` crosses a file's end.
        """
        view = memoryview(data)
        length = len(view)
        self.replicated = True
        if self.begin == self.end and not self.segments.starts:
            if offset % self.file_size:
                raise StoreError(f"a log with files of {self.file_size} bytes can't begin at {offset}")
            self.begin = self.end = offset
            self.page.begin = offset
            self.page.written = offset
        if offset != self.end:
            raise StoreError(f"bytes for {offset}, but the log ends at {self.end}")
        if not length:
            return offset
        if offset % self.file_size + length > self.file_size:
            raise StoreError(f"{length} bytes at {offset} cross the end of a file of {self.file_size}")
        self.ensure_segment()
        segment = self.segment
        assert segment is not None
        position = offset - self.base
        if length >= PWRITE_BYTES_MIN:
            segment.write(position, view)
        else:
            segment.mapped[position : position + length] = view
        self.end = end = offset + length
        if end >= self.preallocator.wake_at:
            self.preallocator.wake(segment, end)
        return end

    def lend(self) -> None:
        """Let the compiled lane append bytes of a master's log to the current file, until `grown`."""
        self.replicated = self.lent = True

    def grown(self, end: int) -> None:
        """Take note that the current file holds bytes of a master's log up to `end`, as the page says.

        The compiled lane has appended them (`replicator/lane_turns.py`).
        """
        segment = self.segment
        assert segment is not None
        assert self.end <= end <= self.limit
        if end == self.end:
            self.lent = False
            return
        self.end, self.lent = end, False
        segment.written(end - self.base)
        if end >= self.preallocator.wake_at:
            self.preallocator.wake(segment, end)
        if end - self.flushed > self.flush_bytes:
            self.flusher.wake()

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the log, fewer at the end of a file.

        Raises:
            IllegalOffset: they are outside the log.
        """
        if not self.begin <= offset or offset + size > self.end:
            raise IllegalOffset(f"{offset} is outside the log, which is {self.begin} to {self.end}")
        if offset >= self.base and self.segment is not None and self.end - offset < RESIDENT_BEHIND_BYTES:
            position = offset - self.base
            return self.segment.mapped[position : position + size]
        return self.segments.read(offset, size)

    def publish(self) -> None:
        """Show other processes the end; once a tick."""
        page = self.page
        end = self.end
        if page.written != end:
            page.written = end
            if end - self.flushed > self.flush_bytes:
                self.flusher.wake()
        page.log_beat_ns = self.machine.monotonic_ns()

    def request_flush(self, end: int) -> None:
        """Ask for a flush that covers `end`; `on_flushed` is called when it is done."""
        if end > self.flushed:
            self.flusher.wake()

    def flush(self) -> None:
        """Put the log on disk up to its current end; runs in the flush thread, and at `close`."""
        if self.recovering:  # its end is not on disk yet, although no file is open that could be synced
            return
        with self.flush_lock:
            failure, target = self.failure, -1
            if failure is None:
                target = self.sync()
                turned = self.failure is not None
            else:
                turned = self.write_again(failure)
        if turned and self.on_failed is not None:
            self.on_failed()
        if target >= 0 and self.on_flushed is not None:
            self.on_flushed(target)

    def sync(self) -> int:
        """Sync the files that hold data below the end; return the new `flushed`, -1 when it has not moved.

        Called with the flush lock held.
        """
        dispatched = self.page.dispatched  # read before the end, so that it is not beyond it
        # Read before the files, so that they hold all bytes below it.
        target = max(self.page.written, self.end) if self.lent else self.end
        segment = self.segment  # before the sealed ones: see the module's text
        sealed = list(self.sealed)
        if target == self.flushed and not sealed:
            return -1
        began = self.machine.monotonic()
        try:
            for left in sealed:
                left.flush()
            if segment is not None and segment not in sealed:
                segment.flush()
        except OSError as error:
            self.sync_failed(error)
            return -1
        if self.on_flush_timed is not None:
            self.on_flush_timed(self.machine.monotonic() - began)
        for left in sealed:
            self.sealed.remove(left)
            left.close()
        self.flushed = target
        self.page.flushed = target
        self.advance_mark(target, dispatched)
        self.dispatched = dispatched
        return target

    def sync_failed(self, error: OSError) -> None:
        """Refuse appends from now on, and leave word for the next process; with the flush lock held."""
        what = f"the disk refused a sync of {self.segments.directory}: {error.strerror}"
        self.failure = failure = FailedSync(what, self.flushed)
        self.failed = failure.refusal(self.root)
        self.failed_syncs += 1
        set_marker(self.root, self.page, self.machine, self.flushed)
        logger.critical(
            "log %s: from %d on it is not known to be on disk: %s", self.root, self.flushed, self.failed
        )

    def write_again(self, failure: FailedSync) -> bool:
        """Make an attempt to get over a failed sync, when one is due; with the flush lock held.

        Returns:
            Whether it has succeeded.
        """
        if not failure.due(self.machine.monotonic()):
            return False
        segment = self.segment
        try:
            if segment is not None:
                failure.end = self.whole_end(segment.start, failure)
            for left in [*self.sealed, *([] if segment is None else [segment])]:
                if left.start + left.size > max(failure.durable, self.begin):  # else retention took it
                    self.rewrite(left.start, failure.end, boundary=max(left.start, self.mark.offset))
            if segment is not None:
                failure.current = Segment.open(
                    self.files, segment.path.parent, segment.start, segment.size, failure.end - segment.start
                )
        except (OSError, StoreFull, StoreError) as error:
            failure.missed(
                self.machine.monotonic(),
                counts=not isinstance(error, StoreFull),
                bytes_gone=isinstance(error, StoreError),
            )
            self.failed = failure.refusal(self.root, str(error))
            logger.error("log %s: %s", self.root, self.failed)
            return False
        self.flush_segments.close()
        clear_marker(self.root, self.page, self.files)
        failure.state = RewriteState.WRITTEN
        return True

    def whole_end(self, start: int, failure: FailedSync) -> int:
        """Return where the log can end: on a slave before a last record that is not all there.

        Args:
            start: of the last file.

        Raises:
            StoreError: the last record is not whole any more.
        """
        boundary = max(start, self.mark.offset)
        end = whole_records_end(
            self.flush_segments.read, boundary, failure.end, start + self.file_size, durable=failure.durable
        )
        if end < failure.end and not self.replicated:
            raise StoreError(f"the record at {end} is not whole any more")
        return end

    def mend(self) -> None:
        """Go on after a failed sync, if that can be done now; for the writer's thread, while `failed`.

        The first call of each failure promises that no send which waited for it waits any more: they are
        answered, with an error. The log may have become writable again, with all of it flushed, on return; a
        slave's may end earlier than before then.
        """
        failure = self.failure
        if failure is None:
            return
        if failure.state is RewriteState.FOUND:
            failure.end, failure.state = self.end, RewriteState.WANTED
        if failure.state is not RewriteState.WRITTEN:  # no lock: the flush thread has it while it copies
            if failure.due(self.machine.monotonic()):
                self.flusher.wake()
            return
        with self.flush_lock:
            self.take_over(failure)
        if self.on_flushed is not None:
            self.on_flushed(self.flushed)

    @property
    def lost(self) -> bool:
        """Whether only a restart can get over a failed sync."""
        failure = self.failure
        return failure is not None and failure.state is RewriteState.LOST

    def take_over(self, failure: FailedSync) -> None:
        """Go on in the files that were written again; with the flush lock held."""
        for left in self.sealed:
            left.close()
        self.sealed.clear()
        if self.segment is not None:
            self.preallocator.leave(self.segment)
            self.segment.close()
            self.segment = None
        if failure.current is not None:
            self.switch_to(failure.current)
        self.segments.close()
        self.page.replaced += 1  # before `written` can move: readers look at it afterwards
        self.end = self.flushed = self.page.flushed = failure.end
        self.failure, self.failed = None, ""
        logger.warning("log %s: written again up to %d; it takes appends again", self.root, failure.end)

    def advance_mark(self, flushed: int, dispatched: int) -> None:
        """Write the log's mark when it is due; called with the flush lock held.

        Args:
            flushed: bytes below are on disk.
            dispatched: up to where the broker had come before the sync, by the page.
        """
        now = self.machine.monotonic()
        if flushed - self.mark.offset < MARK_BYTES and now - self.marked_at < MARK_INTERVAL_S:
            return
        self.marked_at = now
        try:
            boundary = self.boundary_below(flushed, dispatched, BOUNDARY_WALK_BYTES)
            if boundary > self.mark.offset:
                self.save_mark(boundary)
        except (OSError, IllegalOffset) as error:
            logger.error(
                "log %s: the mark can't be written: %s; recovery would start further back", self.root, error
            )

    def boundary_below(self, flushed: int, dispatched: int, walk_max: int) -> int:
        """Return a boundary between records at or below a flushed offset.

        A master's own end is one. A slave's end may lie within a record: it takes the last boundary, where
        its mark is near; else where its broker had come before this sync or the last one, if the record that
        begins there is whole; else the start of the last file.

        Args:
            flushed, dispatched: see `advance_mark`.
            walk_max: how far from the mark records may be counted off.
        """
        if not self.replicated:
            return flushed
        read, known = self.flush_segments.read, max(self.begin, self.mark.offset)
        if flushed - known <= walk_max:
            walk = Walk(read, known, flushed, self.file_size)
            while walk.next_chunk() is not None:
                pass
            return walk.position
        for place in (dispatched, self.dispatched):
            if known < place < flushed and is_boundary(read, place, self.file_size):
                return place
        return max(self.begin, self.segments.start_of(flushed - 1))

    def save_mark(self, boundary: int) -> None:
        """Write the log's mark, its `check` at least 64 MiB behind, and the checkpoint's log time."""
        self.boundaries.append(boundary)
        while len(self.boundaries) > 1 and self.boundaries[1] <= boundary - CHECK_BYTES:
            self.boundaries.pop(0)
        self.mark.offset, self.mark.check = boundary, max(self.begin, self.boundaries[0])
        self.mark.save(self.root, self.files)
        stored_ms = self.store_time_ms
        if self.replicated and boundary > self.begin:
            stored_ms = store_time_at(self.flush_segments.read, self.segments.start_of(boundary - 1))
        if stored_ms:
            write_checkpoint(self.root, log_ms=stored_ms, files=self.files)

    def run_retention(self, now_ms: int) -> int:
        """Remove files that are old enough, or whose room a filling disk needs; never the one being written.

        Returns:
            How many were removed.
        """
        self.measure_disk()
        if self.full_reason and free_bytes(self.files, self.segments.directory) >= self.file_size:
            self.full_reason = ""  # without an append, nothing else would notice
        current = self.segments.start_of(max(self.end - 1, 0))
        if self.failed:  # what is not flushed is being written again, under its name
            current = min(current, self.segments.start_of(self.flushed))
        removal = expired_segments(
            self.segments.directory,
            [start for start in self.segments.starts if start < current],
            now_ms,
            self.machine.monotonic(),
            self.retention_clock,
            self.disk,
            self.kept_options,
            self.files,
        )
        if removal.starts and self.before_removal is not None:
            needed = self.before_removal(removal.starts[-1] + self.file_size)
            removal = removal.below(needed, self.file_size)
        doomed = removal.starts
        if not doomed:
            return 0
        if removal.young:
            logger.warning(
                "log %s: the disk is %.0f%% full, and %d files go that are not old enough: %d bytes",
                self.root,
                self.disk.ratio * 100,
                len(removal.young),
                len(removal.young) * self.file_size,
            )
            if self.before_dropping is not None:
                self.before_dropping(removal.young[0], removal.young[-1] + self.file_size)
        self.begin = doomed[-1] + self.file_size
        self.page.begin = self.begin  # before the files are removed: readers check it first
        self.segments.drop_below(self.begin)
        for start in doomed:
            self.files.unlink(self.segments.directory / segment_name(start), missing_ok=True)
            self.files.sync_directory(self.segments.directory)  # one by one: no gap after a power loss
        logger.info("log %s: begins at %d after removing %d files", self.root, self.begin, len(doomed))
        return len(doomed)

    def kept_until_ms(self, offset: int) -> int | None:
        """Return until when the file with an offset of the log is too young to be removed, in epoch
        milliseconds; None for the one that is being written.

        Raises:
            OSError: the file is not there.
        """
        start = self.segments.start_of(offset)
        if start >= self.segments.start_of(max(self.end - 1, 0)):
            return None
        changed = changed_ms(self.segments.directory, start, self.files)
        return changed + int(self.kept_options.reserved_hours * MS_PER_HOUR)

    def measure_disk(self) -> None:
        """Measure how full the disk is: at the start, with each new file, at each round of retention, and
        every `RETRY_ALLOCATE_S` for appends that are refused for it."""
        now = self.machine.monotonic()
        self.disk = DiskUse.of(self.segments.directory, self.files)
        self.disk_trend.look(self.disk, now)
        self.disk_retry_at = now + RETRY_ALLOCATE_S

    @property
    def kept_options(self) -> StoreOptions:
        """The options, with the settings of retention that keep longest of those that `retentions` names."""
        return keep_longer(self.options, self.retentions())

    @property
    def disk_refusal(self) -> str:
        """Why the disk's fill level, as last measured, forbids writing; "" when it does not."""
        if self.disk.ratio > self.options.disk_full_ratio:
            return (
                f"the disk is {self.disk.ratio:.0%} full, the limit is {self.options.disk_full_ratio:.0%}; "
                f"{FULL_ADVICE}"
            )
        return ""

    def close(self, *, clean: bool = True) -> None:
        """Stop and unlock; `clean` flushes, moves the mark to the end, and removes `abort` for the next
        start."""
        self.preallocator.stop()
        self.flusher.stop()
        if clean and not self.failed:
            self.flush()
        with self.flush_lock:
            if clean and not self.failed:
                self.page.written = self.end
                self.finish()
            for segment in self.sealed:
                segment.close()
            if self.segment is not None:
                self.segment.close()
            if self.failure is not None and self.failure.current is not None:
                self.failure.current.close()
            self.sealed.clear()
            self.segment = None
        self.segments.close()
        self.flush_segments.close()
        self.page.close()
        self.lock.release()

    def finish(self) -> None:
        """Let the next start trust this stop; where the disk does not take that, it is as after a crash."""
        try:
            self.save_mark(self.boundary_below(self.flushed, self.page.dispatched, self.flushed))
            self.files.unlink(self.root / "abort", missing_ok=True)
        except (OSError, IllegalOffset) as error:
            logger.error(
                "log %s: the last mark can't be written: %s; the next start verifies more", self.root, error
            )
