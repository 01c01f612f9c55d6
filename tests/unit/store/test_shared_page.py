"""The shared page: cells, slots, texts, epochs, and what survives a boot."""

import shutil
from pathlib import Path

import pytest

from whimbrel.machine import Machine
from whimbrel.store import page_slots
from whimbrel.store.options import Retention
from whimbrel.store.page_cells import SLAVES_MAX
from whimbrel.store.page_processes import BEAT_MAX_NS
from whimbrel.store.shared_page import PAGE_BYTES, SharedPage


def test_a_new_page_is_not_recovered_and_has_no_slaves(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    assert page.epoch == 0
    assert page.live_acks() == []
    assert page.acks == [-1] * SLAVES_MAX
    assert page.acknowledged(1) == -1
    assert (tmp_path / "whimbrel" / "watermark").stat().st_size == PAGE_BYTES


def test_both_processes_see_the_same_cells(tmp_path: Path) -> None:
    ours, theirs = SharedPage.open(tmp_path), SharedPage.open(tmp_path)
    ours.written, ours.ha_port, ours.dispatched = 1 << 40, 10912, -1
    ours.replica_sleeping = 1
    ours.ha_host = "replicator-master"
    assert (theirs.written, theirs.ha_port, theirs.dispatched) == (1 << 40, 10912, -1)
    assert theirs.replica_sleeping == 1
    assert theirs.broker_sleeping == 0
    assert theirs.ha_host == "replicator-master"


def test_the_marks_of_this_boot_survive_their_writer(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.recovered(begin=0, written=500, flushed=400, file_size=65536, pid=7)
    page.close()
    again = SharedPage.open(tmp_path)
    assert (again.epoch, again.written, again.flushed, again.file_size, again.log_pid) == (
        1,
        500,
        400,
        65536,
        7,
    )


def test_a_page_of_another_boot_is_not_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = SharedPage.open(tmp_path)
    page.recovered(begin=0, written=500, flushed=400, file_size=65536, pid=7)
    page.set_slave(3, "10.0.0.1:1000", 5)
    monkeypatch.setattr(Machine, "boot_id", lambda _: b"B" * 16)
    again = SharedPage.open(tmp_path)
    assert (again.epoch, again.written, again.peer(3), again.acks[3]) == (0, 0, "", -1)


def test_a_page_that_came_with_a_copy_of_the_store_is_not_recovered(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path / "s")
    page.recovered(begin=0, written=500, flushed=400, file_size=65536, pid=7)
    page.set_slave(3, "10.0.0.1:1000", 5)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    assert SharedPage.snapshot(tmp_path / "copy") is None
    copied = SharedPage.open(tmp_path / "copy")
    assert (copied.epoch, copied.written, copied.peer(3), copied.acks[3]) == (0, 0, "", -1)
    (tmp_path / "s").rename(tmp_path / "moved")
    moved = SharedPage.open(tmp_path / "moved")
    assert (moved.epoch, moved.written, moved.peer(3)) == (1, 500, "10.0.0.1:1000")


def test_a_page_of_an_earlier_version_in_this_boot_is_believed(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.recovered(begin=0, written=500, flushed=400, file_size=65536, pid=7)
    page.inode = 0
    snapshot = SharedPage.snapshot(tmp_path)
    assert snapshot is not None and snapshot.written == 500
    again = SharedPage.open(tmp_path)
    assert (again.epoch, again.written) == (1, 500) and page.inode > 0


def test_a_page_of_another_layout_is_not_recovered(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.recovered(begin=0, written=500, flushed=400, file_size=65536, pid=7)
    page.cells[0] += 1
    assert SharedPage.open(tmp_path).epoch == 0


def test_an_epoch_never_comes_twice_even_when_a_recovery_is_cut_short(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    marks = {"begin": 0, "written": 0, "flushed": 0, "file_size": 65536, "pid": 1}
    assert page.recovered(**marks) == 1
    page.recovering()
    assert page.epoch == 0
    page.recovering()  # the first one was killed
    assert page.recovered(**marks) == 2


def connect(page: SharedPage, slot: int, peer: str, at_ms: int, ack: int, *, proven: bool = True) -> None:
    """Put a connection into a slot, as a replicator does."""
    page.set_slave(slot, peer, at_ms)
    page.set_ack(slot, ack)
    if proven:
        page.set_proven(slot)


def test_acknowledged_is_the_needed_th_largest_live_offset(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    for slot, ack in ((0, 100), (5, 300), (15, 200)):
        connect(page, slot, f"10.0.0.{slot}:1", 1, ack)
    assert [page.acknowledged(needed) for needed in (1, 2, 3, 4, 16, 17)] == [300, 200, 100, -1, -1, -1]
    assert sorted(page.live_acks()) == [100, 200, 300]
    page.set_ack(0, 400)
    assert page.acknowledged(1) == 400
    page.set_slave(0, "", 0)
    page.set_slave(5, "", 0)
    assert page.acknowledged(1) == 200


def test_two_connections_of_one_host_count_once_and_the_newest_of_them(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    connect(page, 0, "10.0.0.1:1000", 10, 500)
    connect(page, 1, "10.0.0.1:1001", 20, 300)
    connect(page, 2, "[::ffff:10.0.0.1]:1002", 15, 400)
    assert (page.acknowledged(1), page.acknowledged(2)) == (300, -1)
    page.set_slave(1, "", 0)
    assert page.live_acks() == [400]


def test_slaves_of_one_host_count_each_once_the_broker_has_told_them_apart(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    for slot, port in enumerate((1000, 1001, 1002)):
        connect(page, slot, f"10.0.0.1:{port}", 10 + slot, 100 * (slot + 1))
    page.set_slave_id(0, 1)
    assert page.live_acks() == [100]  # the others may be the same slave, come back
    page.set_slave_id(1, 2)
    assert sorted(page.live_acks()) == [100, 200]
    page.set_slave_id(2, 2)  # a second connection of the second one
    assert sorted(page.live_acks()) == [100, 300]
    connect(page, 2, "10.0.0.1:1003", 13, 900)
    assert page.slave_id(2) == 0  # what was told is about the connection before
    assert sorted(page.live_acks()) == [100, 200]


def test_a_connection_acknowledges_nothing_before_it_is_proven_and_shows_how_far_it_says_it_is(
    tmp_path: Path,
) -> None:
    page = SharedPage.open(tmp_path)
    connect(page, 0, "10.0.0.1:1000", 10, 500, proven=False)
    assert (page.live_acks(), page.acknowledged(1), page.reported_ends()) == ([], -1, [500])
    page.set_proven(0)
    assert (page.live_acks(), page.acknowledged(1)) == ([500], 500)


def test_acknowledgements_of_another_epoch_count_for_nothing(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    marks = {"begin": 0, "flushed": 0, "file_size": 65536, "pid": 1}
    page.fed_epoch = page.recovered(written=500, **marks)
    connect(page, 0, "10.0.0.1:1000", 10, 500)
    assert page.live_acks() == [500]
    page.recovering()
    assert page.live_acks() == [] and page.reported_ends() == []
    page.recovered(written=300, **marks)  # the replicator has not noticed, or does not run
    assert page.acknowledged(1) == -1 and page.reported_ends() == []
    page.set_slave(0, "", 0)
    page.fed_epoch = page.epoch
    connect(page, 0, "10.0.0.1:1001", 11, 300)
    assert page.acknowledged(1) == 300


def test_slots_of_an_earlier_versions_replicator_count_from_their_first_report_on(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.recovered(begin=0, written=500, flushed=0, file_size=65536, pid=1)
    connect(page, 0, "10.0.0.1:999", 9, 400)  # ours ran before, and was killed
    for slot, at_ms in ((0, 10), (1, 11)):  # as 3d4ebd2 writes them
        page.cells[page_slots.ACKS // 8 + slot] = 500
        page.cells[page_slots.CONNECTED_AT // 8 + slot] = at_ms
        page.write_text(page_slots.PEERS + slot * 64, 64, f"10.0.0.{slot}:1000")
    assert page.live_acks() == [500, 500]


def test_an_earlier_versions_broker_reads_what_it_always_did(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    connect(page, 3, "10.0.0.1:1000", 10, 500, proven=False)
    assert page.cells[192 // 8 + 3] == 500 and page.cells[576 // 8 + 3] == 10
    assert bytes(page.bytes[704 + 3 * 64 + 8 : 704 + 3 * 64 + 21]) == b"10.0.0.1:1000"
    assert page.cells[0] == 0x5748494D_00000001


def test_known_hosts_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    assert page.known_hosts == []
    hosts = [f"10.0.0.{number}" for number in range(SLAVES_MAX)]
    page.known_hosts = hosts
    assert page.known_hosts == hosts
    page.known_hosts = [f"[2001:db8::{number}:1234:5678:9abc:def0]" for number in range(100)]
    assert 10 < len(page.known_hosts) < 100
    assert all(host.endswith(":def0]") for host in page.known_hosts)


def test_a_new_connection_has_acknowledged_nothing(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.set_slave(0, "a:1", 1)
    page.set_ack(0, 99)
    page.set_sent(0, 120, 132)
    page.set_slave(0, "b:2", 2)
    assert (page.acks[0], page.sent[0], page.sent_bytes[0], page.connected_at_ms[0]) == (-1, 0, 0, 2)
    assert page.peers[:2] == ["b:2", ""]


def test_a_text_is_replaced_whole_and_cut_at_its_field(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.master_ha = "a-rather-long-host-name:10912"
    page.master_ha = "h:1"
    assert page.master_ha == "h:1"
    page.trouble = "x" * 1000
    assert page.trouble == "x" * 312
    assert page.master_ha == "h:1"


def test_a_text_whose_writer_died_reads_as_empty_until_its_successor_writes(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.master_ha = "h:1"
    page.cells[SharedPage.place("master_ha_version") // 8] += 1
    assert page.master_ha == ""
    page.master_ha = "h:2"
    assert page.master_ha == "h:2"


def test_a_snapshot_has_the_fields_of_a_page_of_this_boot_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SharedPage.snapshot(tmp_path) is None and not (tmp_path / "whimbrel").exists()
    page = SharedPage.open(tmp_path)
    page.recovered(begin=10, written=500, flushed=400, file_size=65536, pid=7)
    page.broker_name = "broker-a"
    found = SharedPage.snapshot(tmp_path)
    assert found is not None
    page.written = 600
    assert (found.begin, found.written, found.broker_name) == (10, 500, "broker-a")
    found.close()
    monkeypatch.setattr(Machine, "boot_id", lambda _: b"B" * 16)
    assert SharedPage.snapshot(tmp_path) is None
    assert page.written == 600


def test_a_process_that_stopped_beating_is_not_alive(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    page.replica_beat_ns = 10**10
    assert page.replica_alive(10**10 + BEAT_MAX_NS - 1)
    assert not page.replica_alive(10**10 + BEAT_MAX_NS)


def test_voters_are_told_by_their_ids(tmp_path: Path) -> None:
    page = SharedPage.open(tmp_path)
    assert not any(map(page.is_voter, range(64)))
    page.set_voters({0, 5, 63})
    assert [member for member in range(64) if page.is_voter(member)] == [0, 5, 63]
    page.close()


@pytest.mark.parametrize(
    "told",
    [
        Retention(),
        Retention(72.0, 0.75, 0.85),
        Retention(0.0, 0.0, 0.0),
        Retention(24.0, None, 1.0),
        Retention(None, 0.5, None),
        Retention(0.25, 0.1234, None),
    ],
)
def test_how_long_a_process_keeps_the_log_stands_in_one_cell(tmp_path: Path, told: Retention) -> None:
    page = SharedPage.open(tmp_path)
    assert page.broker_retention == page.replica_retention == Retention(), "nobody has told"
    page.replica_retention = told
    assert page.replica_retention == told
    assert page.broker_retention == Retention()
    page.replica_retention = Retention(1e9, 1.0, 1.0)
    assert page.replica_retention.reserved_hours == pytest.approx((2**31 - 2) / 3600, abs=1)
    page.close()
