"""The files in which messages wait for their time, as bytes: units, slots, and what both stand for.

Pure: no files, no clock. All integers are big-endian, times are epoch milliseconds. A delayed message is a
record of the topic `rmq_sys_wheel_timer`, and a **unit** of 52 bytes in the timer log:

    0   i32  52                                28  i64  physical offset of the record
    4   i64  previous unit of its slot, or -1  36  i32  size of the record
    12  i32  1, | 2 to roll, | 4 to delete     40  i32  Java hash of the topic that it goes to
    16  i64  W, the second of the clock        44  i64  0
    24  i32  time of its slot, less W

The timer log is `timerlog/`, files of 104857600 bytes, named by the position of their first byte. A file ends
where less than 68 bytes are left: i32 these bytes, i64 0, u32 0xCBD43194.

Units that are due in the same second are a chain, the newest first. Where it begins says the **slot** of that
second, 32 bytes of the file `timerwheel`, which has 1209600 of them: slot (t / 1000) mod 1209600.

    0   i64  t / 1000; another number than that of the time asked for: the slot is empty
    8   i64  position of the chain's first unit
    16  i64  position of its last one
    24  i32  how many, recalls counted as -1
    28  i32  0

`config/timercheck` says how far both can be relied on, 4096 bytes:

    0   i64  R: units of earlier slots are done         32  i64  0
    8   i64  position up to which the log is on disk    40  i64  when this was written
    16  i64  messages of the timer topic below it have  48  i64  how often
             their units
    24  i64  the master's, the same on a master

A message that is due at `due` has its slot at **floor(due)**, the whole second, or at one second less where
`due` is one. A slot is read when its second is over: so no message comes early, and none more than a second
late by this. A slot at most some days ahead is used: who waits longer is **rolled**, that is, stored again on
the way, since the log does not keep records for longer.

RocketMQ: TimerLog, TimerWheel, Slot, TimerCheckpoint, TimerMessageStore.
"""

import struct
from typing import NamedTuple

__all__ = [
    "BLANK",
    "CHECK_SIZE",
    "DELETE",
    "LOG_FILE_SIZE",
    "ORDINARY",
    "ROLL",
    "ROLL_WINDOW_MS",
    "SECOND_MS",
    "SLOT",
    "SLOTS",
    "SLOT_SIZE",
    "TAIL_SIZE",
    "UNIT",
    "UNIT_SIZE",
    "WHEEL_SIZE",
    "Check",
    "Slot",
    "TimerUnit",
    "floor_second",
    "out_time",
    "placed",
    "slot_position",
]

SECOND_MS = 1000
UNIT = struct.Struct(">iqiqiqiiq")
UNIT_SIZE = UNIT.size
SLOT = struct.Struct(">qqqii")
SLOT_SIZE = SLOT.size
SLOTS = 1_209_600  # seconds of two weeks
WHEEL_SIZE = SLOTS * SLOT_SIZE
LOG_FILE_SIZE = 100 * 1024 * 1024
BLANK = struct.Struct(">iqI")
BLANK_MAGIC = 0xCBD43194
TAIL_SIZE = UNIT_SIZE + BLANK.size  # with less left, a file ends
CHECK = struct.Struct(">qqqqqqq")
CHECK_SIZE = 4096

ORDINARY, ROLL, DELETE = 1, 2, 4  # bits of a unit's magic
MAGIC_MAX = 15

# How long a message waits at most before it is stored again: RocketMQ's timerRollWindowSlots. It is no
# question of settings: a slave that puts a message elsewhere than its master would pass it over where the
# master does not deliver it. What waits while its log file goes is stored again for that (`timing/moves.py`).
ROLL_WINDOW_MS = 2 * 24 * 3_600_000


class TimerUnit(NamedTuple):
    """One message in the timer log."""

    previous: int
    magic: int
    seen_ms: int  # W
    delay_ms: int
    place: int
    size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        """The time of its slot."""
        return self.seen_ms + self.delay_ms

    @classmethod
    def unpack(cls, data: bytes, at: int) -> "TimerUnit | None":
        """Return the unit at a position; None when none stands there."""
        size, previous, magic, seen, delay, place, length, topic_hash, _ = UNIT.unpack_from(data, at)
        if size != UNIT_SIZE or not 0 < magic <= MAGIC_MAX or place < 0 or length <= 0:
            return None
        return cls(previous, magic, seen, delay, place, length, topic_hash)

    def pack(self) -> bytes:
        """Return its bytes."""
        return UNIT.pack(UNIT_SIZE, *self, 0)


class Slot(NamedTuple):
    """Where the units of a second are."""

    second: int
    first: int
    last: int
    messages: int

    def pack(self) -> bytes:
        """Return its bytes."""
        return SLOT.pack(*self, 0)


class Check(NamedTuple):
    """How far log and wheel can be relied on."""

    read_ms: int
    flushed: int
    queue_offset: int
    master_queue_offset: int = 0
    written_ms: int = 0
    counter: int = 0

    def pack(self) -> bytes:
        """Return the file's content."""
        read_ms, flushed, queue_offset, master, written_ms, counter = self
        head = CHECK.pack(read_ms, flushed, queue_offset, master, 0, written_ms, counter)
        return head.ljust(CHECK_SIZE, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> "Check | None":
        """Return what the file says; None when it says nothing that can be."""
        if len(data) < CHECK.size:
            return None
        read_ms, flushed, queue_offset, master, _, written_ms, counter = CHECK.unpack_from(data)
        if min(read_ms, flushed, queue_offset) < 0 or not written_ms:
            return None
        return cls(read_ms, flushed, queue_offset, master, written_ms, counter)


def floor_second(time_ms: int) -> int:
    """Return the whole second of a time."""
    return time_ms // SECOND_MS * SECOND_MS


def out_time(due_ms: int) -> int:
    """Return the time of the slot in which a message waits: TIMER_OUT_MS."""
    floor = floor_second(due_ms)
    return floor - SECOND_MS if floor == due_ms else floor


def slot_position(time_ms: int) -> int:
    """Return where in the wheel the slot of a time is."""
    return time_ms // SECOND_MS % SLOTS * SLOT_SIZE


def placed(out_ms: int, begin_ms: int, earliest_ms: int, window_ms: int) -> tuple[int, int]:
    """Return the slot of a message, and `ROLL` when it is not the one in which it is delivered, else 0.

    Args:
        out_ms: its TIMER_OUT_MS.
        begin_ms: the second in which it was stored.
        earliest_ms: the first slot that is not read yet: a message that is late goes there.
        window_ms: `ROLL_WINDOW_MS`.
    """
    ahead = out_ms - begin_ms
    if ahead < window_ms:
        return max(out_ms, earliest_ms), 0
    # Not so that a short rest is left, with a third storing soon after.
    step = window_ms // 2 if ahead * 3 < window_ms * 4 else window_ms
    return max(begin_ms + floor_second(step), earliest_ms), ROLL
