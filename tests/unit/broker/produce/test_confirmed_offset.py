"""Up to where a log is confirmed, over what happens to slaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whimbrel.broker.produce.confirmed_offset import (
    AWAY_S,
    FRUITLESS_POLLS_MAX,
    POLL_S,
    ConfirmedFile,
    MasterConfirmed,
    SlaveConfirmed,
    confirm,
    in_sync,
)
from whimbrel.store.counted_slaves import CountedSlave

NEAR = 100  # slave_fallbehind_max_bytes in these tests
DEAD = None  # in place of offsets: the replicator does not run: whatever stands in the page does not count


def test_slave_is_in_sync_while_it_lacks_less_than_the_bound() -> None:
    assert in_sync([500, 401, 400], written=500, fallbehind_max=100) == [500, 401]


@pytest.mark.parametrize(
    ("before", "written", "acknowledged", "waits", "confirmed"),
    [
        pytest.param(0, 50, [], False, 50, id="nobody copies: the end"),
        pytest.param(10, 50, [], True, 10, id="nobody copies, and somebody should: unchanged"),
        pytest.param(10, 50, [30], False, 30, id="one slave"),
        pytest.param(10, 50, [30, 40], True, 30, id="the slower of two"),
        pytest.param(40, 50, [30], False, 40, id="never back: a slave that came back is behind"),
        pytest.param(10, 500, [30, 450], True, 450, id="a slave far behind does not count"),
        pytest.param(10, 500, [30], False, 500, id="only one far behind, asynchronous: the end"),
        pytest.param(10, 500, [30], True, 10, id="only one far behind, synchronous: unchanged"),
        pytest.param(10, 50, [60], False, 50, id="no further than the end"),
    ],
)
def test_confirmed_offset_follows_the_slaves(
    before: int, written: int, acknowledged: list[int], waits: bool, confirmed: int
) -> None:
    assert (
        confirm(
            before, written=written, acknowledged=acknowledged, fallbehind_max=NEAR, waits_for_slaves=waits
        )
        == confirmed
    )


class FakePage:
    def __init__(self, confirmed: int = 0) -> None:
        self.confirmed, self.commit = confirmed, 0
        self.acks: list[int] | None = []
        self.hosts = ["10.0.0.1", "10.0.0.2"]
        self.ids = [1, 2]

    def slave_acks(self) -> list[tuple[CountedSlave, int]]:
        acks = [7] if self.acks is DEAD else self.acks  # a dead replicator leaves its own behind
        slaves = [CountedSlave(host, one, ()) for host, one in zip(self.hosts, self.ids, strict=True)]
        return list(zip(slaves, acks, strict=False))

    def replica_alive(self, now_ns: int) -> bool:
        return self.acks is not DEAD


class FakeLoop:
    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now = 5.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.timers.append((delay, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def fire(self) -> None:
        (delay, callback) = self.timers.pop()
        assert delay == POLL_S and not self.timers
        callback()


class Master:
    """A master's confirmed offset, over restarts."""

    def __init__(self, root: Path, *, synchronous: bool, expected: int) -> None:
        (root / "whimbrel").mkdir(parents=True)
        self.root, self.synchronous, self.expected = root, synchronous, expected
        self.written = 0
        self.page = FakePage()
        self.told: list[int] = []
        self.start(kept=0)

    def start(self, *, kept: int) -> None:
        self.page.acks = []
        self.loop = FakeLoop()
        self.confirmed = MasterConfirmed(
            self.page,
            ConfirmedFile(self.root),
            self.loop,
            written=lambda: self.written,
            kept=kept,
            fallbehind_max=NEAR,
            synchronous=self.synchronous,
            expected_slaves=self.expected,
        )
        self.confirmed.on_move = lambda: self.told.append(self.page.confirmed)

    def at(self, written: int, acks: list[int] | None, *, after: float = 0.0) -> int:
        self.loop.now += after
        self.written, self.page.acks = written, acks
        return self.confirmed.refresh()


def test_synchronous_master_that_never_had_a_slave_confirms_what_it_writes(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=True, expected=0)
    assert master.at(50, []) == 50
    assert master.at(60, [55]) == 55
    assert master.at(70, []) == 55  # it has had one now ...
    master.confirmed.close()
    master.start(kept=70)
    assert master.at(80, []) == 55  # ... and remembers


def test_synchronous_master_with_configured_slaves_waits_for_the_first(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=True, expected=2)
    states: list[tuple[int, list[int] | None, int]] = [
        (50, [], 0),
        (50, [20], 20),
        (60, [20, 60], 20),
        (200, [20, 180], 180),  # the first one is far behind
        (200, DEAD, 180),
        (210, [100], 180),
        (210, [210, 210], 210),
    ]
    assert [master.at(written, acks) for written, acks, _ in states] == [wanted for _, _, wanted in states]


def test_asynchronous_master_goes_on_alone_when_no_slave_has_been_in_sync_for_long(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=False, expected=1)
    assert master.at(50, []) == 0  # the slave may be about to connect
    assert master.at(50, [], after=AWAY_S) == 50
    assert master.at(90, [60]) == 60
    assert master.at(95, [], after=AWAY_S - 0.1) == 60
    assert master.at(95, [], after=0.1) == 95
    assert master.at(99, [60]) == 95
    assert master.at(99, [99]) == 99


def test_one_look_without_a_slave_confirms_nothing_that_it_lacks(tmp_path: Path) -> None:
    ways: tuple[list[int] | None, ...] = ([], DEAD)
    for number, gone in enumerate(ways):
        master = Master(tmp_path / str(number), synchronous=False, expected=0)
        assert master.at(10, []) == 10  # there is no slave, and never was
        assert master.at(50, [20]) == 20
        assert master.at(90, gone, after=0.05) == 20
        assert master.at(90, [20], after=0.05) == 20
        assert master.at(90, [90]) == 90


def test_slave_that_comes_back_with_less_than_the_others_is_waited_for(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=True, expected=2)
    assert master.at(50, [50, 50]) == 50
    master.page.hosts, master.page.ids = ["10.0.0.1"], [1]
    assert master.at(90, [90], after=1.0) == 50  # the other one is restarting
    assert master.at(95, [95], after=AWAY_S - 1.1) == 50
    assert master.at(95, [95], after=1.1) == 95


def test_slave_that_is_not_named_yet_is_no_other_one_than_when_it_is(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=False, expected=1)
    master.page.hosts, master.page.ids = ["10.0.0.1"], [0]
    assert master.at(50, [20]) == 20
    master.page.ids = [1]
    assert master.at(60, [60], after=0.1) == 60


def test_slave_far_behind_holds_up_an_asynchronous_master_for_a_while_only(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=False, expected=1)
    assert master.at(50, [50]) == 50
    assert master.at(50 + NEAR, [50], after=1.0) == 50
    assert master.at(60 + NEAR, [51], after=AWAY_S) == 60 + NEAR


def test_restart_keeps_what_the_log_kept(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=True, expected=1)
    master.at(90, [80])
    master.confirmed.close()
    master.start(kept=90)
    assert master.at(90, []) == 80
    master.page.confirmed = 0  # a reboot
    master.start(kept=90)
    assert master.at(90, []) == 80
    master.start(kept=30)  # recovery cut the log
    assert master.at(40, []) == 30
    master.page.confirmed = 0
    master.start(kept=90)  # and was grown again: what was confirmed before the cut is something else
    assert master.at(90, []) == 30


def test_damaged_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "whimbrel").mkdir()
    ConfirmedFile(tmp_path).save(77, slaves_seen=True)
    assert ConfirmedFile(tmp_path).offset == 77
    path = tmp_path / "whimbrel" / "confirmed"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = ConfirmedFile(tmp_path)
    assert (again.offset, again.slaves_seen) == (0, False)


def test_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    ConfirmedFile(tmp_path / "missing").save(77, slaves_seen=False)


def test_slaves_are_told_once_for_each_move_and_looking_ends(tmp_path: Path) -> None:
    master = Master(tmp_path, synchronous=False, expected=1)
    master.at(50, [0])
    master.confirmed.log_grew()
    master.confirmed.log_grew()
    master.loop.fire()
    assert master.told == [0]
    master.page.acks = [50]
    master.loop.fire()
    assert master.told == [0, 50] and not master.loop.timers
    master.at(70, [60])  # somebody asks meanwhile
    master.confirmed.beat()
    assert master.told == [0, 50, 60]
    for _ in range(FRUITLESS_POLLS_MAX):
        master.loop.fire()
    assert master.told == [0, 50, 60] and not master.loop.timers


def test_slave_confirms_what_it_is_told_and_no_more_than_it_has(tmp_path: Path) -> None:
    (tmp_path / "whimbrel").mkdir()
    page, written = FakePage(), [100]
    slave = SlaveConfirmed(page, ConfirmedFile(tmp_path), written=lambda: written[0], kept=100)
    assert slave.refresh() == 0
    slave.learn(80)
    assert slave.refresh() == page.confirmed == 80
    slave.learn(150)
    assert slave.refresh() == 100
    written[0] = 200
    assert slave.refresh() == 150
    slave.learn(40)  # a master that starts anew
    assert slave.refresh() == 150
    written[0] = 120
    slave.cut(120)
    written[0] = 300
    assert slave.refresh() == 120
    slave.close()
    page.confirmed = 0
    assert SlaveConfirmed(page, ConfirmedFile(tmp_path), written=lambda: 300, kept=110).refresh() == 110
