"""How many messages come and go: over 10 s to a day, by topic and by group, for tools that show such rates.

Nothing is counted when a message is sent or received. Each `SAMPLE_S` the ends of all queues and the
positions of all groups are added up; what they have grown by since the sample before has come, or was
finished. (RocketMQ counts what it hands out, which is as much but for redeliveries.) A position that goes
back takes nothing away.

    samples of 10 s  ──6──► the last minute          shown as `statsMinute`
    sums of 10 min   ──6──► the last hour            `statsHour`, with what came since the last sum
    sums of 1 h     ──24──► the last day             `statsDay` likewise

Pure: times are seconds of the monotonic clock, and arguments. Who has had nothing for a day is forgotten; how
many topics and groups are known is bounded.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["KEYS_MAX", "SAMPLE_S", "Collector", "Spans", "Traffic", "View"]

SAMPLE_S = 10.0
PER_TEN_MINUTES, PER_HOUR = 60, 6  # samples, and sums of ten minutes
MINUTE, HOUR, DAY = 6, 6, 24  # kept of each
KEYS_MAX = 20_000  # topics and pairs of topic and group: some 20 MB
RECENT_MAX = 61  # totals: ten minutes of samples

Key = str | tuple[str, str]  # topic; topic and group


@dataclass(frozen=True, slots=True)
class View:
    """Messages in a time: how many, and by the second."""

    sum: int = 0
    tps: float = 0.0


class Spans:
    """Messages of one topic, or of one group on a topic.

    Attributes:
        minute, hour, day: sums of a sample, of ten minutes, of an hour; the newest last.
        part, samples: what is not in `hour` yet, and of how many samples it is.
        hour_part, tens: what is not in `day` yet but in `hour`, and of how many sums it is.
    """

    __slots__ = ("day", "hour", "hour_part", "minute", "part", "samples", "tens")

    def __init__(self) -> None:
        self.minute: deque[int] = deque(maxlen=MINUTE)
        self.hour: deque[int] = deque(maxlen=HOUR)
        self.day: deque[int] = deque(maxlen=DAY)
        self.part = self.samples = self.hour_part = self.tens = 0

    def add(self, count: int) -> None:
        """Take a sample."""
        self.minute.append(count)
        self.part += count
        self.samples += 1

    def end_ten_minutes(self) -> None:
        """Begin the next ten minutes."""
        self.hour.append(self.part)
        self.hour_part += self.part
        self.tens += 1
        self.part = self.samples = 0

    def end_hour(self) -> None:
        """Begin the next hour."""
        self.day.append(self.hour_part)
        self.hour_part = self.tens = 0

    @property
    def idle(self) -> bool:
        """Whether there was nothing for a day."""
        return not any((self.part, self.hour_part, *self.minute, *self.hour, *self.day))

    def last_minute(self) -> View:
        """Return what came in the last minute."""
        return view(sum(self.minute), len(self.minute))

    def last_hour(self) -> View:
        """Return what came in the last hour, and up to ten minutes more."""
        return view(sum(self.hour) + self.part, len(self.hour) * PER_TEN_MINUTES + self.samples)

    def last_day(self) -> View:
        """Return what came in the last day, and up to an hour more."""
        tens = len(self.day) * PER_HOUR + self.tens
        return view(sum(self.day) + self.hour_part + self.part, tens * PER_TEN_MINUTES + self.samples)


def view(total: int, samples: int) -> View:
    return View(total, total / (samples * SAMPLE_S) if samples else 0.0)


class Traffic:
    """What is known, from sample to sample.

    Attributes:
        put, got: messages since the start, of all topics; got: finished by groups.
        put_at_midnight, got_at_midnight: as they were when the day before and this day began.
    """

    def __init__(self) -> None:
        """Begin without samples."""
        self.put = self.got = 0
        self.put_at_midnight = self.got_at_midnight = (0, 0)
        self.spans: dict[Key, Spans] = {}
        self.before: Mapping[Key, int] | None = None
        self.recent: deque[tuple[float, int, int]] = deque(maxlen=RECENT_MAX)  # time, put, got
        self.samples = 0
        self.day: int | None = None

    def sample(self, counts: Mapping[Key, int], now: float, day: int) -> None:
        """Take a sample.

        Args:
            counts: by topic, the sum of its queues' ends; by topic and group, that of its positions.
            now: when it was taken.
            day: which day of the local calendar that is.
        """
        before, self.before = self.before, counts
        if day != self.day:
            self.put_at_midnight = self.put_at_midnight[1], self.put
            self.got_at_midnight = self.got_at_midnight[1], self.got
            self.day = day
        grown = {}
        if before is not None:
            for key, count in counts.items():
                more = count - before.get(key, 0)
                if more > 0:
                    grown[key] = more
                    if isinstance(key, tuple):
                        self.got += more
                    else:
                        self.put += more
        self.recent.append((now, self.put, self.got))
        for key in grown:
            if key not in self.spans and len(self.spans) < KEYS_MAX:
                self.spans[key] = Spans()
        for key, spans in self.spans.items():
            spans.add(grown.get(key, 0))
        self.samples += 1
        if self.samples % PER_TEN_MINUTES == 0:
            self.end_ten_minutes()

    def end_ten_minutes(self) -> None:
        """Sum up, and forget who had nothing for a day."""
        hour_ends = self.samples % (PER_TEN_MINUTES * PER_HOUR) == 0
        for key, spans in list(self.spans.items()):
            spans.end_ten_minutes()
            if hour_ends:
                spans.end_hour()
            if spans.idle:
                del self.spans[key]

    def rates(self, seconds: tuple[float, ...] = (10.0, 60.0, 600.0)) -> list[tuple[float, float]]:
        """Return messages that came and went by the second, over each of some times."""
        return [self.rate(each) for each in seconds]

    def rate(self, seconds: float) -> tuple[float, float]:
        """Return messages that came and went by the second, over about so long."""
        if len(self.recent) < 2:
            return 0.0, 0.0
        now, put, got = self.recent[-1]
        then = self.recent[0]
        for one in reversed(self.recent):
            if now - one[0] >= seconds - SAMPLE_S / 2:
                then = one
                break
        passed = max(now - then[0], 0.001)
        return (put - then[1]) / passed, (got - then[2]) / passed


class Collector:
    """Adds up counts in pieces, so that many queues hold nobody up."""

    def __init__(self, items: Iterator[tuple[Key, int]]) -> None:
        """Begin; `items` yields counts by key, a key as often as it likes."""
        self.items = items
        self.counts: dict[Key, int] = {}

    def step(self, most: int) -> bool:
        """Take up to so many; return whether that were all."""
        counts = self.counts
        for _ in range(most):
            found = next(self.items, None)
            if found is None:
                return True
            key, count = found
            counts[key] = counts.get(key, 0) + count
        return False
