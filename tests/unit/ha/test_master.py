"""The master's end: where a slave starts, what it is sent, and which reports are refused."""

import pytest

from whimbrel.errors import LocalProtocolError, RemoteProtocolError
from whimbrel.ha.frames import FRAME_BYTES_MAX, REPORT, Frame
from whimbrel.ha.protocol import FirstOffset, MasterProtocol, OutOfRange, Reported

FILE = 1000


def master(*, frame: int = 500, first: FirstOffset = "log") -> MasterProtocol:
    return MasterProtocol(file_size=FILE, frame_bytes_max=frame, first_offset=first, now=0.0)


def reporting(core: MasterProtocol, *offsets: int, begin: int = 0, end: int = 2500) -> list[Reported]:
    return core.receive(b"".join(map(REPORT.pack, offsets)), begin=begin, end=end, now=0.0)


def frames(core: MasterProtocol, *, begin: int = 0, end: int = 2500) -> list[tuple[int, int]]:
    found = []
    while frame := core.next_frame(begin=begin, end=end, now=0.0):
        if frame.size:
            found.append((frame.offset, frame.size))
    return found


def test_nothing_is_sent_before_the_first_report() -> None:
    core = master()
    assert core.next_frame(begin=0, end=2500, now=100.0) is None
    assert reporting(core, 0) == [Reported(0, first=True)]
    assert core.next_frame(begin=0, end=2500, now=0.0) == Frame(0, 500)


def test_frames_stop_at_file_borders_and_at_the_log_end() -> None:
    core = master(frame=500)
    reporting(core, 700)
    assert frames(core, end=2400) == [(700, 300), (1000, 500), (1500, 500), (2000, 400)]
    assert frames(core, end=2401) == [(2400, 1)]


def test_frames_after_the_first_start_at_multiples_of_the_longest_one() -> None:
    core = master(frame=100)
    reporting(core, 730)
    assert frames(core, end=1001) == [(730, 70), (800, 100), (900, 100), (1000, 1)]


def test_an_empty_slave_gets_the_log_from_its_first_file_on() -> None:
    core = master()
    reporting(core, 0, begin=1000)
    assert core.next_frame(begin=1000, end=2500, now=0.0) == Frame(1000, 500)


def test_an_empty_slave_gets_only_the_last_file_by_the_classic_rule() -> None:
    core = master(first="last-file")
    reporting(core, 0)
    assert core.next_frame(begin=0, end=2500, now=0.0) == Frame(2000, 500)


def test_a_report_past_the_log_end_closes_the_connection() -> None:
    core = master()
    reporting(core, 2000)
    frames(core)
    with pytest.raises(OutOfRange, match="1 bytes past this log's end") as caught:
        reporting(core, 2501)
    assert caught.value.ahead
    assert core.acknowledged == 2000  # it confirms nothing


def test_a_first_report_past_the_log_end_closes_the_connection() -> None:
    core = master()
    with pytest.raises(OutOfRange) as caught:
        reporting(core, 2501)
    assert (caught.value.offset, caught.value.end, caught.value.ahead) == (2501, 2500, True)
    assert core.acknowledged == -1


def test_a_report_past_the_log_end_is_refused_even_when_a_good_one_follows_in_the_same_read() -> None:
    core = master()
    reporting(core, 2000)
    frames(core)
    with pytest.raises(OutOfRange):
        reporting(core, 9999, 2100)
    assert core.acknowledged == 2000


def test_a_report_past_what_was_sent_closes_the_connection() -> None:
    core = master()
    reporting(core, 2000)
    with pytest.raises(OutOfRange, match="sent up to 2000") as caught:
        reporting(core, 2100)
    assert not caught.value.ahead
    assert core.acknowledged == 2000


def test_a_slave_below_the_log_is_refused_and_told_both_ranges() -> None:
    core = master()
    with pytest.raises(OutOfRange, match=r"ends at 500.*\[1000, 2500\)") as caught:
        reporting(core, 500, begin=1000)
    assert not caught.value.ahead
    assert core.acknowledged == -1


def test_a_slave_that_retention_overtakes_is_refused() -> None:
    core = master()
    reporting(core, 500)
    with pytest.raises(OutOfRange, match="fell behind"):
        core.next_frame(begin=1000, end=2500, now=0.0)


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="never negative"):
        reporting(master(), -1)


def test_a_slave_at_the_log_end_is_in_range() -> None:
    core = master()
    reporting(core, 2500)
    assert frames(core) == []
    assert core.acknowledged == 2500


def test_a_report_in_pieces_counts_once_it_is_whole() -> None:
    core = master()
    raw = REPORT.pack(700)
    for byte in raw[:-1]:
        assert core.receive(bytes([byte]), begin=0, end=2500, now=1.0) == []
    assert core.receive(raw[-1:], begin=0, end=2500, now=2.0) == [Reported(700, first=True)]


def test_an_idle_master_sends_heartbeats_with_the_next_offset() -> None:
    core = master()
    reporting(core, 2500)
    assert core.next_frame(begin=0, end=2500, now=0.0) == Frame(2500, 0)  # where the log ends, at once
    assert core.next_frame(begin=0, end=2500, now=5.0) is None
    assert core.deadline == 5.0
    assert core.next_frame(begin=0, end=2500, now=5.01) == Frame(2500, 0)
    assert core.next_frame(begin=0, end=2500, now=10.0) is None
    assert core.next_frame(begin=0, end=2500, now=10.02) == Frame(2500, 0)


def test_a_master_says_where_its_log_ends_as_soon_as_it_has_sent_all() -> None:
    core = master()
    reporting(core, 2400)
    assert core.next_frame(begin=0, end=2500, now=0.0) == Frame(2400, 100)
    assert core.next_frame(begin=0, end=2500, now=0.0) == Frame(2500, 0)
    assert core.next_frame(begin=0, end=2500, now=0.1) is None
    assert core.next_frame(begin=0, end=2501, now=0.2) == Frame(2500, 1)
    assert core.next_frame(begin=0, end=2501, now=0.3) is None  # once; then it is for idle times


@pytest.mark.parametrize(
    ("first", "later"), [(2400, (2400, 2400)), (0, (0,)), (2500, (2500,)), (0, ())], ids=str
)
def test_a_first_report_and_its_repetitions_prove_nothing(first: int, later: tuple[int, ...]) -> None:
    core = master()
    reporting(core, first)
    frames(core)
    reporting(core, *later)
    assert not core.proven


def test_a_report_of_bytes_that_were_sent_proves_that_the_slave_holds_them() -> None:
    core = master()
    assert not core.proven
    reporting(core, 2400)
    frames(core)
    reporting(core, 2401)
    assert core.proven


def test_an_empty_slave_that_reports_where_its_log_starts_has_proven_nothing() -> None:
    core = master()
    reporting(core, 0, begin=1000)
    frames(core, begin=1000)
    reporting(core, 1000, begin=1000)
    assert not core.proven
    reporting(core, 1500, begin=1000)
    assert core.proven


def test_a_silent_slave_is_given_up() -> None:
    core = master()
    core.check_silence(20.0)
    assert core.deadline == 20.0
    with pytest.raises(RemoteProtocolError, match="no report for 21 s"):
        core.check_silence(21.0)
    core.receive(REPORT.pack(0), begin=0, end=0, now=21.0)
    core.check_silence(41.0)


def test_frames_that_a_rocketmq_slave_can_not_take_are_never_configured() -> None:
    with pytest.raises(LocalProtocolError):
        master(frame=FRAME_BYTES_MAX + 1)
    with pytest.raises(LocalProtocolError):
        master(frame=0)
