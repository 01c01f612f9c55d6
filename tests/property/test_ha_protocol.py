"""Any cut of a stream means the same, and no bytes of a peer raise anything but `RemoteProtocolError`."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from support.pieces import cut
from whimbrel.errors import RemoteProtocolError
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import Append, Compare, FrameReceived, MasterProtocol, SlaveProtocol

FILE = 4096
END = 3 * FILE + 100

cuts = st.lists(st.integers(1, 50), min_size=1, max_size=50)


def slave_story(pieces: list[bytes], end: int) -> tuple[int, bytes, list[int], str]:
    """Return what a slave makes of a stream: log start, log bytes, reports, how it ended."""
    core = SlaveProtocol(end=end, file_size=FILE, now=0.0)
    start, held, reports = -1, bytearray(), []
    try:
        for piece in pieces:
            for event in core.receive(memoryview(piece), 0.0):
                if isinstance(event, Append):
                    start = event.offset if start < 0 else start
                    held += event.data
                elif isinstance(event, FrameReceived):
                    reports.append(event.end)
    except RemoteProtocolError as error:
        return start, bytes(held), reports, str(error)
    return start, bytes(held), reports, ""


def compared_story(pieces: list[bytes], log: bytes, count: int) -> tuple[bytes, list[int], str]:
    """Return what a slave that holds `log` makes of a stream: its log, reports, how it ended."""
    core = SlaveProtocol(end=len(log), file_size=FILE, now=0.0, start=len(log) - min(count, len(log) - 1))
    held, reports = bytearray(log), []
    try:
        for piece in pieces:
            for event in core.receive(memoryview(piece), 0.0):
                if isinstance(event, Compare):
                    core.compare(event, bytes(held[event.offset : event.offset + len(event.data)]))
                elif isinstance(event, Append):
                    assert event.offset == len(held) and core.accepted
                    held += event.data
                else:
                    reports.append(event.end)
    except RemoteProtocolError as error:
        return bytes(held), reports, str(error)
    return bytes(held), reports, ""


def master_story(pieces: list[bytes], *, eager: bool) -> tuple[int, str]:
    """Return what a master makes of a stream: the acknowledged offset, how it ended."""
    core = MasterProtocol(file_size=FILE, frame_bytes_max=1000, first_offset="log", now=0.0)
    try:
        for piece in pieces:
            core.receive(piece, begin=FILE, end=END, now=0.0)
            while eager and core.next_frame(begin=FILE, end=END, now=0.0):
                pass
    except RemoteProtocolError as error:
        return core.acknowledged, str(error)
    return core.acknowledged, ""


@st.composite
def frame_streams(draw: st.DrawFn) -> bytes:
    """Frames of a master that follow each other, heartbeats between them."""
    at, found = FILE, bytearray()
    for size in draw(st.lists(st.integers(0, 300), max_size=20)):
        size = min(size, FILE - at % FILE)
        found += FRAME_HEADER.pack(at, size) + draw(st.binary(min_size=size, max_size=size))
        at += size
    return bytes(found)


@given(frame_streams(), st.binary(max_size=40), cuts, st.sampled_from([0, FILE]))
def test_frames_byte_by_byte_equal_one_piece(data: bytes, junk: bytes, sizes: list[int], end: int) -> None:
    assert slave_story([data], end)[3] == ""
    whole = slave_story([data + junk], end)
    assert slave_story(cut(data + junk, sizes), end) == whole
    assert slave_story(cut(data + junk, [1]), end) == whole


@given(
    st.integers(1, FILE - 1),
    st.integers(0, FILE),
    st.integers(0, 200),
    st.one_of(st.none(), st.integers(0, FILE - 1)),
    cuts,
)
def test_a_slave_goes_on_exactly_when_the_overlap_is_equal(
    end: int, count: int, more: int, other: int | None, sizes: list[int]
) -> None:
    log = bytes(at * 7 % 251 for at in range(FILE))
    start = end - min(count, end - 1)
    theirs = bytearray(log[: min(end + more, FILE)])
    if other is not None and other < len(theirs):
        theirs[other] ^= 1
    data, at = bytearray(), start
    for size in itertools.cycle(sizes):
        if at >= len(theirs):
            break
        body = theirs[at : at + size]
        data += FRAME_HEADER.pack(at, len(body)) + body
        at += len(body)
    whole = compared_story([bytes(data)], log[:end], count)
    assert compared_story(cut(bytes(data), [1]), log[:end], count) == whole
    assert compared_story(cut(bytes(data), sizes), log[:end], count) == whole
    held, reports, ended = whole
    if other is not None and start <= other < end:
        assert f"at byte {other}," in ended
        assert held == log[:end]
    else:
        assert ended == ""
        assert held == log[:end] + theirs[end:]
        assert not reports or reports[-1] == len(theirs)


@given(st.lists(st.integers(0, FILE * 4), max_size=20), cuts)
def test_reports_byte_by_byte_equal_one_piece(offsets: list[int], sizes: list[int]) -> None:
    data = b"".join(map(REPORT.pack, offsets))
    whole = master_story([data], eager=False)
    assert master_story(cut(data, sizes), eager=False) == whole
    assert master_story(cut(data, [1]), eager=False) == whole


@given(st.binary(max_size=200), cuts, st.sampled_from([0, FILE, END]))
def test_random_bytes_to_a_slave_yield_events_or_a_protocol_error(
    data: bytes, sizes: list[int], end: int
) -> None:
    assert slave_story(cut(data, sizes), end) == slave_story([data], end)


@given(st.binary(max_size=200), cuts)
def test_random_bytes_to_a_master_never_confirm_more_than_the_log(data: bytes, sizes: list[int]) -> None:
    acknowledged, _ = master_story(cut(data, sizes), eager=True)
    assert acknowledged <= END
