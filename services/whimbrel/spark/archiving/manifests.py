"""The files that a batch has written, listed in `_manifests/QUERY/BATCH.json`. Pure.

    {"version": 1, "query": "3f9c...", "batch": 12, "kind": "batch",
     "ranges": {"orders": {"broker-a": {"0": [[100, 200]]}}},              half open, for people
     "files": [{"path": "topic=orders/dt=2026-11-21/....parquet", "topic": "orders", "broker": "broker-a",
                "day": "2026-11-21", "rows": 100, "bytes": 20480, "crc": 12345, "logBytes": 41000,
                "groups": 1, "queues": [[0, 100, 200, 100]], "stored": [1763683200000, 1763683201000]}],
     "replaces": []}

`queues` has queue id, first offset, one past the last, and rows; `crc` is the CRC32 of the file, `logBytes`
the size of its records in the log, `groups` its row groups, `stored` the first and last store time in ms. A
file counts if a manifest names it and no manifest replaces it; compacting in place replaces files.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whimbrel.spark.archiving.ranges import QueueSpan, merged

__all__ = ["Manifest", "ManifestEntry", "QueueRange", "live"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The part of a queue in a file: `rows` of the offsets in [first, end)."""

    queue_id: int
    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """One file; see the module for its fields."""

    path: str
    topic: str
    broker: str
    day: str
    rows: int
    size: int
    crc: int
    log_bytes: int
    groups: int
    queues: tuple[QueueRange, ...]
    first_stored: int
    last_stored: int

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON."""
        return {
            "path": self.path,
            "topic": self.topic,
            "broker": self.broker,
            "day": self.day,
            "rows": self.rows,
            "bytes": self.size,
            "crc": self.crc,
            "logBytes": self.log_bytes,
            "groups": self.groups,
            "queues": [[part.queue_id, part.first, part.end, part.rows] for part in self.queues],
            "stored": [self.first_stored, self.last_stored],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ManifestEntry":
        """Return the entry that JSON holds."""
        return cls(
            path=value["path"],
            topic=value["topic"],
            broker=value["broker"],
            day=value["day"],
            rows=value["rows"],
            size=value["bytes"],
            crc=value["crc"],
            log_bytes=value["logBytes"],
            groups=value["groups"],
            queues=tuple(QueueRange(*part) for part in value["queues"]),
            first_stored=value["stored"][0],
            last_stored=value["stored"][1],
        )

    def spans(self) -> Iterable[QueueSpan]:
        """Yield its ranges by queue."""
        for part in self.queues:
            yield QueueSpan(
                (self.topic, self.broker, part.queue_id), part.first, part.end, part.rows, self.path
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A batch's files, and the paths that they replace."""

    query: str
    batch: int
    entries: tuple[ManifestEntry, ...]
    kind: str = "batch"
    replaces: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the text of the manifest's file."""
        ranges: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
        for span in merged(span for entry in self.entries for span in entry.spans()):
            topic, broker, queue_id = span.key
            queues = ranges.setdefault(topic, {}).setdefault(broker, {})
            queues.setdefault(str(queue_id), []).append([span.first, span.end])
        return json.dumps(
            {
                "version": VERSION,
                "query": self.query,
                "batch": self.batch,
                "kind": self.kind,
                "ranges": ranges,
                "files": [entry.to_json() for entry in self.entries],
                "replaces": list(self.replaces),
            },
            ensure_ascii=False,
        )

    @classmethod
    def parse(cls, text: str, name: str) -> "Manifest":
        """Return the manifest that a text holds; `name` is for the error.

        Raises:
            ValueError: it is no manifest, or one of another release.
        """
        try:
            value = json.loads(text)
            if value["version"] != VERSION:
                raise ValueError(
                    f"{name} is a manifest of version {value['version']!r}, and this release knows {VERSION}:"
                    " use the release that wrote it"
                )
            return cls(
                query=value["query"],
                batch=value["batch"],
                kind=value["kind"],
                entries=tuple(ManifestEntry.from_json(entry) for entry in value["files"]),
                replaces=tuple(value["replaces"]),
            )
        except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
            raise ValueError(f"{name} is no manifest: {error!r}; restore it from a backup") from error


def live(manifests: Iterable[Manifest]) -> list[ManifestEntry]:
    """Return the files that count, by path."""
    known = list(manifests)
    replaced = {path for manifest in known for path in manifest.replaces}
    entries = {entry.path: entry for manifest in known for entry in manifest.entries}
    return [entries[path] for path in sorted(entries) if path not in replaced]
