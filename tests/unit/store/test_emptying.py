"""A member's store is emptied: what goes, what stays, and what every crash in between comes to."""

from dataclasses import replace
from pathlib import Path

import pytest

from support.store.crash_points import CrashScene, crash_everywhere
from support.store.stores import OPTIONS, make_draft
from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.emptying import DERIVED, emptied, empty_store, reinit_offline, to_be_emptied
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.locking import StoreLock
from whimbrel.store.master_store import MasterStore
from whimbrel.store.seat_file import Seat, SeatFile

SEAT = Seat(uuid="1" * 32, group="2" * 32, member=2, promised=7, promised_to=3, floor=400, boot="3" * 32)
KEPT = {"config/topics.json": b"{}", "whimbrel/leases/a.journal": b"l", "whimbrel/cut/x": b"c", "notes": b"n"}


def fill(root: Path, machine: Machine = MACHINE) -> None:
    """Leave a closed store with something of everything."""
    files = machine.files
    files.make_directories(root / "config")
    store = MasterStore.open(root, OPTIONS, clock=machine.wall_ms, machine=machine)
    for number in range(50):
        store.append([make_draft(number)])
    store.close()
    EpochFile(root, files).save(((1, 0), (7, 100)))
    for name in DERIVED:
        if not files.exists(root / name) and "/" in name:
            files.write_new(root / name, b"derived")
    for name, data in KEPT.items():
        files.make_directories((root / name).parent)
        files.write_new(root / name, data)
    SeatFile(root, files).save(SEAT)


def check_empty(root: Path, machine: Machine = MACHINE) -> None:
    """The log begins anew, and the seat remembers."""
    files = machine.files
    assert not [name for name in DERIVED if files.exists(root / name)]
    assert {name: files.read_bytes(root / name) for name in KEPT} == KEPT
    log = LogWriter.open(root, OPTIONS, machine=machine)
    assert (log.begin, log.end) == (0, 0) and EpochFile(root, files).load() == ()
    log.close()


def test_what_follows_from_the_log_goes_and_all_else_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    empty_store(tmp_path)
    check_empty(tmp_path)
    empty_store(tmp_path)  # a second time, it does no harm


def test_a_seat_keeps_its_promises_and_does_not_vote() -> None:
    seat = to_be_emptied(replace(SEAT, cut=(1, 2)))
    assert (seat.uuid, seat.group, seat.promised, seat.promised_to) == (SEAT.uuid, SEAT.group, 7, 3)
    assert (seat.votes, seat.floor, seat.cut, seat.emptying) == (False, 0, None, True)
    assert emptied(seat) == replace(seat, emptying=False)


def test_the_intent_outlives_the_process(tmp_path: Path) -> None:
    fill(tmp_path)
    SeatFile(tmp_path).save(to_be_emptied(SEAT))
    assert SeatFile(tmp_path).load() == to_be_emptied(SEAT)


def test_an_open_store_is_not_emptied(tmp_path: Path) -> None:
    fill(tmp_path)
    lock = StoreLock.acquire(tmp_path)
    try:
        with pytest.raises(StoreError, match="open in this process"):
            empty_store(tmp_path)
        with pytest.raises(StoreError, match="is in use"):
            reinit_offline(tmp_path)
    finally:
        lock.release()
    assert (tmp_path / "commitlog").exists()


def test_offline_it_is_for_members_only(tmp_path: Path) -> None:
    fill(tmp_path)
    assert reinit_offline(tmp_path) == SEAT
    check_empty(tmp_path)
    assert SeatFile(tmp_path).load() == emptied(to_be_emptied(SEAT))
    (tmp_path / "whimbrel" / "seat").unlink()
    with pytest.raises(StoreError, match="not the store of a member"):
        reinit_offline(tmp_path)


ROOT = Path("/store")


def finish(machine: Machine) -> Seat:
    """Do what a replicator's start does; return the seat then."""
    file = SeatFile(ROOT, machine.files)
    seat = file.load()
    assert seat is not None
    if seat.emptying:
        empty_store(ROOT, machine)
        seat = emptied(seat)
        file.save(seat)
    return seat


def test_a_crash_at_any_call_leaves_all_or_comes_to_an_empty_store() -> None:
    def check(scene: CrashScene) -> None:
        seat = finish(scene.revive())
        scene.host.power_loss(share=0.0)
        machine = scene.revive()
        assert finish(machine) == seat, "what was confirmed is on disk"
        if seat == SEAT:
            log = LogWriter.open(ROOT, OPTIONS, machine=machine)
            assert log.end > 0
            log.close()
        else:
            assert seat == emptied(to_be_emptied(SEAT))
            check_empty(ROOT, machine)

    def set_up(scene: CrashScene) -> None:
        fill(ROOT, scene.process)
        for directory in (
            ROOT / "config",
            ROOT / "whimbrel",
            ROOT / "whimbrel/cut",
            ROOT / "whimbrel/leases",
        ):
            scene.process.files.sync_directory(directory)
        scene.process.files.sync_directory(ROOT)

    calls = crash_everywhere(
        lambda seed: CrashScene(seed, ROOT),
        set_up,
        lambda scene: assert_emptied(reinit_offline(ROOT, scene.process)),
        check,
    )
    assert calls > 30


def assert_emptied(seat: Seat) -> None:
    assert seat == SEAT
