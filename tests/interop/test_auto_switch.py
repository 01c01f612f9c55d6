"""The members' dialect without its preface at RocketMQ 5.3.3's AutoSwitchHAConnection and AutoSwitchHAClient.

A store of RocketMQ's controller mode runs without a broker (`java/AutoSwitchPeer.java`). The cores are driven
over a plain socket here; afterwards both logs hold equal bytes, and so do both lists of epochs.
"""

import contextlib
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from support.store.master_log import HOST
from support.systems.real_broker import free_port, need_kit, resolved
from whimbrel.ha.epochs import Epochs, decode_epochs
from whimbrel.ha.protocol import Append, Compare
from whimbrel.ha.switching import (
    HEADER,
    MEMBER_REPORT,
    REQUEST,
    Answer,
    MemberFrame,
    SwitchingMaster,
    SwitchingSlave,
)
from whimbrel.store.codec import RecordDraft, encode_record

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

PEER = Path(__file__).resolve().parent / "java" / "AutoSwitchPeer.java"
OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")
FILE = 1 << 20
WAIT_S = 60.0
STEP_S = 0.05
REAL, OURS = 1, 2  # ids


class RealStore:
    """A store of RocketMQ's in a process of its own."""

    def __init__(self, root: Path) -> None:
        need_kit()
        self.root, self.port = root, free_port()
        options = [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
        command = [
            "java",
            "-Xmx256m",
            f"-Duser.home={root}",
            *options,
            "-cp",
            resolved("5.3.3").strip(),
            PEER,
        ]
        self.errors = (root.parent / "peer.log").open("w")
        self.process = subprocess.Popen(
            [*map(str, command), str(root / "store"), str(self.port), str(FILE), str(REAL), "500"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def ask(self, command: str) -> tuple[int, int, Epochs]:
        """Give a command; return end, confirm offset and epochs afterwards."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        end, confirmed, text = self.process.stdout.readline().split()
        pairs = [] if text == "-" else [pair.split(":") for pair in text.split(",")]
        return int(end), int(confirmed), tuple((int(epoch), int(start)) for epoch, start in pairs)

    def log(self, end: int) -> bytes:
        """Return the bytes of its log."""
        files = sorted((self.root / "store" / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)[:end]

    def file(self) -> Epochs:
        """Return the list in its file."""
        return decode_epochs((self.root / "store" / "epochFileCheckpoint").read_bytes())


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealStore]:
    with RealStore(tmp_path / "real") as store:
        yield store


class OurSlave:
    """The slave's core, and the log it makes."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.epochs: Epochs = ()
        self.received = bytearray()

    def follow(self, port: int, done: Callable[[SwitchingSlave], bool]) -> SwitchingSlave:
        """Connect to a master and follow it until something is so."""
        self.received.clear()
        core = SwitchingSlave(
            end=len(self.log),
            file_size=FILE,
            now=time.monotonic(),
            epochs=self.epochs,
            member=OURS,
            preface=None,
            start=max(len(self.log) - 500, min(len(self.log), 1)),
        )
        until = time.monotonic() + WAIT_S
        with socket.create_connection(("127.0.0.1", port), timeout=STEP_S) as sock:
            sock.sendall(core.first_report(time.monotonic()))
            while not done(core):
                assert time.monotonic() < until
                self.take(core, sock)
        return core

    def take(self, core: SwitchingSlave, sock: socket.socket) -> None:
        """Take what has come, and report."""
        data = b""
        with contextlib.suppress(TimeoutError):
            data = sock.recv(1 << 16)
            assert data, "closed by the master"
        now = time.monotonic()
        self.received += data
        for event in core.receive(memoryview(data), now) if data else ():
            if isinstance(event, Compare):
                core.compare(event, bytes(self.log[event.offset : event.offset + len(event.data)]))
            elif isinstance(event, Append):
                assert event.offset == len(self.log)
                self.log += event.data
        epochs = core.to_adopt(len(self.log))
        if epochs is not None:
            core.adopt(epochs)
            self.epochs = epochs
        core.check_silence(now)
        sock.sendall(core.next_report(len(self.log), now))

    def check_bytes(self, core: SwitchingSlave) -> set[int]:
        """Encode anew what was received, and compare; return the epochs of the frames."""
        data = bytes(self.received)
        answer = Answer(core.master_end, core.theirs).header
        assert data[: len(answer)] == answer
        at, epochs = len(answer), set()
        while at + HEADER.size <= len(data):
            _, size, *fields = HEADER.unpack_from(data, at)
            offset, epoch, start, commit = fields
            assert MemberFrame(offset, size, epoch, start, commit).header == data[at : at + HEADER.size]
            if size:
                epochs.add(epoch)
            at += HEADER.size + size
        return epochs


def test_our_core_follows_a_real_master_from_epoch_to_epoch(real: RealStore) -> None:
    real.ask("master 1")
    slave = OurSlave()
    real.ask("put 40 3000")
    real.ask("master 3")
    end, _, epochs = real.ask("put 400 3000")  # into a second file
    assert [epoch for epoch, _ in epochs] == [1, 3] and end > FILE
    core = slave.follow(real.port, lambda core: core.accepted and len(slave.log) == end)
    assert slave.log == real.log(end) and slave.epochs == epochs == real.file()
    assert slave.check_bytes(core) == {1, 3}
    end, _, _ = real.ask("put 10 100")
    slave.follow(real.port, lambda core: core.commit == end == len(slave.log))  # by a heartbeat
    real.ask("master 4")
    end, _, epochs = real.ask("put 10 100")
    core = slave.follow(real.port, lambda core: len(slave.log) == end)
    assert slave.check_bytes(core) == {4}  # the last bytes of epoch 3 go under the next one
    assert slave.log == real.log(end) and slave.epochs == epochs == real.file()


class OurMaster:
    """The master's core, and the log that it feeds."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.epochs: Epochs = ()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_S)
        self.port: int = self.listener.getsockname()[1]
        self.chance = random.Random(1)

    def write(self, epoch: int, count: int) -> None:
        """Begin an epoch and write records."""
        self.epochs = (*self.epochs, (epoch, len(self.log)))
        for _ in range(count):
            draft = RecordDraft(
                topic="interop",
                queue_id=0,
                body=self.chance.randbytes(700),
                properties=b"KEYS\x01k\x02",
                born_timestamp=1_700_000_000_000,
                born_host=HOST,
                store_host=HOST,
            )
            self.log += encode_record(
                draft, physical_offset=len(self.log), queue_offset=0, store_timestamp=1_700_000_000_000
            )

    def feed(self, done: Callable[[SwitchingMaster], bool]) -> bytes:
        """Feed the slave that connects next until something is so; return what it sent."""
        heard = bytearray()
        sock, _ = self.listener.accept()
        with sock:
            sock.settimeout(STEP_S)
            core = SwitchingMaster(
                file_size=FILE,
                frame_bytes_max=32 * 1024,
                first_offset="log",
                now=time.monotonic(),
                preface=False,
            )
            until = time.monotonic() + WAIT_S
            end = len(self.log)
            while not done(core):
                now = time.monotonic()
                assert now < until
                with contextlib.suppress(TimeoutError):
                    data = sock.recv(4096)
                    assert data, "closed by the slave"
                    heard += data
                    core.receive(data, begin=0, end=end, now=now)
                if core.asked:
                    core.answer(self.epochs, end=end, now=now)
                core.lead(commit=end, beating=True)
                while frame := core.next_frame(begin=0, end=end, now=now):
                    sock.sendall(frame.header + self.log[frame.offset : frame.offset + frame.size])
        return bytes(heard)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def master() -> Iterator[OurMaster]:
    made = OurMaster()
    yield made
    made.close()


def test_a_real_slave_follows_our_core_and_cuts_where_we_say_that_both_are_the_same(
    real: RealStore, master: OurMaster
) -> None:
    master.write(1, 60)
    shared = len(master.log)
    kept = bytes(master.log)
    master.write(2, 60)  # of a leader that nobody confirms
    real.ask(f"slave 2 127.0.0.1:{master.port}")
    heard = master.feed(lambda core: core.proven and core.acknowledged == len(master.log))
    assert heard[: REQUEST.size] == REQUEST.pack(1, 0, 0, REAL)
    reports = [
        MEMBER_REPORT.unpack_from(heard, at) for at in range(REQUEST.size, len(heard), MEMBER_REPORT.size)
    ]
    assert reports[0] == (2, 0) and reports[-1] == (2, len(master.log))
    end, _, epochs = real.ask("state")
    assert real.log(end) == master.log and epochs == master.epochs == real.file()
    # The next leader had the first epoch only.
    master.log[:], master.epochs = kept, master.epochs[:1]
    master.write(5, 70)
    heard = master.feed(lambda core: core.proven and core.acknowledged == len(master.log))
    assert MEMBER_REPORT.unpack_from(heard, REQUEST.size) == (2, shared)  # it has cut its log there
    end, confirmed, epochs = real.ask("state")
    assert real.log(end) == master.log and epochs == master.epochs == real.file()
    assert confirmed == end
