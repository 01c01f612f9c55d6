"""Names in an archive. Pure.

    ROOT/topic=T/dt=YYYY-MM-DD/QUERY-BATCH-BROKER-qQ.FIRST-qQ.LAST.parquet       first and last row
    ROOT/topic=T/dt=YYYY-MM-DD/_QUERY-BATCH-ATTEMPT-N.tmp                        not visible yet
    ROOT/_manifests/QUERY/BATCH.json                                             what the batch has written
    ROOT/_manifests/QUERY/_BATCH.begun, _BATCH.prepared, _BATCH.switch           a batch under way

Days are those of the store time, in UTC. Topics and brokers are escaped as in a URL, which Hive, Spark, Arrow
and DuckDB undo. Whatever begins with `_` is passed over by all of them, and a temporary file does not end in
`.parquet` either, for those that go by a pattern. The column `topic` stands in the folder's name alone: Arrow
and pandas refuse a folder whose name and files both have it.

A table that has a catalog of its own (`--table iceberg`) needs the column in the files, and so has other
folders, `data/T/YYYY-MM-DD`, in which nobody sees a column.
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
    """Return a topic or broker as it stands in a name."""
    return quote(text, safe="")


def folder_name(topic: str, day: str, *, inside: bool = False) -> str:
    """Return the folder of a topic's day; `inside` where the files have the column `topic`."""
    return f"data/{escaped(topic)}/{day}" if inside else f"topic={escaped(topic)}/dt={day}"


def topic_of(path: str) -> str:
    """Return the topic of a file's path in an archive."""
    folder = path.split("/")[-3]
    return unquote(folder.removeprefix("topic="))


def day_of(days: int) -> str:
    """Return a day, by its number since 1970; what no calendar has is the first one."""
    try:
        return (EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return EPOCH.isoformat()


def today(now: float) -> str:
    """Return the day of a time in seconds since 1970."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def batch_name(batch: int) -> str:
    """Return a batch's number as it stands in names, so that names sort."""
    return f"{batch:08d}"


def data_name(query: str, batch: int, broker: str, first: tuple[int, int], last: tuple[int, int]) -> str:
    """Return the name of a file; `first` and `last` are queue and offset of its rows at either end.

    No two files of a batch have the same first row, so their names differ.
    """
    ends = f"q{first[0]}.{first[1]}-q{last[0]}.{last[1]}"
    return f"{query}-{batch_name(batch)}-{escaped(broker)}-{ends}.parquet"


def waiting_name(query: str, batch: int, attempt: str, number: int) -> str:
    """Return the name that a file has while it is written; its last row is not known yet."""
    return f"_{query}-{batch_name(batch)}-{attempt}-{number}.tmp"


def owner_of(name: str) -> tuple[str, int] | None:
    """Return the query and batch that a file belongs to; None for a file that no batch has named."""
    found = OWNER.fullmatch(name)
    return (found[1], int(found[2])) if found else None
