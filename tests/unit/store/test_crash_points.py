"""The process is killed, or the power goes, at every k-th system call: the store opens again with what was
flushed.

What is promised is that the next start goes through, that what was flushed can be read, and is in its queue
and under its keys, and that of the rest a first part is left.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.store.crash_points import STRIDE, CrashScene, crash_everywhere
from support.store.stores import FILE, OPTIONS, make_draft
from whimbrel.store import jsonconfig
from whimbrel.store.codec import decode_record
from whimbrel.store.master_store import Appended, MasterStore

ROOT = Path("/store")
SMALL = replace(OPTIONS, consumequeue_file_size=200, index_slots=7, index_entries=20)
BODY = 4000  # 15 messages a file of the log


class Scene(CrashScene):
    """A store on a machine of its own.

    Attributes:
        appended: every message, with its number.
        confirmed: what was flushed when the scene began, or was said to be flushed since.
    """

    def __init__(self, seed: int, *, used: bool = True) -> None:
        """Begin; `used` is whether its directories are on disk."""
        names = ("commitlog", "consumequeue", "index", "whimbrel") if used else ()
        super().__init__(seed, ROOT, *(ROOT / name for name in names))
        self.store: MasterStore | None = None
        self.appended: list[tuple[int, Appended]] = []
        self.confirmed = 0

    def open(self) -> MasterStore:
        process = self.revive()
        self.store = MasterStore.open(ROOT, SMALL, clock=process.wall_ms, machine=process)
        return self.store

    def append(self, count: int, *, size: int = BODY, queue_id: int = 0) -> None:
        assert self.store is not None
        for number in range(len(self.appended), len(self.appended) + count):
            (answer,) = self.store.append([make_draft(number, size=size, queue_id=queue_id)])
            self.appended.append((number, answer))

    def flush(self) -> None:
        assert self.store is not None
        self.store.end_tick()
        self.store.writer.flush()
        self.confirmed = max(self.confirmed, self.store.flushed)

    def check(self) -> None:
        """Open it again and look for everything that was flushed."""
        store = self.open()
        end = store.written
        assert end >= self.confirmed, f"the log ends at {end}, flushed was {self.confirmed}"
        assert store.flushed == end
        kept = [(number, answer) for number, answer in self.appended if answer.end <= end]
        queues: dict[int, int] = {}
        while store.end_tick():
            pass
        store.index_rest()
        for number, answer in kept:
            message = decode_record(store.read(answer.physical_offset, answer.size))
            assert message.body.startswith(b"%08d" % number)
            units = store.queue_units("topic", message.queue_id, answer.queue_offset, 1)
            assert units and units[0][:2] == (answer.physical_offset, answer.size), f"no entry of {number}"
            assert store.find_by_key("topic", f"key-{number}") == [answer.physical_offset], number
            queues[message.queue_id] = answer.queue_offset + 1
        for queue_id, queue_end in queues.items():
            assert store.queue_range("topic", queue_id) == (0, queue_end)
        self.append(2)  # and it goes on
        self.flush()
        store.close()


def crash_store(
    set_up: Callable[[Scene], None],
    act: Callable[[Scene], None],
    check: Callable[[Scene], None] = Scene.check,
    *,
    seeds: int = 1,
    used: bool = True,
    stride: int = 1,
) -> int:
    """Do it for a store."""
    return crash_everywhere(
        lambda seed: Scene(seed, used=used), set_up, act, check, seeds=seeds, stride=stride
    )


def written_and_killed(scene: Scene) -> None:
    """A store with three files of log, a part of it flushed, whose process was killed."""
    scene.open()
    scene.append(15)
    scene.flush()
    scene.append(25, queue_id=1)
    scene.append(5)
    scene.process.kill()


def written_and_lost(scene: Scene) -> None:
    """The same, and the power went: the log ends where it was flushed, with files behind."""
    scene.open()
    scene.append(15)
    scene.flush()
    scene.append(50, queue_id=1)
    scene.host.power_loss(share=0.0)


def written_and_closed(scene: Scene) -> None:
    scene.open()
    scene.append(40)
    scene.flush()
    assert scene.store is not None
    scene.store.close()
    scene.process.kill()


def without_marks(scene: Scene) -> None:
    """As RocketMQ leaves a store."""
    written_and_killed(scene)
    files = scene.host.process().files
    for name in ("log-mark", "queue-mark"):
        files.unlink(ROOT / "whimbrel" / name)
    files.sync_directory(ROOT / "whimbrel")


def reopen(scene: Scene) -> None:
    scene.open()


@pytest.mark.parametrize("before", [written_and_killed, written_and_lost, written_and_closed, without_marks])
def test_opening(before: Callable[[Scene], None]) -> None:
    print("calls:", crash_store(before, reopen, stride=STRIDE))


def test_the_first_opening() -> None:
    def act(scene: Scene) -> None:
        scene.open()
        scene.append(5)
        scene.flush()

    print("calls:", crash_store(lambda scene: None, act, used=False))


def nearly_full(scene: Scene) -> None:
    scene.open()
    scene.append(14)
    scene.flush()
    scene.pass_time(6.0)


def test_a_roll_into_the_next_file() -> None:
    def act(scene: Scene) -> None:
        assert scene.store is not None
        scene.append(10)
        scene.store.end_tick()
        scene.store.request_flush(scene.store.written)
        scene.pass_time(0.05)
        scene.flush()

    print("calls:", crash_store(nearly_full, act))


def test_the_mark_of_the_queues() -> None:
    def act(scene: Scene) -> None:
        assert scene.store is not None
        scene.append(12)
        scene.append(12, queue_id=1)
        scene.store.index_rest()
        scene.store.save_mark()

    print("calls:", crash_store(nearly_full, act))


def test_the_mark_of_the_log() -> None:
    def act(scene: Scene) -> None:
        scene.append(10)
        scene.pass_time(6.0)
        scene.flush()

    print("calls:", crash_store(nearly_full, act))


def test_closing() -> None:
    def act(scene: Scene) -> None:
        assert scene.store is not None
        scene.append(10)
        scene.store.close()

    print("calls:", crash_store(nearly_full, act))


def test_a_changed_config_file_is_the_old_or_the_new_one() -> None:
    path = ROOT / "config" / "topics.json"
    texts = ['{"version":1}', '{"version":2}' + " " * 9000, '{"version":3}']
    done: list[int] = []

    def set_up(scene: Scene) -> None:
        done.clear()
        jsonconfig.save(path, texts[0], scene.process.files)
        scene.process.files.sync_directory(ROOT)

    def act(scene: Scene) -> None:
        for number in (1, 2):
            text = texts[number].encode()
            jsonconfig.save_pieces(path, (text[:6], bytearray(text[6:9]), text[9:]), scene.process.files)
            done.append(number)

    def check(scene: Scene) -> None:
        found, _ = jsonconfig.open_own(path, lambda value: value["version"], scene.host.process().files)
        last = done[-1] if done else 0
        assert found in (last + 1, last + 2)

    print("calls:", crash_store(set_up, act, check, seeds=3))


def test_a_file_made_ahead_that_a_start_removes_is_not_read_under_its_old_descriptor() -> None:
    scene = Scene(0)
    scene.open()
    scene.append(15)
    assert scene.store is not None
    writer = scene.store.writer
    assert writer.segment is not None
    writer.preallocator.wake(writer.segment, writer.end)
    scene.pass_time(1.0)
    assert scene.host.disk.find(ROOT / "commitlog" / f"{FILE:020d}"), "it is made ahead"
    scene.process.kill()
    scene.open()
    scene.append(32)
    for _, answer in scene.appended:
        scene.store.read(answer.physical_offset, answer.size)
