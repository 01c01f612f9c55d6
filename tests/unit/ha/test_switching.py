"""Both ends of the members' dialect: its bytes, its waits, what is refused, and what acknowledges."""

import pytest

from whimbrel.errors import ConnectionClosed, LocalProtocolError, RemoteProtocolError
from whimbrel.ha.epochs import EPOCHS_MAX, OFFSET_MAX, Epochs
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import (
    SILENCE_S,
    Append,
    Compare,
    FrameReceived,
    OutOfRange,
    Reported,
    ShorterMaster,
    SlaveEvent,
)
from whimbrel.ha.switching import (
    BEAT_S,
    COMMIT_APART_S,
    HANDSHAKE_S,
    HEADER,
    MAGIC_BYTES,
    MEMBER_REPORT,
    PREFACE,
    REQUEST,
    Answer,
    Diverged,
    MemberFrame,
    Preface,
    SwitchingMaster,
    SwitchingSlave,
)
from whimbrel.model.group_record import EPOCH_MAX, MEMBER_MAX

FILE = 1000
EPOCHS: Epochs = ((1, 0), (3, 700), (4, 1500))
END = 2500
GROUP, SEAT = bytes(range(16)), bytes(range(16, 32))


def master(*, group: bytes = bytes(16), preface: bool = True, frame: int = 500) -> SwitchingMaster:
    return SwitchingMaster(
        file_size=FILE, frame_bytes_max=frame, first_offset="log", now=0.0, group=group, preface=preface
    )


def heard(core: SwitchingMaster, data: bytes, *, end: int = END, now: float = 0.0) -> list[Reported]:
    return core.receive(data, begin=0, end=end, now=now)


def answered(*offsets: int, epochs: Epochs = EPOCHS, end: int = END) -> SwitchingMaster:
    """A master's end that has answered member 2, and has its first reports."""
    core = master()
    heard(core, Preface().encode() + REQUEST.pack(1, 0, 0, 2))
    core.answer(epochs, end=end, now=0.0)
    assert core.next_frame(begin=0, end=end, now=0.0) == Answer(end, epochs)
    heard(core, reports(*offsets), end=end)
    return core


def reports(*offsets: int) -> bytes:
    return b"".join(MEMBER_REPORT.pack(2, offset) for offset in offsets)


def frames(core: SwitchingMaster, *, end: int = END, now: float = 0.0) -> list[MemberFrame]:
    found = []
    while frame := core.next_frame(begin=0, end=end, now=now):
        assert isinstance(frame, MemberFrame)
        found.append(frame)
    return found


def slave(
    end: int = 0,
    *,
    start: int = -1,
    epochs: Epochs = (),
    telling: bool = False,
    preface: Preface | None = None,
) -> SwitchingSlave:
    return SwitchingSlave(
        end=end,
        file_size=FILE,
        now=0.0,
        start=start,
        epochs=epochs,
        member=2,
        preface=preface,
        telling=telling,
    )


def received(core: SwitchingSlave, *data: bytes, now: float = 0.0) -> list[SlaveEvent]:
    return list(core.receive(memoryview(b"".join(data)), now))


def frame(offset: int, body: bytes, *, epoch: int, start: int, commit: int = 0) -> bytes:
    return HEADER.pack(2, len(body), offset, epoch, start, commit) + body


def offset_of(data: bytes) -> int:
    state, offset = MEMBER_REPORT.unpack(data)
    assert state == 2
    return int(offset)


# Bytes


def test_the_bytes_of_the_documented_example() -> None:
    core = slave(0x1000, epochs=((1, 0),))
    assert core.first_report(0.0).hex() == "00000001000000000000000000000002"
    answer = "000000010000000c000000000000200000000001000000010000000000000000"
    assert Answer(0x2000, ((1, 0),)).header.hex() == answer
    received(core, bytes.fromhex(answer))
    assert core.next_report(-1, 0.0).hex() == "000000020000000000001000"


def test_a_preface_goes_before_the_handshake() -> None:
    preface = Preface(promised=9, group=GROUP, seat=SEAT)
    data = slave(preface=preface).first_report(0.0)
    assert data[:56].hex() == (
        "a8b7b6b2bdadb3ce0000000100000000" + GROUP.hex() + SEAT.hex() + "0000000000000009"
    )
    assert data[56:] == REQUEST.pack(1, 0, 0, 2)
    assert Preface.decode(data[:56]) == preface
    assert int.from_bytes(MAGIC_BYTES, "big", signed=True) == -0x5748494D42524C32
    assert REPORT.unpack(MAGIC_BYTES)[0] < 0  # which no slave of the classic protocol reports


def test_a_frame_names_its_epoch_and_the_commit_offset() -> None:
    made = MemberFrame(700, 5, 3, 700, 650)
    assert made.header == HEADER.pack(2, 5, 700, 3, 700, 650) and len(made.header) == 36
    assert made.end == 705


# Master


def test_nothing_goes_out_before_the_handshake_is_answered_and_a_report_has_come() -> None:
    core = master()
    assert core.next_frame(begin=0, end=END, now=0.0) is None
    for byte in Preface().encode() + REQUEST.pack(1, 0, 0, 2):
        assert not core.asked
        heard(core, bytes([byte]))
    assert core.asked and core.member == 2 and core.counts
    core.answer(EPOCHS, end=END, now=0.0)
    assert not core.asked
    assert core.next_frame(begin=0, end=END, now=0.0) == Answer(END, EPOCHS)
    assert core.next_frame(begin=0, end=END, now=0.0) is None
    assert heard(core, reports(700)) == [Reported(700, first=True)]
    assert core.next_frame(begin=0, end=END, now=0.0) == MemberFrame(700, 300, 3, 700, 0)


def test_frames_end_at_epochs_and_files() -> None:
    core = answered(0)
    core.lead(commit=1600, beating=True)
    found = [(one.offset, one.size, one.epoch, one.start) for one in frames(core)]
    assert found == [
        (0, 500, 1, 0),
        (500, 200, 1, 0),
        (700, 300, 3, 700),
        (1000, 500, 3, 700),
        (1500, 500, 4, 1500),
        (2000, 500, 4, 1500),
        (2500, 0, 4, 1500),
    ]


def test_bytes_before_the_first_epoch_go_under_epoch_0() -> None:
    core = answered(0, epochs=((2, 300),), end=400)
    found = frames(core, end=400)
    assert [(one.offset, one.size, one.epoch, one.start) for one in found] == [
        (0, 300, 0, 0),
        (300, 100, 2, 300),
        (400, 0, 2, 300),
    ]
    other = slave()
    received(other, Answer(400, ((2, 300),)).header)
    events = received(other, *(one.header + bytes(one.size) for one in found))
    assert [event.end for event in events if isinstance(event, FrameReceived)] == [300, 400]


def test_a_frame_without_a_body_goes_out_when_the_commit_offset_moves_and_as_a_beat() -> None:
    core = answered(END)
    core.lead(commit=100, beating=True)
    assert frames(core) == [MemberFrame(END, 0, 4, 1500, 100)]  # all is sent
    assert core.deadline == BEAT_S
    core.lead(commit=200, beating=True)
    assert core.deadline == COMMIT_APART_S
    assert frames(core, now=COMMIT_APART_S / 2) == []
    assert frames(core, now=COMMIT_APART_S) == [MemberFrame(END, 0, 4, 1500, 200)]
    assert frames(core, now=BEAT_S) == []
    assert frames(core, now=COMMIT_APART_S + BEAT_S) == [MemberFrame(END, 0, 4, 1500, 200)]


def test_no_frame_without_a_body_goes_out_while_the_broker_does_not_beat() -> None:
    core = answered(END - 10)
    core.lead(commit=100, beating=False)
    assert frames(core) == [MemberFrame(END - 10, 10, 4, 1500, 100)]
    core.lead(commit=200, beating=False)
    assert frames(core, now=10.0) == [] and core.deadline == SILENCE_S
    core.lead(commit=200, beating=True)
    assert frames(core, now=10.0) == [MemberFrame(END, 0, 4, 1500, 200)]


def test_the_first_report_acknowledges_nothing_and_the_second_does() -> None:
    core = answered(END)
    assert core.acknowledged == END and not core.proven
    assert heard(core, reports(END)) == [Reported(END, first=False)]
    assert core.proven


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (reports(-1), "never negative"),
        (reports(END + 1), "past this log's end"),
        (reports(END - 1), "sent up to 700 only"),
        (reports(699), "after one of 700"),
        (MEMBER_REPORT.pack(3, 700), "a message of state 3"),
        (REQUEST.pack(1, 0, 0, 2), "a message of state 1"),
        (Preface().encode(), "a message of state -"),
    ],
)
def test_what_no_slave_reports_closes_the_connection(data: bytes, why: str) -> None:
    core = answered(700)
    with pytest.raises(RemoteProtocolError, match=why):
        heard(core, data)
    assert core.acknowledged == 700


@pytest.mark.parametrize("offset", [END + 1, OFFSET_MAX])
def test_a_first_report_behind_the_log_says_that_one_side_lost_something(offset: int) -> None:
    core = answered()
    with pytest.raises(OutOfRange) as raised:
        heard(core, reports(offset))
    assert raised.value.ahead and raised.value.offset == offset


def test_a_slave_behind_retention_is_refused() -> None:
    core = answered(700)
    with pytest.raises(OutOfRange, match="fell behind") as raised:
        core.next_frame(begin=1000, end=END, now=0.0)
    assert not raised.value.ahead


@pytest.mark.parametrize(
    ("preface", "why"),
    [
        (PREFACE.pack(MAGIC_BYTES, 2, 0, GROUP, SEAT, 0), "version 2"),
        (PREFACE.pack(MAGIC_BYTES, 1, 4, GROUP, SEAT, 0), "flags 4"),
        (PREFACE.pack(b"\xff" * 8, 1, 0, GROUP, SEAT, 0), "a preface"),
        (PREFACE.pack(MAGIC_BYTES, 1, 0, GROUP, SEAT, -1), "a promise of epoch -1"),
        (PREFACE.pack(MAGIC_BYTES, 1, 0, GROUP, SEAT, EPOCH_MAX + 1), "a promise of epoch"),
        (PREFACE.pack(MAGIC_BYTES, 1, 0, SEAT, SEAT, 0), "a slave of group 1011.*: this is group 0001"),
    ],
)
def test_a_strangers_preface_closes_the_connection(preface: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        heard(master(group=GROUP), preface)


@pytest.mark.parametrize("request_", [(1, 0, 0, -1), (1, 0, 0, MEMBER_MAX + 1), (1, 2, 0, 2), (1, 0, -1, 2)])
def test_an_impossible_handshake_closes_the_connection(request_: tuple[int, int, int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="a handshake of member"):
        heard(master(preface=False), REQUEST.pack(*request_))


def test_a_group_that_is_not_known_is_any() -> None:
    for ours, theirs in ((GROUP, bytes(16)), (bytes(16), GROUP), (GROUP, GROUP)):
        core = master(group=ours)
        heard(core, Preface(group=theirs).encode() + REQUEST.pack(1, 0, 0, 2))
        assert core.asked


def test_a_handshake_that_comes_again_changes_nothing_and_another_one_closes() -> None:
    core = master(preface=False)
    heard(core, REQUEST.pack(1, 0, 0, 2) * 2)
    core.answer(EPOCHS, end=END, now=0.0)
    heard(core, REQUEST.pack(1, 0, 0, 2))
    assert not core.asked
    with pytest.raises(RemoteProtocolError, match="member 2 calls itself 3"):
        heard(core, REQUEST.pack(1, 0, 0, 3))


def test_flags_of_rocketmqs_handshake() -> None:
    core = master(preface=False)
    heard(core, REQUEST.pack(1, 1, 1, 2))
    assert not core.counts
    core.answer(EPOCHS, end=END, now=0.0)
    heard(core, reports(0))
    assert core.next_offset == 2000  # the last file


def test_a_report_before_the_answer_closes_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="state 2 where none"):
        heard(master(preface=False), REQUEST.pack(1, 0, 0, 2) + reports(0))


def test_each_wait_of_the_masters_handshake_has_its_deadline() -> None:
    core = master()
    assert core.deadline == core.silence_deadline == HANDSHAKE_S
    heard(core, Preface().encode(), now=1.5)
    with pytest.raises(RemoteProtocolError, match="no handshake within 2 s"):
        core.check_silence(HANDSHAKE_S + 0.1)
    heard(core, REQUEST.pack(1, 0, 0, 2), now=1.5)
    assert core.deadline == 1.5 + HANDSHAKE_S
    with pytest.raises(RemoteProtocolError, match="the broker beside has not begun its epoch within 2 s"):
        core.check_silence(4.0)
    core.answer(EPOCHS, end=END, now=3.0)
    with pytest.raises(RemoteProtocolError, match="no first report within 2 s"):
        core.check_silence(5.1)
    heard(core, reports(0), now=4.0)
    core.check_silence(4.0 + SILENCE_S)
    with pytest.raises(RemoteProtocolError, match="no report for"):
        core.check_silence(4.1 + SILENCE_S)


def test_answers_that_are_our_own_mistakes() -> None:
    core = master(preface=False)
    with pytest.raises(LocalProtocolError, match="without a handshake"):
        core.answer(EPOCHS, end=END, now=0.0)
    heard(core, REQUEST.pack(1, 0, 0, 2))
    for epochs, end in (((), END), (EPOCHS, 1499), (((2, 0), (1, 5)), END)):
        with pytest.raises(LocalProtocolError):
            core.answer(epochs, end=end, now=0.0)


def test_a_slave_that_follows_a_newer_leader_is_not_answered() -> None:
    core = master()
    heard(core, Preface(promised=5).encode() + REQUEST.pack(1, 0, 0, 2))
    with pytest.raises(RemoteProtocolError, match="member 2 follows epoch 5, this is epoch 4"):
        core.answer(EPOCHS, end=END, now=0.0)


# Slave


def test_an_empty_slave_takes_the_log_and_adopts_epochs_as_it_reaches_them() -> None:
    core = slave()
    assert core.next_report(-1, 0.0) == b"" and not core.has_grown(0)
    assert received(core, Answer(END, EPOCHS).header) == []
    assert core.theirs == EPOCHS and core.master_end == END and core.has_grown(-1)
    assert offset_of(core.next_report(-1, 0.0)) == 0
    assert not core.accepted and core.to_adopt(0) is None
    assert core.next_report(0, 5.0) == b""
    assert received(core, frame(0, b"a" * 700, epoch=1, start=0, commit=90)) == [
        Append(0, memoryview(b"a" * 700)),
        FrameReceived(700),
    ]
    assert core.accepted and core.leader_epoch == 4 and core.commit == 90
    assert core.to_adopt(699) == ((1, 0),)
    assert core.to_adopt(700) == ((1, 0), (3, 700))
    core.adopt(((1, 0), (3, 700)))
    assert core.to_adopt(700) is None and core.to_adopt(1499) is None
    assert offset_of(core.next_report(700, 0.0)) == 700
    received(core, frame(700, b"b" * 300, epoch=3, start=700), frame(1000, b"c" * 500, epoch=3, start=700))
    assert core.commit == 90  # which never goes back
    assert core.to_adopt(1500) == EPOCHS


def test_a_slave_that_lacks_nothing_repeats_its_end_once_the_master_has_spoken() -> None:
    core = slave(END, epochs=EPOCHS)
    received(core, Answer(END, EPOCHS).header)
    assert offset_of(core.next_report(-1, 0.0)) == END
    assert core.next_report(-1, 1.0) == b""
    assert core.deadline == SILENCE_S
    received(core, frame(END, b"", epoch=4, start=1500))
    assert core.accepted and core.has_grown(-1)
    assert offset_of(core.next_report(-1, 1.0)) == END
    assert not core.has_grown(-1)
    assert core.next_report(-1, 1.0 + BEAT_S) == b""
    assert offset_of(core.next_report(-1, 1.1 + BEAT_S)) == END


def test_nothing_is_reported_while_the_overlap_is_compared() -> None:
    core = slave(1600, start=1200, epochs=EPOCHS)
    received(core, Answer(END, EPOCHS).header)
    assert offset_of(core.next_report(-1, 0.0)) == 1200
    for event in core.receive(memoryview(frame(1200, b"x" * 300, epoch=3, start=700)), 0.0):
        if isinstance(event, Compare):
            core.compare(event, b"x" * 300)
    assert not core.accepted and not core.has_grown(1500) and core.next_report(1500, 9.0) == b""
    assert core.to_adopt(1600) is None
    for event in core.receive(memoryview(frame(1500, b"y" * 200, epoch=4, start=1500)), 0.0):
        if isinstance(event, Compare):
            core.compare(event, b"y" * 100)
    assert core.accepted
    assert offset_of(core.next_report(1700, 9.0)) == 1700


def test_bytes_that_differ_in_the_overlap_close_the_connection() -> None:
    core = slave(1600, start=1590, epochs=EPOCHS)
    received(core, Answer(END, EPOCHS).header)
    with pytest.raises(RemoteProtocolError, match="differs from ours at byte 1592"):
        for event in core.receive(memoryview(frame(1590, b"aaaa", epoch=4, start=1500)), 0.0):
            assert isinstance(event, Compare)
            core.compare(event, b"aaba")


@pytest.mark.parametrize(
    ("mine", "end", "theirs", "their_end"),
    [(EPOCHS, 2000, EPOCHS, 1900), (EPOCHS, 2000, (*EPOCHS, (9, 1900)), 1900), ((), 700, ((2, 600),), 600)],
)
def test_a_master_whose_log_ends_within_ours_is_told_our_end(
    mine: Epochs, end: int, theirs: Epochs, their_end: int
) -> None:
    with pytest.raises(ShorterMaster, match=r"100 bytes later.*keep the store that is right"):
        received(slave(end, epochs=mine), Answer(their_end, theirs).header)
    core = slave(end, epochs=mine, telling=True)
    received(core, Answer(their_end, theirs).header)
    assert offset_of(core.next_report(-1, 0.0)) == end
    assert not core.accepted and core.next_report(end, 9.0) == b""
    with pytest.raises(ConnectionClosed, match="its log goes on at our end"):
        received(core, frame(end, b"", epoch=theirs[-1][0], start=theirs[-1][1]))
    assert core.answered


@pytest.mark.parametrize(
    ("mine", "end", "theirs", "point", "why"),
    [
        (EPOCHS, 2000, (*EPOCHS, (9, 1900)), 1900, "the last epoch they share is 4"),
        (EPOCHS, 2000, ((1, 0), (6, 500)), 500, "the last epoch they share is 1"),
        (EPOCHS, 2000, ((6, 0),), 0, "they share no epoch"),
        (((1, 500),), 2000, ((6, 800),), 500, "they share no epoch"),
        ((), 2000, ((6, 800),), 800, "they share no epoch"),
    ],
)
def test_a_master_that_has_written_something_else_is_refused(
    mine: Epochs, end: int, theirs: Epochs, point: int, why: str
) -> None:
    core = slave(end, epochs=mine)
    with pytest.raises(
        Diverged, match=f"from byte {point} on, {end - point} bytes before our end.*{why}"
    ) as raised:
        received(core, Answer(END, theirs).header)
    assert raised.value.point == point
    assert "start the other side with a copy" in str(raised.value)


def test_a_log_without_epochs_is_judged_by_the_bytes_before_its_end() -> None:
    core = slave(2000, start=1900)
    received(core, Answer(END, EPOCHS).header)
    assert offset_of(core.next_report(-1, 0.0)) == 1900


def test_an_older_leader_than_the_one_that_was_followed_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="leads epoch 4, but our log has followed epoch 5"):
        received(slave(2000, epochs=(*EPOCHS, (5, 2000))), Answer(END, EPOCHS).header)


def test_epochs_behind_the_own_end_are_none_of_ours() -> None:
    core = slave(1000, epochs=(*EPOCHS, (7, 1600)))
    assert core.epochs == ((1, 0), (3, 700))
    received(core, Answer(END, EPOCHS).header)
    assert offset_of(core.next_report(-1, 0.0)) == 1000


def head(state: int, size: int, end: int, last: int) -> bytes:
    return (
        state.to_bytes(4, "big", signed=True)
        + size.to_bytes(4, "big", signed=True)
        + REPORT.pack(end)
        + (last.to_bytes(4, "big", signed=True))
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (FRAME_HEADER.pack(4096, 0) * 2, "no answer to a member's handshake.*set replication=majority there"),
        (head(2, 12, END, 1), "no answer"),
        (head(1, 0, END, 1), "no answer"),
        (head(1, 13, END, 1), "no answer"),
        (head(1, -12, END, 1), "no answer"),
        (head(1, 12 * (EPOCHS_MAX + 1), END, 1), "no answer"),
        (head(1, 12, -1, 1), "no answer"),
        (head(1, 12, END, 2) + Answer(END, ((1, 0),)).header[20:], "its last epoch is 1, but it says 2"),
        (Answer(END, ((3, 0), (2, 9))).header, "an impossible list of epochs"),
        (Answer(END, ((1, END + 1),)).header, "an impossible list of epochs"),
    ],
)
def test_what_is_no_answer_closes_the_connection(data: bytes, why: str) -> None:
    core = slave()
    assert core.whole(memoryview(data), 0)[0] >= 20  # the buffer hands it on
    with pytest.raises(RemoteProtocolError, match=why):
        received(core, data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEADER.pack(1, 0, 1000, 3, 700, 0), "a frame of state 1"),
        (HEADER.pack(2, 0, 1000, 3, 700, -2), "commit offset -2"),
        (HEADER.pack(2, -1, 1000, 3, 700, 0), "this is no HA master"),
        (HEADER.pack(2, 5, 1001, 3, 700, 0), "sends from 1001 on"),
        (HEADER.pack(2, 5, 1000, 1, 0, 0), "said to be of epoch 1 from 0 on"),
        (HEADER.pack(2, 5, 1000, 3, 701, 0), "said to be of epoch 3 from 701 on"),
        (HEADER.pack(2, 501, 1000, 3, 700, 0), "it was answered that epoch 3 is there, from 700 to 1500"),
        (HEADER.pack(2, 1001, 1000, 3, 700, 0), "crosses the border of a file"),
    ],
)
def test_what_is_no_frame_closes_the_connection(data: bytes, why: str) -> None:
    core = slave(1000, epochs=EPOCHS[:2])
    received(core, Answer(END, EPOCHS).header)
    with pytest.raises(RemoteProtocolError, match=why):
        received(core, data)


@pytest.mark.parametrize(
    "data",
    [
        frame(1000, b"x" * 500, epoch=4, start=1500),  # RocketMQ's last frame of an epoch
        frame(1000, b"x" * 500, epoch=3, start=700) + frame(1500, b"", epoch=3, start=700),
        frame(1000, b"x" * 500, epoch=3, start=700) + frame(1500, b"", epoch=4, start=1500),
        frame(1000, b"", epoch=3, start=700, commit=-1),
    ],
)
def test_frames_of_rocketmq_at_the_border_of_two_epochs_are_taken(data: bytes) -> None:
    core = slave(1000, epochs=EPOCHS[:2])
    received(core, Answer(END, EPOCHS).header, data)
    assert core.accepted


def test_the_slave_gives_up_a_master_that_does_not_answer_or_falls_silent() -> None:
    core = slave()
    assert core.deadline == HANDSHAKE_S
    core.check_silence(HANDSHAKE_S)
    with pytest.raises(RemoteProtocolError, match="no answer to our handshake within 2 s"):
        core.check_silence(HANDSHAKE_S + 0.1)
    received(core, Answer(END, EPOCHS).header, now=1.0)
    with pytest.raises(RemoteProtocolError, match="nothing came from the master"):
        core.check_silence(1.1 + SILENCE_S)


def test_what_it_may_mean_that_the_master_closed() -> None:
    core = slave()
    assert "set replication=majority there" in str(core.closed(begin=0, end=0))
    received(core, Answer(END, EPOCHS).header)
    assert "not a part of its log" in str(core.closed(begin=0, end=0))
    received(core, frame(0, b"x", epoch=1, start=0))
    assert str(core.closed(begin=0, end=1)) == "closed by the master"


def test_a_member_has_an_id_that_fits() -> None:
    for member in (-1, MEMBER_MAX + 1):
        with pytest.raises(LocalProtocolError, match="ids are 0 to 63"):
            SwitchingSlave(end=0, file_size=FILE, now=0.0, epochs=(), member=member, preface=None)


def test_whole_frames_are_found_from_the_answer_on() -> None:
    core = slave()
    answer = Answer(END, EPOCHS).header
    first = frame(0, b"x" * 30, epoch=1, start=0)
    data = answer + first + first[:40]
    sizes = {count: core.whole(memoryview(data)[:count], 0) for count in range(len(data) + 1)}
    assert sizes[0] == (0, 20) and sizes[5] == (0, 15) and sizes[20] == (0, 36)
    assert sizes[len(answer)] == sizes[len(answer) + 35] == (len(answer), 0)
    assert sizes[len(answer) + 36] == (len(answer), 30)
    assert sizes[len(data)] == (len(answer) + 66, 26)
    received(core, answer)
    assert core.whole(memoryview(first + first[:10]), 0) == (66, 0)
    assert core.whole(memoryview(b"yy" + first), 2) == (68, 0)
