"""Timer log, wheel and check: bytes, chains, and what a crash leaves."""

from pathlib import Path

import pytest

from whimbrel.errors import StoreError
from whimbrel.machine import FILES
from whimbrel.store.codec import java_hash
from whimbrel.store.timer_files import TimerFiles
from whimbrel.store.timer_layout import (
    DELETE,
    ORDINARY,
    ROLL,
    ROLL_WINDOW_MS,
    SECOND_MS,
    TAIL_SIZE,
    UNIT_SIZE,
    WHEEL_SIZE,
    Check,
    out_time,
    placed,
    slot_position,
)

NOW = 1_795_336_272_000  # W of the recording
DUE = 1_795_336_275_000
DAY = 86_400_000
SMALL = 10 * UNIT_SIZE + TAIL_SIZE - 1  # ten units, and 67 bytes


def opened(root: Path, **options: int) -> TimerFiles:
    return TimerFiles(root, FILES, **options)


def flushed(files: TimerFiles, read_ms: int = NOW, queue_offset: int = 0) -> None:
    flush = files.begin_flush(read_ms, queue_offset, NOW, {})
    assert flush is not None
    flush.run()
    files.end_flush(flush)


def chain(files: TimerFiles, time_ms: int) -> list[int]:
    """Return the places of a slot's units, the newest first."""
    slot = files.slot(time_ms)
    position = -1 if slot is None else slot.last
    places = []
    while position >= 0:
        unit = files.unit(position)
        places.append(unit.place)
        position = unit.previous
    return places


def test_the_files_have_the_bytes_of_a_recording(tmp_path: Path) -> None:
    """Checklist 26: units, slot and check of a RocketMQ 5.3.3."""
    files = opened(tmp_path)
    files.append(DUE, NOW, ORDINARY, 0x80A, 0x189, java_hash("DelayT"))
    files.append(DUE, NOW, ORDINARY, 0x993, 0x185, java_hash("MixT"))
    files.append(DUE, NOW, ORDINARY, 0xB18, 0x185, java_hash("MixT"))
    check = Check(0x1A2026550E0, 0x4AC, 0x17, 0x17, 0x1A202655431, 0xE1)
    flushed(files)

    log = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert len(log) == 104857600
    first, second = (
        "00000034ffffffffffffffff00000001000001a20261788000000bb8000000000000080a0000018979cb6351"
        "0000000000000000",
        "00000034000000000000000000000001000001a20261788000000bb800000000000009930000018500249998"
        "0000000000000000",
    )
    assert log[:104].hex() == first + second
    wheel = (tmp_path / "timerwheel").read_bytes()
    assert len(wheel) == WHEEL_SIZE == 38707200
    assert slot_position(DUE) == 9276000
    expected = "000000006b02a853000000000000000000000000000000680000000300000000"
    assert wheel[9276000:9276032].hex() == expected
    assert (tmp_path / "timerwheel").stat().st_blocks * 512 < 1 << 20  # it is a hole
    text = (
        "000001a2026550e000000000000004ac000000000000001700000000000000170000000000000000"
        "000001a20265543100000000000000e1"
    )
    assert check.pack().hex() == text + "00" * (4096 - 56)
    assert Check.unpack(check.pack()) == check
    files.close()


@pytest.mark.parametrize(("due", "out"), [(1795336275150, 1795336275000), (1795336275000, 1795336274000)])
def test_the_slot_of_a_whole_second_is_the_one_before(due: int, out: int) -> None:
    """Checklist 22."""
    assert out_time(due) == out


def test_a_message_far_ahead_is_put_where_it_rolls() -> None:
    """Checklist 34: after 2 days at most, and not with a short rest behind."""
    window = ROLL_WINDOW_MS
    assert window == 2 * DAY
    assert placed(NOW + 2 * DAY - 1000, NOW, NOW, window) == (NOW + 2 * DAY - 1000, 0)
    assert placed(NOW + 2 * DAY, NOW, NOW, window) == (NOW + DAY, ROLL)
    assert placed(NOW + 3 * DAY, NOW, NOW, window) == (NOW + 2 * DAY, ROLL)
    assert placed(NOW - 5000, NOW, NOW - 1000, window) == (NOW - 1000, 0)


def test_units_of_a_slot_are_a_chain_and_recalls_count_less(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for number in range(5):
        files.append(DUE + number % 2 * SECOND_MS, NOW, ORDINARY, 100 * number, 90, 1)
    files.append(DUE, NOW, ORDINARY | DELETE, 500, 90, 1)
    assert chain(files, DUE) == [500, 400, 200, 0]
    assert chain(files, DUE + SECOND_MS) == [300, 100]
    slot = files.slot(DUE)
    assert slot is not None and slot.messages == 2
    assert files.slot(DUE + 2 * SECOND_MS) is None
    flushed(files)
    assert chain(files, DUE) == [500, 400, 200, 0]
    assert files.next_used(NOW, NOW + 60_000) == DUE
    assert files.next_used(DUE + 2 * SECOND_MS, NOW + 60_000) == NOW + 60_000
    assert files.slot(DUE + 1_209_600_000) is None  # the same slot, two weeks later
    files.close()


def test_a_file_ends_with_a_blank_and_chains_go_on_in_the_next(tmp_path: Path) -> None:
    files = opened(tmp_path, file_size=SMALL)
    for number in range(25):
        files.append(DUE, NOW, ORDINARY, 100 * number, 90, 1)
    assert files.starts == [0, SMALL, 2 * SMALL]
    end = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()[520:536]
    assert end.hex() == f"{SMALL - 520:08x}" + "0" * 16 + "cbd43194"
    assert chain(files, DUE) == [100 * number for number in reversed(range(25))]
    for number in range(25):
        position = files.first_from(100 * number - 99)
        assert files.unit(position).place == 100 * number and files.first_from(100 * number) == position
    assert files.first_from(2401) == files.end
    flushed(files)
    files.cut(1200)
    assert chain(files, DUE) == [100 * number for number in reversed(range(12))]
    assert files.starts == [0, SMALL]
    assert files.expire(950) == 1 and files.starts == [SMALL]
    assert files.first_from(0) == SMALL and files.first_from(1101) == files.end
    files.close()


def test_what_a_crash_left_beyond_the_check_is_undone(tmp_path: Path) -> None:
    """Slots that were written with units behind the check name those before it again."""
    files = opened(tmp_path, file_size=SMALL)
    files.append(DUE, NOW, ORDINARY, 0, 90, 1)
    files.append(DUE, NOW, ORDINARY, 100, 90, 1)
    flushed(files, queue_offset=2)
    for number in range(2, 15):
        files.append(DUE + number % 2 * SECOND_MS, NOW, ORDINARY, 100 * number, 90, 1)
    flush = files.begin_flush(NOW, 4, NOW, {})
    assert flush is not None
    flush.check = Check(NOW, 104, 2, 2, NOW, 1)  # the slots are on disk, and the next check is not
    flush.run()
    files.close()

    again = opened(tmp_path, file_size=SMALL)
    assert again.load(10_000)
    assert again.end == 104
    assert chain(again, DUE) == [100, 0] and chain(again, DUE + SECOND_MS) == []
    assert again.starts == [0]
    assert (tmp_path / "timerlog" / f"{0:020d}").read_bytes()[104:] == bytes(SMALL - 104)
    assert again.check is not None and again.check.queue_offset == 2
    again.close()


def test_units_of_records_beyond_the_logs_end_are_undone(tmp_path: Path) -> None:
    files = opened(tmp_path, file_size=SMALL)
    for number in range(5):
        files.append(DUE, NOW, ORDINARY, 100 * number, 90, 1)
    flushed(files, queue_offset=5)
    files.close()
    again = opened(tmp_path, file_size=SMALL)
    assert again.load(300)
    assert again.last_place == 200 and chain(again, DUE) == [200, 100, 0]
    again.close()


def test_files_that_do_not_fit_together_go(tmp_path: Path) -> None:
    files = opened(tmp_path, file_size=SMALL)
    files.append(DUE, NOW, ORDINARY, 0, 90, 1)
    flushed(files)
    files.close()
    (tmp_path / "timerlog" / f"{0:020d}").unlink()
    again = opened(tmp_path, file_size=SMALL)
    assert not again.load(1000)
    assert not (tmp_path / "timerwheel").exists() and not (tmp_path / "config" / "timercheck").exists()
    with pytest.raises(StoreError):
        again.unit(0)
