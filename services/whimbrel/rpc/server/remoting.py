"""One connection that speaks the remoting protocol, after protocol detection and TLS.

    bytes of a read ──► FrameReader ──► commands ──► handlers ──► replies ──► one write
                                           └──(responses to requests of ours)──► whoever asked
    Deferred completed (flush, replica, held pull) ──► flush of its connection ──► once a tick

Where the compiled lane is active it does plain sends, and what it leaves goes this way (`remoting_lane.py`).

It is the sibling of `connection.py`, and its server treats both alike (`shared.py`): one budget of memory,
one count of connections, one timer. All replies to the requests of a read leave in one write; several buffers
go to the transport as they are, so that records which were read from the log are not copied once more.

**Bounds.** Of a frame that is not whole, `FRAME_BYTES_MAX`, all connections together `PROCESS_BYTES_MAX`; its
first frame must be whole after `HANDSHAKE_S`. Requests of ours that wait for a response: `ASKED_MAX`. A
connection without bytes in either direction for `IDLE_S` is closed, as RocketMQ's are. A peer that does not
read is not read from; replies to what it had asked before wait, and where they are more than
`UNREAD_BYTES_MAX` it is `overloaded`: held pulls are answered without messages then.

**Bytes that are no frames** end the connection, with a line in the log; what was asked before them is
answered as far as that can be done at once. Other connections notice nothing.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import cast

from whimbrel.deferred import Deferred
from whimbrel.errors import ConnectionClosed, RequestTimeout, Throttled, WhimbrelError
from whimbrel.rpc.remoting.codes import ResponseCode
from whimbrel.rpc.remoting.command import INT_MAX, ONEWAY, RESPONSE, Command
from whimbrel.rpc.remoting.errors import RemotingError
from whimbrel.rpc.remoting.frames import FrameReader, decode_frame, encode_frame, head_of
from whimbrel.rpc.remoting.handlers import Reply, reply_to_error
from whimbrel.rpc.server.admission import Place
from whimbrel.rpc.server.lane_calls import IDLE_READS_MAX
from whimbrel.rpc.server.lanes import TakenFrames
from whimbrel.rpc.server.protocol_detection import HANDSHAKE_S, host_and_port
from whimbrel.rpc.server.remoting_lane import LaneRequests
from whimbrel.rpc.server.shared import COUNT_BYTES, AnyConnection, Shared

__all__ = ["ASKED_MAX", "IDLE_S", "RemotingConnection"]

IDLE_S = 120.0  # RocketMQ's serverChannelMaxIdleTimeSeconds
UNREAD_BYTES_MAX = 8 << 20  # of replies, before large ones wait: some thirty pulls' worth
ASKED_MAX = 64  # requests of ours that wait for a response
REQUEST_BYTES = 512  # of a request that waits for its reply, about

UNKNOWN = -1  # what `OnRequestEnd` gets for a code that is not served

logger = logging.getLogger(__name__)


class RemotingConnection(AnyConnection):
    """One connection of a peer; a `handlers.Peer`.

    Attributes:
        active_at: when bytes came or went last, by the loop's clock.
        waiting: replies that are to come.
        asked: requests of ours by their numbers, with the timers of those who wait.
        lane: the compiled lane's part; None without one.
    """

    def __init__(self, server: Shared, connected_at: float, place: Place | None = None) -> None:
        super().__init__(server, connected_at, place)
        self.local, self.active_at = "", connected_at
        self.reader = FrameReader()
        self.out: list[bytes | memoryview] = []
        self.waiting: dict[Deferred[Reply], None] = {}
        self.asked: dict[int, tuple[Deferred[Command], asyncio.TimerHandle]] = {}
        self.last_asked = 0
        self.spoken = self.ended = False
        self.lane: LaneRequests | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection in; the peer speaks first."""
        self.local = host_and_port(transport.get_extra_info("sockname"))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Handle the requests of a read, and write their replies at once."""
        server = self.server
        self.active_at = server.loop.time()
        self.uncounted += len(data)
        gathered, lane = server.gathered, self.lane
        if gathered is not None and lane is not None and lane.idle < IDLE_READS_MAX and lane.lane.active:
            if gathered.add(self, data, partial=self.reader.held > 0):
                return
            data = gathered.withdraw(self) + data  # without a copy where none waits
        if self.ended:
            return
        read_end, self.calls = server.read_end, 0
        if read_end is not None:
            read_end.reading = True
        self.receiving = True
        try:
            if data := self.reader.joined(data) if self.reader.partial else data:
                if lane is None:
                    self.take_frames(data)
                else:
                    lane.receive(data, asks=lane.likely())
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection alone
            self.fault(error)
        self.receiving = False
        self.flush()
        if read_end is not None:
            read_end.end(self.calls)

    def receive(self, data: bytes, taken: TakenFrames | None = None) -> None:
        """Handle what a read that has waited brought; `taken`: what a pass of the lane has taken of it."""
        if self.ended:
            return
        self.receiving = True
        try:
            if taken is not None and self.lane is not None:
                self.lane.receive(self.lane.go_on(data, taken), asks=True)
            elif data := self.reader.joined(data) if self.reader.partial else data:
                if self.lane is None:
                    self.take_frames(data)
                else:
                    self.lane.receive(data, asks=self.lane.likely())
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection alone
            self.fault(error)
        self.receiving = False
        self.flush()

    def fault(self, error: Exception) -> None:
        """End the connection for a fault of ours."""
        logger.error("%s: its requests can't be answered", self.peer, exc_info=error)
        self.close()

    def take_frames(self, data: bytes) -> bool:
        """Handle the frames of bytes that begin with one; return False where they are none."""
        try:
            for command in self.reader.commands(data):
                self.spoken = True
                self.calls += 1
                if command.flag & RESPONSE:
                    self.answered(command)
                else:
                    self.take(command)
            return True
        except RemotingError as error:
            self.server.rejections.report(
                self.peer, f"closed, since it sent no frame of the remoting protocol: {error}", self.active_at
            )
            self.close()
            return False

    def connection_lost(self, error: Exception | None) -> None:
        """Drop what waits, and tell the service."""
        self.ended = True
        self.server.connections.pop(self, None)
        if self.server.gathered is not None:
            self.server.gathered.withdraw(self)
        self.out.clear()
        if self.lane is not None:
            self.lane.abandon()
        waiting, self.waiting = self.waiting, {}
        for deferred in waiting:
            deferred.cancel()
        asked, self.asked = self.asked, {}
        for waiter, timer in asked.values():
            timer.cancel()
            waiter.fail(ConnectionClosed(f"{self.peer} has closed its connection"))
        self.server.budget.count(self, 0)
        if self.place is not None:
            self.place.leave()
        if self.server.remoting is not None:
            self.server.remoting.closed(self)
        self.server.notify_if_idle()

    def resume_writing(self) -> None:
        """Read on."""
        self.paused = False
        self.active_at = self.server.loop.time()
        self.transport.resume_reading()

    # Requests of the peer

    def take(self, command: Command) -> None:
        """Handle a request."""
        began = time.perf_counter()
        code, service = command.code, self.server.remoting
        handle = None if service is None else service.handles.get(code)
        try:
            if handle is None:
                code = UNKNOWN
                reply = Reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f"request {command.code} is not served here",
                )
            else:
                outcome = handle(self, command)
                if isinstance(outcome, Deferred):
                    self.wait(command, outcome, began)
                    return
                if outcome is None:
                    return
                reply = outcome
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            reply = self.failed(code, error)
        self.reply(command.opaque, command.flag, reply)
        if self.server.on_request_end is not None:
            self.server.on_request_end(code, reply.code, False, time.perf_counter() - began, 1)

    def failed(self, code: int, error: Exception) -> Reply:
        """Return the reply to a request that fails; the text of an unexpected error stays here."""
        if not isinstance(error, WhimbrelError):
            logger.error("request %d from %s failed", code, self.peer, exc_info=error)
            error = WhimbrelError("internal error; the server's log says more")
        return reply_to_error(error)

    def wait(self, command: Command, deferred: Deferred[Reply], began: float) -> None:
        """Reply once there is something to reply."""
        self.waiting[deferred] = None
        deferred.waker = partial(self.settled, deferred, command.code, command.opaque, command.flag, began)
        if deferred.done:
            deferred.waker()

    def settled(self, deferred: Deferred[Reply], code: int, opaque: int, flag: int, began: float) -> None:
        """Reply with what has come of a request that waited."""
        del self.waiting[deferred]
        error = deferred.error
        reply = cast(Reply, deferred.result) if error is None else self.failed(code, error)
        self.reply(opaque, flag, reply)
        self.schedule_flush()
        if self.server.on_request_end is not None:
            self.server.on_request_end(code, reply.code, True, time.perf_counter() - began, 1)

    def reply(self, opaque: int, flag: int, reply: Reply) -> None:
        """Put a response into the next write."""
        if flag & ONEWAY:
            return
        body, size = reply.body, 0
        if body:
            size = sum(map(len, body))
        head = head_of(reply.header(opaque), size)
        self.out.append(head)
        if body:
            self.out += body
        self.budget.unflushed += len(head) + size

    # Requests to the peer

    @property
    def overloaded(self) -> bool:
        """Whether it leaves so much unread that large replies should wait."""
        budget = self.budget
        waiting = self.transport.get_write_buffer_size()
        return budget.unflushed + budget.queued + waiting > UNREAD_BYTES_MAX

    def push(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        """Send a oneway request; return whether the connection is open and has room."""
        if self.ended or self.overloaded:
            return False
        self.send_request(Command(code, self.next_number(), fields, body, ONEWAY))
        return True

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, seconds: float) -> Deferred[Command]:
        """Send a request; return its response, or RequestTimeout or ConnectionClosed.

        Raises:
            Throttled: too many are under way on this connection.
        """
        if self.ended:
            raise ConnectionClosed(f"{self.peer} has closed its connection")
        if len(self.asked) >= ASKED_MAX or self.overloaded:
            raise Throttled(f"{self.peer} has {len(self.asked)} requests of this server unanswered")
        number = self.next_number()
        deferred: Deferred[Command] = Deferred()
        self.asked[number] = (
            deferred,
            self.server.loop.call_later(seconds, self.not_answered, number, seconds),
        )
        self.send_request(Command(code, number, fields, body))
        return deferred

    def next_number(self) -> int:
        """Return a number for a request of ours."""
        self.last_asked = self.last_asked % INT_MAX + 1
        return self.last_asked

    def send_request(self, command: Command) -> None:
        """Put a request into the next write."""
        frame = encode_frame(command)
        self.out.append(frame)
        self.budget.responded(len(frame))
        self.schedule_flush()

    def answered(self, command: Command) -> None:
        """Take a response; one that nobody waits for is dropped."""
        found = self.asked.pop(command.opaque, None)
        if found is not None:
            deferred, timer = found
            timer.cancel()
            deferred.complete(command)

    def not_answered(self, number: int, seconds: float) -> None:
        """Give a request of ours up."""
        deferred, _ = self.asked.pop(number)
        deferred.fail(RequestTimeout(f"{self.peer} has not answered within {seconds:g} s"))

    # Writing

    def flush(self) -> None:
        """Write all that is ready."""
        self.flush_scheduled = False
        out, self.out = self.out, []
        written, self.budget.unflushed = self.budget.unflushed, 0
        if self.server.idle is not None:
            self.server.notify_if_idle()
        if self.transport.is_closing():
            return
        if out:
            self.active_at = self.server.loop.time()
            self.uncounted += written
            if len(out) == 1:
                self.transport.write(out[0])
            else:
                self.transport.writelines(out)
        if self.ended:
            self.transport.close()
        elif self.uncounted > COUNT_BYTES:
            self.count_held()

    def close(self) -> None:
        """End the connection, behind what is written; nothing of it is handled any more."""
        self.ended = True
        self.schedule_flush()

    # What it holds

    def held_bytes(self) -> int:
        """Return about how many bytes this connection holds in memory for its peer."""
        return self.reader.held + self.unread + self.open_calls * REQUEST_BYTES

    def count_held(self) -> None:
        """Count what this connection holds in the budget of the process."""
        self.uncounted = 0
        largest = self.server.budget.count(self, self.held_bytes())
        if largest is not None:
            largest.end_for_memory()

    def end_for_memory(self) -> None:
        """End this connection, which holds more than any other when all together hold too much."""
        logger.warning(
            "%s is cut off: all connections together hold more than %d bytes, and this one %d",
            self.peer,
            self.server.budget.limit,
            self.held_bytes(),
        )
        self.server.budget.ended(self)
        self.ended = True
        self.transport.abort()

    # Called by the server

    @property
    def open_calls(self) -> int:
        """How many requests wait for their replies."""
        return len(self.waiting) + (0 if self.lane is None else self.lane.parked)

    def set_lane(self) -> None:
        """Have the lane of what is served, if there is one, take plain sends from now on."""
        if self.lane is not None:
            self.lane.leave()
        service = self.server.remoting
        found = None if service is None else service.lane
        self.lane = None if found is None else LaneRequests(self, found)
        self.reader.decode = decode_frame if found is None else found.command

    def drain(self) -> None:
        """Take no requests any more; the server stops."""
        self.transport.pause_reading()
        self.flush()

    def check_timeouts(self, now: float) -> None:
        """Close a connection that is idle, or whose first request has not come in time."""
        if self.uncounted or self.open_calls or self.reader.held:
            self.count_held()
        if not self.spoken and now - self.connected_at > HANDSHAKE_S:
            self.transport.abort()
        elif now - self.active_at > IDLE_S:
            logger.info("%s was idle for %g s", self.peer, IDLE_S)
            self.transport.abort()
