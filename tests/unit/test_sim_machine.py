"""Simulated time, workers and locks: in turns, and the same for the same seed."""

import random
from pathlib import Path

import pytest

from sim.disk import SimDisk
from sim.machine import SimHost, WorkerFailed
from sim.scheduler import Crash, Deadlock, Scheduler

ROOT = Path("/store")


def make_host(seed: int = 1, **options: float) -> SimHost:
    host = SimHost(Scheduler(seed), **options)  # type: ignore[arg-type]
    host.disk.format(ROOT)
    return host


def test_events_come_by_time_and_then_in_their_order() -> None:
    scheduler = Scheduler()
    seen: list[str] = []
    for name, when in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        scheduler.at(when, lambda name=name: seen.append(name))  # type: ignore[misc]
    gone = scheduler.later(1.5, lambda: seen.append("never"))
    gone.cancel()
    scheduler.run_until(1.2)
    assert (seen, scheduler.now) == (["a", "b"], 1.2)
    assert scheduler.step()
    assert (seen, scheduler.now) == (["a", "b", "c"], 2.0)
    assert not scheduler.step()


def test_a_worker_runs_once_for_any_number_of_wakes_and_by_interval() -> None:
    host = make_host()
    machine = host.process()
    runs: list[float] = []
    worker = machine.worker("w", lambda: runs.append(machine.monotonic()))
    machine.worker("other", lambda: runs.append(-1.0), 10.0)
    worker.wake()
    worker.wake()
    assert runs == []
    worker.wait()
    assert len(runs) == 1
    host.scheduler.run_until(25.0)
    assert runs[1:] == [-1.0, -1.0]
    worker.stop()
    worker.wake()
    host.scheduler.run_until(29.0)
    assert len(runs) == 3


def test_a_sync_in_a_worker_lets_the_owner_go_on_and_does_not_cover_what_it_writes() -> None:
    host = make_host()
    machine = host.process()
    fd = machine.files.open(ROOT / "file", 66, 0o644)
    machine.files.sync_directory(ROOT)
    machine.files.pwrite(fd, b"a" * 5000, 0)
    worker = machine.worker("w", lambda: machine.files.fdatasync(fd))
    worker.wake()
    host.scheduler.run_until(host.scheduler.now + host.wake_s[1] + host.sync_s[0] / 2)
    began = host.disk.find(ROOT / "file")
    assert began is not None and began.begun == 1  # type: ignore[union-attr]
    machine.files.pwrite(fd, b"b", 4500)
    worker.wait()
    assert host.disk.durable(ROOT / "file") == b"a" * 5000
    worker.wake()
    worker.wait()
    assert (host.disk.durable(ROOT / "file") or b"")[4500] == ord("b")


def test_a_lock_that_a_worker_holds_is_waited_for() -> None:
    host = make_host()
    machine = host.process()
    lock = machine.lock()
    seen: list[str] = []

    def work() -> None:
        with lock:
            machine.sleep(1.0)
            seen.append("worker")

    worker = machine.worker("w", work)
    worker.wake()
    host.scheduler.run_until(0.5)
    with lock:
        seen.append("main")
    assert seen == ["worker", "main"]


def test_a_deadlock_says_who_waits_for_whom() -> None:
    host = make_host()
    machine = host.process()
    one, two = machine.lock(), machine.lock()

    def work() -> None:
        with one, two:
            pass

    worker = machine.worker("flusher", work)
    with two:
        worker.wake()
        with pytest.raises(
            Deadlock, match=r"main waits for lock 1; flusher waits for lock 2; lock 1 is held by fl"
        ):
            host.scheduler.run_until(1.0)
            one.__enter__()
    machine.kill()


def test_an_error_of_a_worker_is_not_lost() -> None:
    machine = make_host().process()
    worker = machine.worker("w", lambda: [][1])
    worker.wake()
    with pytest.raises(WorkerFailed, match="w raised IndexError"):
        worker.wait()


def test_a_killed_process_ends_where_it_stands() -> None:
    host = make_host()
    machine = host.process()
    seen: list[str] = []
    lock = machine.lock()

    def work() -> None:
        try:
            with lock:
                seen.append("begun")
                machine.files.sync_directory(ROOT)
                seen.append("gone on")
        finally:
            seen.append("unwound")
            machine.files.touch(ROOT / "after death")

    worker = machine.worker("w", work)
    worker.wake()
    host.scheduler.run_until(host.wake_s[1])
    assert seen == ["begun"]
    machine.kill()
    assert seen == ["begun", "unwound"]
    assert host.disk.find(ROOT / "after death") is None
    with pytest.raises(Crash):
        machine.files.touch(ROOT / "x")
    with pytest.raises(Crash):
        machine.lock().__enter__()
    worker.wake()
    worker.stop()
    host.scheduler.run_until(100.0)
    assert host.processes == []


def test_a_process_may_die_by_its_own_worker_s_call() -> None:
    host = make_host()
    machine = host.process()

    def kill(call: str, args: object) -> None:
        machine.kill()

    machine.files.on_call = kill
    worker = machine.worker("w", lambda: machine.files.touch(ROOT / "x"))
    worker.wake()
    with pytest.raises(Crash):
        host.scheduler.run_until(1.0)
    assert machine.dead


def test_a_power_loss_ends_all_processes_and_boots_anew() -> None:
    host = make_host()
    one, two = host.process("one"), host.process("two")
    before = one.boot_id()
    assert two.boot_id() == before
    host.scheduler.run_until(5.0)
    host.power_loss()
    assert one.dead and two.dead
    after = host.process()
    assert after.boot_id() != before
    assert after.monotonic() == 1.0
    host.jump(-3600.0)
    assert after.wall_ms() < one.wall_ms() + 1


def test_clocks_of_hosts_differ_as_they_are_set() -> None:
    scheduler = Scheduler()
    one, two = SimHost(scheduler), SimHost(scheduler)
    two.drift = 0.01
    scheduler.run_until(100.0)
    assert two.process().wall_ns() - one.process().wall_ns() == 1_000_000_000


def trail(seed: int, line_share: float = 0.0) -> list[tuple[str, float]]:
    """What a few workers do that share a lock and sync."""
    host = make_host(seed, line_share=line_share)
    machine = host.process()
    lock = machine.lock()
    seen: list[tuple[str, float]] = []

    def work(name: str) -> None:
        for _ in range(3):
            with lock:
                seen.append((name, host.scheduler.now))
            machine.files.write_new(ROOT / name, name.encode())

    for name in "abc":
        machine.worker(name, lambda name=name: work(name)).wake()  # type: ignore[misc]
    host.scheduler.run_until(10.0)
    return seen


def test_one_seed_gives_one_run() -> None:
    runs = [trail(seed) for seed in range(10)]
    assert runs == [trail(seed) for seed in range(10)]
    assert len({tuple(name for name, _ in run) for run in runs}) > 3


def test_a_worker_may_be_interrupted_between_any_two_lines() -> None:
    assert trail(1, 0.2) == trail(1, 0.2)
    assert trail(1, 0.2) != trail(1)


def test_a_disk_may_be_replaced() -> None:
    host = make_host()
    host.process().files.touch(ROOT / "x")
    host.power_loss(share=1.0, disk=SimDisk(random.Random(1)))
    assert host.process().files.names(Path("/")) == []
