"""The slave's end: which frames continue the log, what is reported and when."""

import pytest

from whimbrel.errors import ConnectionClosed, LocalProtocolError, RemoteProtocolError
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import (
    Append,
    Compare,
    FrameReceived,
    ShorterMaster,
    SlaveEvent,
    SlaveProtocol,
)

FILE = 1000


def slave(end: int) -> SlaveProtocol:
    return SlaveProtocol(end=end, file_size=FILE, now=0.0)


def frame(offset: int, body: bytes) -> bytes:
    return FRAME_HEADER.pack(offset, len(body)) + body


def received(core: SlaveProtocol, *frames: bytes) -> list[SlaveEvent]:
    return list(core.receive(memoryview(b"".join(frames)), 0.0))


def test_a_frame_is_appended_and_then_reported() -> None:
    core = slave(100)
    assert core.report(100, 0.0) == REPORT.pack(100)
    assert received(core, frame(100, b"abc"), frame(103, b"d")) == [
        Append(100, memoryview(b"abc")),
        FrameReceived(103),
        Append(103, memoryview(b"d")),
        FrameReceived(104),
    ]
    assert core.report(104, 1.0) == REPORT.pack(104)


def test_a_body_is_handed_on_in_the_pieces_it_comes_in_and_reported_once() -> None:
    core = slave(100)
    raw = frame(100, b"abcd")
    assert received(core, raw[:5]) == []
    assert received(core, raw[5:14]) == [Append(100, memoryview(b"ab"))]
    assert received(core, raw[14:]) == [Append(102, memoryview(b"cd")), FrameReceived(104)]


def test_a_heartbeat_at_the_log_end_says_nothing() -> None:
    assert received(slave(100), frame(100, b"")) == []


@pytest.mark.parametrize("body", [b"", b"x"])
@pytest.mark.parametrize("offset", [0, 99, 101, 2000])
def test_a_frame_that_does_not_continue_the_log_closes_the_connection(offset: int, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"sends from {offset} on, but this log ends at 100"):
        received(slave(100), frame(offset, body))


def test_a_wrong_offset_is_found_before_the_body_has_come() -> None:
    with pytest.raises(RemoteProtocolError):
        received(slave(100), frame(101, b"abc")[:12])


def test_an_empty_log_starts_where_the_master_says() -> None:
    core = slave(0)
    assert received(core, frame(3000, b"ab")) == [Append(3000, memoryview(b"ab")), FrameReceived(3002)]


def test_a_heartbeat_starts_an_empty_log_as_well() -> None:
    core = slave(0)
    assert received(core, frame(3000, b"")) == [Append(3000, memoryview(b"")), FrameReceived(3000)]
    assert received(core, frame(3000, b"")) == []
    assert core.report(3000, 0.0) == REPORT.pack(3000)


def test_a_heartbeat_of_an_empty_master_starts_nothing() -> None:
    core = slave(0)
    assert received(core, frame(0, b"")) == []
    assert received(core, frame(0, b"a")) == [Append(0, memoryview(b"a")), FrameReceived(1)]


def test_a_first_offset_off_a_file_border_is_a_clear_error() -> None:
    with pytest.raises(RemoteProtocolError, match=r"at 3001, which is not the start of a file of 1000 bytes"):
        received(slave(0), frame(3001, b"ab"))


def test_a_frame_across_a_file_border_is_refused() -> None:
    assert received(slave(990), frame(990, b"x" * 10))
    with pytest.raises(RemoteProtocolError, match="crosses the border"):
        received(slave(990), frame(990, b"x" * 11))


@pytest.mark.parametrize("header", [(-1, 5), (100, -1)])
def test_negative_numbers_are_refused(header: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="no HA master"):
        received(slave(100), FRAME_HEADER.pack(*header))


def test_an_idle_slave_repeats_its_report() -> None:
    core = slave(100)
    assert core.due_report(100.0) == b""  # the first one is the shell's to send
    core.report(100, 1.0)
    assert core.deadline == 6.0
    assert core.due_report(6.0) == b""
    assert core.due_report(6.1) == REPORT.pack(100)
    assert core.due_report(11.0) == b""


def test_only_what_was_received_can_be_reported() -> None:
    core = slave(100)
    received(core, frame(100, b"abc"))
    core.report(102, 0.0)  # not flushed any further, say
    with pytest.raises(LocalProtocolError):
        core.report(104, 0.0)


def test_what_came_before_a_broken_frame_counts() -> None:
    core = slave(100)
    events = core.receive(memoryview(frame(100, b"abc") + frame(99, b"")), 0.0)
    assert next(events) == Append(100, memoryview(b"abc"))
    assert next(events) == FrameReceived(103)
    with pytest.raises(RemoteProtocolError):
        next(events)


def test_a_silent_master_is_given_up() -> None:
    core = slave(100)
    core.check_silence(20.0)
    with pytest.raises(RemoteProtocolError, match="nothing came from the master for 21 s"):
        core.check_silence(21.0)


def test_the_newest_end_that_is_held_is_reported_once() -> None:
    core = slave(100)
    assert core.first_report(0.0) == REPORT.pack(100)
    received(core, frame(100, b"abc"), frame(103, b"d"))
    assert not core.has_grown(100) and core.next_report(100, 1.0) == b""
    assert core.has_grown(103) and core.next_report(103, 1.0) == REPORT.pack(103)  # on disk up to there, say
    assert core.next_report(104, 1.0) == REPORT.pack(104)
    assert core.next_report(104, 1.0) == b""
    assert core.next_report(104, 6.1) == REPORT.pack(104)


def test_no_more_is_reported_than_was_received_over_the_connection() -> None:
    core = comparing(500, 100)
    core.first_report(0.0)
    assert core.next_report(500, 0.0) == b""
    ours = bytes(100)
    answered(core, ours, frame(400, ours[:30]))
    assert core.next_report(500, 0.0) == REPORT.pack(430)


# What the slave already holds, and is shown once more.


def comparing(end: int, count: int) -> SlaveProtocol:
    return SlaveProtocol(end=end, file_size=FILE, now=0.0, start=end - count)


def answered(core: SlaveProtocol, ours: bytes, *frames: bytes) -> list[SlaveEvent]:
    """Receive frames, and answer with `ours`, the end of the own log."""
    found = []
    for event in core.receive(memoryview(b"".join(frames)), 0.0):
        if isinstance(event, Compare):
            at = event.offset - (core.log_end - len(ours))
            core.compare(event, ours[at : at + len(event.data)])
        found.append(event)
    return found


def test_the_log_is_asked_for_from_where_the_comparison_starts() -> None:
    core = comparing(500, 100)
    assert core.first_report(0.0) == REPORT.pack(400)
    assert core.comparing and not core.accepted


@pytest.mark.parametrize(("end", "start"), [(500, 0), (500, 501), (0, 1)])
def test_an_overlap_is_a_part_of_the_log_and_is_not_asked_for_as_if_there_were_none(
    end: int, start: int
) -> None:
    with pytest.raises(LocalProtocolError, match=f"an overlap from {start} on"):
        SlaveProtocol(end=end, file_size=FILE, now=0.0, start=start)


def test_what_is_held_already_is_compared_and_only_the_rest_appended() -> None:
    core, ours = comparing(500, 100), bytes(range(100))
    assert answered(core, ours, frame(400, ours[:60]), frame(460, ours[60:] + b"new")) == [
        Compare(400, memoryview(ours[:60])),
        FrameReceived(460),
        Compare(460, memoryview(ours[60:])),
        Append(500, memoryview(b"new")),
        FrameReceived(503),
    ]
    assert core.accepted


def test_a_master_is_accepted_when_it_has_answered_and_all_is_compared() -> None:
    core, ours = comparing(500, 100), bytes(100)
    answered(core, ours, frame(400, ours[:99]))
    assert core.comparing and not core.accepted
    answered(core, ours, frame(499, ours[99:]))
    assert core.accepted and not core.comparing
    core = slave(500)
    assert not core.accepted
    core.mark_received(0.0)
    assert core.accepted


def test_a_master_with_other_bytes_is_told_apart_by_the_first_of_them() -> None:
    core, ours = comparing(500, 100), bytes(100)
    answered(core, ours, frame(400, ours[:50]))
    with pytest.raises(RemoteProtocolError, match="differs from ours at byte 457, before our end 500"):
        answered(core, ours, frame(450, ours[:7] + b"x" + ours[8:50]))
    assert core.comparing


def test_bytes_that_nobody_compared_end_the_connection() -> None:
    with pytest.raises(LocalProtocolError, match="100 bytes at 400 were not compared"):
        received(comparing(500, 100), frame(400, bytes(100)))


def test_a_comparison_with_too_few_bytes_is_our_error() -> None:
    core = comparing(500, 100)
    event = next(core.receive(memoryview(frame(400, bytes(98))), 0.0))
    assert isinstance(event, Compare)
    with pytest.raises(LocalProtocolError, match="97 bytes at 400 to compare with 98"):
        core.compare(event, bytes(97))


@pytest.mark.parametrize("shown", [0, 30])
def test_a_heartbeat_within_the_overlap_says_that_the_master_has_less(shown: int) -> None:
    core, ours = comparing(500, 100), bytes(100)
    core.first_report(0.0)
    with pytest.raises(
        ShorterMaster, match=f"log ends at {400 + shown}, ours {100 - shown} bytes later at 500"
    ):
        answered(core, ours, *([frame(400, ours[:shown])] if shown else []), frame(400 + shown, b""))
    assert core.end == 400 + shown and not core.accepted


@pytest.mark.parametrize("seconds", [0.1, 0.4, 4.0, 19.0])
def test_no_more_is_reported_than_was_compared_however_long_that_takes(seconds: float) -> None:
    core, ours = comparing(500, 100), bytes(100)
    core.first_report(0.0)
    answered(core, ours, frame(400, ours[:40]))
    assert core.next_report(440, 0.0) == REPORT.pack(440)
    assert core.next_report(440, seconds) in (b"", REPORT.pack(440))
    core.check_silence(seconds)


def test_a_master_is_told_the_real_end_over_a_connection_that_takes_nothing() -> None:
    core = SlaveProtocol(end=500, file_size=FILE, now=0.0, start=400, telling=True)
    assert core.first_report(0.0) == REPORT.pack(500)
    with pytest.raises(ConnectionClosed, match="goes on at our end 500"):
        received(core, frame(500, b"something else"))
    assert not core.accepted


def test_a_close_before_the_log_was_accepted_has_probably_a_reason() -> None:
    core = slave(100)
    assert "our log [0, 100) is probably not a part of its log" in str(core.closed(begin=0, end=100))
    received(core, frame(100, b""))
    assert str(core.closed(begin=0, end=100)) == "closed by the master"
