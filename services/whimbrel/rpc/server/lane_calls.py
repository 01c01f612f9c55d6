"""The compiled lane on a connection: plain calls go from bytes to bytes, the rest to Python.

    bytes of a read ──► the lane ──► plain calls: done, answered or parked               } until
                          └──► what is not plain, untouched ──► Connection ──► Python    } all is taken

The lane (`whimbrel_lane.PlainCalls`) reads whole sends and acknowledgements, and nothing else (`calls.rs` in
`native/core`), those of one kind in a pass. A pass may have reads of several connections
(`gathered_reads.py`). What it leaves of a read begins with a frame, with no stream half in and half out, so
Python goes on as if it had read everything. **Who has what:** the compiled decoder the table of header
fields; `Connection` all windows, numbers of streams and bytes that are not taken yet, which a pass gets and
gives back; the lane the answers that wait, as long as nothing else is asked of them.

Where a read ends with an error of the connection, Python answers none of the calls before it, and the lane
does: they are stored either way.

**Answers** that fit into the windows are written as they are. The first one that does not fit, and all of its
read behind it, become streams with an answer, and Python sends them as windows grow.

**Parked calls.** A call whose answer waits has no `Stream` and no server call: it is an entry in the lane.
When anything else happens to it (the peer resets it or changes a window, its deadline or the appender's
comes, the server stops), the parked calls of its connection become what Python would have made of them, and
go on there (`hand_over`).

**Others' connections.** A consumer's may never have a call for the lane: where the last reads had none, the
lane is asked about few of those that follow, until it takes a call again. Nothing else depends on it.

**A guard** is asked by Python. The lane takes calls with the same values of the headers that it looks at as
the last call of the connection, of that method, that it has let in (`HeaderGuard`).

**Bounds** are those of `connection.py`: parked calls count as open streams, in number and in the budget; the
begin of a call that is not whole counts as part of the connection's buffer, at most `HOLD_BYTES_MAX` (256
KiB) and for `HELD_S`, before Python takes it.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from whimbrel.rpc.http2.grpc_format import CallMetadata
from whimbrel.rpc.http2.hpack import HeaderDecoder
from whimbrel.rpc.http2.sending import GONE_KEPT
from whimbrel.rpc.http2.stream import Stream
from whimbrel.rpc.server.calls import UnaryServerCall
from whimbrel.rpc.server.handlers import Call, Encoded, UnaryMethod
from whimbrel.rpc.server.lanes import AnsweredCall, Approved, CallLane, LaneAnswers, TakenRead
from whimbrel.rpc.server.limits import HeaderGuard
from whimbrel.rpc.server.responses import OK

if TYPE_CHECKING:
    from whimbrel.rpc.server.connection import NativeConnection

__all__ = ["IDLE_READS_EACH", "IDLE_READS_MAX", "LaneCalls"]

HELD_S = 1.0  # that the begin of a call waits in the buffer; a check of the server comes every 5 s
# Asking the lane about a read costs a tenth of a pull: after so many reads in a row without a call for it, it
# is asked about one read in so many.
IDLE_READS_MAX = 32
IDLE_READS_EACH = 8


class LaneCalls:
    """The lane's part in one connection.

    Attributes:
        methods: by path, of the calls that may be parked.
        client: whose calls are taken: Python knows it. client_bytes: as headers have it.
        idle: reads since one with a call for the lane.
        parked: calls whose answers wait in the lane.
        peer: the other side's address.
        approved: by the guard; None where there is none.
    """

    def __init__(self, connection: "NativeConnection", lane: CallLane) -> None:
        self.connection, self.lane = connection, lane
        methods = connection.server.methods
        self.methods = {path: methods[path] for path in lane.paths if path in methods}
        self.peer, self.client, self.client_bytes = connection.peer, "", b""
        self.parked = self.idle = 0
        before = connection.conn.decoder
        assert isinstance(before, HeaderDecoder)
        self.decoder = connection.conn.decoder = self.lane.header_decoder(before)
        guard = connection.server.guard
        self.guard = guard if isinstance(guard, HeaderGuard) else None
        self.generation = -1
        self.approved: Approved | None = None
        if self.guard is not None:
            self.forget_approved(self.guard)

    def forget_approved(self, guard: HeaderGuard) -> None:
        """Begin anew: the guard may decide otherwise than before."""
        self.generation = guard.generation
        self.approved = [name.encode() for name in guard.headers], [None] * len(self.lane.paths)

    def approve(self, path: str, metadata: CallMetadata) -> None:
        """Take note of a call that the guard has let in."""
        guard = self.guard
        if guard is None or path not in self.lane.paths:
            return
        if self.generation != guard.generation:
            self.forget_approved(guard)
        assert self.approved is not None
        names, values = self.approved
        values[self.lane.paths.index(path)] = [metadata.raw(name) for name in names]

    def ready(self) -> bool:
        """Tell whether the connection is in a state in which there can be plain calls."""
        connection = self.connection
        conn = connection.conn
        if (
            conn.error is not None
            or conn.restricted
            or conn.draining
            or connection.paused
            or not self.lane.active
            or self.decoder.native is None
        ):
            return False
        if self.guard is not None and self.generation != self.guard.generation:
            self.forget_approved(self.guard)
        return not connection.budget.exceeded(connection.waiting_bytes() if conn.blocked else 0)

    def likely(self) -> bool:
        """Count a read; tell whether it may have a call for the lane, as far as those before it say."""
        self.idle += 1
        return self.idle <= IDLE_READS_MAX or self.idle % IDLE_READS_EACH == 0 or self.parked > 0

    def state(self) -> tuple[int, int, int, int, int, int, int, int, int, bool]:
        """Return what a pass must know of the connection (`State` in `calls.rs`)."""
        conn = self.connection.conn
        limits = conn.limits
        return (
            conn.last_id,
            limits.streams - len(conn.streams) - conn.elsewhere,
            conn.send_window,
            conn.receive_window,
            conn.peer_window,
            limits.window,
            conn.peer_frame,
            limits.frame,
            limits.block,
            bool(conn.blocked),
        )

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the peer."""
        conn = self.connection.conn
        buffer = conn.buffer
        if buffer:
            if len(buffer) + len(data) < conn.needed:
                buffer += data
                return
            data = b"".join((buffer, data))
            buffer.clear()
        conn.elsewhere = self.parked
        self.receive_rest(data, now, asks=self.likely())

    def receive_rest(self, data: bytes, now: float, *, asks: bool = True) -> None:
        """Take what is left of a read, in as many passes as it needs; `asks`: or all by Python."""
        while data and asks and self.ready():
            done = self.lane.take(((self, data),))
            if done is None:
                break
            rest = self.go_on(data, done.path, done.reads[0], now)
            assert len(rest) < len(data), "the lane has taken nothing, and left nothing to Python"
            data = rest
        if data:
            self.hand_over()
            self.connection.take(data, now)
        self.connection.conn.elsewhere = self.parked

    def go_on(self, data: bytes, path: str, done: TakenRead, now: float) -> bytes:
        """Go on behind a pass: apply it, let Python do its part; return what is left for another pass."""
        taken, partial, stop, older, last_id, send_window, received, stranger, answers = done
        connection = self.connection
        conn = connection.conn
        conn.last_id, conn.send_window = last_id, send_window
        if received:
            conn.receive_window -= received
            conn.give_back(received)
        if stranger is not None and stranger.isascii():
            self.client, self.client_bytes = stranger.decode(), stranger
        frames, ids, others = answers
        if others is not None:
            self.idle = 0
        if frames is not None:
            assert ids is not None
            connection.calls += len(ids)
            conn.elsewhere += len(ids)  # as in Python, where all streams of a read are open until its end
            self.send(frames, ids)
            if others:
                assert isinstance(others, list)
                before = len(conn.streams)
                self.answer_beyond(others, path)
                conn.elsewhere += len(others) - (len(conn.streams) - before)
        elif others is not None:
            assert not isinstance(others, list)
            connection.calls += len(others)
            conn.elsewhere += len(others)
            self.parked += len(others)
            self.lane.park(self, path, others)
        if partial:
            if taken < len(data):
                conn.buffer += memoryview(data)[taken:]
            conn.needed = stop
            return b""
        if stop > taken:
            if older:
                self.hand_over()
            calls, resets, streams = connection.calls, conn.resets, len(conn.streams)
            connection.take(data[taken:stop], now)
            ended = connection.calls - calls - (conn.resets - resets) - (len(conn.streams) - streams)
            conn.elsewhere += max(ended, 0)
        return data[stop:]

    def send(self, frames: bytes, ids: list[int]) -> None:
        """Send answers that fit into the windows, and end their streams."""
        conn = self.connection.conn
        conn.out.append(frames)
        conn.data_sent = True
        gone = conn.gone
        for stream_id in ids:
            gone[(stream_id >> 1) % GONE_KEPT] = stream_id
        self.connection.budget.responded(len(frames))

    def answer_beyond(self, calls: Sequence[AnsweredCall], path: str) -> None:
        """Have Python send answers as far as windows allow, and the rest when they grow."""
        for stream_id, message, _, window, timeout in calls:
            self.connection.calls += 1
            server_call = self.server_call(stream_id, window, timeout, path, 0.0)
            server_call.respond(Encoded(message, OK))

    def server_call(
        self, stream_id: int, window: int, timeout: float | None, path: str, waited_s: float
    ) -> UnaryServerCall:
        """Make the stream and the server call of a call that the lane has taken so long ago."""
        connection, method = self.connection, self.methods[path]
        assert type(method) is UnaryMethod
        conn = connection.conn
        stream = conn.streams[stream_id] = Stream(stream_id, conn.peer_window + window, conn.limits.window)
        stream.headers_received = stream.remote_closed = True
        deadline = None if timeout is None else time.monotonic() - waited_s + timeout
        call = Call(path, self.peer, CallMetadata([]), deadline)
        server_call = stream.app = UnaryServerCall(connection, stream, call, method)
        server_call.payload = b""
        server_call.started = time.perf_counter() - waited_s
        return server_call

    def answered(self, path: str, answers: LaneAnswers, parked_at: float) -> bool:
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
            self.send(answers.frames, answers.ids)
            connection.schedule_flush()
            return True
        self.to_python(path, answers, parked_at)
        return False

    def hand_over(self) -> None:
        """Make of all parked calls what Python would have made of them."""
        if self.parked:
            for path, parked_at, answers in self.lane.take_back(self):
                self.given_back(path, answers, parked_at)

    def given_back(self, path: str, answers: LaneAnswers, parked_at: float) -> None:
        """Go on in Python with calls that the lane had parked."""
        self.parked -= len(answers)
        self.connection.conn.elsewhere -= len(answers)
        self.to_python(path, answers, parked_at)

    def to_python(self, path: str, answers: LaneAnswers, parked_at: float) -> None:
        """Make streams and server calls of calls that were parked."""
        waited_s = self.connection.server.loop.time() - parked_at
        for stream_id, message, end, window, timeout in answers.calls():
            server_call = self.server_call(stream_id, window, timeout, path, waited_s)
            server_call.park(self.lane.wait(path, message, end, parked_at))

    def leave(self) -> None:
        """Give everything to Python, which goes on alone."""
        self.hand_over()
        self.connection.conn.decoder = self.decoder.leave()

    def abandon(self) -> None:
        """Drop all parked calls: the connection is gone."""
        if not self.parked:
            return
        for path, parked_at, answers in self.lane.take_back(self):
            self.parked -= len(answers)
            on_call_end = self.connection.server.on_call_end
            if on_call_end is not None:
                seconds = self.connection.server.loop.time() - parked_at
                for _ in range(len(answers)):
                    on_call_end(self.methods[path].name, "CANCELLED", True, seconds)

    def check(self, now: float) -> None:
        """Have Python take the begin of a call that does not go on."""
        connection = self.connection
        buffer = connection.conn.buffer
        if buffer and now - connection.received_at > HELD_S:
            data = bytes(buffer)
            buffer.clear()
            self.hand_over()
            connection.take(data, now)
