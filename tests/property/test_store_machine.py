"""A rule-based machine over the store against a model in memory: nothing acknowledged is lost, moved or
doubled.

Kills leave the files as they are (the page cache survives a killed process); a tear makes zeros of the log's
last bytes beyond what was flushed, and of nothing else.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from whimbrel.errors import IllegalOffset, MessageTooLarge
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


class StoreMachine(RuleBasedStateMachine):
    """The model is a list of what was appended, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="whimbrel-machine-"))
        self.now = 1_700_000_000_000
        self.serial = 0
        self.appended: list[tuple[RecordDraft, Appended]] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.arrivals: list[tuple[str, int, int, int]] = []

    @initialize()
    def open(self) -> None:
        self.store = MasterStore.open(self.root, OPTIONS, clock=lambda: self.now)
        self.store.on_arrival = lambda *arrival: self.arrivals.append(arrival)

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
        self.note(made, self.store.append([made])[0])

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 25), size=st.sampled_from([8, 600, 2000]))
    def append_batch(self, topic: str, count: int, size: int) -> None:
        batch = [self.make(topic, 0, size, KEYS[number % 3], 0) for number in range(count)]
        answers = self.store.append(batch)
        for number, answer in enumerate(answers[1:]):
            assert answer.physical_offset == answers[number].end
        for made, answer in zip(batch, answers, strict=True):
            self.note(made, answer)

    @rule()
    def refuse_what_fits_no_file(self) -> None:
        with pytest.raises(MessageTooLarge):
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
        assert not (self.root / "abort").exists()
        self.open()

    @rule()
    def kill(self) -> None:
        self.store.close(clean=False)
        assert (self.root / "abort").exists()
        self.open()

    @rule(what=st.sampled_from(["queue-mark", "log-mark", "queues", "index", "one-queue", "checkpoint"]))
    def lose_what_can_be_derived(self, what: str) -> None:
        self.store.close(clean=False)
        if what == "queues":
            shutil.rmtree(self.root / "consumequeue", ignore_errors=True)
        elif what == "index":
            shutil.rmtree(self.root / "index", ignore_errors=True)
        elif what == "one-queue":
            shutil.rmtree(self.root / "consumequeue" / "a" / "0", ignore_errors=True)
        elif what == "checkpoint":
            (self.root / what).unlink(missing_ok=True)
        else:
            (self.root / "whimbrel" / what).unlink(missing_ok=True)
        self.open()

    @precondition(lambda self: self.appended)
    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        """The last bytes of the log never reached the disk; everything behind the tear goes."""
        flushed, end = self.store.flushed, self.store.written
        self.store.close(clean=False)
        last = self.appended[-1][1]
        if flushed < last.end:
            at = data.draw(st.integers(max(flushed, last.physical_offset), last.end - 1))
            start = at - at % OPTIONS.commitlog_file_size
            with (self.root / "commitlog" / f"{start:020d}").open("r+b") as file:
                file.seek(at - start)
                torn = file.read(last.end - at)
                file.seek(at - start)
                file.write(bytes(len(torn)))
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
    def every_message_is_in_its_queue(self) -> None:
        queued = [pair for pair in self.appended if pair[0].sys_flag in (0, COMMIT)]
        for key, end in self.ends.items():
            if end:
                assert self.store.queue_range(*key) == (0, end)
        for made, answer in queued[-40:] + queued[:5]:
            (unit,) = self.store.queue_units(made.topic, made.queue_id, answer.queue_offset, 1)
            assert unit == (answer.physical_offset, answer.size, made.tags_code)
            message = decode_record(self.store.read(answer.physical_offset, answer.size))
            assert (message.body, message.properties_raw) == (made.body, made.properties)
            assert message.queue_offset == answer.queue_offset
        end = self.appended[-1][1].end if self.appended else 0
        assert self.store.written in (end, end + -end % OPTIONS.commitlog_file_size)
        with pytest.raises(IllegalOffset):
            self.store.read(self.store.written, 100)

    @rule(key=st.sampled_from(KEYS), topic=st.sampled_from(TOPICS))
    def find_by_key(self, key: str, topic: str) -> None:
        while self.store.end_tick():
            pass
        want = [
            answer.physical_offset
            for made, answer in self.appended
            if made.topic == topic and key in made.keys and made.sys_flag != ROLLBACK
        ]
        assert self.store.find_by_key(topic, key, limit=10_000) == want[::-1]

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
        shutil.rmtree(self.root, ignore_errors=True)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
