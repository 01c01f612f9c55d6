"""How many messages come and go: over 10 s to a day, by topic and by group, for tools that show such rates.

Nothing is counted when a message is sent or received, but what is sent back, and pulls that find nothing.
Each `SAMPLE_S` the ends of all queues and the positions of all groups are added up; what they have grown by
since the sample before has come, or was finished. (RocketMQ counts what it hands out, which is as much but
for redeliveries.) A position that goes back takes nothing away.

Sizes are exact where metrics are on, which add them up anyway. Else they are as many times what a message of
the log took in that time as messages came or were finished.

What is known goes by RocketMQ's names of statistics and their keys (BrokerStatsManager):

    TOPIC_PUT_NUMS, _SIZE      topic            messages, and bytes of records
    GROUP_GET_NUMS, _SIZE      topic@group
    SNDBCK_PUT_NUMS            topic@group      messages that a group has sent back
    BROKER_PUT_NUMS, _GET_NUMS cluster          all of them

    samples of 10 s  ──6──► the last minute          shown as `statsMinute`
    sums of 10 min   ──6──► the last hour            `statsHour`, with what came since the last sum
    sums of 1 h     ──24──► the last day             `statsDay` likewise

Pure: times are seconds of the monotonic clock, and arguments. Who has had nothing for a day is forgotten; how
many topics and groups are known is bounded.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "BACK",
    "GOT",
    "GOT_SIZE",
    "KEYS_MAX",
    "NAMES",
    "PUT",
    "PUT_SIZE",
    "SAMPLE_S",
    "Collector",
    "Key",
    "Spans",
    "Traffic",
    "View",
    "of_group",
]

SAMPLE_S = 10.0
PER_TEN_MINUTES, PER_HOUR = 60, 6  # samples, and sums of ten minutes
MINUTE, HOUR, DAY = 6, 6, 24  # kept of each
KEYS_MAX = 20_000  # of all statistics: some 20 MB
RECENT_MAX = 61  # totals: ten minutes of samples
PUT, GOT, BACK = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"
PUT_SIZE, GOT_SIZE = "TOPIC_PUT_SIZE", "GROUP_GET_SIZE"
ALL_PUT, ALL_GOT = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
NAMES: Final = frozenset((PUT, GOT, BACK, PUT_SIZE, GOT_SIZE, ALL_PUT, ALL_GOT))
SIZES: Final = {PUT: PUT_SIZE, GOT: GOT_SIZE}

Key = tuple[str, str]  # name of a statistic, and its key


@dataclass(frozen=True, slots=True)
class View:
    """Messages in a time: how many, and by the second."""

    sum: int = 0
    tps: float = 0.0


def of_group(topic: str, group: str) -> str:
    """Return the key of a group on a topic."""
    return f"{topic}@{group}"


class Spans:
    """What one statistic of a key has been.

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
        put_size: bytes of the log since the first sample.
        found, missed: pulls since the start that got messages, and that got none.
        put_at_midnight, got_at_midnight: as they were when the day before and this day began.
    """

    def __init__(self, cluster: str = "") -> None:
        """Begin without samples; the cluster's name is the key of the broker's totals."""
        self.cluster = cluster
        self.put = self.got = self.put_size = self.found = self.missed = 0
        self.back: Counter[str] = Counter()  # sent back since the start, by topic and group
        self.log_end: int | None = None
        self.put_at_midnight = self.got_at_midnight = (0, 0)
        self.spans: dict[Key, Spans] = {}
        self.before: Mapping[Key, int] | None = None
        # Time, put, got, found, missed.
        self.recent: deque[tuple[float, int, int, int, int]] = deque(maxlen=RECENT_MAX)
        self.samples = 0
        self.day: int | None = None

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a group has sent back."""
        key = of_group(topic, group)
        if key in self.back or len(self.back) < KEYS_MAX:
            self.back[key] += 1

    def pulled(self, *, found: bool) -> None:
        """Count a pull."""
        if found:
            self.found += 1
        else:
            self.missed += 1

    def sample(self, counts: Mapping[Key, int], now: float, day: int, log_end: int = 0) -> None:
        """Take a sample.

        Args:
            counts: by topic, the sum of its queues' ends; by topic and group, that of its positions; sizes
                likewise, or none at all.
            now: when it was taken.
            day: which day of the local calendar that is.
            log_end: where the log ends.
        """
        counts = {**counts, **{(BACK, key): count for key, count in self.back.items()}}
        before, self.before = self.before, counts
        if day != self.day:
            self.put_at_midnight = self.put_at_midnight[1], self.put
            self.got_at_midnight = self.got_at_midnight[1], self.got
            self.day = day
        grown: dict[Key, int] = {}
        if before is not None:
            for key, count in counts.items():
                more = count - before.get(key, 0)
                if more > 0:
                    grown[key] = more
        put, got = (sum(more for (name, _), more in grown.items() if name == one) for one in (PUT, GOT))
        written = 0 if self.log_end is None else max(log_end - self.log_end, 0)
        self.log_end = log_end
        self.put, self.got, self.put_size = self.put + put, self.got + got, self.put_size + written
        if not any(name in (PUT_SIZE, GOT_SIZE) for name, _ in counts):
            grown |= estimated(grown, self.put_size / self.put if self.put else 0.0)
        if put or got:
            grown |= {(ALL_PUT, self.cluster): put, (ALL_GOT, self.cluster): got}
        self.recent.append((now, self.put, self.got, self.found, self.missed))
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

    def rates(self, seconds: tuple[float, ...] = (10.0, 60.0, 600.0)) -> list[tuple[float, ...]]:
        """Return messages that came and went, and pulls that found some and none, by the second, over each of
        some times."""
        return [self.rate(each) for each in seconds]

    def rate(self, seconds: float) -> tuple[float, ...]:
        """Return the same over about so long."""
        if len(self.recent) < 2:
            return 0.0, 0.0, 0.0, 0.0
        now, *counts = self.recent[-1]
        then, *before = self.recent[0]
        for at, *earlier in reversed(self.recent):
            if now - at >= seconds - SAMPLE_S / 2:
                then, before = at, earlier
                break
        passed = max(now - then, 0.001)
        return tuple((count - first) / passed for count, first in zip(counts, before, strict=True))


def estimated(grown: Mapping[Key, int], average: float) -> dict[Key, int]:
    """Return sizes for numbers of messages that have so many bytes on the average."""
    return {(SIZES[name], key): round(more * average) for (name, key), more in grown.items() if name in SIZES}


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
