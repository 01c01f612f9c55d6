"""Reads of several connections that one pass of the lane takes: which wait, what may happen meanwhile."""

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

from support.lane.brokers import Client
from support.lane.connected import Caller, Rig, run
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.server.gathered_reads import PASS_READS_MAX, READ_BYTES_MAX, GatheredReads
from whimbrel.rpc.server.read_end import ReadEnd


class Gathering(Rig):
    """A broker that takes small reads together; connections beside the first one by `callers`."""

    def __init__(self, root: Path, stub: socket.socket, callers: int, **how: Any) -> None:
        super().__init__(root, stub, waits=False, **how)
        self.callers = [Caller(self.side, stub) for _ in range(callers)]
        self.gathered = self.side.server.gathered = GatheredReads(ReadEnd(asyncio.get_running_loop()))
        self.passes: list[int] = []
        take = self.by_lane.take

        def noted(reads: Any) -> Any:
            self.passes.append(len(reads))
            return take(reads)

        self.by_lane.take = noted  # type: ignore[method-assign]

    def close(self) -> None:
        for caller in self.callers:
            caller.connection.connection_lost(None)
        super().close()


def test_small_reads_behind_the_first_one_are_taken_together(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 3)
        rig.feed(rig.send())
        assert list(rig.codes().values()) == [v2.OK]  # it does not wait
        for caller in rig.callers:
            caller.feed(caller.send())
            assert not caller.codes()
        await asyncio.sleep(0)
        assert [list(caller.codes().values()) for caller in rig.callers] == [[v2.OK]] * 3
        assert rig.passes == [1, 3]
        rig.callers[0].feed(rig.callers[0].send())  # the first one of an iteration again
        assert len(rig.callers[0].codes()) == 2
        rig.close()

    run(body)


def test_a_pass_has_a_bounded_number_of_reads(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, PASS_READS_MAX + 1)
        rig.feed(rig.send())
        for caller in rig.callers:
            caller.feed(caller.send())
        await asyncio.sleep(0)
        assert rig.passes == [1, PASS_READS_MAX, 1]
        rig.close()

    run(body)


def test_all_that_waits_has_a_bound(tmp_path: Path, stub: socket.socket, monkeypatch: Any) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 3)
        sent = [caller.send() for caller in rig.callers]
        size = max(map(len, sent))
        monkeypatch.setattr("whimbrel.rpc.server.gathered_reads.WAITING_BYTES_MAX", 2 * size + size // 2)
        rig.feed(rig.send())
        for caller, data in zip(rig.callers, sent, strict=True):
            caller.feed(data)
        assert [len(caller.codes()) for caller in rig.callers] == [0, 0, 1]
        await asyncio.sleep(0)
        assert [len(caller.codes()) for caller in rig.callers] == [1, 1, 1]
        assert rig.gathered.waiting_bytes == 0
        rig.close()

    run(body)


def test_what_comes_behind_a_read_takes_it_along(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 1)
        (other,) = rig.callers
        rig.feed(rig.send())
        other.feed(other.send())
        other.feed(other.send())
        assert len(other.codes()) == 2
        other.feed(other.send())
        large = other.send(b"x" * READ_BYTES_MAX)
        other.feed(large[:100])  # it follows a read that waits
        other.feed(large[100:])
        assert len(other.codes()) == 4
        assert not rig.gathered.waiting
        rig.close()

    run(body)


def test_the_peers_end_has_its_read_taken_and_a_lost_connection_takes_it_along(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 2)
        ends, lost = rig.callers
        rig.feed(rig.send())
        end = rig.side.store.written
        for caller in rig.callers:
            caller.feed(caller.send())
        ends.connection.eof_received()
        assert list(ends.codes().values()) == [v2.OK]
        once = rig.side.store.written
        assert once > end
        lost.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert (rig.side.store.written, lost.codes()) == (once, {})
        rig.close()

    run(body)


def test_other_services_and_the_servers_stop_have_all_reads_taken(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 1)
        (other,) = rig.callers
        rig.feed(rig.send())
        other.feed(other.send())
        rig.side.server.replace([rig.side.service()])
        assert len(other.codes()) == 1
        await asyncio.sleep(0)
        rig.feed(rig.send())
        other.feed(other.send())
        await rig.side.server.stop(0)
        assert len(other.codes()) == 2
        rig.close()

    run(body)


def test_a_panic_ends_the_connection_whose_read_it_was(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 3)
        first, second, third = rig.callers
        policy, native = rig.by_lane.current_policy(), rig.by_lane.native

        class PanicsAtTheSecond:
            def take(self, reads: list[Any], *rest: Any) -> Any:
                if len(reads) == 1:
                    return policy.take(reads, *rest)
                policy.take(reads[:1], *rest)
                native.panic("on purpose")  # type: ignore[union-attr]

        rig.by_lane.current_policy = lambda: PanicsAtTheSecond()  # type: ignore[method-assign]
        rig.feed(rig.send())
        for caller in rig.callers:
            caller.feed(caller.send())
        end = rig.side.store.written
        await asyncio.sleep(0)
        rig.side.server.flush()
        assert [caller.sink.closing for caller in rig.callers] == [False, True, False]
        assert not rig.by_lane.active
        # The others go on in Python, with their tables of header fields as they were.
        assert (len(first.codes()), len(second.codes()), len(third.codes())) == (1, 0, 1)
        assert rig.side.store.written > end
        for caller in (first, third):
            caller.feed(caller.send())  # nothing waits for a lane that is off
            assert len(caller.codes()) == 2
        rig.close()

    run(body)


def test_a_fault_of_ours_ends_the_connections_of_its_pass(
    tmp_path: Path, stub: socket.socket, monkeypatch: Any
) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 2)
        rig.feed(rig.send())
        for caller in rig.callers:
            caller.feed(caller.send())

        def fails(*_: Any) -> bool:
            raise ValueError("on purpose")

        monkeypatch.setattr(rig.side.store, "append_packed", fails)
        await asyncio.sleep(0)
        rig.side.server.flush()
        assert [caller.sink.closing for caller in rig.callers] == [True, True]
        monkeypatch.undo()
        rig.feed(rig.send())  # all others go on
        assert list(rig.codes().values()) == [v2.OK] * 2
        rig.close()

    run(body)


def test_reads_without_room_for_their_entries_are_pythons(
    tmp_path: Path, stub: socket.socket, monkeypatch: Any
) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 2)
        rig.feed(rig.send())
        before = rig.by_lane.calls
        monkeypatch.setattr(rig.side.store, "append_packed", lambda *_: False)
        for caller in rig.callers:
            caller.feed(caller.send())
        await asyncio.sleep(0)
        assert [len(caller.codes()) for caller in rig.callers] == [1, 1]
        assert rig.by_lane.calls == before
        rig.close()

    run(body)


def test_reads_of_connections_without_the_lane_do_not_wait(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Gathering(tmp_path, stub, 0)
        rig.side.by_lane = None
        rig.side.server.replace([rig.side.service()])
        for _ in range(3):
            rig.feed(rig.send())
        assert len(rig.codes()) == 3
        other, sink = rig.side.connect(stub)
        other.data_received(Client(random.Random(1), "go").begin())
        assert sink.written
        other.connection_lost(None)
        rig.close()

    run(body)
