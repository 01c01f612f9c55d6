"""The compiled lane on connections of the remoting protocol: what waits, what fails, who is asked."""

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from support.lane.remoting import Request, TwoRemote, frames, plain
from whimbrel.rpc.remoting.frames import decode_frame
from whimbrel.rpc.server.gathered_reads import GatheredReads
from whimbrel.rpc.server.lane_calls import IDLE_READS_EACH, IDLE_READS_MAX
from whimbrel.rpc.server.lanes import LaneFault
from whimbrel.rpc.server.read_end import ReadEnd
from whimbrel.rpc.server.remoting import REQUEST_BYTES

Body = Callable[[Callable[[TwoRemote], None]], None]


@pytest.fixture
def waiting(tmp_path: Path, stub: socket.socket) -> Iterator[Body]:
    """Give what runs a test with two brokers whose sends wait."""

    def run(body: Callable[[TwoRemote], None]) -> None:
        async def both() -> None:
            two = TwoRemote(tmp_path, stub, waits=True)
            two.feed(plain(random.Random(1), 0))  # Python makes the first log file
            two.settle()
            body(two)
            two.close()

        asyncio.run(both())

    yield run


def request(opaque: int, *, oneway: bool = False, topic: str = "one") -> bytes:
    """Return a plain send."""
    rng = random.Random(opaque)
    made = Request(rng, batch=False, topic=topic)
    made.flag = 2 if oneway else 0
    return made.bytes(rng, "java", opaque)


def feed_some(two: TwoRemote) -> None:
    two.feed(request(1) + request(2, oneway=True) + request(3))
    two.feed(request(4))
    assert two.calls == 4 and two.compiled.appender.waiting_count == 4


def test_answers_wait_in_the_lane_and_are_counted_in_the_budget(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        feed_some(two)
        connection = two.connections[1][0]
        assert not connection.waiting and connection.open_calls == 4
        assert connection.held_bytes() == two.connections[0][0].held_bytes() == 4 * REQUEST_BYTES
        two.settle()
        assert connection.open_calls == 0
        two.check()

    waiting(body)


def test_11_sends_that_nobody_confirms_are_answered_as_by_python(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        feed_some(two)
        for side in two.sides:
            side.appender.close("the test ends")
            side.server.flush()
        written = two.connections[1][1].sent
        assert [decode_frame(frames(written)[number][0]).code for number in (1, 3, 4)] == [10] * 3
        assert frames(two.connections[0][1].sent) == frames(written)

    waiting(body)


def test_late_answers_are_handed_to_python_and_leave_when_they_may(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        feed_some(two)
        two.compiled.appender.parked.hand_over(float("inf"))
        connection = two.connections[1][0]
        assert len(connection.waiting) == connection.open_calls == 4
        two.feed(request(5))
        two.settle()
        two.check()

    waiting(body)


def test_a_role_that_ends_gives_its_answers_to_python(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        feed_some(two)
        connection, server = two.connections[1][0], two.compiled.server
        server.remoting = two.python.server.remoting
        connection.set_lane()
        assert connection.lane is None and connection.reader.decode is decode_frame
        assert len(connection.waiting) == 4
        two.settle()
        two.check()

    waiting(body)


def test_a_connection_that_is_lost_takes_its_answers_with_it(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        feed_some(two)
        connection = two.connections[1][0]
        two.connect_anew()
        assert connection.open_calls == 0 and not len(two.compiled.appender.parked)
        two.feed(request(6))
        two.settle()
        assert list(frames(two.connections[1][1].sent)) == [6]

    waiting(body)


def test_sends_for_which_the_disk_has_no_room_are_pythons(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        with patch.object(two.compiled.store, "append_packed", return_value=False):
            two.feed(request(1) + request(2))
        assert two.calls == 0
        two.settle()
        two.check()

    waiting(body)


def test_while_writes_are_refused_sends_are_pythons(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        for side in two.sides:
            side.appender.refusal = "not now"
        two.feed(request(1) + request(2, oneway=True))
        assert two.calls == 0
        for side in two.sides:
            side.appender.refusal = ""
        two.feed(request(3))
        assert two.calls == 1
        two.settle()
        two.check()

    waiting(body)


def test_a_panic_ends_the_connection_and_switches_the_lane_off(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        native, lane = two.lane.native, two.compiled.send_lane
        assert native is not None and lane is not None
        end = two.compiled.store.written

        def take(*arguments: Any) -> None:
            native.panic("for the test")

        with patch.object(lane, "current_policy", return_value=SimpleNamespace(take=take)):
            two.connections[1][0].data_received(request(1))
        two.compiled.server.flush()
        assert two.connections[1][1].closing and two.compiled.store.written == end
        assert two.lane.failures == 1 and not two.lane.active
        two.lane.failures = 0
        two.connect_anew()
        two.feed(request(2) + request(3))  # by Python on both sides
        two.settle()
        two.check()

    waiting(body)


def test_a_connection_without_sends_is_asked_about_seldom(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        lane = two.compiled.send_lane
        assert lane is not None
        other = Request(random.Random(1), batch=False)
        other.code = 99
        two.feed(request(0))
        with patch.object(lane, "take", wraps=lane.take) as take:
            for number in range(IDLE_READS_MAX + 10 * IDLE_READS_EACH):
                two.feed(other.bytes(random.Random(1), "java", number))
            assert take.call_count == IDLE_READS_MAX + 10
            two.feed(request(1) * IDLE_READS_EACH)  # in a read by Python, or by the lane
            for number in range(2, 2 + IDLE_READS_EACH):
                two.feed(request(number))
            before = take.call_count
            two.feed(other.bytes(random.Random(1), "java", 1000))
            assert take.call_count == before + 1
        two.settle()
        two.check()

    waiting(body)


def gathering(two: TwoRemote) -> GatheredReads:
    """Have the side with the lane take small reads together."""
    server = two.compiled.server
    server.gathered = GatheredReads(ReadEnd(asyncio.get_running_loop()))
    return server.gathered


async def test_reads_of_several_connections_are_taken_together(tmp_path: Path, stub: socket.socket) -> None:
    two = TwoRemote(tmp_path, stub)
    two.feed(plain(random.Random(1), 0))
    gathered, lane, rng = gathering(two), two.compiled.send_lane, random.Random(2)
    assert lane is not None
    pairs = [[side.connect_remote(stub) for side in two.sides] for _ in range(8)]
    with patch.object(lane, "take", wraps=lane.take) as take:
        for number in range(20):
            for at, pair in enumerate(pairs):
                sent = b"".join(
                    plain(rng, 100 * number + 10 * at + count, size=100, batch=False)
                    for count in range(rng.randrange(1, 4))
                )
                for connection, _ in pair:
                    connection.data_received(sent)
            assert gathered.waiting
            await asyncio.sleep(0)
            assert not gathered.waiting
        sizes = [len(call.args[0]) for call in take.call_args_list]
    assert sizes == [1, 7] * 20
    for (one, first), (other, second) in pairs:
        assert frames(first.sent) == frames(second.sent)
        one.connection_lost(None)
        other.connection_lost(None)
    two.check()
    two.close()


async def test_a_read_that_waits_is_taken_before_what_else_happens(
    tmp_path: Path, stub: socket.socket
) -> None:
    two = TwoRemote(tmp_path, stub)
    two.feed(plain(random.Random(1), 0))
    gathered = gathering(two)
    (first, _), (ends, sink), (lost, _), (more, other) = (two.compiled.connect_remote(stub) for _ in range(4))
    first.data_received(request(1))
    for connection in (ends, lost, more):
        connection.data_received(request(2))
    ends.eof_received()
    lost.connection_lost(None)
    more.data_received(request(3)[:50])  # it takes what waits along
    more.data_received(request(3)[50:])
    assert list(frames(sink.sent)) == [2]
    assert list(frames(other.sent)) == [2, 3]
    assert not gathered.waiting and two.calls == 4
    for connection in (first, ends, more):
        connection.connection_lost(None)
    two.close()


async def test_a_panic_in_a_pass_ends_the_connection_that_it_was_at(
    tmp_path: Path, stub: socket.socket
) -> None:
    two = TwoRemote(tmp_path, stub)
    two.feed(plain(random.Random(1), 0))
    gathering(two)
    lane = two.compiled.send_lane
    assert lane is not None
    (first, _), (good, sink), (bad, closed) = (two.compiled.connect_remote(stub) for _ in range(3))
    first.data_received(request(1))
    good.data_received(request(2))
    bad.data_received(request(3))

    def panic(reads: Any) -> None:
        two.lane.native = None
        raise LaneFault(1, "for the test")

    with patch.object(lane, "take", side_effect=panic):
        await asyncio.sleep(0)
        two.compiled.server.flush()
    assert closed.closing and not closed.written
    assert list(frames(sink.sent)) == [2]
    for connection in (first, good, bad):
        connection.connection_lost(None)
    two.close()


def test_several_topics_of_a_pass_have_their_turns(waiting: Body) -> None:
    def body(two: TwoRemote) -> None:
        sends = []
        for number in range(12):
            rng = random.Random(number)
            made = Request(rng, batch=False, topic=("orders", "uneven", "one")[number % 3])
            made.fields["e"] = "-1"
            sends.append(made.bytes(rng, "java", number))
        two.feed(b"".join(sends))
        assert two.calls == 12
        two.settle()
        two.check()

    waiting(body)
