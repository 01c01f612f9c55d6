"""Report and frame as bytes."""

from whimbrel.ha.frames import FRAME_BYTES_MAX, REPORT, Frame


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
