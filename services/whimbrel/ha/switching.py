"""The members' dialect of the replication stream, for groups that commit by majority: both ends, without I/O.

It is the protocol of RocketMQ 5.3.3's controller mode (AutoSwitchHAConnection, AutoSwitchHAClient) behind a
preface of our own. All numbers are big-endian and signed.

    slave to master, first         i64 -0x5748494D42524C32 | i32 version 1 | i32 flags 0 | 16 bytes group |
    (preface, 56 bytes)            16 bytes seat | i64 the newest epoch that the slave has promised to follow
    slave to master, then          i32 1 | i16 1: an empty log is fed from the last file on |
    (handshake, 16 bytes)          i16 1: it does not count | i64 member id
    master to slave, the answer    i32 1 | i32 12k | i64 end of the master's log | i32 its last epoch |
    (20 + 12k bytes)               k times: i32 epoch | i64 its first offset
    master to slave, a frame       i32 2 | i32 n | i64 offset of the body's first byte | i32 its epoch |
    (36 + n bytes)                 i64 first offset of that epoch | i64 commit offset | n bytes of the log
    slave to master, a report      i32 2 | i64 end of the slave's log
    (12 bytes)

The preface begins with a negative number, which no slave of the classic protocol (`frames.py`) starts with,
so one port serves both. A body crosses neither the border of a commitlog file nor the end of an epoch. Bytes
before the log's first epoch go under epoch 0 from 0 on. A frame without a body says where the master's log
ends and how far it is committed; it goes out when all is sent, when the commit offset has moved, and as a
beat every `BEAT_S`. **It goes out only while the broker beside the master's replicator beats**: slaves must
not take a leader that hangs for one that is idle.

    master
      PREFACE    56 bytes
         | a version and a group that we know
      HANDSHAKE  16 bytes
         | `member` is set
      ASKED      the shell answers
         | the answer, then the first report
      STREAMING  frames go out

    slave
      ASKING     preface and handshake are out
         | the answer: `judge`
      COMPARING  the first report is out; what both should hold comes again
         | a frame has come, the overlap was equal
      APPENDING  reports acknowledge
      TELLING    a connection of its own, as in `protocol.py`

Each end waits for the other one's part of the handshake no longer than `HANDSHAKE_S`, then `SILENCE_S`.

What is not said here is as in the classic protocol, whose cores these extend: where the first frame starts,
what may be reported, that the end of the slave's log is compared before it goes on, who is told that its log
is shorter.

**What the slave does with the answer.** Up to the consistent point of both lists (`epochs.py`) both logs are
the same. Its own log must not reach beyond: nothing is cut here. A master whose log ends at that point has
lost its tail, or never had ours: `ShorterMaster`, and the next connection tells it our end. Otherwise it has
written something else from there on: `Diverged`. Where no epoch is common to both, what was written before
either had one is taken for the same. A log without any epochs, that of a slave or an observer of the classic
protocol, is judged as there: by the bytes before its end, which the master must show.

**What a report acknowledges.** The first one asks where to start and acknowledges nothing. All later ones do,
so the slave sends none while it compares, and the shell writes the list of epochs to disk (`to_adopt`,
`adopt`) before an end is reported that has reached another epoch. A slave that lacks nothing repeats its end
once it has heard the master, so that it counts before anything is written.

**Where leaders are elected** (`elected`), the leader is right: who stands for election has all that is
committed. So whatever our log holds beyond the consistent point is `Diverged`, also where the leader's log
merely ends there, and the shell saves it and cuts it (R13). Only within the epoch that the leader leads
itself nothing may be cut (R8): it has but one log of it. The leader must be that of the epoch that we were
told, and have promised to follow, before we connected.

Rules R6 to R8, R11 and R13 of the design of failover: an epoch is adopted before an end in it is reported;
the answer is made after its request, on the same connection; logs are compared by epochs before bytes are
taken. R11, one connection a member, is the shell's: it closes older ones before it calls `answer`.

Without a preface both ends speak to RocketMQ's own classes. RocketMQ's slave repeats its handshake while it
waits for the answer, and reports 0 for an empty list of epochs. Its master writes the next epoch into the
header of the last frame of one: that frame is taken, and ours name the epoch of their bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final

from whimbrel.errors import ConnectionClosed, LocalProtocolError, RemoteProtocolError
from whimbrel.ha.epochs import (
    EPOCHS_MAX,
    OFFSET_MAX,
    BadEpochs,
    Epochs,
    adopted,
    check_epochs,
    common_epoch,
    consistent_point,
    epoch_at,
    reached,
)
from whimbrel.ha.frames import whole_frames
from whimbrel.ha.protocol import (
    SILENCE_S,
    FirstOffset,
    MasterProtocol,
    Reported,
    ShorterMaster,
    SlaveEvent,
    SlaveProtocol,
)
from whimbrel.model.group_record import EPOCH_MAX, MEMBER_MAX

__all__ = [
    "BEAT_S",
    "COMMIT_APART_S",
    "DIALECT",
    "HANDSHAKE_S",
    "MAGIC_BYTES",
    "MEMBER_HEADER_BYTES",
    "NOBODY",
    "Answer",
    "Diverged",
    "MemberFrame",
    "Preface",
    "SwitchingMaster",
    "SwitchingSlave",
]

DIALECT: Final = 2  # what the page's `ha_dialect` says of groups that speak this one
BEAT_S: Final = 0.5  # a frame without a body, and a repeated report, of a connection that is idle for so long
COMMIT_APART_S: Final = 0.001  # between two frames that only say that the commit offset has moved
HANDSHAKE_S: Final = 2.0  # for each end, until the other one has said what comes next in a handshake

HANDSHAKE, TRANSFER = 1, 2  # ordinals of RocketMQ's HAConnectionState
VERSION: Final = 1
NOBODY: Final = bytes(16)  # a group or a seat that has no uuid yet

MAGIC = struct.Struct(">q")
MAGIC_BYTES: Final = MAGIC.pack(-0x5748494D42524C32)
PREFACE = struct.Struct(">8sii16s16sq")
REQUEST = struct.Struct(">ihhq")
ANSWER = struct.Struct(">iiqi")
ENTRY = struct.Struct(">iq")
HEADER = struct.Struct(">iiqiqq")
MEMBER_HEADER_BYTES: Final = HEADER.size
MEMBER_REPORT = struct.Struct(">iq")
STATE = struct.Struct(">i")
STATE_AND_SIZE = struct.Struct(">ii")
NO_LEADER = (
    "it does not lead a group that commits by majority, or not yet; set replication=majority there, or sync"
    " or async on this slave"
)
REPAIR = "keep the store that is right, and start the other side with a copy of it or with an empty store"


class Diverged(RemoteProtocolError):
    """The master has written something else from some offset on than what our log holds there.

    Attributes:
        point: up to there both logs are the same.
        theirs: the master's list of epochs.
    """

    reason = "LOGS_DIVERGED"

    def __init__(self, message: str, *, point: int, theirs: Epochs = ()) -> None:
        super().__init__(message)
        self.point, self.theirs = point, theirs


@dataclass(frozen=True, slots=True)
class Preface:
    """Who a slave says that it is, before the handshake of RocketMQ."""

    promised: int = 0  # no older leader's bytes are taken; 0: none is promised yet
    group: bytes = NOBODY  # uuid of the group
    seat: bytes = NOBODY  # uuid of this member's store

    def encode(self) -> bytes:
        """Return the 56 bytes."""
        return PREFACE.pack(MAGIC_BYTES, VERSION, 0, self.group, self.seat, self.promised)

    @classmethod
    def decode(cls, data: bytes) -> "Preface":
        """Take the 56 bytes.

        Raises:
            RemoteProtocolError: another version, flags that this one does not have, or an impossible epoch.
        """
        magic, version, flags, group, seat, promised = PREFACE.unpack(data)
        if magic != MAGIC_BYTES or version != VERSION or flags:
            raise RemoteProtocolError(
                f"a preface of version {version} with flags {flags}: ours is {VERSION} with none"
            )
        if not 0 <= promised <= EPOCH_MAX:
            raise RemoteProtocolError(f"a promise of epoch {promised}, which no leader has")
        return cls(promised, group, seat)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a master answers to a handshake; to be sent as a frame whose header is all there is of it."""

    offset: int  # end of the master's log
    epochs: Epochs
    size: int = 0

    @property
    def header(self) -> bytes:
        """All of its bytes."""
        head = ANSWER.pack(HANDSHAKE, ENTRY.size * len(self.epochs), self.offset, self.epochs[-1][0])
        return head + b"".join(ENTRY.pack(*entry) for entry in self.epochs)


@dataclass(frozen=True, slots=True)
class MemberFrame:
    """A frame to be sent to a member: its header, and which bytes of the log follow it."""

    offset: int
    size: int
    epoch: int
    start: int  # of the epoch
    commit: int

    @property
    def header(self) -> bytes:
        """The 36 bytes before the body."""
        return HEADER.pack(TRANSFER, self.size, self.offset, self.epoch, self.start, self.commit)

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return self.offset + self.size


class SwitchingMaster(MasterProtocol):
    """The master's end of a member's connection.

    The shell calls `lead` with the commit offset before it asks for frames, and `answer` once `asked` is so;
    else it is as `MasterProtocol`.

    Attributes:
        member: who it is, -1 before the handshake.
        counts: whether its acknowledgements count; one that asks not to count does not.
        commit: the offset that frames tell.
        beating: whether frames without a body may go out.
    """

    __slots__ = (
        "beating",
        "began_at",
        "commit",
        "commit_told",
        "counts",
        "epochs",
        "group",
        "member",
        "preface",
        "reply",
        "reports",
        "wants_preface",
    )

    def __init__(
        self,
        *,
        file_size: int,
        frame_bytes_max: int,
        first_offset: FirstOffset,
        now: float,
        heartbeat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
        group: bytes = NOBODY,
        preface: bool = True,
    ) -> None:
        """Begin.

        Args:
            group: uuid of the group; slaves of another one are refused.
            preface: False for slaves of RocketMQ's controller mode, which send none.
        """
        super().__init__(
            file_size=file_size,
            frame_bytes_max=frame_bytes_max,
            first_offset=first_offset,
            now=now,
            heartbeat_s=heartbeat_s,
            silence_s=silence_s,
        )
        self.group = group
        self.wants_preface = preface
        self.preface = Preface()
        self.member = -1
        self.counts = True
        self.epochs: Epochs = ()  # what was answered
        self.reply: Answer | None = None  # what is still to be sent
        self.reports = 0
        self.commit, self.commit_told = 0, -1
        self.beating = True
        self.began_at = now  # of the present wait in a handshake

    @property
    def asked(self) -> bool:
        """Whether the handshake is in and waits for its answer."""
        return self.member >= 0 and not self.epochs

    @property
    def proven(self) -> bool:
        """Whether a report has acknowledged something; the first one asks only."""
        return self.reports > 1

    @property
    def silence_deadline(self) -> float:
        """When a slave that says nothing is given up."""
        return self.began_at + HANDSHAKE_S if self.next_offset < 0 else self.received_at + self.silence_s

    @property
    def deadline(self) -> float:
        """When `next_frame` and `check_silence` must be called again at the latest."""
        if self.next_offset < 0 or not self.beating:
            return self.silence_deadline
        apart = COMMIT_APART_S if self.commit != self.commit_told else self.heartbeat_s
        return min(self.silence_deadline, self.sent_at + apart)

    def lead(self, *, commit: int, beating: bool) -> None:
        """Say how far the log is committed, and whether the broker beside beats."""
        self.commit, self.beating = commit, beating

    def answer(self, epochs: Epochs, *, end: int, now: float) -> None:
        """Answer the handshake; the next frame is the answer.

        Args:
            epochs: of the log that is fed, the leader's own last.
            end: of that log.

        Raises:
            RemoteProtocolError: the slave follows a newer leader.
            LocalProtocolError: nobody has asked, or the list is impossible.
        """
        try:
            check_epochs(epochs, end)
        except BadEpochs as error:
            raise LocalProtocolError(str(error)) from error
        if not self.asked or not epochs:
            raise LocalProtocolError("an answer without a handshake, or without an epoch")
        if self.preface.promised > epochs[-1][0]:
            raise RemoteProtocolError(
                f"member {self.member} follows epoch {self.preface.promised}, this is epoch {epochs[-1][0]}"
            )
        self.epochs, self.reply, self.began_at = epochs, Answer(end, epochs), now

    def receive(self, data: bytes, *, begin: int, end: int, now: float) -> list[Reported]:
        """Take bytes from the slave and return the reports they complete, oldest first.

        Raises:
            OutOfRange: a report lies outside the log, or past what was sent; nothing of it is acknowledged.
            RemoteProtocolError: the slave breaks the protocol, or belongs to another group.
        """
        self.received_at = now
        self.partial += data
        reports: list[Reported] = []
        if self.wants_preface:
            if len(self.partial) < PREFACE.size:
                return reports
            self.take_preface(self.cut_off(PREFACE.size))
        while len(self.partial) >= STATE.size:
            (state,) = STATE.unpack_from(self.partial)
            if self.member >= 0 and self.epochs and state == TRANSFER:
                if len(self.partial) < MEMBER_REPORT.size:
                    break
                _, offset = MEMBER_REPORT.unpack(self.cut_off(MEMBER_REPORT.size))
                reports.append(self.reported(offset, begin, end))
            elif state == HANDSHAKE and self.next_offset < 0:
                if len(self.partial) < REQUEST.size:
                    break
                self.take_request(self.cut_off(REQUEST.size), now)
            else:
                raise RemoteProtocolError(f"a message of state {state} where none of it may come")
        return reports

    def cut_off(self, size: int) -> bytes:
        """Take so many bytes from those that are not taken yet."""
        taken, self.partial = self.partial[:size], self.partial[size:]
        return taken

    def take_preface(self, data: bytes) -> None:
        """Take who the slave is."""
        self.preface = Preface.decode(data)
        self.wants_preface = False
        if NOBODY not in (self.group, self.preface.group) and self.group != self.preface.group:
            raise RemoteProtocolError(
                f"a slave of group {self.preface.group.hex()}: this is group {self.group.hex()}"
            )

    def take_request(self, data: bytes, now: float) -> None:
        """Take a handshake; the same one again changes nothing."""
        _, last_file, learner, member = REQUEST.unpack(data)
        if not 0 <= member <= MEMBER_MAX or last_file not in (0, 1) or learner not in (0, 1):
            raise RemoteProtocolError(
                f"a handshake of member {member} with flags {last_file} and {learner}:"
                f" ids are 0 to {MEMBER_MAX}, flags 0 or 1"
            )
        if self.member < 0:
            self.member, self.counts, self.began_at = member, not learner, now
            if last_file:
                self.first_offset = "last-file"
        elif self.member != member:
            raise RemoteProtocolError(f"member {self.member} calls itself {member} now")

    def reported(self, offset: int, begin: int, end: int) -> Reported:
        """Judge a report, and take it."""
        first = self.next_offset < 0
        if first:
            self.next_offset = self.fed_from = self.start_for(offset, begin, end)
        else:
            self.check_report(offset, begin, end)
            if offset < self.acknowledged:
                raise RemoteProtocolError(f"a report of {offset} after one of {self.acknowledged}")
        self.acknowledged = offset
        self.reports = min(self.reports + 1, 2)
        return Reported(offset, first)

    def next_frame(self, *, begin: int, end: int, now: float) -> "MemberFrame | Answer | None":  # type: ignore[override]
        """Return the frame to send next, or the answer; None when there is nothing to send yet.

        Raises:
            OutOfRange: retention has removed what this slave still needs.
        """
        if self.reply is not None:
            reply, self.reply = self.reply, None
            return reply
        offset = self.next_offset
        if offset < 0:
            return None
        (epoch, start), epoch_end = epoch_at(self.epochs, offset)
        size = 0
        if offset < end or offset < begin:
            frame = super().next_frame(begin=begin, end=min(end, epoch_end), now=now)
            assert frame is not None
            size = frame.size
        elif not self.bare_frame_due(now):
            return None
        else:
            self.end_told, self.sent_at = True, now
        self.commit_told = self.commit
        return MemberFrame(offset, size, epoch, start, self.commit)

    def frame_at(self, offset: int, size: int) -> MemberFrame:
        """Return the frame that was made last, which stands there and has so many bytes."""
        return MemberFrame(offset, size, *epoch_at(self.epochs, offset)[0], self.commit_told)

    def bare_frame_due(self, now: float) -> bool:
        """Return whether it is time for a frame without a body."""
        idle = now - self.sent_at
        moved = self.commit != self.commit_told and idle >= COMMIT_APART_S
        return self.beating and (not self.end_told or moved or idle >= self.heartbeat_s)

    def check_silence(self, now: float) -> None:
        """Refuse a slave that has said nothing for too long.

        Raises:
            RemoteProtocolError: the deadline has passed.
        """
        if self.next_offset >= 0:
            super().check_silence(now)
        elif now - self.began_at > HANDSHAKE_S:
            what = "no first report" if self.epochs else "no handshake"
            if self.asked:
                what = "the broker beside has not begun its epoch"
            raise RemoteProtocolError(f"{what} within {HANDSHAKE_S:.0f} s")


class SwitchingSlave(SlaveProtocol):
    """A member's end of its connection to the master.

    As `SlaveProtocol`; besides, before a report is sent the shell writes what `to_adopt` returns to disk and
    calls `adopt`.

    Attributes:
        theirs: the master's list of epochs, empty before the answer.
        master_end: where the master's log ended when it answered.
        epochs: ours, as it is on disk.
        commit: the newest commit offset heard, -1 before the first; it may lie behind our end.
    """

    __slots__ = (
        "adopts_at",
        "answer_until",
        "commit",
        "elected",
        "epochs",
        "framed",
        "master_end",
        "member",
        "preface",
        "theirs",
        "vouched",
    )

    def __init__(
        self,
        *,
        end: int,
        file_size: int,
        now: float,
        epochs: Epochs,
        member: int,
        preface: Preface | None,
        start: int = -1,
        telling: bool = False,
        elected: int = 0,
        heartbeat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Begin.

        Args:
            epochs: of the own log; those that start behind its end are not taken for any.
            member: our id in the group.
            preface: None for masters of RocketMQ's controller mode, which take none.
            end, start, telling: as for `SlaveProtocol`.
            elected: the epoch that the master was elected to lead; 0 where roles are configured.
        """
        if not 0 <= member <= MEMBER_MAX:
            raise LocalProtocolError(f"member {member}: ids are 0 to {MEMBER_MAX}")
        super().__init__(
            end=end,
            file_size=file_size,
            now=now,
            start=start,
            telling=telling,
            heartbeat_s=heartbeat_s,
            silence_s=silence_s,
        )
        self.epochs = reached(epochs, end)
        self.member, self.preface, self.elected = member, preface, elected
        self.header_bytes = ANSWER.size
        self.theirs: Epochs = ()
        self.master_end = self.commit = -1
        self.framed = self.vouched = False
        self.adopts_at = 0  # the list changes when the log's end reaches this
        self.answer_until = now + HANDSHAKE_S

    @property
    def accepted(self) -> bool:
        """Whether the master feeds us, and its log is one that the own log can go on from."""
        return self.framed and not self.telling and self.compared_end >= self.log_end

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that feeds us, 0 before its log was accepted."""
        return self.theirs[-1][0] if self.accepted else 0

    @property
    def deadline(self) -> float:
        """When the timers must be asked again at the latest."""
        if not self.theirs:
            return self.answer_until
        silence = self.received_at + self.silence_s
        return min(silence, self.reported_at + self.heartbeat_s) if self.vouched else silence

    def first_report(self, now: float) -> bytes:
        """Return what goes out first: the preface, and the handshake."""
        preface = b"" if self.preface is None else self.preface.encode()
        return preface + REQUEST.pack(HANDSHAKE, 0, 0, self.member)

    def report(self, offset: int, now: float) -> bytes:
        """Return the report that the log ends at `offset`."""
        super().report(offset, now)
        return MEMBER_REPORT.pack(TRANSFER, offset)

    def has_grown(self, held: int) -> bool:
        """Return whether `next_report` has something to report."""
        if not self.theirs:
            return False
        if self.reported < 0:
            return True
        return self.accepted and (not self.vouched or super().has_grown(held))

    def next_report(self, held: int, now: float) -> bytes:
        """Return the report that asks for the log, or acknowledges; a repetition that is due; or nothing.

        Args:
            held: up to where the own log may be acknowledged.
        """
        if not self.theirs:
            return b""
        if self.reported < 0:
            return self.report(self.end or 0, now)
        if not self.accepted:
            return b""
        if not self.vouched:
            self.vouched = True
            return self.report(max(min(held, self.end or 0), self.log_end), now)
        return super().next_report(held, now)

    def to_adopt(self, end: int) -> Epochs | None:
        """Return the list that must be on disk before an end up to `end` is reported; None when it is."""
        if end < self.adopts_at or not self.accepted:
            return None
        epochs = adopted(self.epochs, self.theirs, end)
        if epochs != self.epochs:
            return epochs
        self.adopts_at = next((start for _, start in self.theirs if start > end), OFFSET_MAX)
        return None

    def adopt(self, epochs: Epochs) -> None:
        """Note that a list is on disk."""
        self.epochs = epochs

    def mark_received(self, now: float) -> None:
        """Note that bytes came in: timers of silence start anew."""
        self.received_at = now

    def whole(self, data: memoryview, at: int) -> tuple[int, int]:
        """Return up to where `data` is an answer and whole frames, and how many bytes the next one lacks."""
        size = len(data)
        if not self.theirs:
            if size < ANSWER.size:
                return 0, ANSWER.size - size
            at = ANSWER.size + max(entries_bytes(data), 0)  # what is no answer is the core's to find
            if at > size:
                return 0, at - size
        return whole_frames(data, at, STATE_AND_SIZE, HEADER.size)

    def start_frame(self) -> tuple[SlaveEvent, ...]:
        """Take an answer or a header that is complete."""
        if not self.theirs:
            return self.take_answer()
        state, size, offset, epoch, start, commit = HEADER.unpack(self.header)
        self.header.clear()
        if state != TRANSFER or commit < -1:
            raise RemoteProtocolError(
                f"a frame of state {state} with the commit offset {commit}: this is no leader"
            )
        self.answered = True
        events = self.begin_body(offset, size)
        self.check_epoch(offset, size, (epoch, start))
        self.framed = True
        self.commit = max(self.commit, commit)
        return events

    def check_epoch(self, offset: int, size: int, told: tuple[int, int]) -> None:
        """Refuse a frame of an epoch that is not the one which the answer has at its offset."""
        entry, end = epoch_at(self.theirs, offset)
        # RocketMQ's last frame of an epoch names the next one, and a frame without a body may be of the one
        # that ends there.
        border = epoch_at(self.theirs, offset + size if size else offset - 1)[0]
        if told not in (entry, border) or offset + size > end:
            raise RemoteProtocolError(
                f"a frame of {size} bytes at {offset}, said to be of epoch {told[0]} from {told[1]} on:"
                f" it was answered that epoch {entry[0]} is there, from {entry[1]} to {end}"
            )

    def take_answer(self) -> tuple[SlaveEvent, ...]:
        """Take what of the answer is complete: its head, which says how long it is, or all of it."""
        size = entries_bytes(self.header)
        if size < 0:
            raise RemoteProtocolError(f"its first bytes are no answer to a member's handshake: {NO_LEADER}")
        self.header_bytes = ANSWER.size + size
        if len(self.header) < self.header_bytes:
            return ()
        _, _, end, last = ANSWER.unpack_from(self.header)
        theirs = tuple(ENTRY.iter_unpack(bytes(self.header[ANSWER.size :])))
        try:
            check_epochs(theirs, end)
        except BadEpochs as error:
            raise RemoteProtocolError(f"an impossible list of epochs: {error}") from error
        if theirs[-1][0] != last:
            raise RemoteProtocolError(f"its last epoch is {theirs[-1][0]}, but it says {last}")
        if self.elected and last != self.elected:
            raise RemoteProtocolError(
                f"it leads epoch {last}, not {self.elected}, which we have promised to follow"
            )
        self.theirs, self.master_end = theirs, end
        self.header.clear()
        self.header_bytes = HEADER.size
        if not self.telling:
            self.judge()
        return ()

    def judge(self) -> None:
        """Compare the lists of epochs.

        Raises:
            ShorterMaster: the master's log ends where both are the same no longer.
            Diverged: the master's log goes on there, with something else.
            RemoteProtocolError: the master is an older leader than the one we have followed; or it was
                elected, and lacks something of the epoch that it leads itself.
        """
        mine, theirs, end, master_end = self.epochs, self.theirs, self.log_end, self.master_end
        if mine and mine[-1][0] > theirs[-1][0]:
            raise RemoteProtocolError(
                f"it leads epoch {theirs[-1][0]}, but our log has followed epoch {mine[-1][0]}: {REPAIR}"
            )
        point = consistent_point(mine, end, theirs, master_end)
        if point is None and not mine and self.comparing:
            point = min(end, master_end)
        elif point is None:  # up to there, both are older than all epochs
            point = min(mine[0][1] if mine else end, theirs[0][1])
        if end <= point:
            return
        if self.elected:
            if mine and mine[-1][0] == theirs[-1][0]:
                raise RemoteProtocolError(
                    f"it has written epoch {self.elected} up to {master_end} only, of which our log holds"
                    f" more, up to {end}: nothing is cut; one of the two stores has lost bytes, or is a copy"
                )
            raise Diverged(
                f"the leader's log differs from ours from byte {point} on, {end - point} bytes before our end"
                f" {end}",
                point=point,
                theirs=theirs,
            )
        if point == master_end:
            raise ShorterMaster(
                f"the master's log ends at {point}, ours {end - point} bytes later at {end}: one of the two"
                f" lost or never had these bytes; {REPAIR}"
            )
        common = common_epoch(mine, theirs)
        shared = "they share no epoch" if common is None else f"the last epoch they share is {common[0]}"
        raise Diverged(
            f"the master's log differs from ours from byte {point} on, {end - point} bytes before our end"
            f" {end}: {shared}; {REPAIR}",
            point=point,
            theirs=theirs,
        )

    def check_silence(self, now: float) -> None:
        """Give up a master that does not answer, or from which nothing has come for too long.

        Raises:
            RemoteProtocolError: the deadline has passed.
        """
        if self.theirs:
            super().check_silence(now)
        elif now > self.answer_until:
            raise RemoteProtocolError(f"no answer to our handshake within {HANDSHAKE_S:.0f} s: {NO_LEADER}")

    def closed(self, *, begin: int, end: int) -> ConnectionClosed:
        """Return the error that says what it may mean that the master closed the connection."""
        if self.theirs:
            return super().closed(begin=begin, end=end)
        return ConnectionClosed(f"closed by the master before it answered our handshake: {NO_LEADER}")


def entries_bytes(data: memoryview | bytearray) -> int:
    """Return how many bytes follow the head of an answer; -1 when it is none."""
    state, size, end, _ = ANSWER.unpack_from(data)
    count, odd = divmod(size, ENTRY.size)
    return size if state == HANDSHAKE and 0 < count <= EPOCHS_MAX and not odd and end >= 0 else -1
