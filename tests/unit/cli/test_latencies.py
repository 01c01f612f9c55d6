"""Percentiles from counters: within one part in 128, the greatest exactly."""

import random

import pytest

from whimbrel.cli.latencies import HALF, VALUE_BITS_MAX, Latencies, counter_of, upper_end


def test_every_value_lies_in_its_counter() -> None:
    values = [*range(2000), *(1 << bits for bits in range(VALUE_BITS_MAX)), (1 << VALUE_BITS_MAX) - 1]
    for value in values:
        number = counter_of(value)
        assert upper_end(number) >= value
        assert number == 0 or upper_end(number - 1) < value
        assert upper_end(number) - value <= value / HALF


def test_counters_of_others_count_as_ones_own() -> None:
    one, other, both = Latencies(), Latencies(), Latencies()
    for value in (3, 70_000, 70_001):
        one.add(value)
        both.add(value)
    for value in (70_002, 10**9):
        other.add(value)
        both.add(value)
    one.add_counters(other.used(), other.greatest_ns)
    assert (one.counters, one.count, one.greatest_ns) == (both.counters, 5, 10**9)


def test_percentiles_are_those_of_the_sorted_values() -> None:
    chance = random.Random(7)
    values = [round(chance.lognormvariate(15, 1)) for _ in range(10_000)]
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    values.sort()
    for percent in (50, 90, 99, 99.9):
        exact = values[round(len(values) * percent / 100) - 1] / 1e6
        assert latencies.percentile_ms(percent) == pytest.approx(exact, rel=0.01)
    assert latencies.summary_ms()["max"] == round(values[-1] / 1e6, 3)
    assert list(latencies.summary_ms()) == ["p50", "p90", "p99", "p99.9", "max"]


def test_nothing_measured_has_no_percentiles() -> None:
    assert set(Latencies().summary_ms().values()) == {None}


def test_values_beyond_all_counters_count_as_the_longest() -> None:
    latencies = Latencies()
    latencies.add(1 << 60)
    latencies.add(-1)
    assert latencies.greatest_ns == 1 << 60
    assert latencies.count == 2
