"""Latencies in a fixed number of counters, however many there are. Pure.

A value of up to SMALL nanoseconds has a counter of its own; above, each power of two has SMALL / 2 counters,
so that a value is known to one part in SMALL / 2 (0.8 %). The greatest value is kept exactly.

The compiled lane has the same counters (`native/core/src/latencies.rs`).
"""

from collections.abc import Iterable

__all__ = ["PERCENTILES", "Latencies"]

BITS = 8
SMALL = 1 << BITS
HALF = SMALL >> 1
VALUE_BITS_MAX = 43  # 2.4 hours; longer ones count as that
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Latencies:
    """Counts of latencies.

    Attributes:
        count: how many there are.
        greatest_ns: the longest of them.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.counters = [0] * (SMALL + HALF * (VALUE_BITS_MAX - BITS))
        self.count = 0
        self.greatest_ns = 0

    def add(self, value_ns: int) -> None:
        """Count one latency."""
        self.count += 1
        self.greatest_ns = max(self.greatest_ns, value_ns)
        self.counters[counter_of(value_ns)] += 1

    def used(self) -> list[tuple[int, int]]:
        """Return the counters that are not 0: their numbers, and counts."""
        return [(number, count) for number, count in enumerate(self.counters) if count]

    def add_counters(self, counters: Iterable[tuple[int, int]], greatest_ns: int) -> None:
        """Count what others have counted: numbers of counters with their counts, and the longest of it."""
        for number, count in counters:
            self.counters[number] += count
            self.count += count
        self.greatest_ns = max(self.greatest_ns, greatest_ns)

    def percentile_ms(self, percent: float) -> float | None:
        """Return a time in which this share of all was done, in ms; None without any."""
        if not self.count:
            return None
        wanted = self.count * percent / 100
        seen = 0
        for number, count in enumerate(self.counters):
            seen += count
            if seen >= wanted and count:
                return min(upper_end(number), self.greatest_ns) / 1e6
        return self.greatest_ns / 1e6

    def summary_ms(self) -> dict[str, float | None]:
        """Return the percentiles and the maximum by name, in ms to the microsecond."""
        values = {f"p{percent:g}": self.percentile_ms(percent) for percent in PERCENTILES}
        values["max"] = self.greatest_ns / 1e6 if self.count else None
        return {name: None if value is None else round(value, 3) for name, value in values.items()}


def counter_of(value: int) -> int:
    """Return the number of the counter of a value."""
    value = min(max(value, 0), (1 << VALUE_BITS_MAX) - 1)
    if value < SMALL:
        return value
    shift = value.bit_length() - BITS
    return SMALL + HALF * (shift - 1) + (value >> shift) - HALF


def upper_end(number: int) -> int:
    """Return the greatest value that this counter counts."""
    if number < SMALL:
        return number
    power, rest = divmod(number - SMALL, HALF)
    return ((rest + HALF + 1) << (power + 1)) - 1
