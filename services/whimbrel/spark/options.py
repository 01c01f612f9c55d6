"""What can be set on a read of `format("whimbrel")`: names, defaults, and which options exclude each other.

Names are those of Spark's source for Kafka where the meaning is the same; their case does not matter. An
unknown name is refused, and the nearest known one is suggested. docs/spark.md lists the options for users.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from whimbrel.model.names import GROUP_TOPIC_PREFIXES, is_system_topic
from whimbrel.model.route import parse_endpoints
from whimbrel.spark.local_paths import RemotePath, local_path
from whimbrel.spark.offsets import EARLIEST, LATEST, Positions, from_option
from whimbrel.spark.push_down import ALL, Range

__all__ = ["OptionError", "SourceOptions", "Subscription", "parse"]

MIB = 1 << 20
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


Place = Literal["servers", "store", "archive"]


class OptionError(ValueError):
    """An option is unknown, wrong, or contradicts another one; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues are read; exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def wants_topic(self, topic: str, *, system: bool, include_system: bool) -> bool:
        """Return whether a topic is read; a topic that is named is read even if it is a system topic."""
        if self.pattern:
            return (include_system or not system) and re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == name for name, _ in self.assigned)

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue of such a topic is read."""
        return not self.assigned or any(
            topic == name and queue_id in queue_ids for name, queue_ids in self.assigned
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are named; none when a pattern is given."""
        return self.topics or tuple(name for name, _ in self.assigned)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read, checked.

    Attributes:
        servers: nameservers, HOST:PORT; empty where a store or an archive is read.
        store: a store directory, ours or RocketMQ's; empty where something else is read.
        archive: the folder of an archive; empty where something else is read.
        subscription: None reads a store's whole log, or all of an archive.
        starting, ending: EARLIEST, LATEST, or positions by queue; queues that are not named start at the
            earliest, and end at the latest.
        starting_ms, ending_ms: store times, which win over offsets; None where offsets decide.
        latest_without_match: a queue without messages as late as `starting_ms` starts at its end.
        physical_offsets: the range of a store's log that is read.
        allow_partial: what can't be asked is left out of a batch, and told; otherwise that is an error.
        group: the consumer group as which a stream's progress is reported; empty for none.
        pushdown: let Spark push filters down.
        max_offsets, max_bytes, min_offsets: of a micro-batch; 0 for no bound.
        partition_bytes: size of a task aimed at; 0: the default of the kind of query.
        max_partitions: most tasks of a micro-batch; 0: twice Spark's default parallelism.
    """

    servers: tuple[str, ...]
    store: str = ""
    archive: str = ""
    subscription: Subscription | None
    read_from: Literal["slave", "master", "any"] = "any"
    starting: int | Positions
    ending: int | Positions = LATEST
    starting_ms: int | None = None
    ending_ms: int | None = None
    latest_without_match: bool = False
    physical_offsets: Range = ALL
    isolation: Literal["confirmed", "latest"] = "confirmed"
    fail_on_data_loss: bool = True
    on_truncation: Literal["fail", "reset"] = "fail"
    max_offsets: int = 0
    max_bytes: int = 0
    min_offsets: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int = 0
    max_partitions: int = 0
    partition_bytes: int = 0
    tags: str = ""
    properties: Literal["map", "raw", "none"] = "map"
    decompress: bool = True
    include_system: bool = False
    verify_crc: bool = False
    on_corrupt: Literal["fail", "skip", "flag"] = "fail"
    kafka_columns: bool = False
    timeout_s: float = 30.0
    retries: int = 5
    retry_s: float = 0.5
    group: str = ""
    pushdown: bool = False
    allow_partial: bool = False

    @property
    def place(self) -> Place:
        """Which of the three places is read."""
        return "servers" if self.servers else "store" if self.store else "archive"

    def reads_topic(self, topic: str) -> bool:
        """Return whether a topic is read, going by its name: brokers tell which topics are the system's."""
        system = is_system_topic(topic) or topic.startswith(GROUP_TOPIC_PREFIXES)
        return self.subscription is None or self.subscription.wants_topic(
            topic, system=system, include_system=self.include_system
        )

    def reads_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is read, likewise."""
        return self.reads_topic(topic) and (
            self.subscription is None or self.subscription.wants_queue(topic, queue_id)
        )

    @property
    def wanted_tags(self) -> frozenset[str] | None:
        """The tags as a set; None for all."""
        names = frozenset(name.strip() for name in self.tags.split("||")) - {""}
        return None if not names or "*" in names else names


COMMON = (
    "servers", "store", "archive", "subscribe", "subscribePattern", "assign", "readFrom", "startingOffsets",
    "isolation", "failOnDataLoss", "minPartitions", "maxPartitions", "maxBytesPerPartition", "tags",
    "properties", "decompress", "includeSystemTopics", "verifyCrc", "onCorrupt", "kafkaColumns",
    "pullTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "startingTimestamp",
    "startingOffsetsByTimestampStrategy", "allowPartial",
)  # fmt: skip
BATCH = ("endingOffsets", "endingTimestamp", "startingPhysicalOffset", "endingPhysicalOffset", "pushdown")
STREAM = (
    "onTruncation", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "group",
)  # fmt: skip
OF_STORES = ("startingPhysicalOffset", "endingPhysicalOffset")
OF_BROKERS = ("group", "readFrom", "allowPartial")
# Options that have no meaning for each place.

MEANINGLESS = {
    "servers": OF_STORES,
    "store": OF_BROKERS,
    "archive": (*OF_STORES, *OF_BROKERS, "isolation", "startingOffsetsByTimestampStrategy"),
}
# Spark's own, which reach every source.
SPARKS = frozenset({"path", "checkpointlocation", "queryname", "__columns"})


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Return the options of a read.

    Args:
        given: as Spark hands them over.
        streaming: which kind of query; None while that is not known, and only the names are checked.

    Raises:
        OptionError: one is unknown, wrong, or contradicts another one.
    """
    values = {name.lower(): text for name, text in given.items() if name.lower() not in SPARKS}
    check_names(values, streaming)
    read = OptionValues(values)
    servers = read.servers()
    store, archive = read.folder("store"), read.folder("archive")
    check_place(read, bool(servers), streaming=bool(streaming))
    if read.number("maxOffsetsPerTrigger") and read.number("maxBytesPerTrigger"):
        raise OptionError(
            "options maxOffsetsPerTrigger and maxBytesPerTrigger: Spark takes one limit; choose one"
        )
    return SourceOptions(
        servers=servers,
        store=store,
        archive=archive,
        subscription=subscription(read, needed=bool(servers) or streaming is True),
        read_from=cast(Any, read.choice("readFrom", "any", "slave", "master", "any")),
        starting=read.positions(
            "startingOffsets", LATEST if streaming else EARLIEST, streaming=streaming is not False
        ),
        ending=read.positions("endingOffsets", LATEST, streaming=False),
        starting_ms=read.time_ms("startingTimestamp"),
        ending_ms=read.time_ms("endingTimestamp"),
        latest_without_match=read.choice("startingOffsetsByTimestampStrategy", "error", "error", "latest")
        == "latest",
        physical_offsets=physical_offsets(read),
        isolation=cast(Any, read.choice("isolation", "confirmed", "confirmed", "latest")),
        fail_on_data_loss=read.truth("failOnDataLoss", default=True),
        on_truncation=cast(Any, read.choice("onTruncation", "fail", "fail", "reset")),
        max_offsets=read.number("maxOffsetsPerTrigger"),
        max_bytes=read.number("maxBytesPerTrigger"),
        min_offsets=read.number("minOffsetsPerTrigger"),
        max_trigger_delay_ms=read.duration_ms("maxTriggerDelay", 15 * 60_000),
        min_partitions=read.number("minPartitions"),
        max_partitions=read.number("maxPartitions"),
        partition_bytes=read.number("maxBytesPerPartition"),
        tags=read.text("tags"),
        properties=cast(Any, read.choice("properties", "map", "map", "raw", "none")),
        decompress=read.truth("decompress", default=True),
        include_system=read.truth("includeSystemTopics", default=False),
        verify_crc=read.truth("verifyCrc", default=bool(store)),
        on_corrupt=cast(Any, read.choice("onCorrupt", "fail", "fail", "skip", "flag")),
        kafka_columns=read.truth("kafkaColumns", default=False),
        timeout_s=read.number("pullTimeoutMs", 30_000) / 1000,
        retries=read.number("fetchOffset.numRetries", 5),
        retry_s=read.number("fetchOffset.retryIntervalMs", 500) / 1000,
        group=read.text("group"),
        pushdown=read.truth("pushdown", default=False),
        allow_partial=read.truth("allowPartial", default=False),
    )


def check_names(values: Mapping[str, str], streaming: bool | None) -> None:
    """Raise OptionError for a name that is unknown, or has no meaning for this kind of query."""
    known = {name.lower(): name for name in (*COMMON, *BATCH, *STREAM)}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(known.values())}"
            raise OptionError(f"option {name}: there is no such option{hint}")
        other = {True: BATCH, False: STREAM, None: ()}[streaming]
        if known[name] in other:
            query = "a stream" if streaming else "a batch"
            raise OptionError(f"option {known[name]} has no meaning for {query}: leave it out")


def check_place(read: "OptionValues", servers: bool, *, streaming: bool) -> None:
    """Raise OptionError unless exactly one place is named, and with nothing that has no meaning there."""
    store, archive = read.text("store"), read.text("archive")
    if (servers, bool(store), bool(archive)).count(True) != 1:
        raise OptionError(
            "options servers, store, archive: exactly one is needed, as in"
            ' .option("servers", "127.0.0.1:8081"), .option("store", "/data/broker-a") or'
            ' .option("archive", "/data/archive")'
        )
    if archive and streaming:
        raise OptionError(
            "option archive: an archive is read as a batch, with spark.read; a stream reads `servers`"
            " or `store`"
        )
    place = "servers" if servers else "store" if store else "archive"
    for name in MEANINGLESS[place]:
        if read.text(name):
            raise OptionError(f"option {name} has no meaning with `{place}`: leave it out")


def physical_offsets(read: "OptionValues") -> Range:
    """Return the part of the log that is read."""
    names = "startingPhysicalOffset", "endingPhysicalOffset"
    first, end = (
        read.number(name) if read.text(name) else limit for name, limit in zip(names, ALL, strict=True)
    )
    if max(first, 0) >= end:
        raise OptionError(f"options {', '.join(names)}: from {max(first, 0)} to {end} is not a range")
    return first, end


def subscription(read: "OptionValues", *, needed: bool) -> Subscription | None:
    """Return which queues are read; None for a whole log."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if read.text(name)]
    if not given and not needed:
        return None
    if len(given) != 1:
        raise OptionError(
            "options subscribe, subscribePattern, assign: exactly one is needed, not"
            f" {', '.join(given) or 'none'};"
            ' .option("subscribe", "orders") reads a topic'
        )
    if given == ["subscribe"]:
        return Subscription(
            topics=tuple(name.strip() for name in read.text("subscribe").split(",") if name.strip())
        )
    if given == ["subscribePattern"]:
        pattern = read.text("subscribePattern")
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"option subscribePattern: {pattern!r} is no regular expression: {error}"
            ) from error
        return Subscription(pattern=pattern)
    text = read.text("assign")
    try:
        assigned = tuple(
            (str(topic), tuple(sorted(int(number) for number in numbers)))
            for topic, numbers in json.loads(text).items()
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f'option assign: {text!r} is not of the form {{"TOPIC": [0, 1]}}') from error
    return Subscription(assigned=assigned)


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Reads values of options, by their names in lower case."""

    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a text; empty when it is not given."""
        return self.values.get(name.lower(), "").strip()

    def servers(self) -> tuple[str, ...]:
        """Return the nameservers, HOST:PORT; none when they are not given."""
        text = self.text("servers")
        try:
            return tuple(str(server) for server in parse_endpoints(text)) if text else ()
        except ValueError as error:
            raise OptionError(f"option servers: {error}") from None

    def folder(self, name: str) -> str:
        """Return a folder of this machine; empty when it is not given."""
        text = self.text(name)
        try:
            return str(local_path(text)) if text else ""
        except RemotePath as error:
            raise OptionError(f"option {name}: {error}") from None

    def choice(self, name: str, default: str, *choices: str) -> str:
        """Return one of some words."""
        value = self.text(name).lower() or default
        if value not in choices:
            raise OptionError(f"option {name}: {value!r} is not one of {', '.join(choices)}")
        return value

    def truth(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.text(name).lower()
        if value and value not in (*TRUE, *FALSE):
            raise OptionError(f"option {name}: {value!r} is neither true nor false")
        return value in TRUE if value else default

    def number(self, name: str, default: int = 0) -> int:
        """Return a whole number, 0 or more; k, m and g stand for 2^10, 2^20 and 2^30."""
        value = self.text(name).lower()
        found = re.fullmatch(r"(\d+)([kmg]?)b?", value)
        if value and not found:
            raise OptionError(f"option {name}: {value!r} is not a whole number")
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else default

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration: a number with ms, s, m or h."""
        value = self.text(name).lower()
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", value)
        if value and not found:
            raise OptionError(f"option {name}: {value!r} is not a duration such as 500ms, 30s, 15m")
        return int(found[1]) * UNITS_MS[found[2]] if found else default

    def time_ms(self, name: str) -> int | None:
        """Return a time in milliseconds; None when it is not given. A date and time is taken as UTC."""
        value = self.text(name)
        if not value or value.isdigit():
            return int(value) if value else None
        try:
            at = datetime.fromisoformat(value)
        except ValueError as error:
            raise OptionError(
                f"option {name}: {value!r} is neither milliseconds nor a time such as 2026-11-21T08:00"
            ) from error
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)

    def positions(self, name: str, default: int, *, streaming: bool) -> int | Positions:
        """Return where to start or end."""
        value = self.text(name)
        words: dict[str, int] = {"earliest": EARLIEST, "latest": LATEST}
        if not value:
            return default
        if value.lower() in words:
            word = words[value.lower()]
            if name == "endingOffsets" and word == EARLIEST:
                raise OptionError("option endingOffsets: `earliest` would read nothing; leave it out for all")
            if name == "startingOffsets" and word == LATEST and not streaming:
                raise OptionError(
                    "option startingOffsets: a batch from `latest` on reads nothing; leave it out for all"
                )
            return word
        checked: Callable[[str, str], Positions] = from_option
        try:
            return checked(name, value)
        except ValueError as error:
            raise OptionError(f"option {error}") from error
