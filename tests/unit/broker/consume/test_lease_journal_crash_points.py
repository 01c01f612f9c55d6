"""The broker is killed, or the power goes, at every k-th system call of the lease journal.

A kill takes back no change whose `append` returned; a power loss takes back none that was synced.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support.store.crash_points import STRIDE, CrashScene, crash_everywhere
from whimbrel.broker.consume.lease_journal import LeaseJournal

ROOT = Path("/store")
FILE_BYTES = 1 << 13
GROUPS = 20
ENTRY_BYTES = 40  # a file is full after some two hundred changes


def entry(group: int, acked: int) -> bytes:
    return b"%08d%08d" % (group, acked) + b"." * (ENTRY_BYTES - 16)


class JournalScene(CrashScene):
    """A broker that acknowledges for some groups.

    Attributes:
        acked: how far, by group.
        done: how far each was when its `append` had returned.
        sure: how far each was at the last sync.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ROOT, ROOT / "whimbrel")
        self.acked = [0] * GROUPS
        self.done = [0] * GROUPS
        self.sure = [0] * GROUPS

    def snapshot(self) -> Iterable[bytes]:
        return [entry(group, acked) for group, acked in enumerate(self.acked)]

    def open(self) -> None:
        self.journal = LeaseJournal(ROOT, file_bytes=FILE_BYTES, machine=self.revive())
        self.acked = [0] * GROUPS
        for chunk in self.journal.load():
            for at in range(0, len(chunk), ENTRY_BYTES):
                group, acked = int(chunk[at : at + 8]), int(chunk[at + 8 : at + 16])
                self.acked[group] = max(self.acked[group], acked)
        self.journal.start(self.snapshot)

    def acknowledge(self, count: int) -> None:
        for number in range(count):
            group = number % GROUPS
            self.journal.append(entry(group, self.acked[group] + 1))
            self.acked[group] += 1
            self.done[group] = self.acked[group]

    def flush(self) -> None:
        before = list(self.acked)
        self.journal.flush()
        if self.journal.settled and not self.journal.failed:
            self.sure = before

    def check(self) -> None:
        self.open()
        wanted = self.sure if self.power_lost else self.done
        assert all(map(int.__ge__, self.acked, wanted)), f"{self.acked} after {wanted}"
        self.acknowledge(300)  # and it goes on
        self.journal.close()
        self.process.kill()
        self.open()
        assert self.acked == self.done


def fresh(scene: JournalScene) -> None:
    """Nothing is there yet."""


def begun(scene: JournalScene) -> None:
    scene.open()
    scene.acknowledge(60)
    scene.flush()


def begun_and_killed(scene: JournalScene) -> None:
    begun(scene)
    scene.acknowledge(30)
    scene.process.kill()


def begun_and_lost(scene: JournalScene) -> None:
    begun(scene)
    scene.acknowledge(30)
    scene.host.power_loss(share=0.5)
    scene.done = list(scene.sure)


def begun_and_closed(scene: JournalScene) -> None:
    begun(scene)
    scene.journal.close()
    scene.process.kill()


@pytest.mark.parametrize("before", [fresh, begun_and_killed, begun_and_lost, begun_and_closed])
def test_opening(before: Callable[[JournalScene], None]) -> None:
    print("calls:", crash_everywhere(JournalScene, before, JournalScene.open, JournalScene.check, seeds=3))


def test_turnover() -> None:
    """Two of them, with syncs by the flushing thread and between."""

    def act(scene: JournalScene) -> None:
        generation = scene.journal.generation
        while scene.journal.generation < generation + 2:
            scene.acknowledge(7)
            scene.pass_time(0.2)
            scene.flush()

    print("calls:", crash_everywhere(JournalScene, begun, act, JournalScene.check, stride=STRIDE))


def test_turnover_after_a_refused_sync() -> None:
    def act(scene: JournalScene) -> None:
        for refused in (1, 2):
            scene.host.disk.heal()
            scene.host.disk.inject("fdatasync", path="*.journal", times=refused)
            for _ in range(6):
                scene.acknowledge(7)
                scene.flush()
                scene.journal.beat()
        scene.flush()

    def check(scene: JournalScene) -> None:
        scene.host.disk.heal()
        scene.check()

    print("calls:", crash_everywhere(JournalScene, begun, act, check, seeds=3, stride=STRIDE))


def test_closing() -> None:
    def act(scene: JournalScene) -> None:
        scene.acknowledge(30)
        scene.journal.close()

    print("calls:", crash_everywhere(JournalScene, begun, act, JournalScene.check, seeds=3))
