"""What a peer's windows cost: streams are looked at when they can send, and idle frames count."""

import pytest

from support.http2.frames import HELLO, SETTINGS, WINDOW, frame, headers, message, setting, u32
from whimbrel.rpc.http2.connection import ENTRIES_MAX, Connection
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.http2.stream import Limits, Stream

RESPONSE_HEADERS = encode([(b":status", b"200")])
BODY = bytes(100)
STREAMS = 50
LIMITS = Limits(empty=20, settings=10)
INITIAL_WINDOW = 4


class Counted(Connection):
    """A server that counts how often a stream with waiting data was looked at."""

    visits = 0

    def send_waiting(self, stream, events):  # type: ignore[no-untyped-def]
        self.visits += 1
        super().send_waiting(stream, events)


def blocked(window: int, limits: Limits = LIMITS) -> tuple[Counted, list[Stream]]:
    """Return a server with answers that a peer's initial window stops, and their streams."""
    conn = Counted(server=True, limits=limits)
    begin = b"".join(headers(2 * n + 1) + message(2 * n + 1) for n in range(STREAMS))
    conn.receive(HELLO + setting(INITIAL_WINDOW, window) + begin)
    streams = list(conn.streams.values())
    for stream in streams:
        conn.send_headers(stream, RESPONSE_HEADERS)
        conn.send_data(stream, BODY, end=True)
    conn.take()
    conn.visits = 0
    return conn, streams


def test_window_of_the_connection_visits_no_stream_whose_own_window_is_closed() -> None:
    conn, _ = blocked(0)
    for _ in range(5):
        conn.receive(frame(WINDOW, 0, 0, u32(1)))
    assert (conn.visits, conn.waiting_bytes) == (0, STREAMS * len(BODY))


def test_window_of_the_connection_visits_as_many_streams_as_it_lets_send() -> None:
    conn, _ = blocked(10)  # ten bytes of each have left
    conn.send_window = 0
    conn.receive(setting(INITIAL_WINDOW, 60))
    assert conn.visits == 0
    conn.receive(frame(WINDOW, 0, 0, u32(1)))
    assert (conn.visits, conn.waiting_bytes) == (1, STREAMS * 90 - 1)
    conn.receive(frame(WINDOW, 0, 0, u32(99)))
    assert (conn.visits, conn.waiting_bytes) == (3, STREAMS * 90 - 100)
    assert len(conn.ready) == STREAMS - 1  # one of them has used what its own window allows


def test_ready_streams_take_turns() -> None:
    conn, streams = blocked(10)
    conn.send_window = 0
    conn.receive(setting(INITIAL_WINDOW, 1000))
    for _ in range(4):
        conn.receive(frame(WINDOW, 0, 0, u32(5)))
    assert [stream.waiting_bytes for stream in streams[:6]] == [85, 85, 85, 85, 90, 90]


def test_smaller_initial_window_takes_streams_out_of_the_turn_and_a_larger_one_puts_them_back() -> None:
    conn, streams = blocked(10)
    conn.send_window = 0
    conn.receive(setting(INITIAL_WINDOW, 1000))
    assert len(conn.ready) == STREAMS
    conn.receive(setting(INITIAL_WINDOW, 0) + frame(WINDOW, 0, 0, u32(500)))
    assert (conn.visits, len(conn.ready), streams[0].send_window) == (0, 0, -10)
    conn.receive(setting(INITIAL_WINDOW, 15))
    assert conn.waiting_bytes == STREAMS * 85


@pytest.mark.parametrize("end", ["reset", "sent"])
def test_stream_that_has_ended_is_ready_no_more(end: str) -> None:
    conn, streams = blocked(10)
    conn.send_window = 0
    conn.receive(setting(INITIAL_WINDOW, 1000))
    for stream in streams:
        if end == "reset":
            conn.reset(stream, Code.CANCEL)
    conn.receive(frame(WINDOW, 0, 0, u32(1 << 20)))
    assert (conn.waiting_bytes, len(conn.ready), len(conn.blocked)) == (0, 0, 0)


def test_updates_that_let_nothing_out_end_the_connection() -> None:
    for number in (0, 1):
        conn, _ = blocked(0)
        if number:
            conn.send_window = 0
        conn.receive(frame(WINDOW, 0, number, u32(1)) * 21)
        assert conn.error is None
        conn.receive(frame(WINDOW, 0, number, u32(1)))
        assert conn.error is not None and conn.error.code == Code.ENHANCE_YOUR_CALM


def test_updates_between_which_data_is_sent_are_no_flood() -> None:
    conn, streams = blocked(0)
    for _ in range(60):  # another stream goes on, whose peer gives back what it has read
        conn.send_window -= 1
        conn.receive(frame(WINDOW, 0, 0, u32(1)))
    for _ in range(60):
        conn.receive(frame(WINDOW, 0, 0, u32(1)) + frame(WINDOW, 0, streams[0].id, u32(1)))
    assert conn.error is None
    assert streams[0].waiting_bytes == len(BODY) - 60


def test_initial_windows_of_one_frame_are_applied_once_with_the_last_value() -> None:
    conn, streams = blocked(0)
    entries = b"".join(b"\x00\x04" + u32(value) for value in (2**31 - 1, 0, 7))
    conn.receive(frame(SETTINGS, 0, 0, entries))
    assert [stream.waiting_bytes for stream in streams] == [len(BODY) - 7] * STREAMS


def test_settings_of_too_many_entries_end_the_connection() -> None:
    conn, _ = blocked(0)
    entry = b"\x00\x04" + u32(1)
    conn.receive(frame(SETTINGS, 0, 0, entry * ENTRIES_MAX))
    assert conn.error is None
    conn.receive(frame(SETTINGS, 0, 0, entry * (ENTRIES_MAX + 1)))
    assert conn.error is not None and conn.error.code == Code.ENHANCE_YOUR_CALM
