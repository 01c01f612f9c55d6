"""The first contact with nameservers: wrong addresses are told in seconds, with what was tried."""

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from whimbrel.errors import NotSupported, RequestTimeout, Unavailable, WhimbrelError
from whimbrel.model.cluster import Cluster
from whimbrel.spark import brokers, nameservers
from whimbrel.spark.brokers import FIRST_CONTACT_S, Brokers, NoBroker
from whimbrel.spark.options import parse

ONE, TWO = "127.0.0.1:8081", "127.0.0.1:8082"


class Clock:
    """A clock that moves while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock that retrying goes by."""
    found = Clock()
    monkeypatch.setattr(brokers, "time", found)
    return found


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Cluster]) -> list[str]:
    """Have nameservers answer; return where the addresses that are asked are noted."""
    asked: list[str] = []

    def describe(server: str, timeout_s: float) -> Cluster:
        asked.append(server)
        return answer(server)

    monkeypatch.setattr(nameservers, "describe_cluster", describe)
    return asked


def begin(servers: str = ONE, **options: str) -> None:
    Brokers(parse({"servers": servers, "subscribe": "orders", **options})).extents(first_contact=True)


def raising(error: WhimbrelError) -> Callable[[str], Cluster]:
    def answer(server: str) -> Cluster:
        raise error

    return answer


def test_what_is_no_nameserver_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    asked = answering(
        monkeypatch, raising(NotSupported(f"{ONE} is not a nameserver (a broker answers there?)"))
    )
    with pytest.raises(NoBroker) as caught:
        begin()
    assert str(caught.value) == (
        f"option servers: {ONE} is not a nameserver (a broker answers there?);"
        " name the nameserver, as HOST:PORT"
    )
    assert asked == [ONE]


def test_a_call_that_the_other_end_does_not_know_tells_that_it_is_no_nameserver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def perform(*_: object) -> Cluster:
        raise NotSupported("Method not found!")

    monkeypatch.setattr(nameservers, "perform_blocking", perform)
    with pytest.raises(NotSupported, match="is not a nameserver"):
        nameservers.describe_any([ONE], 30.0)


@pytest.mark.parametrize("count", [1, 2])
def test_silence_is_bounded_for_each_server(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, count: int
) -> None:
    def silent(server: str) -> Cluster:
        clock.now += nameservers.ASK_S_MAX
        raise RequestTimeout("no answer in time")

    asked = answering(monkeypatch, silent)
    servers = [ONE, TWO][:count]
    with pytest.raises(NoBroker) as caught:
        begin(",".join(servers))
    assert asked == servers
    assert clock.now - 100.0 <= FIRST_CONTACT_S * count
    assert all(server in str(caught.value) for server in servers)
    assert f"(1 try in {FIRST_CONTACT_S * count:.1f} s)" in str(caught.value)


def test_a_nameserver_is_asked_with_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def perform(channel: object, call: object, headers: object, timeout_s: float) -> Cluster:
        seen.append(timeout_s)
        return Cluster((), True)

    monkeypatch.setattr(nameservers, "perform_blocking", perform)
    nameservers.describe_cluster(ONE, 30.0)
    nameservers.describe_cluster(ONE, 0.5)
    assert seen == [nameservers.ASK_S_MAX, 0.5]


def test_what_is_refused_at_once_is_tried_again_for_as_long(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    asked = answering(monkeypatch, raising(Unavailable("refused")))
    with pytest.raises(NoBroker, match=r"\(6 tries in 2.5 s\): refused; is the cluster running"):
        begin()
    assert asked == [ONE] * 6


def test_a_stream_that_runs_is_as_patient_as_its_options_say(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def silent(server: str) -> Cluster:
        clock.now += nameservers.ASK_S_MAX
        raise RequestTimeout("no answer in time")

    asked = answering(monkeypatch, silent)
    with pytest.raises(NoBroker):
        Brokers(parse({"servers": ONE, "subscribe": "orders"})).extents(first_contact=False)
    assert len(asked) == 6
