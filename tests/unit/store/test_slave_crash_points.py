"""The replicator of a slave is killed, or the power goes, at every k-th system call.

What is promised is that the next start goes through, that the log holds the master's bytes at least up to the
last whole record of what was flushed, hence reported, and that broker and replicator go on from there.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sim.machine import SimHost
from sim.scheduler import Scheduler
from support.store.crash_points import STRIDE, CrashScene, crash_everywhere
from support.store.stores import FILE, OPTIONS, make_draft
from whimbrel.errors import StoreError
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.master_store import MasterStore
from whimbrel.store.slave_store import SlaveStore

ROOT = Path("/store")
SMALL = replace(OPTIONS, consumequeue_file_size=400, index_slots=20, index_entries=80)
PIECE = 9000  # bytes that come in at once: two records and a part of the third
RECORDS = 40


def make_master() -> tuple[bytes, list[tuple[int, int]]]:
    """Return a master's log, and (begin, end) of its records."""
    host = SimHost(Scheduler(0))
    host.disk.format(ROOT)
    process = host.process()
    store = MasterStore.open(ROOT, SMALL, clock=process.wall_ms, machine=process)
    places = []
    for number in range(RECORDS):
        (answer,) = store.append([make_draft(number, size=4000)])
        places.append((answer.physical_offset, answer.end))
    log = b"".join(store.read_log(start, FILE) for start in range(0, store.written, FILE))[: store.written]
    process.kill()
    return log, places


LOG, PLACES = make_master()


class SlaveScene(CrashScene):
    """A slave's store, its replicator and its broker in one process.

    Attributes:
        confirmed: what was flushed at any time.
    """

    def __init__(self, seed: int) -> None:
        names = ("commitlog", "consumequeue", "index", "whimbrel")
        super().__init__(seed, ROOT, *(ROOT / name for name in names))
        self.confirmed = 0

    def open(self, *, set_aside: bool = False) -> None:
        process = self.revive()
        self.log = LogWriter.open(ROOT, SMALL, machine=process, set_aside=set_aside)
        self.slave = SlaveStore.open(ROOT, SMALL, machine=process)

    def receive(self, end: int) -> None:
        log = self.log
        while log.end < end:
            step = min(PIECE, end - log.end, FILE - log.end % FILE)
            log.append_raw(log.end, LOG[log.end : log.end + step])
            log.publish()
            while self.slave.dispatch_ready(50_000):
                pass

    def flush(self) -> None:
        self.log.flush()
        self.confirmed = max(self.confirmed, self.log.flushed)

    def close(self) -> None:
        self.slave.close()
        self.log.close()

    def check(self) -> None:
        """Open it again; what was flushed is there, and the rest comes again."""
        self.open()
        whole = max([end for _, end in PLACES if end <= self.confirmed], default=0)
        assert self.log.end >= whole, f"the log ends at {self.log.end}, flushed was {self.confirmed}"
        self.receive(len(LOG))
        self.check_all()

    def check_all(self) -> None:
        assert self.log.read(0, FILE) == LOG[:FILE]
        assert self.log.read(len(LOG) - 9000, 9000) == LOG[-9000:]
        assert self.slave.queue_range("topic", 0) == (0, RECORDS)
        assert [place for place, _, _ in self.slave.queue_units("topic", 0, 0, RECORDS)] == [
            begin for begin, _ in PLACES
        ]
        for number, (begin, _) in enumerate(PLACES):
            assert self.slave.find_by_key("topic", f"key-{number}") == [begin], number
        self.close()


def half(scene: SlaveScene) -> None:
    """A part is received and flushed, up to within a record shortly before a file's end."""
    scene.open()
    scene.receive(FILE - 20_000)
    scene.flush()


def received_and_killed(scene: SlaveScene) -> None:
    half(scene)
    scene.receive(2 * FILE + 30_000)
    scene.process.kill()


def received_and_lost(scene: SlaveScene) -> None:
    half(scene)
    scene.receive(2 * FILE + 30_000)
    scene.host.power_loss(share=0.0)


def received_and_closed(scene: SlaveScene) -> None:
    half(scene)
    scene.receive(2 * FILE + 30_000)
    scene.flush()
    scene.close()
    scene.process.kill()


@pytest.mark.parametrize("before", [received_and_killed, received_and_lost, received_and_closed])
def test_opening(before: Callable[[SlaveScene], None]) -> None:
    print("calls:", crash_everywhere(SlaveScene, before, SlaveScene.open, SlaveScene.check, stride=STRIDE))


def test_receiving_over_a_files_end_with_the_marks() -> None:
    def act(scene: SlaveScene) -> None:
        scene.receive(FILE - 5_000)
        scene.log.request_flush(scene.log.end)
        scene.pass_time(6.0)
        scene.receive(FILE + 20_000)
        scene.pass_time(6.0)
        scene.flush()
        scene.slave.advance_mark()
        scene.pass_time(0.1)

    print("calls:", crash_everywhere(SlaveScene, half, act, SlaveScene.check, stride=STRIDE))


def test_closing() -> None:
    def act(scene: SlaveScene) -> None:
        scene.receive(FILE + 20_000)
        scene.close()

    print("calls:", crash_everywhere(SlaveScene, half, act, SlaveScene.check, stride=STRIDE))


def test_setting_a_damaged_tail_aside() -> None:
    """As `whimbrel store repair --set-aside` does it: what was behind comes from the master again."""

    def damaged(scene: SlaveScene) -> None:
        received_and_closed(scene)
        scene.host.disk.flip(ROOT / "commitlog" / f"{FILE:020d}", 8 * 20_000)
        scene.confirmed = FILE

    def check(scene: SlaveScene) -> None:
        try:
            scene.open()
        except StoreError:
            scene.process.kill()
            scene.open(set_aside=True)
        kept = scene.process.files.names(ROOT / "whimbrel" / "cut")
        assert kept, "what was cut is kept"
        scene.receive(len(LOG))
        scene.check_all()

    print(
        "calls:",
        crash_everywhere(SlaveScene, damaged, lambda scene: scene.open(set_aside=True), check, stride=STRIDE),
    )
