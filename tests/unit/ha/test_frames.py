"""Report and frame as bytes."""

import pytest

from whimbrel.ha.frames import FRAME_BYTES_MAX, FRAME_HEADER, REPORT, Frame, whole_frames


def test_a_report_is_one_big_endian_int64() -> None:
    assert REPORT.pack(0x1000) == bytes.fromhex("0000000000001000")


def test_a_heartbeat_is_a_frame_without_body() -> None:
    assert Frame(0x2000, 0).header == bytes.fromhex("0000000000002000 00000000")


def test_a_frame_names_offset_and_length_of_its_body() -> None:
    frame = Frame(0x1000, 126)
    assert frame.header == bytes.fromhex("0000000000001000 0000007e")
    assert frame.end == 0x107E


def test_header_and_largest_body_fill_a_rocketmq_slaves_buffer() -> None:
    assert FRAME_BYTES_MAX + 12 == 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, (0, 0)), (11, (0, 0)), (12, (0, 5)), (16, (0, 1)), (17, (17, 0)), (29, (29, 0)), (41, (29, 3))],
)
def test_whole_frames_are_told_from_the_begun_one(size: int, expected: tuple[int, int]) -> None:
    stream = Frame(0, 5).header + b"abcde" + Frame(5, 0).header + Frame(5, 3).header + b"xyz"
    assert whole_frames(memoryview(stream[:size])) == expected


def test_whole_frames_may_start_after_the_rest_of_a_body() -> None:
    assert whole_frames(memoryview(b"rest" + Frame(5, 0).header), 4) == (16, 0)


def test_a_negative_length_is_left_to_the_protocol() -> None:
    assert whole_frames(memoryview(FRAME_HEADER.pack(0, -1))) == (12, 0)
