"""Counters, histograms and descriptions of metrics; nothing here knows how they are exported.

Two kinds of numbers, with opposite needs:

    counted      `Histogram`, `Traffic` in a `Series`; written by one thread, on hot paths
    looked up    sizes, marks and states that exist anyway; read at a scrape

A `Family` is one metric: its name, kind, unit and labels, and `read`, which yields (label values, number).
`exposition.py` serves families to Prometheus; it is imported only where `metrics_port` switches it on, and so
is OpenTelemetry. Without it nobody makes aggregates, and hot paths pay for one comparison with None.

**Threads.** `read` runs in the thread that serves a scrape, while the process goes on. It may therefore read
only what another thread can read at any moment: an int, a cell of the shared page, a file system's numbers, a
copy that one C call makes of a dict or list (`list(d.items())`). A histogram read between two of its
additions differs by that one observation.

**Bounds.** Topics, groups and client versions are chosen by clients, so no family gives more than
`SERIES_MAX` series; the rest is added up in one whose labels are `other`.

**Names** are those that Prometheus shows: the exporter appends the unit, and `_total` to counters, where the
name does not end with them already. RocketMQ's instruments keep its names and units, so that a scrape has the
names of RocketMQ 5.3.3.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from whimbrel import __version__

__all__ = [
    "OTHER",
    "SECONDS",
    "SERIES_MAX",
    "Family",
    "Histogram",
    "Labels",
    "Number",
    "Point",
    "Series",
    "Traffic",
    "Trail",
    "bounded",
    "build_info",
]

# Series of one family; more would make scrapes long, and nobody reads so many lines. OpenTelemetry's own
# limit, 2000, also counts series that are gone.
SERIES_MAX = 1000
OTHER = "other"

# From a page-cache append to a disk or slave that is about to be given up: 100 µs to 10 s.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

Labels = tuple[str, ...]
Number = int | float
Sample = tuple[int, float]
T = TypeVar("T")


class Histogram:
    """Counts values by fixed upper bounds (inclusive), and adds them up."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)


class Traffic:
    """Counts messages and their bytes."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def add(self, messages: int, size: int) -> None:
        """Count some messages that have `size` bytes together."""
        self.messages += messages
        self.bytes += size


class Series(Generic[T]):
    """One aggregate for each tuple of labels; beyond `series_max` of them all share one."""

    __slots__ = ("by_labels", "make", "rest", "series_max")

    def __init__(self, make: Callable[[], T], *, series_max: int = SERIES_MAX) -> None:
        self.make = make
        self.series_max = series_max
        self.by_labels: dict[Labels, T] = {}
        self.rest: T | None = None

    def at(self, labels: Labels) -> T:
        """Return the aggregate of these labels."""
        found = self.by_labels.get(labels)
        return self.open(labels) if found is None else found

    def open(self, labels: Labels) -> T:
        """Make the aggregate of new labels."""
        if len(self.by_labels) >= self.series_max:
            labels = (OTHER,) * len(labels)
            if self.rest is None:
                self.rest = self.by_labels[labels] = self.make()
            return self.rest
        made = self.by_labels[labels] = self.make()
        return made

    def items(self) -> list[tuple[Labels, T]]:
        """Return a copy of all aggregates."""
        return list(self.by_labels.items())


Point = tuple[Labels, Number | Histogram]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric.

    Attributes:
        name: of the instrument.
        kind: a counter only grows while the process lives.
        help: one sentence.
        unit: OpenTelemetry's (`By`, `s`), or RocketMQ's word where the metric is RocketMQ's; "" for a count.
        labels: names of the labels that `read` gives values for; the process's own labels are added.
        read: yields the current numbers; no two with the same labels.
        fixed: whether the labels never change. OpenTelemetry keeps every series that an instrument of its own
            has ever shown, so only such families become one.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: str = ""
    labels: Labels = ()
    read: Callable[[], Iterable[Point]]
    fixed: bool = True


def build_info() -> Family:
    """Return the metric with the running version; always 1, so that it can be joined with others."""
    return Family(
        name="whimbrel_build_info",
        kind="gauge",
        labels=("version",),
        help="Always 1; which version runs stands in the label.",
        read=lambda: [((__version__,), 1)],
    )


def bounded(
    points: Iterable[tuple[Labels, Number]], *, series_max: int = SERIES_MAX
) -> Iterator[tuple[Labels, Number]]:
    """Yield the first `series_max` points, and the sum of the others as one."""
    rest: Number = 0
    labels: Labels = ()
    for number, (own, value) in enumerate(points):
        if number < series_max:
            yield own, value
        else:
            labels, rest = (OTHER,) * len(own), rest + value
    if labels:
        yield labels, rest


class Trail:
    """Samples a mark that only grows, and tells when it first reached an offset.

    Two lists of (offset, time): the fine one has a sample for each `FINE_S` in which the mark moved, the
    coarse one for each `COARSE_S`. A further move within that time raises the sample's offset, so an age may
    be too long by as much, never too short. One thread writes; `age` may run in any, since it takes copies.
    """

    FINE_S, FINE_MAX = 0.001, 2048  # at least the last two seconds
    COARSE_S, COARSE_MAX = 1.0, 3600  # at least the last hour

    __slots__ = ("coarse", "fine")

    def __init__(self) -> None:
        self.fine: list[Sample] = []
        self.coarse: list[Sample] = []

    def note(self, offset: int, now: float) -> None:
        """Sample the mark; one that went back starts the trail anew."""
        fine = self.fine
        if fine:
            last = fine[-1][0]
            if offset == last:
                return
            if offset < last:
                fine.clear()
                self.coarse.clear()
        put(fine, offset, now, self.FINE_S, self.FINE_MAX)
        put(self.coarse, offset, now, self.COARSE_S, self.COARSE_MAX)

    def reached(self, offset: int) -> float | None:
        """Return when the mark first was at or beyond `offset`; None when that is not known.

        Not known are offsets reached before the trail began, and those not reached yet.
        """
        for samples in (self.fine, self.coarse):
            at = bisect_left(samples, (offset,))
            if 0 < at < len(samples):
                return samples[at][1]
        return None

    def age(self, offset: int, now: float) -> float:
        """Return for how long the mark has been beyond `offset`, 0 when it is not.

        An offset passed before the trail began has been passed for at least as long as the trail is.
        """
        oldest = now
        for samples in (self.fine.copy(), self.coarse.copy()):
            at = bisect_left(samples, (offset + 1,))
            if at == len(samples):
                return 0.0
            oldest = samples[at][1]
            if at:
                break
        return max(now - oldest, 0.0)


def put(samples: list[Sample], offset: int, now: float, apart_s: float, samples_max: int) -> None:
    # The first sample says only where the mark was when the trail began: it is never raised.
    if len(samples) > 1 and now - samples[-1][1] < apart_s:
        samples[-1] = (offset, samples[-1][1])
        return
    samples.append((offset, now))
    if len(samples) >= 2 * samples_max:
        del samples[:samples_max]
