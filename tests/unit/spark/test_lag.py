"""Recording how far groups are, without Spark: files, turns, brokers that do not answer."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.cluster.statuses import registered
from support.systems.fake_cluster import running_in_thread
from whimbrel.cli.main import main
from whimbrel.cli.spark.lag import Ended
from whimbrel.errors import Unavailable
from whimbrel.model.cluster import AbsentGroup, BrokerStatus, Cluster
from whimbrel.spark.snapshots import GroupPoller, QueueLag, Snapshot, record, save

AT_MS = 1_795_290_655_519


def queue(number: int, lag: int = 0) -> QueueLag:
    return QueueLag(
        group="billing", topic="orders", broker="broker-a", queue=number, committed=5, end=5 + lag, lag=lag
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_snapshot_is_a_file_named_by_its_time(tmp_path: Path) -> None:
    path = save(tmp_path, Snapshot((queue(0), queue(1, 7)), ("broker-b",)), at_ms=AT_MS, every_ms=60_000)
    assert path.relative_to(tmp_path).as_posix() == "dt=2026-11-21/2026-11-21T19-50-55.519Z.jsonl"
    head, first, second = lines(path)
    assert head == {"v": 1, "kind": "snapshot", "at": AT_MS, "every_ms": 60_000, "silent": ["broker-b"]}
    assert first["kind"] == "queue"
    assert (second["queue"], second["committed"], second["end"], second["lag"]) == (1, 5, 12, 7)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_a_crash_leaves_has_a_name_that_readers_pass_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(handle: int) -> None:
        raise OSError("the machine is gone")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="gone"):
        save(tmp_path, Snapshot((queue(0),), ()), at_ms=AT_MS, every_ms=1000)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) == 1
    assert left[0].startswith("_")


class Time:
    """A clock that only waiting, and a look that takes `looks_s`, move."""

    def __init__(self, looks_s: float = 0.0) -> None:
        self.now, self.looks_s, self.looked = 1000.0, looks_s, list[float]()

    def look(self) -> Snapshot:
        self.looked.append(self.now)
        self.now += self.looks_s
        return Snapshot((), ())

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def run(tmp_path: Path, time: Time, every_s: float, for_s: float | None) -> int:
    return record(
        tmp_path,
        time.look,
        every_s=every_s,
        for_s=for_s,
        clock=lambda: time.now,
        wait=time.wait,
        on_progress=lambda line: None,
    )


def test_snapshots_are_taken_at_multiples_of_the_interval_until_the_time_is_over(tmp_path: Path) -> None:
    time = Time(looks_s=3.0)
    assert run(tmp_path, time, 10, 30) == 4
    assert time.looked == [1000, 1010, 1020, 1030]
    assert len(list(tmp_path.rglob("*.jsonl"))) == 4


def test_one_that_takes_too_long_leaves_out_those_it_missed(tmp_path: Path) -> None:
    time = Time(looks_s=25.0)
    assert run(tmp_path, time, 10, 60) == 3
    assert time.looked == [1000, 1030, 1060]


def test_a_signal_ends_the_record_after_a_whole_snapshot(tmp_path: Path) -> None:
    time = Time()
    time.wait = lambda seconds: True  # type: ignore[method-assign]
    assert run(tmp_path, time, 10, None) == 1
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1


def broker(name: str, broker_id: int, address: str) -> BrokerStatus:
    return registered(broker_id, name, address=address, writable=True)


def test_a_signal_before_or_within_a_wait_ends_it_though_the_wait_is_not_interrupted() -> None:
    """What the handler does may come just before the wait, which then knows nothing of the signal."""
    ended = Ended()
    assert not ended.wait(0.01)
    began = time.monotonic()
    timer = threading.Timer(0.05, ended.take)
    timer.start()
    assert ended.wait(60) and time.monotonic() - began < 30
    assert ended.wait(60)
    timer.join()


def test_a_slave_answers_in_place_of_a_master_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, told = GroupPoller("127.0.0.1:1"), list[str]()

    def described(channel: object, name: str) -> list[QueueLag]:
        asked.append(name)
        if len(asked) == 1:
            raise Unavailable("no answer from 127.0.0.1:2")
        return [queue(0)]

    asked: list[str] = []
    monkeypatch.setattr(cluster, "described", described)
    found = cluster.ask(
        "broker-a", [broker("broker-a", 0, "127.0.0.1:2"), broker("broker-a", 1, "127.0.0.1:3")], told.append
    )
    assert found == [queue(0)]
    assert told == ["master broker-a at 127.0.0.1:2 does not answer: no answer from 127.0.0.1:2"]


def test_brokers_that_are_gone_are_silent_and_nobody_at_all_is_an_error_at_first_only() -> None:
    cluster = GroupPoller("127.0.0.1:1")
    with pytest.raises(Unavailable):
        cluster.poll(lambda line: None)
    cluster.known = {"broker-a", "broker-b"}
    told: list[str] = []
    assert cluster.poll(told.append) == Snapshot((), ("broker-a", "broker-b"))
    assert "the nameserver does not answer" in told[0]


def test_a_group_that_was_gone_before_the_first_snapshot_is_silent_until_it_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = AbsentGroup(cluster="c", broker_name="broker-b", renewed_at=None)
    answers = [Cluster((), True, (), (absent,)), Cluster((), True, (), (), frozenset({"broker-b"}))]
    monkeypatch.setattr("whimbrel.spark.nameservers.describe_cluster", lambda *_: answers.pop(0))
    cluster = GroupPoller("127.0.0.1:1")
    assert cluster.poll(lambda line: None).silent == ("broker-b",)
    assert cluster.poll(lambda line: None).silent == ()


def test_a_cluster_is_recorded_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_in_thread() as running:
        code = main(
            [
                "spark",
                "lag",
                "--snapshots",
                str(tmp_path),
                "--record",
                "--endpoint",
                running.address,
                "--for",
                "1s",
            ]
        )
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "1 snapshot below" in said.err
    assert lines(next(tmp_path.rglob("*.jsonl")))[0]["kind"] == "snapshot"


def test_what_can_not_be_recorded_is_told_and_could_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["spark", "lag", "--snapshots", str(tmp_path)]
    assert main([*base, "--record", "--endpoint", "127.0.0.1:1"]) == 2
    assert "is that its nameserver's address?" in capsys.readouterr().err
    for wrong, name in (
        (["--record", "--html", "x.html"], "--html"),
        (["--for", "1h"], "--for"),
        (["--endpoint", "h:1"], "--endpoint"),
        (["--per", "x"], "--per"),
    ):
        assert main([*base, *wrong]) == 2
        assert name in capsys.readouterr().err
