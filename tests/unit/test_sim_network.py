"""The simulated network and the loop on it: streams, cuts, resets, timers and bells, in virtual time."""

import asyncio
import errno
import random
import selectors
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from sim.disk import SimDisk
from sim.loop import SimLoop
from sim.machine import SimHost
from sim.network import GIVE_UP_S, NO_ANSWER_S, WINDOW_BYTES, SimNetwork
from sim.process import SimProcess
from sim.scheduler import Scheduler
from sim.sockets import SimDoorbell, SimSocket
from sim.transport import serve

HERE, THERE = "10.0.0.1", "10.0.0.2"
ROOT = Path("/store")


class World:
    """Two hosts with a process and a loop each, on a network."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.network = SimNetwork(self.scheduler, random.Random(seed))
        self.near, self.far = (self.process(address) for address in (HERE, THERE))
        self.loop, self.far_loop = (
            SimLoop(process, self.network, process.host) for process in (self.near, self.far)
        )

    def process(self, address: str) -> SimProcess:
        """Return a process on a host of its own."""
        host = SimHost(self.scheduler, SimDisk(random.Random(0)), name=address)
        process = SimProcess(address, address, host.process(), self.scheduler, random.Random(2))
        process.on_death.append(lambda: self.network.killed(process))
        return process

    def run(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.scheduler.run_until(self.scheduler.now + seconds)

    def result(self, main: Coroutine[Any, Any, Any], seconds: float = 1.0) -> Any:
        """Run a coroutine on the near loop, and return or raise what it comes to."""
        task = []
        self.loop.call_soon(lambda: task.append(self.loop.create_task(main)))
        self.run(seconds)
        return task[0].result()

    def pair(self) -> tuple[SimSocket, SimSocket]:
        """Return the near and the far end of a connection."""
        listener = SimSocket(self.network, self.far, THERE)
        listener.listen(0)
        near = SimSocket(self.network, self.near, HERE)
        assert near.connect_ex(listener.address) == errno.EINPROGRESS
        self.run()
        far, peer = listener.accept()
        assert peer == near.getsockname()
        listener.close()
        return near, far


class Recorder(asyncio.Protocol):
    """Keeps what comes, and the error with which it ends."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []
        self.transport: Any = None
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep bytes."""
        self.data += data

    def pause_writing(self) -> None:
        """Keep that it was called."""
        self.calls.append("pause")

    def resume_writing(self) -> None:
        """Keep that it was called."""
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep the error."""
        self.lost.append(exc)


def streams(world: World) -> tuple[Recorder, Recorder]:
    """Return the near and the far protocol of a connection of asyncio's."""
    far, near = Recorder(), Recorder()
    server = serve(world.far_loop, lambda: far, 0)
    world.result(world.loop.create_connection(lambda: near, THERE, server.address[1]))
    server.close()
    return near, far


def code_of(sock: SimSocket) -> int | None:
    """Return the error that a socket's next call raises."""
    with pytest.raises(OSError) as raised:
        sock.recv(1)
    return raised.value.errno


def test_a_stream_keeps_its_order_and_ends_behind_its_last_byte() -> None:
    world = World()
    near, far = world.pair()
    sent = [b"%d," % number for number in range(200)]
    for piece in sent:
        near.send(piece)
    near.close()
    with pytest.raises(BlockingIOError):
        far.recv(10)
    world.run()
    assert far.recv(7) == b"0,1,2,3"
    assert far.recv(1 << 20) == b"".join(sent)[7:]
    assert far.recv(10) == b""


def test_connections_overtake_each_other() -> None:
    world = World()
    arrivals: list[int] = []
    for number in range(20):
        near, far = world.pair()
        far.on_ready = lambda number=number: arrivals.append(number)
        world.scheduler.at(100.0, lambda near=near: near.send(b"x"))  # type: ignore[misc]
    world.run(100.0)
    assert sorted(arrivals) == list(range(20)) != arrivals


def test_a_cut_holds_bytes_of_its_direction_until_it_is_mended() -> None:
    world = World()
    near, far = world.pair()
    world.network.cut(HERE, THERE)
    near.send(b"one ")
    near.send(b"two")
    far.send(b"back")
    world.run(GIVE_UP_S / 2)
    assert near.recv(10) == b"back"
    assert not far.events() & selectors.EVENT_READ
    world.network.mend(THERE, HERE)
    world.run()
    assert far.recv(10) == b"one two"
    world.run(2 * GIVE_UP_S)
    assert not near.error and not far.error


def test_a_cut_that_outlasts_the_sender_resets_both_ends() -> None:
    world = World()
    near, far = world.pair()
    world.network.cut(HERE, THERE)
    world.run(10 * GIVE_UP_S)
    near.send(b"x")
    world.run(GIVE_UP_S - 1.0)
    assert not near.error
    world.run(2.0)
    assert (code_of(near), code_of(far)) == (errno.ETIMEDOUT, errno.ETIMEDOUT)
    world.network.heal()
    world.run()
    assert not list(world.network.connections)


def test_a_full_window_blocks_the_sender_until_something_is_taken() -> None:
    world = World()
    near, far = world.pair()
    assert near.send(bytes(2 * WINDOW_BYTES)) == WINDOW_BYTES
    with pytest.raises(BlockingIOError):
        near.send(b"x")
    world.run()
    assert near.events() == 0
    told: list[float] = []
    near.on_ready = lambda: told.append(world.scheduler.now)
    assert len(far.recv(1000)) == 1000
    world.run()
    assert len(told) == 1
    assert near.send(bytes(2000)) == 1000


def test_a_transport_tells_its_protocol_to_wait_and_to_go_on() -> None:
    world = World()
    near, far = streams(world)
    far.transport.pause_reading()
    body = bytes(range(256)) * (WINDOW_BYTES // 128)
    near.transport.write(body)
    assert near.calls == ["pause"]
    world.run()
    assert (far.data, near.calls) == (b"", ["pause"])
    far.transport.resume_reading()
    world.run()
    assert (far.data == body, near.calls) == (True, ["pause", "resume"])
    near.transport.close()
    world.run()
    assert (near.lost, far.lost) == ([None], [None])


def test_a_connection_that_both_ends_have_closed_is_forgotten() -> None:
    world = World()
    near, far = world.pair()
    near.close()
    world.run()
    assert len(list(world.network.connections)) == 1
    far.close()
    assert not list(world.network.connections)


def test_a_killed_process_resets_its_connections_and_takes_no_new_ones() -> None:
    world = World()
    near, _ = streams(world)
    listener = SimSocket(world.network, world.far, THERE)
    listener.listen(9)
    world.far.die()
    world.run()
    assert isinstance(near.lost[0], ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        world.result(world.loop.create_connection(Recorder, THERE, 9))


def test_what_a_host_that_lost_power_is_sent_resets_the_connection_once_it_is_back() -> None:
    world = World()
    near, _ = world.pair()
    world.network.lose_power(THERE)
    near.send(b"into the void")
    world.run(60.0)
    assert not near.error
    world.network.power_on(THERE)
    near.send(b"x")
    world.run()
    assert code_of(near) == errno.ECONNRESET


def test_an_attempt_to_connect_is_refused_where_nobody_listens() -> None:
    world = World()
    with pytest.raises(ConnectionRefusedError):
        world.result(world.loop.create_connection(Recorder, THERE, 1))
    sock = SimSocket(world.network, world.near, HERE)
    sock.connect_ex((THERE, 1))
    assert sock.events() == 0
    world.run()
    assert sock.events() and sock.error == errno.ECONNREFUSED


@pytest.mark.parametrize("cause", ["down", "cut there", "cut back"])
def test_an_attempt_to_connect_finds_no_answer_where_no_host_is_reached(cause: str) -> None:
    world = World()
    serve(world.far_loop, Recorder, 9)
    match cause:
        case "down":
            world.network.lose_power(THERE)
        case "cut there":
            world.network.cut(HERE, THERE)
        case "cut back":
            world.network.cut(THERE, HERE)
    with pytest.raises(asyncio.InvalidStateError):
        world.result(world.loop.create_connection(Recorder, THERE, 9), NO_ANSWER_S - 1.0)
    with pytest.raises(TimeoutError):
        world.result(world.loop.create_connection(Recorder, THERE, 9), NO_ANSWER_S + 1.0)


def test_an_address_is_taken_once() -> None:
    world = World()
    server = serve(world.far_loop, Recorder, 9)
    with pytest.raises(OSError, match="in use"):
        SimSocket(world.network, world.far, THERE).listen(9)
    server.close()
    SimSocket(world.network, world.far, THERE).listen(9)


def test_callbacks_run_in_their_order_and_those_of_an_iteration_in_the_next_one() -> None:
    world = World()
    loop, seen = world.loop, []

    def first() -> None:
        seen.append("first")
        loop.call_soon(seen.append, "of the first")

    loop.call_later(2.0, seen.append, "late")
    loop.call_at(loop.time() + 1.0, seen.append, "soon")
    loop.call_later(1.5, seen.append, "never").cancel()
    loop.call_soon(first)
    loop.call_soon(seen.append, "second")
    assert seen == []
    world.run(0.5)
    assert seen == ["first", "second", "of the first"]
    world.run(5.0)
    assert seen[3:] == ["soon", "late"]


def test_sleeps_take_virtual_time_alone() -> None:
    world = World()

    async def main() -> tuple[float, str]:
        began = world.loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.loop.create_future(), 1000.0)
        return world.loop.time() - began, "done"

    took, done = world.result(main(), 2000.0)
    assert done == "done"
    assert 1000.0 <= took < 1000.1


def test_an_executor_runs_later_and_hands_over_results_and_errors() -> None:
    world = World()
    calls: list[int] = []

    async def main() -> int:
        future = world.loop.run_in_executor(None, calls.append, 1)
        assert calls == []
        await future
        with pytest.raises(ZeroDivisionError):
            await world.loop.run_in_executor(None, divmod, 1, 0)
        return await world.loop.run_in_executor(None, max, 2, 3)

    assert world.result(main()) == 3
    assert calls == [1]


def test_a_paused_process_goes_on_later_and_a_dead_one_never() -> None:
    world = World()
    seen: list[str] = []
    world.near.pause()
    world.loop.call_soon(seen.append, "near")
    world.far_loop.call_soon(seen.append, "far")
    world.far.die()
    world.run()
    assert seen == []
    world.near.resume()
    world.run()
    assert seen == ["near"]


def test_what_nobody_catches_is_kept_for_the_checks() -> None:
    world = World()
    world.loop.call_soon(divmod, 1, 0)
    world.run()
    assert [type(failure["exception"]) for failure in world.near.failures] == [ZeroDivisionError]


def test_what_the_loop_lacks_says_so() -> None:
    loop = World().loop
    asked = {name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("__")}
    assert asked <= vars(SimLoop).keys()
    with pytest.raises(NotImplementedError, match="SimLoop has no add_writer"):
        loop.add_writer(1, print)


def test_a_bell_rings_the_loop_until_it_is_closed() -> None:
    world = World()
    bell = SimDoorbell(world.network, world.near, ROOT, "broker")
    other = SimDoorbell(world.network, world.near, ROOT, "replicator")
    rings: list[bool] = []
    world.loop.add_reader(bell.fileno(), lambda: rings.append(bell.take()))
    for _ in range(50):
        other.ring("broker")
        world.run()
    assert 40 < sum(rings) <= 50  # one in fifty is lost
    assert not bell.take()
    assert not other.take()
    assert world.loop.remove_reader(bell.fileno())
    bell.close()
    for _ in range(50):
        other.ring("broker")
    world.run()
    assert not bell.take()
