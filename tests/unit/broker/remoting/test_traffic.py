"""Rates from samples of where queues end and groups stand."""

import pytest

from whimbrel.broker.remoting import traffic
from whimbrel.broker.remoting.traffic import Collector, Traffic, View


class Samples:
    def __init__(self) -> None:
        self.traffic = Traffic()
        self.now = 0.0

    def take(self, day: int = 0, **counts: int) -> None:
        found: dict[str | tuple[str, str], int] = {}
        for name, count in counts.items():
            topic, joint, group = name.partition("__")
            found[(topic, group) if joint else topic] = count
        self.traffic.sample(found, self.now, day)
        self.now += 10


@pytest.fixture
def samples() -> Samples:
    return Samples()


def test_the_first_sample_says_only_where_counting_begins(samples: Samples) -> None:
    samples.take(T=1000)
    assert samples.traffic.put == 0 and samples.traffic.rates() == [(0, 0)] * 3
    assert samples.traffic.spans == {}


def test_rates_are_what_has_grown_since(samples: Samples) -> None:
    samples.take(T=0, T__G=0)
    samples.take(T=100, T__G=40)
    assert samples.traffic.rates() == [(10, 4)] * 3
    for _ in range(6):
        samples.take(T=100, T__G=40)
    (ten, minute, long) = samples.traffic.rates()
    assert ten == (0, 0) and minute == (0, 0)
    assert long == pytest.approx((100 / 70, 40 / 70))


def test_the_last_minute_of_a_topic_and_of_a_group(samples: Samples) -> None:
    samples.take(T=0, T__G=0)
    for number in range(1, 9):
        samples.take(T=10 * number, T__G=number)
    assert samples.traffic.spans["T"].last_minute() == View(60, 1.0)
    assert samples.traffic.spans["T", "G"].last_minute() == View(6, 0.1)
    assert samples.traffic.spans["T"].last_hour() == samples.traffic.spans["T"].last_day() == View(80, 1.0)


def test_ten_minutes_and_hours_are_summed_up(samples: Samples) -> None:
    for number in range(1 + 360 * 3):
        samples.take(T=number)
    spans = samples.traffic.spans["T"]
    assert spans.last_hour().sum == 361 and spans.last_hour().tps == pytest.approx(0.1, rel=0.01)
    assert spans.last_day().sum == 360 * 3 and spans.last_day().tps == pytest.approx(0.1, rel=0.01)
    assert (list(spans.day), spans.part) == ([359, 360, 360], 1)


def test_who_has_had_nothing_for_a_day_is_forgotten(samples: Samples) -> None:
    samples.take(T=0)
    samples.take(T=5)
    for _ in range(360 * 24):
        samples.take(T=5)
    assert "T" in samples.traffic.spans
    for _ in range(360 * 2):
        samples.take(T=5)
    assert samples.traffic.spans == {}


def test_a_position_that_goes_back_takes_nothing_away(samples: Samples) -> None:
    for count in (10, 20, 5, 6):
        samples.take(T__G=count)
    assert samples.traffic.got == 11


def test_a_new_topic_counts_from_its_first_message(samples: Samples) -> None:
    samples.take()
    samples.take(T=7)
    assert samples.traffic.put == 7


def test_days_begin_at_midnight(samples: Samples) -> None:
    samples.take(day=1, T=0)
    samples.take(day=1, T=10)
    assert samples.traffic.put_at_midnight == (0, 0)
    samples.take(day=2, T=15)
    assert samples.traffic.put_at_midnight == (0, 10) and samples.traffic.put == 15
    samples.take(day=3, T=18)
    assert samples.traffic.put_at_midnight == (10, 15)


def test_topics_are_bounded(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "KEYS_MAX", 1)
    samples.take(T=0, U=0)
    samples.take(T=1, U=1)
    assert len(samples.traffic.spans) == 1 and samples.traffic.put == 2


def test_counts_are_collected_in_pieces() -> None:
    collector = Collector(iter([("T", 1), ("U", 2), ("T", 3)]))
    assert not collector.step(2)
    assert collector.counts == {"T": 1, "U": 2}
    assert collector.step(2)
    assert collector.counts == {"T": 4, "U": 2}
