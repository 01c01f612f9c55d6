"""The compiled lane on a connection: plain calls go from bytes to bytes, the rest to Python.

    bytes of a read ──► the lane ──► plain calls: done, answered or parked               } until
                          └──► what is not plain, untouched ──► Connection ──► Python    } all is taken

The lane (`whimbrel_fast.PlainCalls`) reads whole sends and acknowledgements, and nothing else (`calls.rs` in
`native/core`), those of one kind in a pass. What it leaves begins with a frame, with no stream half in and
half out, so Python goes on as if it had read everything. **Who has what:** the compiled decoder the table of
header fields; `Connection` all windows, numbers of streams and bytes that are not taken yet, which a pass
gets and gives back; the lane the answers that wait, as long as nothing but durability is asked of them.

Where a read ends with an error of the connection, Python answers none of the calls before it, and the lane
does: they are stored either way.

**Parked calls.** A call whose answer waits has no `Stream` and no server call: it is an entry in the lane.
When anything else happens to it (the peer resets it or changes a window, its deadline or the appender's
comes, the server stops), the parked calls of its connection become what Python would have made of them, and
go on there (`hand_over`).

**Bounds** are those of `connection.py`: parked calls count as open streams, in number and in the budget; the
begin of a call that is not whole counts as part of the connection's buffer, at most `HOLD_BYTES_MAX` (256
KiB) and for `HELD_S`, before Python takes it.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from whimbrel.deferred import Deferred
from whimbrel.rpc.http2.grpc_format import CallMetadata
from whimbrel.rpc.http2.hpack import HeaderDecoder
from whimbrel.rpc.http2.lane_decoder import LaneHeaderDecoder
from whimbrel.rpc.http2.sending import GONE_KEPT
from whimbrel.rpc.http2.stream import Stream
from whimbrel.rpc.server.calls import UnaryServerCall
from whimbrel.rpc.server.handlers import Call, UnaryMethod

if TYPE_CHECKING:
    from whimbrel.rpc.server.connection import NativeConnection

__all__ = ["CallLane", "LaneAnswers", "LaneCalls", "LanePass"]

HELD_S = 1.0  # that the begin of a call waits in the buffer; a check of the server comes every 5 s

# Stream, message, end of its records in the log, what the peer has added to its window, timeout in seconds.
AnsweredCall = tuple[int, bytes, int, int, float | None]


class LaneAnswers(Protocol):
    """Answers to calls of one connection (`whimbrel_fast.Answers`)."""

    frames: bytes
    ids: list[int]
    data_bytes: int  # as windows count them
    largest: int
    shortest_timeout: float | None

    def __len__(self) -> int: ...
    def calls(self) -> Sequence[AnsweredCall]:
        """Return each call with the message of its answer."""


class LanePass(NamedTuple):
    """What a pass has done with the bytes of a read.

    Attributes:
        taken: so many bytes.
        partial: what is left is the begin of a call; else it is Python's, up to `stop`.
        stop: how many bytes of what is left are needed to go on; or where Python's part ends in the bytes. It
            ends where it begins if what is left is for another pass.
        older: Python's part may be about streams that were opened before.
        last_id, send_window: of the connection, from now on.
        received: bytes of data.
        answers: to the calls; None without any.
        parks: the answers wait until `LaneCalls.answered`.
    """

    taken: int
    partial: bool
    stop: int
    older: bool
    last_id: int
    send_window: int
    received: int
    answers: LaneAnswers | None
    parks: bool


class CallLane(Protocol):
    """What takes plain calls; `broker/api/broker_lane.py` is the one there is.

    Attributes:
        active: it takes calls.
    """

    @property
    def active(self) -> bool: ...

    def header_decoder(self, before: HeaderDecoder) -> LaneHeaderDecoder:
        """Return a decoder for a connection that goes on where the one before is."""

    def take(self, calls: "LaneCalls", data: bytes, streams_left: int) -> LanePass | None:
        """Do the plain calls at the begin of `data`; None, and nothing done, where there can be none now.

        Raises:
            RuntimeError: the lane has panicked; the connection can't go on.
        """

    def park(self, calls: "LaneCalls", answers: LaneAnswers) -> None:
        """Keep answers until their records are durable."""

    def take_back(self, calls: "LaneCalls") -> list[tuple[float, LaneAnswers]]:
        """Return the parked answers of a connection, with the loop's time when they were parked."""

    def wait(self, message: bytes, end: int, parked_at: float) -> Deferred[Any]:
        """Have Python wait for the answer to a call that was parked here."""


class LaneCalls:
    """The lane's part in one connection.

    Attributes:
        method, path: of the calls that may be parked.
        client: whose calls are taken: Python knows it.
        parked: calls whose answers wait in the lane.
        peer: the other side's address.
    """

    def __init__(self, connection: "NativeConnection", method: UnaryMethod, path: str) -> None:
        assert method.lane is not None
        self.connection, self.method, self.path, self.lane = connection, method, path, method.lane
        self.peer, self.client, self.parked = connection.peer, "", 0
        before = connection.conn.decoder
        assert isinstance(before, HeaderDecoder)
        self.decoder = connection.conn.decoder = self.lane.header_decoder(before)

    def ready(self) -> bool:
        """Tell whether the connection is in a state in which there can be plain calls."""
        conn = self.connection.conn
        return (
            self.lane.active
            and self.decoder.native is not None
            and conn.error is None
            and not conn.restricted
            and not conn.draining
            and not conn.blocked
            and not self.connection.paused
            and not self.connection.budget.exceeded()
        )

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the peer."""
        connection = self.connection
        conn = connection.conn
        buffer = conn.buffer
        if buffer:
            if len(buffer) + len(data) < conn.needed:
                buffer += data
                return
            data = b"".join((buffer, data))
            buffer.clear()
        conn.elsewhere = self.parked
        while data and self.ready():
            done = self.lane.take(self, data, conn.limits.streams - len(conn.streams) - conn.elsewhere)
            if done is None:
                break
            self.apply(done)
            if done.partial:
                buffer += memoryview(data)[done.taken :]
                conn.needed = done.stop
                data = b""
                break
            if done.stop == done.taken:
                assert done.taken, "the lane has taken nothing, and left nothing to Python"
                data = data[done.taken :]
                continue
            if done.older:
                self.hand_over()
            calls, resets, streams = connection.calls, conn.resets, len(conn.streams)
            connection.take(data[done.taken : done.stop], now)
            ended = connection.calls - calls - (conn.resets - resets) - (len(conn.streams) - streams)
            conn.elsewhere += max(ended, 0)
            data = data[done.stop :]
        if data:
            self.hand_over()
            connection.take(data, now)
        conn.elsewhere = self.parked

    def apply(self, done: LanePass) -> None:
        """Bring the connection up to what a pass has read, and send or park its answers."""
        connection = self.connection
        conn = connection.conn
        conn.last_id, conn.send_window = done.last_id, done.send_window
        if done.received:
            conn.receive_window -= done.received
            conn.give_back(done.received)
        answers = done.answers
        if answers is None:
            return
        connection.calls += len(answers)
        conn.elsewhere += len(answers)  # as in Python, where all streams of a read are open until its end
        if done.parks:
            self.parked += len(answers)
            self.lane.park(self, answers)
        else:
            self.send(answers)

    def send(self, answers: LaneAnswers) -> None:
        """Send answers that fit into the windows, and end their streams."""
        conn = self.connection.conn
        frames = answers.frames
        conn.out.append(frames)
        gone = conn.gone
        for stream_id in answers.ids:
            gone[(stream_id >> 1) % GONE_KEPT] = stream_id
        self.connection.budget.responded(len(frames))

    def answered(self, answers: LaneAnswers, parked_at: float) -> bool:
        """Send answers that have waited long enough; return False where Python has to, for flow control."""
        connection = self.connection
        conn = connection.conn
        self.parked -= len(answers)
        conn.elsewhere -= len(answers)
        size, largest = answers.data_bytes, answers.largest
        if (
            size <= conn.send_window
            and largest <= min(conn.peer_window, conn.peer_frame)
            and not conn.blocked
            and conn.error is None
        ):
            conn.send_window -= size
            self.send(answers)
            connection.schedule_flush()
            return True
        self.to_python(answers, parked_at)
        return False

    def hand_over(self) -> None:
        """Make of all parked calls what Python would have made of them."""
        if self.parked:
            for parked_at, answers in self.lane.take_back(self):
                self.given_back(answers, parked_at)

    def given_back(self, answers: LaneAnswers, parked_at: float) -> None:
        """Go on in Python with calls that the lane had parked."""
        self.parked -= len(answers)
        self.connection.conn.elsewhere -= len(answers)
        self.to_python(answers, parked_at)

    def to_python(self, answers: LaneAnswers, parked_at: float) -> None:
        """Make streams and server calls of calls that were parked."""
        connection = self.connection
        conn = connection.conn
        waited = connection.server.loop.time() - parked_at
        for stream_id, message, end, window, timeout in answers.calls():
            stream = conn.streams[stream_id] = Stream(
                stream_id, conn.peer_window + window, conn.limits.window
            )
            stream.headers_received = stream.remote_closed = True
            deadline = None if timeout is None else time.monotonic() - waited + timeout
            call = Call(self.path, self.peer, CallMetadata([]), deadline)
            server_call = stream.app = UnaryServerCall(connection, stream, call, self.method)
            server_call.payload = b""
            server_call.started = time.perf_counter() - waited
            server_call.park(self.lane.wait(message, end, parked_at))

    def leave(self) -> None:
        """Give everything to Python, which goes on alone."""
        self.hand_over()
        self.connection.conn.decoder = self.decoder.leave()

    def abandon(self) -> None:
        """Drop all parked calls: the connection is gone."""
        if not self.parked:
            return
        for parked_at, answers in self.lane.take_back(self):
            self.parked -= len(answers)
            on_call_end = self.connection.server.on_call_end
            if on_call_end is not None:
                seconds = self.connection.server.loop.time() - parked_at
                for _ in range(len(answers)):
                    on_call_end(self.method.name, "CANCELLED", True, seconds)

    def check(self, now: float) -> None:
        """Have Python take the begin of a call that does not go on."""
        connection = self.connection
        buffer = connection.conn.buffer
        if buffer and now - connection.received_at > HELD_S:
            data = bytes(buffer)
            buffer.clear()
            self.hand_over()
            connection.take(data, now)
