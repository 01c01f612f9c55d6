"""Replicators as real processes, over a master's log that the test writes: equal bytes whatever is killed."""

import contextlib
import functools
import random
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster.processes import Process
from support.store.master_log import MasterLog, log_files, same_log
from support.waiting import until
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import COMPARE_BYTES
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.options import StoreOptions
from whimbrel.store.page_cells import SLAVES_MAX
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.view import LogView
from whimbrel.wakeup import Doorbell

pytestmark = pytest.mark.process

FILE = 65536


def feeder(root: Path, store: Path, **settings: object) -> Process:
    """Return a master's replicator."""
    return Process(root, "replicator", "feeder", role="master", store=store, **settings)


def follower(root: Path, store: Path, master_ha: str = "", **settings: object) -> Process:
    """Return a slave's replicator."""
    settings = {"commitlog_file_size": FILE, **settings}
    return Process(root, "replicator", store.name, role="slave", store=store, master_ha=master_ha, **settings)


def caught_up(master: MasterLog, slave: Path) -> None:
    """Wait until the slave has acknowledged the whole log, and compare the bytes."""
    end = master.end
    until(lambda: end in master.page.acks, what=f"an acknowledgement of {end}")
    page = SharedPage.open(slave)
    assert page.written == end
    page.close()
    assert same_log(master.root, slave, end)


def goes_on(master: MasterLog) -> None:
    """Wait until more of the log is acknowledged than now."""
    reached = max(master.page.acks)
    until(lambda: max(master.page.acks) > reached, what="replication going on")


def log_bytes(store: Path) -> bytes:
    """Return all bytes of the log; files made in advance hold zeros only, and are left out."""
    return b"".join(data for path in log_files(store).values() if any(data := path.read_bytes()))


def test_a_slave_gets_the_whole_log_and_then_what_is_written(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(700)
        assert len(log_files(master.root)) > 5
        with feeder(tmp_path, master.root) as ours:
            with follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
                caught_up(master, slave.store)
                for _ in range(30):
                    master.append(7)
                caught_up(master, slave.store)
                assert master.page.peers[0].startswith("127.0.0.1:")
                assert master.page.sent[0] == master.end
                assert slave.stop() == 0
                until(lambda: master.page.live_acks() == [], what="the slot being free")
                assert not (slave.store / "abort").exists()
            assert ours.stop() == 0
            assert master.page.ha_port == 0


def test_a_store_path_longer_than_a_socket_path_works(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100) / ("e" * 100)
    with (
        MasterLog(long / "master", file_size=FILE) as master,
        feeder(tmp_path, master.root) as ours,
        follower(tmp_path, long / "slave", ours.ha) as slave,
    ):
        master.append(20)
        caught_up(master, slave.store)


def test_logs_are_equal_after_either_side_was_killed_under_load(tmp_path: Path) -> None:
    chance = random.Random(7)
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        enough = threading.Event()

        def load() -> None:
            while not enough.wait(0.001):
                master.append(chance.randrange(1, 20), body_bytes=chance.randrange(0, 2000))

        ours = feeder(tmp_path, master.root).start()
        slave = follower(tmp_path, tmp_path / "slave", ours.ha).start()
        writer = threading.Thread(target=load)
        with ours, slave:
            writer.start()
            try:
                for victim in (slave, ours, slave, slave, ours, ours):
                    goes_on(master)
                    victim.kill()
                    victim.start()
            finally:
                enough.set()
                writer.join()
            caught_up(master, slave.store)
            assert len(log_files(slave.store)) > 3


def test_an_empty_slave_gets_the_log_from_its_first_file_on(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(500)
        master.log.close(clean=True)
        for start in list(log_files(master.root))[:2]:  # as retention would
            log_files(master.root)[start].unlink()
        master.open()
        assert master.page.begin == 2 * FILE
        with (
            feeder(tmp_path, master.root) as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        ):
            caught_up(master, slave.store)
            assert min(log_files(slave.store)) == 2 * FILE


def test_the_classic_rule_feeds_an_empty_slave_from_the_last_file(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(500)
        with (
            feeder(tmp_path, master.root, first_offset="last-file") as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        ):
            caught_up(master, slave.store)
            assert min(log_files(slave.store)) == master.end - master.end % FILE


def test_a_log_that_is_recovered_again_brings_the_slaves_back_with_their_own_ends(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(100)
        with (
            feeder(tmp_path, master.root) as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        ):
            caught_up(master, slave.store)
            master.reopen()
            master.append(100)
            caught_up(master, slave.store)
            assert "the log was recovered again" in ours.log_tail()


def test_a_slave_whose_log_is_longer_is_refused_and_keeps_its_bytes(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(100)
        with (
            feeder(tmp_path, master.root) as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        ):
            caught_up(master, slave.store)
            slave.stop()
    before = log_bytes(tmp_path / "slave")
    assert any(before)
    with MasterLog(tmp_path / "shorter", file_size=FILE) as shorter:
        shorter.append(50)
        with (
            feeder(tmp_path, shorter.root) as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        ):
            until(lambda: shorter.page.refused_count > 0, what="a refusal")
            assert shorter.page.refused_offset == master.end
            assert f"it holds [0, {shorter.end})" in shorter.page.trouble
            assert shorter.page.live_acks() == []
            until(lambda: "without a word" in slave.log_tail(), what="the slave saying so")
    assert log_bytes(tmp_path / "slave") == before


def test_a_slave_and_a_master_that_went_different_ways_do_not_go_on(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(50)
        with feeder(tmp_path, master.root) as ours, follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
            caught_up(master, slave.store)
            slave.stop()
    before = log_bytes(tmp_path / "slave")
    # Records of equal sizes, so that even the borders between them are the same.
    with MasterLog(tmp_path / "other", file_size=FILE, seed=2) as other:
        other.append(60)
        with (
            feeder(tmp_path, other.root) as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha, compare_bytes=COMPARE_BYTES) as slave,
        ):
            until(lambda: "differs from ours at byte" in slave.log_tail(), what="the slave saying so")
            assert slave.running and ours.running
    assert log_bytes(tmp_path / "slave") == before


@pytest.mark.parametrize("seed", [1, 2])
def test_a_log_that_ends_at_a_file_border_is_compared_in_the_file_before(tmp_path: Path, seed: int) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(300)
        first = log_files(master.root)[0].read_bytes()
    slave_store = tmp_path / "slave"
    with contextlib.closing(LogWriter.open(slave_store, StoreOptions(commitlog_file_size=FILE))) as log:
        log.append_raw(0, first)
        assert log.end == FILE
    # The next file is made in advance. Recovery then leaves the log's end at the border.
    (slave_store / "commitlog" / f"{FILE:020d}").write_bytes(bytes(FILE))
    with MasterLog(tmp_path / "other", file_size=FILE, seed=seed) as other:
        other.append(400)
        with (
            feeder(tmp_path, other.root) as ours,
            follower(tmp_path, slave_store, ours.ha, compare_bytes=COMPARE_BYTES) as slave,
        ):
            if seed == 1:  # the same records, and more
                caught_up(other, slave_store)
            else:
                until(lambda: "differs from ours at byte" in slave.log_tail(), what="the slave saying so")
                assert other.page.live_acks() == []
    assert (seed == 1) == same_log(tmp_path / "other", slave_store, FILE)


def test_a_slave_that_retention_has_left_behind_is_told_so_and_an_empty_one_begins_where_the_log_does(
    tmp_path: Path,
) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master, feeder(tmp_path, master.root) as ours:
        master.append(200)
        with follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
            caught_up(master, slave.store)
            slave.stop()
        before, end = log_bytes(tmp_path / "slave"), master.end
        master.append(700)
        master.log.options = replace(master.log.options, disk_clean_ratio=0.0, disk_used_ratio_max=0.0)
        assert master.log.run_retention(0) > 2
        assert master.log.begin > end
        with follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
            until(lambda: "must start with an empty store" in master.page.trouble, what="a refusal")
            until(lambda: "without a word" in slave.log_tail(), what="the slave saying so")
            assert master.page.live_acks() == [] and master.page.refused_count == 0
        assert log_bytes(tmp_path / "slave") == before
        with follower(tmp_path, tmp_path / "empty", ours.ha) as slave:
            caught_up(master, slave.store)
            assert min(log_files(slave.store)) == master.log.begin


def test_retention_does_not_hurt_a_slave_that_stands_still(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master, feeder(tmp_path, master.root) as ours:
        master.append(50)
        with follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
            caught_up(master, slave.store)
            slave.signal(signal.SIGSTOP)
            for _ in range(100):  # more than the sockets hold
                master.append(10, body_bytes=6000)
            master.log.options = replace(master.log.options, disk_clean_ratio=0.0)
            while master.log.run_retention(0):
                pass
            slave.signal(signal.SIGCONT)
            page = SharedPage.open(slave.store)
            until(
                lambda: page.written == master.end or "behind" in master.page.trouble
                or "must start" in master.page.trouble,
                what="an end of it",
            )  # fmt: skip
            reached = page.written
            page.close()
        ours.kill()
    theirs = log_files(tmp_path / "slave")
    kept = log_files(tmp_path / "master")
    for start, path in theirs.items():
        if start in kept:
            size = max(min(FILE, reached - start), 0)
            assert path.read_bytes()[:size] == kept[start].read_bytes()[:size]
    assert LogView.of(tmp_path / "slave").end <= reached


def test_a_record_that_had_half_arrived_is_taken_again_after_a_kill(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(20)
        half = master.end + 3000
        master.append(20, body_bytes=6000)
        data = log_bytes(master.root)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(10)
            host, port = listener.getsockname()
            with follower(tmp_path, tmp_path / "slave", f"{host}:{port}") as slave:
                connection, _ = listener.accept()
                assert connection.recv(REPORT.size) == REPORT.pack(0)
                connection.sendall(FRAME_HEADER.pack(0, half) + data[:half])
                assert connection.recv(REPORT.size) == REPORT.pack(half)
                slave.kill()
                connection.close()
        assert log_bytes(tmp_path / "slave")[:half] == data[:half]
        with feeder(tmp_path, master.root) as ours, follower(tmp_path, tmp_path / "slave", ours.ha) as slave:
            caught_up(master, slave.store)
            assert f"asking for the log from {half - 3000}" in slave.log_tail()


def test_stray_bytes_on_the_port_confirm_nothing(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(10)
        with feeder(tmp_path, master.root) as ours:
            host, _, port = ours.ha.rpartition(":")
            for stray in (b"GET / HTTP/1.1\r\n\r\n", REPORT.pack(master.end + 1), REPORT.pack(-5)):
                with socket.create_connection((host, int(port)), timeout=10) as peer:
                    peer.sendall(stray)
                    assert peer.recv(100) == b""
            assert master.page.live_acks() == []
            assert master.page.acknowledged(1) == -1


def frame_came(peer: socket.socket) -> bool:
    """Read a frame's header; tell whether it is no heartbeat."""
    size: int = FRAME_HEADER.unpack(peer.recv(FRAME_HEADER.size))[1]
    return size > 0


def test_two_connections_of_one_peer_acknowledge_once(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(10)
        with feeder(tmp_path, master.root) as ours, contextlib.ExitStack() as stack:
            host, _, port = ours.ha.rpartition(":")
            peers = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(2)
            ]
            for peer in peers:
                peer.sendall(REPORT.pack(master.end))
            until(lambda: list(master.page.acks).count(master.end) == 2, what="both being heard")
            end = master.append(1)
            for peer in peers:
                until(functools.partial(frame_came, peer), what="a frame")
                peer.sendall(REPORT.pack(end))
            until(lambda: list(master.page.acks).count(end) == 2, what="both acknowledging")
            assert master.page.acknowledged(1) == end
            assert master.page.acknowledged(2) == -1
            assert master.page.live_acks() == [end]


def test_a_first_report_acknowledges_nothing(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        end = master.append(10)
        with feeder(tmp_path, master.root) as ours:
            host, _, port = ours.ha.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10) as peer:
                peer.sendall(REPORT.pack(end))  # nobody has compared anything
                until(lambda: end in master.page.acks, what="it being heard")
                assert master.page.acknowledged(1) == -1
                assert master.page.live_acks() == []


def test_more_slaves_than_slots_are_turned_away(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        end = master.append(10)
        with feeder(tmp_path, master.root) as ours:
            host, _, port = ours.ha.rpartition(":")
            peers = [socket.create_connection((host, int(port)), timeout=10) for _ in range(SLAVES_MAX)]
            for peer in peers:
                peer.sendall(REPORT.pack(end))
            until(lambda: master.page.acks == [end] * SLAVES_MAX, what="all slots being taken")
            with socket.create_connection((host, int(port)), timeout=10) as extra:
                extra.sendall(REPORT.pack(end))
                assert extra.recv(100) == b""
            peers.pop().close()
            until(lambda: list(master.page.acks).count(end) == SLAVES_MAX - 1, what="a slot being free")
            for peer in peers:
                peer.close()


def test_another_file_size_than_the_masters_is_a_clear_error(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(500)
        with (
            feeder(tmp_path, master.root, first_offset="last-file") as ours,
            follower(tmp_path, tmp_path / "slave", ours.ha, commitlog_file_size=16 * FILE) as slave,
        ):
            until(lambda: "is not the start of a file" in slave.log_tail(), what="the error")
            assert slave.running
            assert log_files(slave.store) == {}


def test_a_slave_goes_where_its_broker_says(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master:
        master.append(20)
        page, bell = SharedPage.open(tmp_path / "slave"), Doorbell(tmp_path / "slave", "broker")
        with feeder(tmp_path, master.root) as ours, follower(tmp_path, tmp_path / "slave") as slave:
            assert page.epoch > 0
            page.master_ha = ours.ha
            bell.ring("replicator")
            caught_up(master, slave.store)
            assert page.connected == 1
            ours.stop()
            until(lambda: page.connected == 0, what="the slave noticing")
            ours.settings["port"] = 0  # it comes back elsewhere
            ours.start()
            master.append(20)
            page.master_ha = ours.ha
            bell.ring("replicator")
            caught_up(master, slave.store)


def test_a_slave_that_flushes_acknowledges_only_what_is_on_disk(tmp_path: Path) -> None:
    with (
        MasterLog(tmp_path / "master", file_size=FILE) as master,
        feeder(tmp_path, master.root) as ours,
        follower(tmp_path, tmp_path / "slave", ours.ha, flush="sync") as slave,
    ):
        page = SharedPage.open(slave.store)
        for _ in range(50):
            master.append(5)
            assert master.page.acknowledged(1) <= page.flushed
        caught_up(master, slave.store)
        assert page.flushed == master.end


def test_a_store_has_one_replicator(tmp_path: Path) -> None:
    with MasterLog(tmp_path / "master", file_size=FILE) as master, feeder(tmp_path, master.root):
        second = Process(tmp_path, "replicator", "second", role="master", store=master.root)
        assert second.launch().wait() == 1
        assert "another replicator runs" in second.log_tail()


def test_a_master_replicator_waits_for_a_log_that_is_not_recovered_yet(tmp_path: Path) -> None:
    store = tmp_path / "master"
    with (
        feeder(tmp_path, store) as ours,
        follower(tmp_path, tmp_path / "slave", ours.ha) as slave,
        MasterLog(store, file_size=FILE) as master,
    ):
        master.append(20)
        caught_up(master, slave.store)
