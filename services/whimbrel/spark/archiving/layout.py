"""Names in an archive. Pure.

    ROOT/topic=T/dt=YYYY-MM-DD/QUERY-BATCH-BROKER-qQ.FIRST-qQ.LAST.parquet       first and last row
    ROOT/topic=T/dt=YYYY-MM-DD/_QUERY-BATCH-ATTEMPT-N.tmp                        hidden, not complete yet
    ROOT/_manifests/QUERY/BATCH.json                                             the files of the batch
    ROOT/_manifests/QUERY/_BATCH.begun, _BATCH.prepared, _BATCH.switch           a batch in progress

Days are those of the store time, in UTC. Topics and brokers are escaped as in a URL, which Hive, Spark, Arrow
and DuckDB decode. All of these ignore names that begin with `_`. A temporary file does not end in `.parquet`
either, for readers that go by a pattern. The column `topic` is in the folder's name only: Arrow and pandas
refuse folders if name and files both have it.

A table with a catalog of its own (`--table iceberg`) needs the column in the files. So its folders are
others, `data/T/YYYY-MM-DD`, whose names no reader takes for columns.
"""

import re
from datetime import UTC, date, datetime, timedelta
from urllib.parse import quote, unquote

__all__ = [
    "BEGUN",
    "MANIFESTS",
    "PREPARED",
    "SWITCH",
    "batch_name",
    "data_name",
    "day_of",
    "escaped",
    "folder_name",
    "owner_of",
    "today",
    "topic_of",
    "waiting_name",
]

MANIFESTS = "_manifests"
BEGUN, PREPARED, SWITCH = "begun", "prepared", "switch"
EPOCH = date(1970, 1, 1)
OWNER = re.compile(r"_?([0-9a-z]+)-(\d{8,})-.*\.(?:parquet|tmp)")


def escaped(text: str) -> str:
    """Return a topic or broker as it is written in names."""
    return quote(text, safe="")


def folder_name(topic: str, day: str, *, inside: bool = False) -> str:
    """Return the folder of a topic's day; `inside` where the files have the column `topic`."""
    return f"data/{escaped(topic)}/{day}" if inside else f"topic={escaped(topic)}/dt={day}"


def topic_of(path: str) -> str:
    """Return the topic of a file's path in an archive."""
    folder = path.split("/")[-3]
    return unquote(folder.removeprefix("topic="))


def day_of(days: int) -> str:
    """Return a day by its number since 1970; 1970-01-01 for one beyond the calendar."""
    try:
        return (EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return EPOCH.isoformat()


def today(now: float) -> str:
    """Return the day of a time in seconds since 1970."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def batch_name(batch: int) -> str:
    """Return a batch's number as it is written in names, which then sort by it."""
    return f"{batch:08d}"


def data_name(query: str, batch: int, broker: str, first: tuple[int, int], last: tuple[int, int]) -> str:
    """Return the name of a file; `first` and `last` are queue and offset of its rows at either end.

    No two files of a batch have the same first row, so their names differ.
    """
    ends = f"q{first[0]}.{first[1]}-q{last[0]}.{last[1]}"
    return f"{query}-{batch_name(batch)}-{escaped(broker)}-{ends}.parquet"


def waiting_name(query: str, batch: int, attempt: str, number: int) -> str:
    """Return the hidden name of a file while it is written; its last row is not known yet."""
    return f"_{query}-{batch_name(batch)}-{attempt}-{number}.tmp"


def owner_of(name: str) -> tuple[str, int] | None:
    """Return the query and batch of a file, from its name; None for a file with another name."""
    found = OWNER.fullmatch(name)
    return (found[1], int(found[2])) if found else None
