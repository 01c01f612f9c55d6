"""An archive's files as a Delta or an Iceberg table, without a jar: the driver commits the list of files.

Exactly once comes from the tables' own commits, which name query and batch:

    Delta     a transaction identifier: application = query, version = batch (`deltalake`)
    Iceberg   properties of the snapshot, `whimbrel.query` and `whimbrel.batch` (`pyiceberg`)

So the table knows whether it has a batch; `batches.py` asks before it removes any file. Snapshots may expire,
except the newest one of a query: Spark runs only its last batch again.

A Delta table is partitioned by topic and dt, as the folders are; its log is ROOT/_delta_log. An Iceberg table
has the column topic in its files, and no partitions. Its catalog and metadata are ROOT/_iceberg/catalog.db
(SQLite) and beside it, unless another catalog is named.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from whimbrel.spark.archiving.batches import CatalogTable
from whimbrel.spark.archiving.files import file_schema
from whimbrel.spark.archiving.folder import ArchiveError
from whimbrel.spark.archiving.manifests import ManifestEntry

__all__ = ["DeltaFiles", "IcebergFiles", "TableOptions", "open_table"]

QUERY, BATCH = "whimbrel.query", "whimbrel.batch"
ICEBERG = "_iceberg"
Kind = Literal["delta", "iceberg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Which table.

    Attributes:
        name: NAMESPACE.TABLE in an Iceberg catalog.
        catalog: properties of an Iceberg catalog; empty: a catalog in the archive.
    """

    kind: Kind
    name: str = "whimbrel.messages"
    catalog: tuple[tuple[str, str], ...] = ()

    @property
    def topic_inside(self) -> bool:
        """Whether files have the column topic."""
        return self.kind == "iceberg"


def open_table(root: Path, options: TableOptions) -> CatalogTable:
    """Return a table.

    Raises:
        ArchiveError: the library that it needs is missing, or its catalog can't be opened.
    """
    try:
        if options.kind == "delta":
            return DeltaFiles(root)
        return IcebergFiles(root, options)
    except ImportError as error:
        library = "deltalake" if options.kind == "delta" else "pyiceberg"
        raise ArchiveError(
            f"{library} is missing: a table needs the extra `{options.kind}`,"
            f' as in pip install ".[spark,{options.kind}]" in a clone of whimbrel'
        ) from error


class DeltaFiles:
    """A Delta table over an archive's files."""

    def __init__(self, root: Path) -> None:
        import deltalake
        from deltalake import transaction

        self.root, self.deltalake, self.transaction = root, deltalake, transaction

    def table(self) -> Any | None:
        """Return the table; None before its first batch."""
        if not self.deltalake.DeltaTable.is_deltatable(str(self.root)):
            return None
        return self.deltalake.DeltaTable(str(self.root))

    def has(self, query: str, batch: int) -> bool:
        """Return whether a batch was added."""
        table = self.table()
        version = table.transaction_version(query) if table is not None else None
        return version is not None and version >= batch

    def add(self, query: str, batch: int, entries: Sequence[ManifestEntry]) -> None:
        """Add files in one commit."""
        now = int(time.time() * 1000)
        actions = [
            self.transaction.AddAction(
                path=entry.path,  # escaped by the library
                size=entry.size,
                partition_values={"topic": entry.topic, "dt": entry.day},
                modification_time=now,
                data_change=True,
                stats=statistics(entry),
            )
            for entry in entries
        ]
        schema = self.deltalake.Schema.from_arrow(
            pa.schema([*file_schema(), pa.field("topic", pa.string()), pa.field("dt", pa.string())])
        )
        properties = self.transaction.CommitProperties(
            app_transactions=[self.transaction.Transaction(query, batch)]
        )
        table = self.table()
        if table is None:
            self.transaction.create_table_with_add_actions(
                str(self.root),
                schema,
                actions,
                mode="error",
                partition_by=["topic", "dt"],
                name="whimbrel",
                commit_properties=properties,
            )
        else:
            table.create_write_transaction(
                actions, "append", schema, partition_by=["topic", "dt"], commit_properties=properties
            )


def statistics(entry: ManifestEntry) -> str:
    """Return the statistics of a file in Delta's form, by which readers skip files."""
    low, high = (
        datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for at in (entry.first_stored, entry.last_stored)
    )
    queue_ids = [part.queue_id for part in entry.queues]
    return json.dumps(
        {
            "numRecords": entry.rows,
            "minValues": {"brokerName": entry.broker, "queueId": min(queue_ids), "storeTimestamp": low},
            "maxValues": {"brokerName": entry.broker, "queueId": max(queue_ids), "storeTimestamp": high},
            "nullCount": {"brokerName": 0, "queueId": 0, "storeTimestamp": 0},
        }
    )


class IcebergFiles:
    """An Iceberg table over an archive's files."""

    def __init__(self, root: Path, options: TableOptions) -> None:
        from pyiceberg.catalog import load_catalog

        self.root, self.options = root.resolve(), options
        given = dict(options.catalog)
        if not given:
            home = self.root / ICEBERG
            home.mkdir(parents=True, exist_ok=True)
            given = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": home.as_uri()}
        self.catalog = load_catalog("whimbrel", **given)

    def table(self) -> Any | None:
        """Return the table; None before its first batch."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(self.options.name)
        except NoSuchTableError:
            return None

    def has(self, query: str, batch: int) -> bool:
        """Return whether a batch was added."""
        table = self.table()
        if table is None:
            return False
        summaries = [
            snapshot.summary for snapshot in table.metadata.snapshots if snapshot.summary is not None
        ]
        return any(each.get(QUERY) == query and int(each.get(BATCH) or -1) >= batch for each in summaries)

    def add(self, query: str, batch: int, entries: Sequence[ManifestEntry]) -> None:
        """Add files in one snapshot; the library refuses files that are in the table already."""
        table = self.table()
        if table is None:
            namespace = self.options.name.rpartition(".")[0]
            if namespace:
                self.catalog.create_namespace_if_not_exists(namespace)
            table = self.catalog.create_table(self.options.name, file_schema(inside=True))
        # The library expects the path as it is, not escaped as in a URL.
        paths = [f"file://{self.root}/{entry.path}" for entry in entries]
        table.add_files(paths, snapshot_properties={QUERY: query, BATCH: str(batch)})
