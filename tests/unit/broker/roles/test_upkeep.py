"""What a leader says of its log's retention."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_master
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.roles.upkeep import NEAR, TOLD_S, LogUpkeep, about
from whimbrel.machine import FILES, Machine
from whimbrel.store.retention import DiskTrend, DiskUse

GIB = 1 << 30


class Clock(Machine):
    """This machine, with a monotonic clock that is set."""

    def __init__(self) -> None:
        super().__init__(FILES)
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return NOW


class Rig:
    def __init__(self, root: Path, full_disk: str) -> None:
        self.store = open_master(root, replace(OPTIONS, full_disk=full_disk))  # type: ignore[arg-type]
        self.table, self.clock = LeaseTable(origin=0), Clock()
        for number in range(60):
            self.store.append([make_draft(number, size=4000)])
        for path in (root / "commitlog").iterdir():
            os.utime(path, (NOW / 1000, NOW / 1000))
        self.store.writer.disk_trend = DiskTrend()
        self.table.state("g", "topic", 0).finish(0, 5)
        self.upkeep = LogUpkeep("broker-a", self.store, self.table, self.clock)

    def disk(self, ratio: float, after_s: float = 0.0) -> str:
        """Find the disk that full; return what is ahead."""
        log = self.store.writer
        self.clock.now += after_s
        log.disk = DiskUse(ratio, 100 * GIB)
        log.disk_trend.look(log.disk, self.clock.now)
        self.upkeep.look()
        return self.upkeep.ahead


@pytest.fixture
def drops(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "s", "drop")
    yield rig
    rig.store.close()


@pytest.fixture
def refuses(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "s", "refuse")
    yield rig
    rig.store.close()


def test_before_messages_go_it_says_how_many_whose_and_when(
    drops: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    assert not drops.disk(0.85 - NEAR - 0.01)
    caplog.clear()
    said = drops.disk(0.82, after_s=120)
    first = drops.store.queues.by_key["topic", 0].first_from(FILE)
    assert f"first {first} messages ({first} of topic), not finished {first - 5} of topic by g" in said
    assert "the disk is 82% full: at 85%, after 3.0 GiB more, in about 2 min as it fills now" in said
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    caplog.clear()
    drops.disk(0.83, after_s=10)
    assert "the disk is 88% full, the limit is 85%: the oldest messages go" in drops.disk(0.88, after_s=10)
    assert not caplog.records, "it is said once"
    assert not drops.disk(0.5)


def test_a_disk_that_fills_fast_is_told_from_afar(drops: Rig) -> None:
    drops.disk(0.10)
    assert "in about 65 min" in drops.disk(0.20, after_s=600), "as in the last ten minutes"


def test_where_a_full_disk_refuses_it_says_that(refuses: Rig) -> None:
    assert not refuses.disk(0.84)
    said = refuses.disk(0.86)
    assert "at 90%" in said
    assert "sends are refused" in said
    assert "messages go" not in said
    assert not refuses.disk(0.91), "then they are, and that is said"


def test_what_went_is_told_for_an_hour_and_counted(drops: Rig, caplog: pytest.LogCaptureFixture) -> None:
    assert not drops.upkeep.advice()
    log = drops.store.writer
    log.measure_disk = lambda: None  # type: ignore[method-assign]
    log.disk = DiskUse(0.9, 100 * GIB)
    caplog.clear()
    drops.store.run_retention(NOW)
    gone = drops.store.queue_range("topic", 0)[0]
    assert gone > 20
    assert (drops.upkeep.dropped, drops.upkeep.unread) == (gone, gone - 5)
    assert any(f"{gone} messages ({gone} of topic)" in record.getMessage() for record in caplog.records)
    assert (
        f"{gone} messages ({gone} of topic), not finished {gone - 5} of topic by g" in drops.upkeep.advice()
    )
    drops.clock.now += TOLD_S + 1
    assert not drops.upkeep.advice()


def test_for_members_that_are_away_it_says_until_when_there_is_what_they_lack(drops: Rig) -> None:
    upkeep = drops.upkeep
    upkeep.seen({1: FILE + 5, 2: drops.store.written})
    one, two, three = upkeep.away([3, 1, 2], lambda member: f"reinit {member}")
    assert "member 1 is away: what follows its log, which ended at" in one
    assert "is kept until 20" in one
    assert "then it is to begin anew: `reinit 1`" in one
    assert "kept for 72 h more" in two
    assert "how far its log goes is not known here" in three
    drops.store.writer.begin = 2 * FILE
    assert (
        "lacks what is gone here: `reinit 1` has it begin anew"
        in upkeep.away([1], lambda one: f"reinit {one}")[0]
    )


def test_spans_are_said_for_people() -> None:
    assert [about(seconds) for seconds in (0, 59, 60, 5400, 7200, 86400)] == [
        "a minute", "a minute", "1 min", "90 min", "2 h", "24 h",
    ]  # fmt: skip
