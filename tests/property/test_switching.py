"""The members' dialect between generated logs: a copy, or a refusal; and any cut of its streams means the
same."""

import random
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from support.pieces import cut
from whimbrel.errors import PeerError, RemoteProtocolError
from whimbrel.ha.epochs import Epochs, adopted, check_epochs, consistent_point, epoch_at, reached
from whimbrel.ha.protocol import Append, Compare, OutOfRange, ShorterMaster
from whimbrel.ha.switching import (
    COMMIT_APART_S,
    Diverged,
    MemberFrame,
    Preface,
    SwitchingMaster,
    SwitchingSlave,
)

FILE = 512
TURNS_MAX = 10_000

cuts = st.lists(st.integers(1, 80), min_size=1, max_size=20)


@dataclass
class Log:
    """A member's log: whose bytes each epoch wrote is a function of epoch and offset."""

    data: bytearray = field(default_factory=bytearray)
    epochs: Epochs = ()

    def lead(self, epoch: int, count: int) -> None:
        """Begin an epoch and write so many bytes."""
        end = len(self.data)
        self.epochs = adopted(self.epochs, ((epoch, end),), end)
        self.data += random.Random(f"{epoch} {end}").randbytes(count)

    def copy(self, end: int) -> "Log":
        """Return a log that has as much of this one."""
        return Log(self.data[:end], adopted((), self.epochs, end))


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """A master's log and a member's, which have some of their epochs in common."""
    common, epoch = Log(), 0
    for count in draw(st.lists(st.integers(0, 300), max_size=4)):
        epoch += draw(st.integers(1, 3))
        common.lead(epoch, count)
    slave = common.copy(draw(st.integers(0, len(common.data))))
    # A leader that lost bytes has a new epoch when it goes on.
    master = common.copy(draw(st.integers(0, len(common.data))))
    for log, most in ((slave, 1), (master, 3)):
        for count in draw(st.lists(st.integers(0, 300), max_size=most)):
            epoch += 1
            log.lead(epoch, count)
    epoch += 1
    master.lead(epoch, draw(st.integers(0, 300)))
    return master, slave


class Meeting:
    """One connection between both cores; what is sent arrives in pieces of any size."""

    def __init__(
        self, master: Log, slave: Log, sizes: list[int], compare: int, *, telling: bool = False
    ) -> None:
        self.master, self.slave, self.sizes = master, slave, sizes
        self.now, self.turn = 0.0, 0
        end = len(slave.data)
        self.ours = SwitchingSlave(
            end=end,
            file_size=FILE,
            now=0.0,
            epochs=slave.epochs,
            member=2,
            preface=Preface(promised=slave.epochs[-1][0] if slave.epochs else 0),
            start=max(end - compare, min(end, 1)),
            telling=telling,
        )
        self.theirs = SwitchingMaster(file_size=FILE, frame_bytes_max=100, first_offset="log", now=0.0)
        self.to_master, self.to_slave = bytearray(self.ours.first_report(0.0)), bytearray()
        self.held_equal = 0  # up to here the member's log was found equal, or is a copy
        self.frames_end = -1  # of the last whole frame
        self.acknowledged: list[int] = []

    def piece(self, data: bytearray) -> bytes:
        """Take the next piece of what is under way."""
        size = self.sizes[self.turn % len(self.sizes)]
        self.turn += 1
        taken = bytes(data[:size])
        del data[:size]
        return taken

    def run(self) -> None:
        """Let both talk until nothing is left to say.

        Raises:
            PeerError: one of the two closed the connection.
        """
        end = len(self.master.data)
        self.theirs.lead(commit=end // 2, beating=True)
        for _ in range(TURNS_MAX):
            self.now += COMMIT_APART_S
            if self.to_master:
                first = self.theirs.next_offset < 0
                for report in self.theirs.receive(self.piece(self.to_master), begin=0, end=end, now=self.now):
                    assert report.first is first
                    first = False
                    if not report.first:
                        self.acknowledged.append(report.offset)
                        assert report.offset <= self.held_equal
                        assert {*reached(self.master.epochs, report.offset)} <= {*self.slave.epochs}
            if self.theirs.asked:
                self.theirs.answer(self.master.epochs, end=end, now=self.now)
            while frame := self.theirs.next_frame(begin=0, end=end, now=self.now):
                self.to_slave += frame.header + self.master.data[frame.offset : frame.offset + frame.size]
                if isinstance(frame, MemberFrame):
                    self.check_frame(frame)
            self.feed()
            if self.ours.theirs and self.theirs.proven and not self.to_slave and not self.to_master:
                return
        raise AssertionError("it never ended")

    def check_frame(self, frame: MemberFrame) -> None:
        """A body lies within one epoch and one file."""
        entry, epoch_end = epoch_at(self.master.epochs, frame.offset)
        assert (frame.epoch, frame.start) == entry and frame.end <= epoch_end
        assert frame.offset % FILE + frame.size <= FILE

    def feed(self) -> None:
        """Give the member what has arrived, and send what it reports."""
        core, log = self.ours, self.slave
        if self.to_slave:
            for event in core.receive(memoryview(self.piece(self.to_slave)), self.now):
                if isinstance(event, Compare):
                    core.compare(event, bytes(log.data[event.offset : event.offset + len(event.data)]))
                elif isinstance(event, Append):
                    assert event.offset == len(log.data) and core.accepted
                    log.data += event.data
                else:
                    self.frames_end = event.end
        if core.accepted:
            self.held_equal = len(log.data)
        epochs = core.to_adopt(len(log.data))
        if epochs is not None:
            check_epochs(epochs, len(log.data))
            log.epochs = epochs
            core.adopt(epochs)
        self.to_master += core.next_report(self.frames_end, self.now)


@given(logs(), cuts, st.integers(0, 200))
def test_a_member_ends_with_a_copy_or_is_refused_and_keeps_what_it_has(
    both: tuple[Log, Log], sizes: list[int], compare: int
) -> None:
    master, slave = both
    before = slave.copy(len(slave.data))
    same = master.data[: len(before.data)] == before.data
    meeting = Meeting(master, slave, sizes, compare)
    try:
        meeting.run()
    except ShorterMaster:
        assert len(before.data) > len(master.data) and not same
        assert slave.data == before.data and not meeting.acknowledged
        telling = Meeting(master, slave, sizes, 0, telling=True)
        try:
            telling.run()
            raise AssertionError("the master took an end that it does not have")
        except OutOfRange as error:
            assert error.ahead and error.offset == len(before.data)
    except Diverged as error:
        assert not same and master.data[: error.point] == before.data[: error.point]
        assert slave.data == before.data and not meeting.acknowledged
    else:
        assert same
        assert slave.data == master.data and slave.epochs == master.epochs
        assert meeting.acknowledged[-1] == len(master.data)
        assert meeting.ours.commit == len(master.data) // 2
        assert meeting.ours.leader_epoch == master.epochs[-1][0]


def slave_story(pieces: list[bytes], log: Log) -> tuple[bytes, Epochs, int, str]:
    """Return what a member makes of a stream: its log, the master's list, the commit offset, how it ended."""
    end = len(log.data)
    core = SwitchingSlave(end=end, file_size=FILE, now=0.0, epochs=log.epochs, member=2, preface=None)
    held = bytearray(log.data)
    try:
        for piece in pieces:
            for event in core.receive(memoryview(piece), 0.0):
                if isinstance(event, Append):
                    held += event.data
    except RemoteProtocolError as error:
        return bytes(held), core.theirs, core.commit, str(error)
    return bytes(held), core.theirs, core.commit, ""


def master_story(pieces: list[bytes], end: int) -> tuple[int, int, str]:
    """Return what a master makes of a stream: whose it is, what is acknowledged, how it ended."""
    core = SwitchingMaster(file_size=FILE, frame_bytes_max=100, first_offset="log", now=0.0)
    try:
        for piece in pieces:
            core.receive(piece, begin=0, end=end, now=0.0)
    except PeerError as error:
        return core.member, core.acknowledged, str(error)
    return core.member, core.acknowledged, ""


def stream(master: Log, begin: int) -> bytes:
    """Return what a master sends to a member that asks from `begin` on."""
    core = SwitchingMaster(file_size=FILE, frame_bytes_max=100, first_offset="log", now=0.0, preface=False)
    end = len(master.data)
    core.receive(bytes.fromhex("00000001000000000000000000000002"), begin=0, end=end, now=0.0)
    core.answer(master.epochs, end=end, now=0.0)
    data = bytearray()
    for _ in range(2):
        while frame := core.next_frame(begin=0, end=end, now=0.0):
            data += frame.header + master.data[frame.offset : frame.offset + frame.size]
        if core.next_offset < 0:
            core.receive(bytes.fromhex("00000002") + begin.to_bytes(8, "big"), begin=0, end=end, now=0.0)
    return bytes(data)


@example(
    (Log(bytearray(b"\x1a\x80g"), ((1, 0), (5, 3))), Log(bytearray(b"\x1a\x80"), ((1, 0), (4, 1)))), b"", [1]
)
@given(logs(), st.binary(max_size=60), cuts)
def test_a_masters_stream_byte_by_byte_equals_one_piece(
    both: tuple[Log, Log], junk: bytes, sizes: list[int]
) -> None:
    master, slave = both
    end, point = (
        len(slave.data),
        consistent_point(slave.epochs, len(slave.data), master.epochs, len(master.data)),
    )
    # Beyond that point bytes may be equal by chance: they are of another epoch all the same.
    held = end if point in (None, end) and master.data[:end] == slave.data else 0
    data = stream(master, held) + junk
    log = slave.copy(held)
    whole = slave_story([data], log)
    assert slave_story(cut(data, sizes), log) == whole
    assert slave_story(cut(data, [1]), log) == whole
    if not junk:
        assert whole[0] == master.data


@given(st.binary(max_size=200), cuts, st.booleans())
def test_random_bytes_yield_nothing_but_a_protocol_error(
    data: bytes, sizes: list[int], prefaced: bool
) -> None:
    if prefaced:
        data = Preface().encode() + bytes.fromhex("00000001000000000000000000000002") + data
    whole = master_story([data], 1000)
    assert master_story(cut(data, sizes), 1000) == whole
    assert whole[1] == -1  # nothing is acknowledged before the answer
    assert slave_story(cut(data, sizes), Log()) == slave_story([data], Log())
