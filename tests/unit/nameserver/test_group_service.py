"""The service of the groups' records: who waits how long, and what is answered when the disk refuses."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sim.disk import Fault
from sim.machine import SimHost
from sim.scheduler import Scheduler
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, Refused, StoreError
from whimbrel.model.group_record import GroupRecord
from whimbrel.nameserver.group_file import GroupFile
from whimbrel.nameserver.group_service import WAIT_MS_MAX, WAITS_MAX, GroupService
from whimbrel.nameserver.group_table import GroupTable
from whimbrel.pb.whimbrel.group.v1 import group_service_pb2 as pb
from whimbrel.rpc.server.handlers import Call

DIRECTORY = Path("/keeper")
PATH = DIRECTORY / "groups"
RECORD = GroupRecord(group="f" * 32, epoch=1, leader=1, voters=((1, "1" * 32), (2, "2" * 32)), acks=2)
SECOND = RECORD.led_by(2, 2, at_ms=1, why="")


@dataclass
class FakeTimer:
    """A call at a time."""

    at: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Rig:
    """The service with a clock that a test moves, and a disk."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.host = SimHost(Scheduler(1))
        self.host.disk.format(DIRECTORY)
        self.start()

    def start(self) -> None:
        file, table = GroupFile.open(PATH, self.host.process().files)
        self.service = GroupService(file, table, now=lambda: self.now, later=self.later)

    def later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + delay_s, callback))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [each for each in self.timers if each.at <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.callback()

    def read(
        self, after: int = 0, wait_ms: int = 0, *, name: str = "a", deadline: float | None = None
    ) -> Any:
        request = pb.ReadRequest(cluster="C", broker_name=name, after_revision=after, wait_ms=wait_ms)
        return self.service.read(Call("Read", "10.0.0.1:5", {}, deadline), request)

    def swap(self, record: GroupRecord, revision: int, *, name: str = "a") -> Any:
        request = pb.SwapRequest(cluster="C", broker_name=name, revision=revision, record=record.encode())
        return self.service.swap(Call("Swap", "10.0.0.1:5", {}, None), request)

    def fail(self, call: str, path: str) -> None:
        self.host.disk.faults.append(Fault((call,), path, error=errno.EIO, times=1000))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def shown(response: Any) -> tuple[int, int]:
    """Return epoch and revision."""
    return (GroupRecord.decode(response.record).epoch if response.record else 0), response.revision


def test_a_record_is_read_after_it_was_swapped_and_after_a_loss_of_power(rig: Rig) -> None:
    assert shown(rig.read()) == (0, 0)
    answer = rig.swap(RECORD, 0)
    assert answer.swapped and shown(answer) == (1, 1)
    assert shown(rig.read()) == (1, 1)
    assert shown(rig.read(name="b")) == (0, 0)
    rig.host.power_loss(share=0.0)
    rig.start()
    assert shown(rig.read()) == (1, 1)


def test_of_two_swaps_of_one_revision_the_second_is_told_who_was_first(rig: Rig) -> None:
    rig.swap(RECORD, 0)
    assert rig.swap(SECOND, 1).swapped
    late = rig.swap(RECORD.led_by(1, 2, at_ms=1, why=""), 1)
    assert not late.swapped and shown(late) == (2, 2)
    assert GroupRecord.decode(late.record).leader == 2


def test_a_swap_that_lowers_the_epoch_changes_nothing(rig: Rig) -> None:
    rig.swap(SECOND, 0)
    with pytest.raises(BadRequest, match="lower"):
        rig.swap(RECORD, 1)
    assert shown(rig.read()) == (2, 1)


def test_a_read_waits_for_the_next_revision(rig: Rig) -> None:
    rig.swap(RECORD, 0)
    waiting, elsewhere = rig.read(1, 3000), rig.read(0, 3000, name="b")
    assert isinstance(waiting, Deferred) and not waiting.done
    rig.swap(SECOND, 1)
    assert shown(waiting.result) == (2, 2)
    assert not elsewhere.done
    rig.pass_time(3.1)
    assert shown(elsewhere.result) == (0, 0)
    assert not rig.service.waits and not rig.service.waiting


def test_a_read_of_another_revision_than_the_one_that_stands_is_answered_at_once(rig: Rig) -> None:
    rig.swap(RECORD, 0)
    rig.swap(SECOND, 1)
    for after in (0, 1, 7):
        assert shown(rig.read(after, 3000)) == (2, 2)


@pytest.mark.parametrize(
    ("wait_ms", "deadline", "waited"),
    [(2000, None, 2.0), (60_000, None, WAIT_MS_MAX / 1000), (2000, 101.0, 0.9), (2000, 110.0, 2.0)],
)
def test_a_wait_ends_by_its_bounds(wait_ms: int, deadline: float | None, waited: float) -> None:
    rig = Rig()
    waiting = rig.read(0, wait_ms, deadline=deadline)
    rig.pass_time(waited - 0.01)
    assert not waiting.done
    rig.pass_time(0.02)
    assert shown(waiting.result) == (0, 0)


def test_a_caller_whose_deadline_is_near_does_not_wait(rig: Rig) -> None:
    assert shown(rig.read(0, 2000, deadline=rig.now + 0.05)) == (0, 0)
    assert shown(rig.read(0, 2000, deadline=rig.now - 5)) == (0, 0)


def test_waits_are_bounded_and_a_caller_that_leaves_gives_its_place_back(rig: Rig) -> None:
    waiting = [rig.read(0, 3000) for _ in range(WAITS_MAX)]
    assert not isinstance(rig.read(0, 3000), Deferred)
    waiting[0].cancel()
    waiting[0].cancel()
    assert rig.service.waiting == WAITS_MAX - 1
    assert isinstance(rig.read(0, 3000), Deferred)
    rig.swap(RECORD, 0)
    assert all(shown(each.result) == (1, 1) for each in waiting[1:])
    assert rig.service.waiting == 0 and not waiting[0].done
    assert all(timer.cancelled for timer in rig.timers)


def test_a_disk_that_refuses_leaves_the_record_and_who_waits(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.swap(RECORD, 0)
    waiting = rig.read(1, 3000)
    rig.fail("pwrite", "*.tmp")
    with pytest.raises(StoreError, match="can't be written"):
        rig.swap(SECOND, 1)
    assert shown(rig.read()) == (1, 1) and not waiting.done
    assert "the record of group C/a can't be changed" in caplog.text
    rig.host.disk.faults.clear()
    assert rig.swap(SECOND, 1).swapped
    assert shown(waiting.result) == (2, 2)


def test_nothing_is_told_while_it_is_not_known_what_the_disk_holds(rig: Rig) -> None:
    rig.swap(RECORD, 0)
    waiting = rig.read(1, 3000)
    rig.fail("fsync", str(DIRECTORY))
    for _ in range(2):
        with pytest.raises(StoreError):
            rig.swap(SECOND, 1)
    with pytest.raises(StoreError):
        rig.read()
    rig.pass_time(3.1)
    assert isinstance(waiting.error, StoreError)
    rig.host.disk.faults.clear()
    assert shown(rig.read()) == (1, 1)
    rig.host.power_loss(share=1.0)  # the swap that failed does not come back after that
    rig.start()
    assert shown(rig.read()) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"cluster": ""}, {"broker_name": "a\x1b"}, {"after_revision": -1}, {"wait_ms": -1}],
)
def test_a_read_of_what_can_not_be_is_refused(rig: Rig, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        rig.service.read(
            Call("Read", "p", {}, None), pb.ReadRequest(**{"cluster": "C", "broker_name": "a"} | wrong)
        )


def test_a_record_that_is_none_is_refused(rig: Rig) -> None:
    with pytest.raises(BadRequest):
        rig.service.swap(
            Call("Swap", "p", {}, None), pb.SwapRequest(cluster="C", broker_name="a", record=b"{}")
        )
    with pytest.raises(BadRequest, match="uuid"):
        rig.swap(RECORD, 0)
        rig.swap(replace(SECOND, group="e" * 32), 1)


def test_a_nameserver_without_the_setting_says_which_one_it_is() -> None:
    service = GroupService(None, GroupTable(), now=lambda: 0.0)
    with pytest.raises(Refused, match=r"keeps_groups \(--keeps-groups FILE\)"):
        service.read(Call("Read", "p", {}, None), pb.ReadRequest(cluster="C", broker_name="a"))
    with pytest.raises(Refused, match="keeps_groups"):
        service.swap(Call("Swap", "p", {}, None), pb.SwapRequest(cluster="C", broker_name="a"))
    service.close()


def test_at_the_end_all_that_wait_are_answered_and_the_file_is_free(rig: Rig) -> None:
    rig.swap(RECORD, 0)
    waiting = [rig.read(1, 3000), rig.read(0, 3000, name="b")]
    rig.service.close()
    assert [shown(each.result) for each in waiting] == [(1, 1), (0, 0)]
    with pytest.raises(Refused):
        rig.read()
    rig.start()
    assert shown(rig.read()) == (1, 1)
