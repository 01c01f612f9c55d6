"""Whole conversations of a master and its slaves as text: commands, and below each what they cause.

Everything is a plain object: `MasterProtocol`, `SlaveProtocol`, logs in memory, bytes in flight, and a time
that only `tick` moves. A file of `tests/scenario` begins with sentences that say what it shows. Then come

    command argument key=value
    ----
    what it causes, a line each; "ok" when that is nothing

    master log=0..2500 file=1000 [frame=500] [first=last-file]   the master, and the log it holds
    slave a [log=0..1200] [other=1100] [file=1000] [compare=64] [flush=sync]
                        a slave and what it holds: the master's first bytes, from `other` on different ones
    connect a [tell=]   both ends start; the slave's first report is on its way, perhaps only to tell its end
    send [a] [frames=1] the master sends what it has, to one slave or to all
    deliver [a|master] [bytes=1]
                        what is in flight arrives: at one of them, or at all; the first bytes only
    run                 `send` and `deliver` until nothing moves any more
    tick 5.1            so many seconds pass, then everybody looks at the timers
    timers              when each end must look at its timers
    append 300          the master's log grows
    remove below=1000   the master's retention
    recover end=2000    the master's log is recovered: cut, a new epoch
    flush a             the slave's disk has everything that was appended
    frame a offset=0 size=10 [body=5]
                        a header that no master of ours sends is on its way to the slave, with so many bytes
    report a 77         a report that no slave of ours sends is on its way to the master
    bytes a 474554      these bytes are
    status              where everybody is
    replay ha493-fresh.1
                        a recorded conversation of RocketMQ's, with our slave in place of its slave
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from support.store.goldens import chunks
from whimbrel.errors import PeerError
from whimbrel.ha.frames import FRAME_BYTES_MAX, FRAME_HEADER, REPORT
from whimbrel.ha.protocol import (
    Append,
    Compare,
    FirstOffset,
    FrameReceived,
    MasterProtocol,
    OutOfRange,
    SlaveProtocol,
)

__all__ = ["Dialogue", "play"]

TURNS_MAX = 10_000  # of `run`
RECORDED_FILE_SIZE = 65536
SEPARATOR = "----"


def pattern(begin: int, end: int, seed: int) -> bytes:
    """Return the bytes that a log has at a range; different seeds differ at each byte."""
    return bytes((at * 131 + (at >> 8) + seed) & 0xFF for at in range(begin, end))


@dataclass
class Log:
    """A log in memory."""

    begin: int = 0
    data: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.begin + len(self.data)

    def read(self, begin: int, end: int) -> bytes:
        """Return a range."""
        assert self.begin <= begin <= end <= self.end
        return bytes(self.data[begin - self.begin : end - self.begin])

    def __str__(self) -> str:
        return f"{self.begin}..{self.end}"


@dataclass
class Slave:
    """A slave: its log, and what a follower keeps beside the core."""

    name: str
    log: Log
    file_size: int
    compare_bytes: int
    sync: bool
    flushed: int = 0
    appended_end: int = -1

    @property
    def held(self) -> int:
        """Up to where it may acknowledge."""
        return self.flushed if self.sync else self.appended_end


@dataclass
class Pipe:
    """A connection: a core at each end, and the bytes in flight between them."""

    slave: Slave
    master_core: MasterProtocol
    slave_core: SlaveProtocol
    to_master: bytearray = field(default_factory=bytearray)
    to_slave: bytearray = field(default_factory=bytearray)
    master_open: bool = True
    slave_open: bool = True


@dataclass(frozen=True)
class Command:
    """A line of a scenario, taken apart."""

    words: list[str]
    options: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> "Command":
        """Take a line apart."""
        words = line.split()
        return cls(
            [word for word in words if "=" not in word],
            dict(cast(tuple[str, str], tuple(word.split("=", 1))) for word in words if "=" in word),
        )

    def number(self, name: str, default: int) -> int:
        """Return an option's number."""
        return int(self.options.get(name, default))

    def span(self, name: str) -> tuple[int, int]:
        """Return an option's range; nothing is an empty one."""
        begin, _, end = self.options.get(name, "0..0").partition("..")
        return int(begin), int(end)


class Dialogue:
    """A master, its slaves, and what is between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = Log()
        self.seed = 0
        self.file_size = 0
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.first_offset: FirstOffset = "log"
        self.slaves: dict[str, Slave] = {}
        self.pipes: dict[str, Pipe] = {}
        self.lines: list[str] = []

    def execute(self, line: str) -> list[str]:
        """Run a command; return what it caused."""
        self.lines = []
        command = Command.parse(line)
        act: Callable[[Command], None] = getattr(self, f"do_{command.words[0]}")
        act(command)
        return self.lines or ["ok"]

    def show(self, line: str) -> None:
        """Note something that happened; an append that goes on where the last line's ended joins it."""
        before = self.lines[-1] if self.lines else ""
        for verb in (": appends ", ": compares "):
            if verb in line and verb in before and line.startswith(before.partition(verb)[0] + verb):
                joined, border = before.rpartition("..")[::2]
                begin, end = line.rpartition(verb)[2].split("..")
                if begin == border:
                    self.lines[-1] = f"{joined}..{end}"
                    return
        self.lines.append(line)

    # Who is there.

    def do_master(self, command: Command) -> None:
        """The master; everything begins anew."""
        self.__init__()  # type: ignore[misc]
        begin, end = command.span("log")
        self.log = Log(begin, bytearray(pattern(begin, end, self.seed)))
        self.file_size = command.number("file", 1000)
        self.frame_bytes_max = command.number("frame", FRAME_BYTES_MAX)
        self.first_offset = cast(FirstOffset, command.options.get("first", "log"))

    def do_slave(self, command: Command) -> None:
        """A slave."""
        begin, end = command.span("log")
        other = command.number("other", end)
        copied = self.log.begin <= begin and other <= self.log.end
        data = self.log.read(begin, other) if copied else pattern(begin, other, 0)
        name = command.words[1]
        self.slaves[name] = Slave(
            name,
            Log(begin, bytearray(data + pattern(other, end, 1))),
            command.number("file", self.file_size),
            command.number("compare", 0),
            command.options.get("flush") == "sync",
            flushed=end,
        )

    def do_connect(self, command: Command) -> None:
        """A new connection."""
        slave = self.slaves[command.words[1]]
        assert slave.name not in self.pipes, "it is connected"
        if slave.sync:
            slave.flushed = slave.log.end
        slave.appended_end = -1
        pipe = self.pipes[slave.name] = Pipe(
            slave,
            MasterProtocol(
                file_size=self.file_size,
                frame_bytes_max=self.frame_bytes_max,
                first_offset=self.first_offset,
                now=self.now,
            ),
            SlaveProtocol(
                end=slave.log.end,
                file_size=slave.file_size,
                now=self.now,
                start=max(slave.log.end - slave.compare_bytes, slave.log.begin, min(slave.log.end, 1)),
                telling="tell" in command.options,
            ),
        )
        self.report(pipe, pipe.slave_core.first_report(self.now))

    # What the log does.

    def do_append(self, command: Command) -> None:
        """The master's log grows."""
        end = self.log.end
        self.log.data += pattern(end, end + int(command.words[1]), self.seed)
        self.show(f"master: the log is {self.log}")

    def do_remove(self, command: Command) -> None:
        """The master's log loses its begin."""
        begin = command.number("below", 0)
        del self.log.data[: begin - self.log.begin]
        self.log.begin = begin
        self.show(f"master: the log is {self.log}")

    def do_recover(self, command: Command) -> None:
        """A new epoch: connections are closed, and what comes next differs from what was there before."""
        for pipe in list(self.pipes.values()):
            if pipe.master_open:
                self.leave_slave(pipe, "the log was recovered again")
        del self.log.data[command.number("end", self.log.end) - self.log.begin :]
        self.seed += 2
        self.show(f"master: the log is {self.log}")

    def do_flush(self, command: Command) -> None:
        """The slave's disk is done."""
        slave = self.slaves[command.words[1]]
        slave.flushed = slave.log.end
        self.show(f"{slave.name}: on disk up to {slave.flushed}")
        if pipe := self.pipes.get(slave.name):
            self.report(pipe, pipe.slave_core.next_report(slave.held, self.now))

    # What goes over the connections.

    def do_send(self, command: Command) -> None:
        """The master sends."""
        for pipe in self.chosen(command):
            self.send(pipe, command.number("frames", TURNS_MAX))

    def do_deliver(self, command: Command) -> None:
        """What is in flight arrives."""
        limit = command.number("bytes", TURNS_MAX * FRAME_BYTES_MAX)
        to_all = len(command.words) == 1
        for pipe in list(self.pipes.values()):
            if to_all or "master" in command.words:
                self.deliver_to_master(pipe, limit)
        for pipe in list(self.pipes.values()):
            if to_all or pipe.slave.name in command.words:
                self.deliver_to_slave(pipe, limit)

    def do_run(self, command: Command) -> None:
        """Everything that needs no time."""
        for _ in range(TURNS_MAX):
            before = len(self.lines)
            for pipe in list(self.pipes.values()):
                self.send(pipe, TURNS_MAX)
            self.do_deliver(Command(["deliver"], {}))
            if len(self.lines) == before:
                return
        raise AssertionError("it never comes to rest")

    def do_tick(self, command: Command) -> None:
        """Time passes."""
        self.now = round(self.now + float(command.words[1]), 6)
        self.show(f"it is {self.now:g} s")
        for pipe in list(self.pipes.values()):
            if pipe.master_open:
                try:
                    pipe.master_core.check_silence(self.now)
                    self.send(pipe, TURNS_MAX)
                except PeerError as error:
                    self.leave_slave(pipe, str(error))
            if pipe.slave_open:
                self.tick_slave(pipe)

    def tick_slave(self, pipe: Pipe) -> None:
        """Look at a slave's timers as a follower does."""
        core = pipe.slave_core
        try:
            self.report(pipe, core.next_report(pipe.slave.held, self.now))
            core.check_silence(self.now)
        except PeerError as error:
            self.leave_master(pipe, error)

    def do_timers(self, command: Command) -> None:
        """When somebody must look again."""
        for name, pipe in self.pipes.items():
            self.show(f"master: timer of {name} at {pipe.master_core.deadline:g} s")
            self.show(f"{name}: timer at {pipe.slave_core.deadline:g} s")

    def do_frame(self, command: Command) -> None:
        """A frame from somebody else."""
        pipe = self.pipes[command.words[1]]
        offset, size, body = (command.number(name, 0) for name in ("offset", "size", "body"))
        pipe.to_slave += FRAME_HEADER.pack(offset, size) + bytes(body)

    def do_report(self, command: Command) -> None:
        """A report from somebody else."""
        self.pipes[command.words[1]].to_master += REPORT.pack(int(command.words[2]))

    def do_bytes(self, command: Command) -> None:
        """Bytes from somebody else."""
        self.pipes[command.words[1]].to_master += bytes.fromhex(command.words[2])

    def do_status(self, command: Command) -> None:
        """Where everybody is."""
        self.show(f"master: the log is {self.log}")
        for name, slave in self.slaves.items():
            line = f"{name}: the log is {slave.log}, {self.likeness(slave.log)}"
            if pipe := self.pipes.get(name):
                core = pipe.master_core
                line += f"; acknowledged {core.acknowledged}, next {core.next_offset}"
                line += f"; in flight {len(pipe.to_slave)} to it, {len(pipe.to_master)} from it"
            else:
                line += "; not connected"
            self.show(line)

    def likeness(self, log: Log) -> str:
        """Say how a slave's log compares with the master's where both have bytes."""
        begin, end = max(self.log.begin, log.begin), min(self.log.end, log.end)
        if begin >= end:
            return "nothing in common"
        return "equal" if self.log.read(begin, end) == log.read(begin, end) else "DIFFERENT"

    def chosen(self, command: Command) -> list[Pipe]:
        """Return the connections that a command names, or all."""
        return [pipe for name, pipe in self.pipes.items() if not command.words[1:] or name in command.words]

    # One end of a connection.

    def send(self, pipe: Pipe, frames_max: int) -> None:
        """Let the master send."""
        if not pipe.master_open:
            return
        for _ in range(frames_max):
            try:
                frame = pipe.master_core.next_frame(begin=self.log.begin, end=self.log.end, now=self.now)
            except PeerError as error:
                self.leave_slave(pipe, str(error))
                return
            if frame is None:
                return
            pipe.to_slave += frame.header + self.log.read(frame.offset, frame.end)
            what = f"frame {frame.offset}..{frame.end}" if frame.size else f"heartbeat at {frame.offset}"
            self.show(f"master -> {pipe.slave.name}: {what}")

    def report(self, pipe: Pipe, report: bytes) -> None:
        """Let the slave report."""
        pipe.to_master += report
        for (offset,) in REPORT.iter_unpack(report):
            self.show(f"{pipe.slave.name} -> master: report {offset}")

    def deliver_to_master(self, pipe: Pipe, limit: int) -> None:
        """Bytes arrive at the master."""
        data = bytes(pipe.to_master[:limit])
        del pipe.to_master[:limit]
        name, core = pipe.slave.name, pipe.master_core
        if not pipe.master_open:
            self.forget(pipe)
            return
        if data:
            try:
                for reported in core.receive(data, begin=self.log.begin, end=self.log.end, now=self.now):
                    if reported.first:
                        self.show(
                            f"master: {name} begins at {reported.offset}, is fed from {core.next_offset}"
                        )
                    else:
                        proven = "" if core.proven else ", which proves nothing"
                        self.show(f"master: {name} has acknowledged {reported.offset}{proven}")
            except OutOfRange as error:
                self.leave_slave(pipe, f"{error} (it is ahead)" if error.ahead else str(error))
            except PeerError as error:
                self.leave_slave(pipe, str(error))
        if pipe.master_open and not pipe.slave_open and not pipe.to_master:
            pipe.master_open = False
            self.show(f"master: {name} has left; it had acknowledged {core.acknowledged}")
            self.forget(pipe)

    def deliver_to_slave(self, pipe: Pipe, limit: int) -> None:
        """Bytes arrive at a slave."""
        data = bytes(pipe.to_slave[:limit])
        del pipe.to_slave[:limit]
        slave, core = pipe.slave, pipe.slave_core
        if pipe.slave_open and data:
            try:
                self.take(pipe, data)
                self.report(pipe, core.next_report(slave.held, self.now))
            except PeerError as error:
                self.leave_master(pipe, error)
        if pipe.slave_open and not pipe.master_open and not pipe.to_slave:
            self.leave_master(pipe, core.closed(begin=slave.log.begin, end=slave.log.end))
        self.forget(pipe)

    def take(self, pipe: Pipe, data: bytes) -> None:
        """Do what a slave's core asks for, as a follower does."""
        slave, core = pipe.slave, pipe.slave_core
        for event in core.receive(memoryview(data), self.now):
            if isinstance(event, Compare):
                end = event.offset + len(event.data)
                core.compare(event, slave.log.read(event.offset, end))
                self.show(f"{slave.name}: compares {event.offset}..{end}")
            elif isinstance(event, Append):
                if not slave.log.data:
                    slave.log.begin = event.offset
                assert event.offset == slave.log.end
                slave.log.data += event.data
                if event.data:
                    self.show(f"{slave.name}: appends {event.offset}..{slave.log.end}")
                else:
                    self.show(f"{slave.name}: starts its log at {event.offset}")
            elif isinstance(event, FrameReceived):
                slave.appended_end = event.end

    def leave_slave(self, pipe: Pipe, why: str) -> None:
        """The master closes a connection."""
        pipe.master_open = False
        pipe.to_master.clear()
        self.show(f"master: closes the connection to {pipe.slave.name}: {why}")

    def leave_master(self, pipe: Pipe, error: PeerError) -> None:
        """The slave closes a connection."""
        pipe.slave_open = False
        pipe.to_slave.clear()
        self.show(f"{pipe.slave.name}: closes its connection: {error}")

    def forget(self, pipe: Pipe) -> None:
        """Drop a connection that both ends have left."""
        if not pipe.master_open and not pipe.slave_open:
            self.pipes.pop(pipe.slave.name, None)

    # What RocketMQ said.

    def do_replay(self, command: Command) -> None:
        """A recorded conversation, with our slave beside the recorded one."""
        recorded = list(chunks(command.words[1]))
        core: SlaveProtocol | None = None
        began_ns = recorded[0][0]
        reports: list[int] = []
        for time_ns, side, data in recorded:
            at = f"{(time_ns - began_ns) / 1e9:.1f} s"
            if not data:
                self.show(f"{at}: {'slave' if side == 0 else 'master'} leaves")
            elif side == 0:
                for (offset,) in REPORT.iter_unpack(data):
                    if core is None:
                        core = SlaveProtocol(end=offset, file_size=RECORDED_FILE_SIZE, now=0.0)
                        core.first_report(0.0)
                        reports.append(offset)
                    ours = "as ours" if offset in reports else "NOT ours"
                    self.show(f"{at}: slave -> master: report {offset}, {ours}")
            elif core is not None:
                for line in self.recorded_frames(core, data, reports):
                    self.show(f"{at}: {line}")

    def recorded_frames(self, core: SlaveProtocol, data: bytes, reports: list[int]) -> Iterator[str]:
        """Feed our slave; yield what came, and note what it reports."""
        for event in core.receive(memoryview(data), 0.0):
            if isinstance(event, FrameReceived):
                reports += REPORT.unpack(core.next_report(event.end, 0.0))
                yield f"master -> slave: a frame up to {event.end} is complete"
        if len(data) == FRAME_HEADER.size:
            yield f"master -> slave: heartbeat at {FRAME_HEADER.unpack(data)[0]}"


def play(text: str) -> str:
    """Run a scenario; return its text with the output as it is now."""
    dialogue, found = Dialogue(), []
    lines = iter(text.splitlines())
    for line in lines:
        found.append(line)
        if not line or line.startswith("#"):
            continue
        found += [SEPARATOR, *dialogue.execute(line)]
        for old in lines:  # the output as it was, or none in a new scenario
            if not old:
                found.append("")
                break
    return "\n".join(found) + "\n"
