"""Shares of a load, and tallies that become one."""

from collections import Counter

import pytest

from whimbrel.cli.latencies import Latencies
from whimbrel.cli.limits import Use
from whimbrel.cli.load import Plan, Tally
from whimbrel.cli.load_processes import described, merge, processes_of, raise_failure, shares
from whimbrel.errors import ReplicaTimeout, WhimbrelError


def plan(*, count: int | None = None, concurrency: int = 8, batch: int = 1) -> Plan:
    return Plan(topic="t", count=count, seconds=None, size=1, concurrency=concurrency, batch=batch)


@pytest.mark.parametrize(
    ("cores", "wanted", "processes"),
    [
        (1, plan(), 1),
        (2, plan(), 2),
        (4, plan(), 3),
        (64, plan(concurrency=100), 8),
        (64, plan(concurrency=1), 1),
        (64, plan(count=1), 1),
        (64, plan(count=11, batch=5), 3),
    ],
)
def test_a_process_has_something_to_do(cores: int, wanted: Plan, processes: int) -> None:
    assert processes_of(cores, wanted) == processes


@pytest.mark.parametrize("count", [None, 3, 1000, 1001])
def test_shares_are_the_whole_together(count: int | None) -> None:
    parts = shares(plan(count=count, concurrency=11), 3)
    assert [part.concurrency for part in parts] == [4, 4, 3]
    assert (count is None and {part.count for part in parts} == {None}) or (
        sum(part.count or 0 for part in parts) == count
    )


def tally(began: float, ended: float, *values_ns: int) -> Tally:
    found = Tally({"send": Latencies()}, messages=len(values_ns), began=began, ended=ended)
    for value in values_ns:
        found.latencies["send"].add(value)
    return found


def test_tallies_become_one() -> None:
    whole, uses = tally(0.0, 0.0), list[Use]()
    first, second = tally(10.0, 14.0, 1000, 5_000_000), tally(9.5, 13.0, 2000)
    second.failed(ReplicaTimeout("no slave"), 3)
    for part in (first, second):
        merge(whole, uses, described(part, Use(cpu_s=1.5, waited_s=0.5, processes=1), None))
    assert (whole.messages, whole.seconds, whole.errors) == (3, 4.5, Counter(SLAVE_PERSISTENCE_TIMEOUT=3))
    assert whole.error == "no slave"
    assert (
        whole.latencies["send"].summary_ms()
        == tally(0, 0, 1000, 5_000_000, 2000).latencies["send"].summary_ms()
    )
    assert uses == [Use(cpu_s=1.5, waited_s=0.5, processes=1)] * 2


def test_a_childs_failure_is_raised_here() -> None:
    raise_failure({"ready": 1})
    with pytest.raises(ReplicaTimeout, match="no slave"):
        raise_failure(described(tally(0, 0), None, ReplicaTimeout("no slave")))
    with pytest.raises(WhimbrelError, match="what"):
        raise_failure({"failed": ["NO_SUCH_REASON", "what"]})
