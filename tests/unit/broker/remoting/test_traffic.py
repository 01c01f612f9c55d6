"""Rates from samples of where queues end and groups stand."""

import pytest

from whimbrel.broker.remoting import traffic
from whimbrel.broker.remoting.traffic import BACK, GOT, GOT_SIZE, PUT, PUT_SIZE, Collector, Key, Traffic, View


class Samples:
    def __init__(self) -> None:
        self.traffic = Traffic("Cluster")
        self.now = 0.0

    def take(self, day: int = 0, log_end: int = 0, **counts: int) -> None:
        """Take a sample of counts by topic, and by topic__group."""
        found: dict[Key, int] = {}
        for name, count in counts.items():
            found[(GOT, name.replace("__", "@")) if "__" in name else (PUT, name)] = count
        self.traffic.sample(found, self.now, day, log_end)
        self.now += 10

    def keys(self) -> set[str]:
        """Return the topics that are known."""
        return {key for name, key in self.traffic.spans if name == PUT}


@pytest.fixture
def samples() -> Samples:
    return Samples()


def test_the_first_sample_says_only_where_counting_begins(samples: Samples) -> None:
    samples.take(T=1000)
    assert samples.traffic.put == 0 and samples.traffic.rates() == [(0, 0, 0, 0)] * 3
    assert samples.traffic.spans == {}


def test_rates_are_what_has_grown_since(samples: Samples) -> None:
    samples.take(T=0, T__G=0)
    samples.take(T=100, T__G=40)
    assert samples.traffic.rates() == [(10, 4, 0, 0)] * 3
    for _ in range(6):
        samples.take(T=100, T__G=40)
    (ten, minute, long) = samples.traffic.rates()
    assert ten == minute == (0, 0, 0, 0)
    assert long == pytest.approx((100 / 70, 40 / 70, 0, 0))


def test_the_last_minute_of_a_topic_and_of_a_group(samples: Samples) -> None:
    samples.take(T=0, T__G=0)
    for number in range(1, 9):
        samples.take(T=10 * number, T__G=number)
    assert samples.traffic.spans[PUT, "T"].last_minute() == View(60, 1.0)
    assert samples.traffic.spans[GOT, "T@G"].last_minute() == View(6, 0.1)
    put = samples.traffic.spans[PUT, "T"]
    assert put.last_hour() == put.last_day() == View(80, 1.0)


def test_ten_minutes_and_hours_are_summed_up(samples: Samples) -> None:
    for number in range(1 + 360 * 3):
        samples.take(T=number)
    spans = samples.traffic.spans[PUT, "T"]
    assert spans.last_hour().sum == 361 and spans.last_hour().tps == pytest.approx(0.1, rel=0.01)
    assert spans.last_day().sum == 360 * 3 and spans.last_day().tps == pytest.approx(0.1, rel=0.01)
    assert (list(spans.day), spans.part) == ([359, 360, 360], 1)


def test_who_has_had_nothing_for_a_day_is_forgotten(samples: Samples) -> None:
    samples.take(T=0)
    samples.take(T=5)
    for _ in range(360 * 24):
        samples.take(T=5)
    assert samples.keys() == {"T"}
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
    for group in ("G", "H"):
        samples.traffic.sent_back("T", group)
    assert len(samples.traffic.back) == 1


def test_all_of_rocketmqs_statistics_are_known(samples: Samples) -> None:
    samples.take(T=0, T__G=0, log_end=1000)
    samples.traffic.sent_back("T", "G")
    samples.traffic.pulled(found=True)
    samples.traffic.pulled(found=False)
    samples.take(T=4, U=6, T__G=2, log_end=3000)
    found = {key: spans.last_minute().sum for key, spans in samples.traffic.spans.items()}
    assert found == {
        (PUT, "T"): 4, (PUT, "U"): 6, (PUT_SIZE, "T"): 800, (PUT_SIZE, "U"): 1200,  # 200 bytes each
        (GOT, "T@G"): 2, (GOT_SIZE, "T@G"): 400, (BACK, "T@G"): 1,
        ("BROKER_PUT_NUMS", "Cluster"): 10, ("BROKER_GET_NUMS", "Cluster"): 2,
    }  # fmt: skip
    assert {name for name, _ in found} == traffic.NAMES
    assert samples.traffic.put_size == 2000 and samples.traffic.rates()[0] == (1, 0.2, 0.1, 0.1)


def test_sizes_that_are_added_up_elsewhere_are_taken_as_they_are(samples: Samples) -> None:
    for count in (0, 7):
        counts = {(PUT, "T"): count, (PUT_SIZE, "T"): 100 * count}
        samples.traffic.sample(counts, samples.now, 0, 1000 * count)
        samples.now += 10
    assert samples.traffic.spans[PUT_SIZE, "T"].last_minute().sum == 700


def test_counts_are_collected_in_pieces() -> None:
    t, u = (PUT, "T"), (PUT, "U")
    collector = Collector(iter([(t, 1), (u, 2), (t, 3)]))
    assert not collector.step(2)
    assert collector.counts == {t: 1, u: 2}
    assert collector.step(2)
    assert collector.counts == {t: 4, u: 2}
