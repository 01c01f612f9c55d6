"""A rule-based machine over the store against a model in memory: nothing acknowledged is lost, moved or
doubled.

Kills leave the files as they are (the page cache survives a killed process); a tear makes zeros of the log's
last bytes beyond what was flushed, and of nothing else.

The same machine runs on a simulated disk, with its threads in turns. There the power goes, too, the kernel
writes pages back as it likes, the disk is full for a while, and after every step what the store says is
flushed is compared with what the disk would have after a power loss.

Each also runs where only two of the four queues may be mapped at a time.
"""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.disk import File
from sim.machine import SimHost
from sim.scheduler import Scheduler
from whimbrel.errors import IllegalOffset, MessageTooLarge, NotWritable, StoreError, StoreFull
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.store import mapped_queues
from whimbrel.store.codec import RecordDraft, decode_record, format_properties, pack_host
from whimbrel.store.master_store import Appended, MasterStore
from whimbrel.store.options import StoreOptions

OPTIONS = StoreOptions(
    commitlog_file_size=64 * 1024,
    consumequeue_file_size=200,
    index_slots=7,
    index_entries=12,
    flush_interval_ms=3_600_000,
    prefault_bytes=0,
)
BORN, STORE = pack_host("127.0.0.1", 1), pack_host("127.0.0.1", 2)
TOPICS = ("a", "b")
KEYS = ("k1", "k2", "k3")
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
DERIVED = ("*/consumequeue/*", "*/index/*", "*/index")
SYNCED = ("*/commitlog/*", "*/commitlog", "*-mark", *DERIVED)


def draft(topic: str, queue_id: int, size: int, key: str, sys_flag: int, serial: int) -> RecordDraft:
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=queue_id,
        body=serial.to_bytes(8, "big") * (size // 8),
        properties=format_properties([("KEYS", key), ("UNIQ_KEY", f"u{serial}"), ("TAGS", f"t{serial % 3}")]),
        born_timestamp=serial,
        born_host=BORN,
        store_host=STORE,
        sys_flag=sys_flag,
    )


def remove_tree(files: Files, path: Path) -> None:
    if not files.exists(path):
        return
    try:
        names = files.listdir(path)
    except NotADirectoryError:
        files.unlink(path)
        return
    for name in names:
        remove_tree(files, path / name)
    files.rmdir(path)


class StoreMachine(RuleBasedStateMachine):
    """The model is a list of what was appended, in order.

    Attributes:
        mapped_max: so many queues may be mapped.
    """

    mapped_max = mapped_queues.MAPPED_QUEUES_MAX

    def __init__(self) -> None:
        super().__init__()
        self.machine: Machine = MACHINE
        self.root = self.make_root()
        self.now = 1_700_000_000_000
        self.serial = 0
        self.appended: list[tuple[RecordDraft, Appended]] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.arrivals: list[tuple[str, int, int, int]] = []

    def make_root(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="whimbrel-machine-"))

    @initialize()
    def open(self) -> None:
        with mock.patch.object(mapped_queues, "MAPPED_QUEUES_MAX", self.mapped_max):
            self.store = MasterStore.open(self.root, OPTIONS, clock=lambda: self.now, machine=self.machine)
        self.store.on_arrival = lambda *arrival: self.arrivals.append(arrival)

    def stop_hard(self) -> None:
        self.store.close(clean=False)

    @contextlib.contextmanager
    def refused_without_room(self) -> Iterator[None]:
        """Where nothing is ever full, nothing is refused."""
        yield

    def make(self, topic: str, queue_id: int, size: int, key: str, sys_flag: int) -> RecordDraft:
        self.serial += 1
        return draft(topic, queue_id, size, key, sys_flag, self.serial)

    def note(self, made: RecordDraft, answer: Appended) -> None:
        last = self.appended[-1][1].end if self.appended else 0
        assert answer.physical_offset >= last
        assert answer.end == answer.physical_offset + answer.size
        if made.sys_flag in (0, COMMIT):
            key = (made.topic, made.queue_id)
            assert answer.queue_offset == self.ends.get(key, 0)
            self.ends[key] = answer.queue_offset + 1
        self.appended.append((made, answer))

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.integers(0, 1),
        size=st.sampled_from([0, 8, 100, 3000, 30_000]),
        key=st.sampled_from(KEYS),
        sys_flag=st.sampled_from([0, 0, 0, PREPARED, COMMIT, ROLLBACK]),
        tick=st.integers(0, 1500),
    )
    def append(self, topic: str, queue_id: int, size: int, key: str, sys_flag: int, tick: int) -> None:
        self.now += tick
        made = self.make(topic, queue_id, size, key, sys_flag)
        with self.refused_without_room():
            self.note(made, self.store.append([made])[0])

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 25), size=st.sampled_from([8, 600, 2000]))
    def append_batch(self, topic: str, count: int, size: int) -> None:
        batch = [self.make(topic, 0, size, KEYS[number % 3], 0) for number in range(count)]
        with self.refused_without_room():
            answers = self.store.append(batch)
            for number, answer in enumerate(answers[1:]):
                assert answer.physical_offset == answers[number].end
            for made, answer in zip(batch, answers, strict=True):
                self.note(made, answer)

    @rule()
    def refuse_what_fits_no_file(self) -> None:
        with self.refused_without_room(), pytest.raises(MessageTooLarge):
            self.store.append([self.make("a", 0, 64 * 1024, "k1", 0)])

    @rule()
    def tick(self) -> None:
        self.store.end_tick()

    @rule()
    def flush(self) -> None:
        self.store.writer.flush()
        assert self.store.flushed == self.store.written

    @rule()
    def save_mark(self) -> None:
        self.store.save_mark()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        assert not self.machine.files.exists(self.root / "abort")
        self.open()

    @rule()
    def kill(self) -> None:
        self.stop_hard()
        assert self.machine.files.exists(self.root / "abort")
        self.open()

    @rule(what=st.sampled_from(["queue-mark", "log-mark", "queues", "index", "one-queue", "checkpoint"]))
    def lose_what_can_be_derived(self, what: str) -> None:
        self.stop_hard()
        paths = {"queues": "consumequeue", "one-queue": "consumequeue/a/0"}
        remove_tree(
            self.machine.files,
            self.root / paths.get(what, f"whimbrel/{what}" if what.endswith("mark") else what),
        )
        self.open()

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        """The last bytes of the log never reached the disk; everything behind the tear goes."""
        flushed, end = self.store.flushed, self.store.written
        self.stop_hard()
        files = self.machine.files
        last = self.appended[-1][1]
        if flushed < last.end:
            at = data.draw(st.integers(max(flushed, last.physical_offset), last.end - 1))
            start = at - at % OPTIONS.commitlog_file_size
            fd = files.open(self.root / "commitlog" / f"{start:020d}", os.O_RDWR)
            torn = files.pread(fd, last.end - at, at - start)
            files.pwrite(fd, bytes(len(torn)), at - start)
            files.close(fd)
            if torn.strip(b"\0") and last.end == end:
                made, answer = self.appended.pop()
                if made.sys_flag in (0, COMMIT):
                    self.ends[(made.topic, made.queue_id)] = answer.queue_offset
                end_now = self.appended[-1][1].end if self.appended else 0
                self.open()
                if self.store.written == start and answer.physical_offset == start:
                    return  # the blank before it is whole: the log ends at the begin of the next file
                assert self.store.written == end_now
                return
        self.open()

    @invariant()
    def no_more_queues_are_mapped_than_may_be(self) -> None:
        mapped = {queue for queue in self.store.queues if queue.mapped is not None}
        assert mapped == set(self.store.mapped_queues.mapped)
        assert len(mapped) <= self.mapped_max

    @invariant()
    def every_message_is_in_its_queue(self) -> None:
        if self.store.stall_reason:
            return
        self.check_messages(40)

    def check_messages(self, newest: int) -> None:
        queued = [pair for pair in self.appended if pair[0].sys_flag in (0, COMMIT)]
        for key, end in self.ends.items():
            if end:
                assert self.store.queue_range(*key) == (0, end)
        for made, answer in queued[-newest:] + queued[:5]:
            (unit,) = self.store.queue_units(made.topic, made.queue_id, answer.queue_offset, 1)
            wanted = (answer.physical_offset, answer.size, made.tags_code)
            assert unit == wanted, f"entry {answer.queue_offset} of {made.topic} {made.queue_id}"
            message = decode_record(self.store.read(answer.physical_offset, answer.size))
            assert (message.body, message.properties_raw) == (made.body, made.properties)
            assert message.queue_offset == answer.queue_offset
        end = self.appended[-1][1].end if self.appended else 0
        assert self.store.written in (end, end + -end % OPTIONS.commitlog_file_size)
        with pytest.raises(IllegalOffset):
            self.store.read(self.store.written, 100)

    @rule(key=st.sampled_from(KEYS), topic=st.sampled_from(TOPICS))
    def find_by_key(self, key: str, topic: str) -> None:
        if self.store.indexer.retry_at:
            return  # it waits for room
        while self.store.end_tick():
            pass
        want = [
            answer.physical_offset
            for made, answer in self.appended
            if made.topic == topic and key in made.keys and made.sys_flag != ROLLBACK
        ]
        found = self.store.find_by_key(topic, key, limit=10_000)
        if not self.store.indexer.retry_at:
            assert found == want[::-1]

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def find_by_time(self, data: st.DataObject) -> None:
        made, answer = data.draw(st.sampled_from(self.appended))
        time_ms = answer.store_timestamp + data.draw(st.integers(-1, 1))
        in_queue = [
            other.store_timestamp
            for other_made, other in self.appended
            if (other_made.topic, other_made.queue_id) == (made.topic, made.queue_id)
            and other_made.sys_flag in (0, COMMIT)
        ]
        want = sum(1 for stored_ms in in_queue if stored_ms < time_ms)
        assert self.store.offset_by_time(made.topic, made.queue_id, time_ms) == want

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        if self.machine is MACHINE:
            shutil.rmtree(self.root, ignore_errors=True)


class SimStoreMachine(StoreMachine):
    """The same on a simulated disk.

    Attributes:
        confirmed: the highest offset that the store has said to be flushed.
    """

    def make_root(self) -> Path:
        """Make the machine, too; what is collected when must not change a run."""
        gc.disable()
        self.host = SimHost(Scheduler(0))
        self.host.disk.format("/store")
        self.machine = self.process = self.host.process()
        self.confirmed = 0
        return Path("/store")

    @initialize(seed=st.integers(0, 1 << 32), line_share=st.sampled_from([0.0, 0.0, 0.05]))
    def seed(self, seed: int, line_share: float) -> None:
        self.host.rng.seed(seed)
        self.host.line_share = line_share

    @initialize()
    def open(self) -> None:
        """Open the store; where the disk is full, it may refuse until there is room."""
        disk = self.host.disk
        while True:
            try:
                super().open()
            except (StoreError, StoreFull, OSError):
                if disk.capacity is None:
                    raise
                disk.capacity = None
                self.process.kill()
                self.machine = self.process = self.host.process()
            else:
                return

    def stop_hard(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.machine = self.process = self.host.process()

    @contextlib.contextmanager
    def refused_without_room(self) -> Iterator[None]:
        """A full disk is a reason."""
        try:
            yield
        except StoreFull:
            if self.host.disk.capacity is None:
                raise

    @rule()
    def save_mark(self) -> None:
        """A full disk is a reason."""
        try:
            self.store.save_mark()
        except OSError:
            if self.host.disk.capacity is None:
                raise

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.5, 6.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.host.scheduler.run_until(self.host.scheduler.now + seconds)

    @rule(seconds=st.sampled_from([0.0, 0.002, 0.05]))
    def request_flush(self, seconds: float) -> None:
        self.store.end_tick()
        self.store.request_flush(self.store.written)
        self.let_time_pass(seconds)

    @rule(share=st.sampled_from([0.1, 0.5, 1.0]))
    def write_back(self, share: float) -> None:
        self.host.disk.write_back(share, self.host.rng)

    @rule(pages=st.integers(0, 40))
    def fill_the_disk(self, pages: int) -> None:
        self.host.disk.capacity = self.host.disk.used + pages * 4096

    @rule()
    def make_room(self) -> None:
        self.host.disk.capacity = None
        self.let_time_pass(2.0)

    @rule(share=st.sampled_from([None, None, None, 0.0, 1.0]))
    def power_loss(self, share: float | None) -> None:
        """All processes die, and what was not synced is lost, as drawn."""
        self.host.power_loss(share=share)
        self.machine = self.process = self.host.process()
        self.open()
        self.follow_loss()
        if not self.store.stall_reason:
            self.check_messages(len(self.appended))
            for topic in TOPICS:
                for key in KEYS:
                    self.find_by_key(key=key, topic=topic)

    def follow_loss(self) -> None:
        """What was confirmed is there, and a first part of the rest."""
        end = self.store.written
        assert end >= self.confirmed, f"the log ends at {end}, and was flushed to {self.confirmed}"
        self.appended = [pair for pair in self.appended if pair[1].end <= end]
        self.ends = {}
        for made, answer in self.appended:
            if made.sys_flag in (0, COMMIT):
                self.ends[(made.topic, made.queue_id)] = answer.queue_offset + 1

    @invariant()
    def flushed_is_durable(self) -> None:
        """Attribute and cell of the page."""
        flushed, size = self.store.flushed, OPTIONS.commitlog_file_size
        assert self.store.page.flushed <= flushed <= self.store.written
        self.confirmed = max(self.confirmed, flushed)
        for start in range(0, flushed, size):
            path, end = self.root / "commitlog" / f"{start:020d}", min(size, flushed - start)
            durable = self.host.disk.durable(path)
            assert durable is not None, f"{path} is flushed, and its name is not durable"
            assert durable[:end] == self.host.disk.content(path)[:end], f"{path} is not on disk up to {end}"

    def teardown(self) -> None:
        """Nothing is left but memory."""
        self.process.kill()
        gc.enable()


class FailingSimStoreMachine(SimStoreMachine):
    """The same on a disk that refuses syncs now and then: of the log, of queues, index and marks.

    A process that is killed after that may find pages read again from the medium: what they held since was
    not confirmed.
    """

    def make_root(self) -> Path:
        """Pages are evicted between two processes only: what a running one has written it can read."""
        root = super().make_root()
        self.host.may_evict = lambda node: None  # type: ignore[method-assign]
        return root

    @initialize()
    def open(self) -> None:
        """Open the store; where the disk refuses syncs, it may refuse until that is over."""
        while True:
            try:
                super().open()
            except (StoreError, OSError):
                if not self.host.disk.faults:
                    raise
                self.host.disk.heal()
                self.stop_hard()
            else:
                return

    @contextlib.contextmanager
    def refused_without_room(self) -> Iterator[None]:
        """A refused sync is a reason as well; the store says so until it is over."""
        try:
            with super().refused_without_room():
                yield
        except NotWritable:
            assert self.store.writer.failed
        except StoreFull:
            assert self.host.disk.faults or self.store.mark_writer.doubtful

    @rule(
        path=st.sampled_from(SYNCED),
        nth=st.integers(1, 3),
        times=st.integers(1, 2),
    )
    def refuse_syncs(self, path: str, nth: int, times: int) -> None:
        self.host.disk.inject("sync", path=path, nth=nth, times=times)

    @rule()
    def heal(self) -> None:
        self.host.disk.heal()
        self.store.mend()
        self.let_time_pass(2.0)
        self.store.mend()

    @rule()
    def flush(self) -> None:
        self.store.writer.flush()

    @rule()
    def save_mark(self) -> None:
        with contextlib.suppress(OSError):
            self.store.save_mark()

    @rule()
    def reopen(self) -> None:
        """A store that can't be closed cleanly is killed."""
        try:
            self.store.close()
        except OSError:
            assert self.host.disk.faults
        self.stop_hard()
        self.open()

    @rule(path=st.sampled_from(DERIVED), nth=st.integers(1, 2))
    def refuse_a_mark(self, path: str, nth: int) -> None:
        """What is derived can't be synced; the store goes on, and tries again."""
        self.host.disk.inject("sync", path=path, nth=nth)
        self.save_mark()
        if not self.store.indexer.retry_at:
            self.tick()

    @rule()
    def evict_and_lose_power(self) -> None:
        """A running process finds old pages in its queues: it may vouch for none of them."""
        for path, node in self.host.disk.walk():
            if isinstance(node, File) and "/commitlog/" not in path:
                node.evict(self.host.rng)
        self.save_mark()
        self.power_loss(share=0.0)

    @rule()
    def kill_and_evict(self) -> None:
        self.stop_hard()
        self.host.disk.evict(self.host.rng)
        self.open()
        self.follow_loss()


class NarrowStoreMachine(StoreMachine):
    """The same with two mappings."""

    mapped_max = 2


class NarrowSimStoreMachine(SimStoreMachine):
    """The same with two mappings."""

    mapped_max = 2


class NarrowFailingSimStoreMachine(FailingSimStoreMachine):
    """The same with two mappings."""

    mapped_max = 2


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)

TestSimStoreMachine = SimStoreMachine.TestCase
TestSimStoreMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

TestFailingSimStoreMachine = FailingSimStoreMachine.TestCase
TestFailingSimStoreMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

TestNarrowStoreMachine = NarrowStoreMachine.TestCase
TestNarrowStoreMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)

TestNarrowSimStoreMachine = NarrowSimStoreMachine.TestCase
TestNarrowSimStoreMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)

TestNarrowFailingSimStoreMachine = NarrowFailingSimStoreMachine.TestCase
TestNarrowFailingSimStoreMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
