"""Replicators of a group that commits by majority: members, observers, and who speaks the wrong dialect."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lane.logs import lane_or_skip
from support.replication.member_pair import MEMBER, Pair, begin_epoch
from support.store.master_log import log_files, same_log
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import SILENCE_S
from whimbrel.ha.switching import (
    ANSWER,
    BEAT_S,
    ENTRY,
    HANDSHAKE_S,
    HEADER,
    MEMBER_REPORT,
    REQUEST,
    Preface,
)
from whimbrel.replicator.feeder import LEADER_BEAT_MAX_NS
from whimbrel.store.epoch_file import EPOCH_FILE, EpochFile
from whimbrel.store.page_cells import SLAVES_MAX


@pytest.fixture(params=["python", "lane"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(tmp_path, lane=lane_or_skip() if request.param == "lane" else None) as made:
        yield made


def handshake(member: int, promised: int = 0) -> bytes:
    """What a member sends first."""
    return Preface(promised=promised).encode() + REQUEST.pack(1, 0, 0, member)


def answered(pair: Pair, member: int) -> socket.socket:
    """Connect as a member and take the answer."""
    peer = pair.connect()
    peer.sendall(handshake(member))
    head = pair.read(peer, ANSWER.size)
    state, size, end, last = ANSWER.unpack(head)
    assert (state, end, last) == (1, pair.master.end, pair.page.leader_epoch)
    assert len(pair.read(peer, size)) == size
    return peer


def served(pair: Pair, member: int) -> socket.socket:
    """Connect as a member that reports the log's end twice, which counts."""
    peer = answered(pair, member)
    peer.sendall(MEMBER_REPORT.pack(2, pair.master.end) * 2)
    pair.turns(lambda: member in dict(pair.page.member_acks()))
    return peer


def following(pair: Pair) -> None:
    """Run until the slave holds and has acknowledged all."""
    pair.turns(lambda: dict(pair.page.member_acks()).get(MEMBER) == pair.master.end)
    assert same_log(pair.master.root, pair.root / "slave", pair.master.end) or not pair.master.end


def test_a_member_follows_and_counts(pair: Pair) -> None:
    pair.master.append(50)
    pair.lead(1)
    pair.start_slave()
    following(pair)
    for _ in range(20):
        pair.master.append(20)
        pair.turn()
    following(pair)
    assert EpochFile(pair.root / "slave").load() == EpochFile(pair.master.root).load()
    page = pair.slave_page
    assert page.heard_epoch == 1 and page.connected and not page.trouble
    pair.stop_slave()
    pair.turns(lambda: not pair.page.member_acks())


def test_a_member_with_synchronous_flush_counts_what_is_on_disk(tmp_path: Path) -> None:
    with Pair(tmp_path, flush="sync") as pair:
        pair.lead(1)
        pair.start_slave()
        pair.master.append(50)
        pair.turns(lambda: dict(pair.page.member_acks()).get(MEMBER) == pair.master.end)
        assert pair.slave_page.flushed == pair.master.end


def test_a_member_of_an_empty_log_counts_before_anything_is_written(pair: Pair) -> None:
    pair.lead(1)
    pair.start_slave()
    pair.turns(lambda: dict(pair.page.member_acks()) == {MEMBER: 0})
    assert EpochFile(pair.root / "slave").load() == ((1, 0),)


def test_a_member_that_lacks_nothing_counts_at_once(pair: Pair) -> None:
    pair.lead(1)
    pair.master.append(30)
    pair.start_slave()
    following(pair)
    pair.stop_slave()
    pair.turns(lambda: not pair.page.member_acks())
    pair.start_slave()
    following(pair)


def test_the_commit_offset_is_heard_as_far_as_the_log_goes_and_never_goes_back(pair: Pair) -> None:
    pair.lead(1)
    pair.start_slave()
    end = pair.master.append(10)
    following(pair)
    assert pair.slave_page.heard_commit == 0
    pair.page.commit = end
    pair.idle_for(2 * BEAT_S)
    assert pair.slave_page.heard_commit == 0  # the broker has published it before it saw this connection
    before = pair.now
    pair.page.commit_saw = pair.page.newest_connection()
    pair.turns(lambda: pair.slave_page.heard_commit == end)
    assert pair.now - before < BEAT_S / 2  # by a frame of its own
    pair.page.commit = end // 2
    pair.idle_for(2 * BEAT_S)
    assert pair.slave_page.heard_commit == end
    pair.page.commit = end + 1000  # of bytes that are not there yet
    pair.idle_for(BEAT_S)
    assert pair.slave_page.heard_commit == end


def test_an_idle_leader_beats_while_its_broker_does(pair: Pair) -> None:
    pair.lead(1)
    peer = served(pair, MEMBER)
    count = HEADER.size * 3
    before = pair.now
    data = pair.read(peer, count)
    assert len(data) == count and BEAT_S < pair.now - before < 3 * BEAT_S
    pair.beating = False
    pair.page.broker_beat_ns = pair.loop.machine.monotonic_ns() - LEADER_BEAT_MAX_NS
    pair.page.commit = 0
    pair.idle_for(3 * BEAT_S)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    pair.beating = True
    assert len(pair.read(peer, HEADER.size)) == HEADER.size


def test_a_leader_that_feeds_nobody_any_more_begins_again_where_it_was(pair: Pair) -> None:
    pair.lead(1)
    end = pair.master.append(30)
    pair.start_slave()
    following(pair)
    page, heard = pair.page, pair.slave_page
    page.leader_log = 0  # its broker reaches nobody
    pair.turns(lambda: not page.member_acks() and not heard.heard_epoch)
    heard_ns = heard.heard_ns
    pair.master.append(30)
    pair.idle_for(3 * BEAT_S)
    assert heard.heard_ns == heard_ns and heard.written == end
    page.leader_log = page.epoch
    following(pair)
    assert heard.written == pair.master.end and heard.heard_epoch == 1
    assert EpochFile(pair.root / "slave").load() == ((1, 0),)


def test_a_restarted_master_has_a_new_epoch_which_the_member_adopts(pair: Pair) -> None:
    pair.lead(1)
    first = pair.master.append(40)
    pair.start_slave()
    following(pair)
    pair.master.reopen()
    pair.turns(lambda: pair.page.fed_epoch == pair.page.epoch)
    assert not pair.page.member_acks()
    pair.turn()
    pair.lead(2)
    following(pair)
    assert EpochFile(pair.root / "slave").load() == ((1, 0), (2, first))
    pair.master.append(10)
    following(pair)
    pair.master.reopen()  # it has written, and is gone before anybody knows
    pair.lead(3)
    following(pair)
    assert EpochFile(pair.root / "slave").load() == EpochFile(pair.master.root).load()


def test_an_epoch_is_on_disk_before_an_end_in_it_is_acknowledged(pair: Pair) -> None:
    pair.master.append(40)
    pair.lead(7)
    start = pair.master.end
    pair.master.append(40)
    pair.start_slave()
    adopted: list[int] = []
    follower = pair.follower
    assert follower is not None
    save = follower.epoch_file.save

    class Noting(EpochFile):
        def save(self, epochs: tuple[tuple[int, int], ...]) -> None:
            adopted.append(max(pair.page.acks))
            save(epochs)

    follower.epoch_file = Noting(pair.root / "slave")
    following(pair)
    assert len(adopted) == 1 and adopted[0] < start


def test_a_disk_that_takes_no_epoch_is_told_and_nothing_acknowledged(pair: Pair) -> None:
    pair.master.append(5)
    pair.lead(1)
    (pair.root / "slave" / f"{EPOCH_FILE}.tmp").mkdir(parents=True)
    pair.start_slave()
    pair.turns(lambda: "can't be written" in pair.slave_page.trouble)
    pair.idle_for(0.5)
    assert not pair.page.member_acks()


def test_nothing_of_an_epoch_is_in_the_log_before_the_epoch_is_on_disk(pair: Pair) -> None:
    """Else both logs would part there when they are compared next, although their bytes are equal."""
    pair.lead(1)
    pair.master.append(40)
    pair.start_slave()
    following(pair)
    shared = pair.master.end
    blocked = pair.root / "slave" / f"{EPOCH_FILE}.tmp"
    blocked.mkdir()
    pair.master.reopen()
    pair.lead(2)
    pair.master.append(10)
    pair.turns(lambda: "can't be written" in pair.slave_page.trouble)
    pair.idle_for(0.5)
    assert pair.slave_log.end == shared
    blocked.rmdir()
    following(pair)
    assert EpochFile(pair.root / "slave").load() == ((1, 0), (2, shared))


def test_a_damaged_list_of_epochs_is_told(pair: Pair) -> None:
    pair.lead(1)
    pair.start_slave()
    (pair.root / "slave" / EPOCH_FILE).write_bytes(b"1\n5\n1-0\n")
    pair.turns(lambda: "is damaged" in pair.slave_page.trouble)
    (pair.root / "slave" / EPOCH_FILE).unlink()
    following(pair)
    assert not pair.slave_page.trouble


def test_a_master_without_its_list_of_epochs_serves_no_member(pair: Pair) -> None:
    pair.lead(1)
    (pair.master.root / EPOCH_FILE).unlink()
    peer = pair.connect()
    peer.sendall(handshake(MEMBER))
    assert pair.read(peer, 1) == b""
    assert "does not end with epoch 1 from 0 on" in pair.page.trouble


def test_a_member_that_asks_before_the_epoch_has_begun_is_answered_once_it_has(pair: Pair) -> None:
    peer = pair.connect()
    peer.sendall(handshake(MEMBER))
    pair.idle_for(HANDSHAKE_S / 2)
    pair.lead(3)
    assert ANSWER.unpack(pair.read(peer, ANSWER.size))[3] == 3


@pytest.mark.parametrize("sent", [0, 8, 56, 72])
def test_each_part_of_a_handshake_has_its_deadline(pair: Pair, sent: int) -> None:
    if sent < 72:
        pair.lead(1)
    peer = pair.connect()
    peer.sendall(handshake(MEMBER)[:sent])
    pair.step_s = 0.01
    before = pair.now
    assert pair.read(peer, 1) == b""
    assert pair.now - before <= (HANDSHAKE_S + 0.1 if sent else 8.5)


def test_a_member_without_a_first_report_is_closed(pair: Pair) -> None:
    pair.lead(1)
    peer = answered(pair, MEMBER)
    before = pair.now
    assert pair.read(peer, 1) == b""
    assert pair.now - before <= HANDSHAKE_S + 0.1
    assert "no first report" in pair.page.trouble


def test_a_members_new_connection_ends_the_older_ones_unread(pair: Pair) -> None:
    pair.lead(1)
    old = served(pair, MEMBER)
    other = served(pair, 3)
    end = pair.master.append(3)
    pair.turns(lambda: pair.page.sent[1] == end)
    peer = pair.connect()
    pair.turns(lambda: len(pair.feeder.silent) == 1)
    (silent,) = pair.feeder.silent
    # Both arrive in one turn: the report of the old one may not be taken after the answer was made.
    pair.feeder.take(silent, handshake(MEMBER))
    old.sendall(MEMBER_REPORT.pack(2, end))
    assert dict(pair.page.member_acks()) == {3: 0}  # its cells are cleared before the answer is out
    assert len(pair.read(peer, ANSWER.size + ENTRY.size)) == ANSWER.size + ENTRY.size
    assert dict(pair.page.member_acks()) == {3: 0}
    peer.sendall(MEMBER_REPORT.pack(2, 0) + MEMBER_REPORT.pack(2, 0))
    pair.turns(lambda: dict(pair.page.member_acks()) == {MEMBER: 0, 3: 0})
    other.sendall(MEMBER_REPORT.pack(2, end))
    pair.turns(lambda: dict(pair.page.member_acks()) == {MEMBER: 0, 3: end})


def test_who_is_no_voter_is_told_so_and_takes_no_slot(pair: Pair) -> None:
    """Else sixteen strangers would keep the voters out."""
    pair.lead(1)
    pair.page.set_voters((0, MEMBER))
    old = served(pair, MEMBER)
    peer = pair.connect()
    peer.sendall(handshake(3))
    pair.turns(lambda: "member 3 is none of the voters" in pair.page.trouble)
    assert pair.read(peer, 1) == b""
    assert dict(pair.page.member_acks()) == {MEMBER: 0}
    old.sendall(MEMBER_REPORT.pack(2, 0))


def test_a_member_that_has_promised_a_newer_leader_is_refused(pair: Pair) -> None:
    pair.lead(4)
    peer = pair.connect()
    peer.sendall(handshake(MEMBER, promised=5))
    assert pair.read(peer, 1) == b""
    assert "follows epoch 5, this is epoch 4" in pair.page.trouble


def test_members_are_dropped_when_the_broker_leads_no_longer(pair: Pair) -> None:
    pair.lead(1)
    peer = served(pair, MEMBER)
    pair.page.leader_log = 0
    while data := pair.read(peer, HEADER.size):
        assert len(data) == HEADER.size
    assert not pair.page.member_acks()


def test_a_divergent_member_is_refused_and_nothing_of_it_is_cut(pair: Pair) -> None:
    pair.lead(1)
    shared = pair.master.append(40)
    pair.start_slave()
    following(pair)
    pair.stop_slave()
    pair.master.reopen()
    pair.lead(2)
    pair.master.append(40)
    pair.start_slave()
    pair.slave_log.append_raw(shared, memoryview(b"x" * 777))  # of an older leader
    pair.slave_log.publish()
    pair.turns(lambda: "differs" in pair.slave_page.trouble)
    assert f"from byte {shared} on, 777 bytes before our end" in pair.slave_page.trouble
    assert "start the other side with a copy of it" in pair.slave_page.trouble
    assert pair.slave_log.end == shared + 777 and not pair.page.member_acks()
    assert pair.page.refused_count == 0


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_master_that_came_back_with_less_is_told(pair: Pair, epoch: int) -> None:
    pair.lead(1)
    shared = pair.master.append(40)
    pair.start_slave()
    following(pair)
    pair.stop_slave()
    pair.start_slave()
    pair.slave_log.append_raw(shared, memoryview(b"x" * 100))  # what the master had and has lost
    pair.slave_log.publish()
    if epoch == 2:
        pair.master.reopen()
        pair.turn()
        pair.lead(2)
    pair.turns(lambda: pair.page.refused_count > 0)
    assert pair.page.refused_offset == shared + 100
    assert "100 bytes later" in pair.slave_page.trouble
    assert not pair.page.member_acks()


def test_logs_older_than_all_epochs_are_compared(pair: Pair) -> None:
    pair.master.append(40)
    pair.page.ha_dialect = 0
    pair.start_slave(dialect=0)
    pair.turns(lambda: pair.page.live_acks() == [pair.master.end])
    pair.stop_slave()
    pair.master.reopen()
    pair.page.ha_dialect = 2
    pair.lead(1)
    pair.start_slave()
    following(pair)
    pair.stop_slave()
    with log_files(pair.master.root)[0].open("r+b") as file:
        file.seek(pair.master.end - 300)
        other = bytes([file.read(1)[0] ^ 1])
        file.seek(pair.master.end - 300)
        file.write(other)
    pair.start_slave()
    pair.turns(lambda: "the master's log differs from ours at byte" in pair.slave_page.trouble)
    assert not pair.page.member_acks()


def observer(pair: Pair, offset: int) -> socket.socket:
    """Connect as a slave of the classic protocol."""
    peer = pair.connect()
    peer.sendall(REPORT.pack(offset))
    pair.turns(lambda: offset in pair.page.acks)
    return peer


def test_observers_are_fed_up_to_the_commit_offset_and_count_for_nothing(pair: Pair) -> None:
    pair.lead(1)
    end = pair.master.append(20)
    peer = observer(pair, 0)
    assert pair.read(peer, FRAME_HEADER.size) == FRAME_HEADER.pack(0, 0)
    pair.page.commit = 1000
    assert pair.read(peer, FRAME_HEADER.size) == FRAME_HEADER.pack(0, 1000)
    assert len(pair.read(peer, 1000)) == 1000
    pair.idle_for(0.2)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    peer.sendall(REPORT.pack(1000))
    pair.turns(lambda: pair.page.acks[0] == 1000)  # to be seen, as ever
    assert not pair.page.member_acks()
    pair.page.commit = end
    assert pair.read(peer, FRAME_HEADER.size) == FRAME_HEADER.pack(1000, end - 1000)


def test_observers_get_nothing_before_the_epoch_has_begun(pair: Pair) -> None:
    pair.master.append(20)
    pair.page.commit = 1000
    peer = observer(pair, 0)
    pair.idle_for(1.0)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    pair.lead(1)  # it begins behind the commit offset: what is committed goes out, but no heartbeat
    assert pair.read(peer, FRAME_HEADER.size) == FRAME_HEADER.pack(0, 1000)
    pair.read(peer, 1000)
    pair.step_s = 0.1
    pair.idle_for(SILENCE_S / 2)
    with pytest.raises(BlockingIOError):
        peer.recv(1)


def test_a_member_gets_the_slot_of_an_observer(pair: Pair) -> None:
    pair.lead(1)
    observers = [observer(pair, 0) for _ in range(SLAVES_MAX - 1)]
    served(pair, 3)
    served(pair, MEMBER)
    assert dict(pair.page.member_acks()) == {3: 0, MEMBER: 0}
    assert pair.read(observers[-1], 2 * FRAME_HEADER.size) == FRAME_HEADER.pack(0, 0)  # and the end


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_the_lane_feeds_members_and_observers(tmp_path: Path, flush: str) -> None:
    with Pair(tmp_path, lane=lane_or_skip(), flush=flush) as pair:
        pair.lead(1)
        pair.start_slave()
        pair.page.commit = pair.master.append(10)
        following(pair)
        pair.page.commit_saw = pair.page.newest_connection()
        peer = observer(pair, 0)
        pair.page.commit = pair.master.append(10)
        following(pair)
        pair.turns(lambda: pair.page.sent[1] == pair.page.commit)
        peer.sendall(REPORT.pack(pair.page.commit))
        pair.turns(pair.feeder.steady)
        assert pair.follower is not None
        pair.turns(pair.follower.steady)
        frames, bodies = pair.shell.frames, pair.slave_shell.bodies
        for _ in range(20):
            end = pair.master.append(5)
            following(pair)
            pair.page.commit = end
            pair.turns(lambda end=end: pair.slave_page.heard_commit == end)  # type: ignore[misc]
        assert pair.shell.frames - frames >= 55  # to both, and what is committed to the member
        assert pair.slave_shell.bodies - bodies >= 19
        assert pair.page.sent[1] == pair.page.commit


def test_a_classic_slave_of_ours_follows_the_commit_offset(pair: Pair) -> None:
    pair.lead(1)
    end = pair.master.append(20)
    pair.page.commit = end // 2
    pair.start_slave(dialect=0)
    pair.turns(lambda: pair.slave_log.end == end // 2)
    pair.page.commit = end
    pair.turns(lambda: pair.slave_log.end == end)
    assert not pair.page.member_acks() and not pair.slave_page.trouble


def test_a_member_at_a_classic_master_says_what_to_set(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.page.ha_dialect = 0
    pair.master.append(3)
    pair.start_slave()
    with caplog.at_level(logging.WARNING):
        pair.turns(lambda: bool(pair.slave_page.trouble) and bool(pair.page.trouble))
    assert "set replication=majority there, or sync or async on this slave" in pair.slave_page.trouble
    assert "set replication=majority here, or sync or async there" in pair.page.trouble
    assert pair.page.trouble in caplog.messages
    pair.slave_page.ha_dialect = 0  # as its broker does that was set right
    pair.turns(lambda: pair.slave_log.end == pair.master.end)
    assert not pair.slave_page.trouble


def test_a_member_at_a_master_of_rocketmq_says_what_to_set(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        pair.start_slave(master_ha=f"127.0.0.1:{listener.getsockname()[1]}")
        pair.turns(pair.connected)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(FRAME_HEADER.pack(4096, 0) * 2)  # heartbeats
            pair.turns(lambda: bool(pair.slave_page.trouble))
    assert "no answer to a member's handshake" in pair.slave_page.trouble
    assert "set replication=majority there" in pair.slave_page.trouble


def test_a_silent_master_is_given_up_after_the_handshakes_deadline(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair.start_slave(master_ha=f"127.0.0.1:{listener.getsockname()[1]}")
        pair.turns(pair.connected)
        before = pair.now
        pair.turns(lambda: "within 2 s" in pair.slave_page.trouble)
        assert HANDSHAKE_S <= pair.now - before < HANDSHAKE_S + 0.1


def test_a_slave_whose_broker_wants_the_dialect_speaks_it_from_then_on(pair: Pair) -> None:
    pair.lead(1)
    pair.page.commit = pair.master.append(10)
    pair.start_slave(dialect=0)
    pair.turns(lambda: pair.slave_log.end == pair.master.end)
    pair.slave_page.ha_dialect = 2
    following(pair)  # its log has no epochs yet: its end is compared, and it adopts the leader's list
    assert EpochFile(pair.root / "slave").load() == ((1, 0),)


def test_many_frames_and_epochs_come_over_whole(tmp_path: Path) -> None:
    with Pair(tmp_path, file_size=1 << 22) as pair:
        for epoch in range(1, 12):
            pair.lead(epoch)
            pair.master.append(150, body_bytes=7000)
        pair.start_slave()
        following(pair)
        assert len(EpochFile(pair.root / "slave").load()) == 11


def test_the_epoch_of_a_log_that_lost_it_is_not_taken_for_reached(pair: Pair) -> None:
    pair.lead(1)
    pair.master.append(10)
    pair.start_slave()
    following(pair)
    pair.stop_slave()
    EpochFile(pair.root / "slave").save(((1, 0), (9, pair.master.end + 1)))  # as after a power cut
    begin_epoch(pair.master.root, pair.page, 1, 0)
    pair.start_slave()
    following(pair)
