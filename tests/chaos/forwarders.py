"""TCP forwarders between members, so that one can be cut from all others without a firewall.

    forwarder = Forwarder("127.0.0.11", 0)       # listens
    forwarder.target = "127.0.0.1", 4711         # where its connections go on
    forwarder.cut()                              # nothing passes; connections stay, new ones are taken
    forwarder.mend()                             # what came meanwhile goes on
    forwarder.cut_off(4712)                      # nothing passes that process 4712 has connected, or connects

A cut is silent, as that of a network is: neither side is told. What was sent meanwhile waits in the kernel's
buffers. All of them run on one loop, on a thread of its own.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

__all__ = ["Forwarder", "Forwarders"]

PIECE_BYTES = 1 << 16
CLOSE_S = 5.0


class Forwarder:
    """One address that leads to another.

    Attributes:
        requests: what is replaced, and by what of the same length, in what goes to the target.
        answers: the same in what comes from it. Neither is found where a piece ends in the midst of it; the
            kernel gives a request of less than `PIECE_BYTES` over loopback in one.
    """

    def __init__(self) -> None:
        self.requests: tuple[bytes, bytes] = b"", b""
        self.answers: tuple[bytes, bytes] = b"", b""
        self.target = ("127.0.0.1", 0)
        self.address = ("127.0.0.1", 0)
        self.open = asyncio.Event()
        self.open.set()
        self.apart = 0  # the process whose connections pass nothing
        self.gates: dict[int, asyncio.Event] = {}  # of connections, by the port of who has connected
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> Self:
        """Take connections at a port; 0: at a free one."""
        self.server = await asyncio.start_server(self.take, host, port)
        self.address = self.server.sockets[0].getsockname()[:2]
        return self

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead a connection on."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        port = writer.get_extra_info("peername")[1]
        gate = self.gates[port] = asyncio.Event()
        try:
            apart = self.apart
            # On a thread: all other connections go on meanwhile.
            ports = await asyncio.to_thread(ports_of, apart) if apart else set()
            if self.apart != apart or port not in ports:
                gate.set()
            await self.passes(gate)
            theirs, ours = await asyncio.open_connection(*self.target)
            pumps = [
                asyncio.create_task(self.pump(reader, ours, gate, self.requests)),
                asyncio.create_task(self.pump(theirs, writer, gate, self.answers)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                ours.close()
        except OSError:
            pass  # nobody is there: this side learns it by the end of its connection
        finally:
            writer.close()
            self.gates.pop(port, None)
            self.tasks.discard(task)

    async def passes(self, gate: asyncio.Event) -> None:
        """Wait until a connection passes something."""
        await self.open.wait()
        await gate.wait()

    async def pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        replaced: tuple[bytes, bytes],
    ) -> None:
        """Lead one direction on until it ends."""
        with suppress(OSError):
            while data := await source.read(PIECE_BYTES):
                await self.passes(gate)
                sink.write(data.replace(*replaced) if replaced[0] else data)
                await sink.drain()
            await self.passes(gate)

    def cut_off(self, process: int) -> None:
        """Let nothing pass on connections of a process, those to come among them."""
        self.apart = process
        ports = ports_of(process)
        for port, gate in self.gates.items():
            if port in ports:
                gate.clear()

    def mend(self) -> None:
        """Let all pass."""
        self.apart = 0
        self.open.set()
        for gate in self.gates.values():
            gate.set()


class Forwarders:
    """All of a run, on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.all: list[Forwarder] = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="forwarders")
        self.thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have something done on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CLOSE_S)

    def add(self, host: str, port: int = 0) -> Forwarder:
        """Begin another one."""

        async def begin() -> Forwarder:
            return await Forwarder().listen(host, port)

        forwarder: Forwarder = self.do(begin())
        self.all.append(forwarder)
        return forwarder

    def cut(self, *forwarders: Forwarder) -> None:
        """Let nothing pass."""
        for each in forwarders:
            self.loop.call_soon_threadsafe(each.open.clear)

    def cut_off(self, process: int, *forwarders: Forwarder) -> None:
        """Let nothing pass on connections of a process."""
        for each in forwarders:
            self.loop.call_soon_threadsafe(each.cut_off, process)

    def mend(self, *forwarders: Forwarder) -> None:
        """Let all pass again."""
        for each in forwarders:
            self.loop.call_soon_threadsafe(each.mend)

    def close(self) -> None:
        """End all."""

        async def end() -> None:
            for each in self.all:
                each.mend()
                if each.server is not None:
                    each.server.close()
                for task in list(each.tasks):
                    task.cancel()
            await asyncio.sleep(0)

        self.do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)


def ports_of(process: int) -> set[int]:
    """Return the local ports of a process' IPv4 connections."""
    sockets: set[str] = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                sockets.add(str(descriptor.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}
