"""Records whose lengths or topics are damaged, behind what recovery looks at: no entry, and all goes on."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from support.lane.logs import Log, derive, lane_or_skip
from support.store.stores import NOW, make_draft
from whimbrel.store.codec import encode_record
from whimbrel.store.dispatch import HEAD_V4_SIZE


def put(at: int, value: bytes) -> Callable[[bytearray], None]:
    def change(record: bytearray) -> None:
        record[at : at + len(value)] = value

    return change


def no_text(record: bytearray) -> None:
    at = record.rindex(b"topic")
    record[at : at + 5] = b"to\0ic"


def too_long(record: bytearray) -> None:
    record[record.rindex(b"topic") - 1] = 255


@pytest.mark.parametrize("by_lane", [False, True], ids=["Python", "lane"])
@pytest.mark.parametrize(
    "damage",
    [
        put(HEAD_V4_SIZE - 4, struct.pack(">i", 1 << 30)),  # the body's length
        put(HEAD_V4_SIZE - 4, struct.pack(">i", -1)),
        put(36, struct.pack(">i", 0x30)),  # as if the hosts were longer
        too_long,
        no_text,
    ],
    ids=["body", "negative body", "hosts", "topic's length", "zero in the topic"],
)
def test_a_damaged_record_gets_no_entry(
    tmp_path: Path, damage: Callable[[bytearray], None], by_lane: bool
) -> None:
    lane = lane_or_skip() if by_lane else None
    log = Log()
    for number in range(3):
        record = bytearray(encode_record(make_draft(number), len(log.data), number, NOW))
        if number == 1:
            damage(record)
        log.data += record
    found = derive(tmp_path / "store", log, lane, [len(log.data)]).state
    places = [place for place, size, _ in found["entries"]["topic", 0] if size != 0x7FFF_FFFF]
    assert len(found["entries"]) == 1
    assert places[0] == 0
    assert places[-1] == len(log.data) - len(record)
    assert any("gets no entry" in line for line in found["lines"])
