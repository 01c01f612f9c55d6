"""Commitlog bytes to Arrow record batches, for readers that want many records and few of their fields.

    schema.py     the columns, and what each shows
    records.py    bytes to checked records: the fixed fields as numpy arrays
    scan.py       a stretch of a log, from anywhere to anywhere
    selection.py  which records become rows
    texts.py      topics, hosts and properties as Arrow arrays
    bodies.py     CRCs and decompression
    decoder.py    records to batches

A plain use, over bytes that follow each other in a log:

    decoder = Decoder(["topic", "queueOffset", "body"], broker_name="broker-a")
    for batch in decoder.batches(walk(data, base=offset).records):
        ...

`Scan` reads a split of a log, `Records.at` takes positions from a consume queue, `frame` the frames of the
bulk service.

Needs numpy and pyarrow, which whimbrel does without otherwise: only what runs beside Spark imports this.
"""

from whimbrel.store.columns.decoder import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    Corrupt,
    Decoder,
    OnCorrupt,
    Predicate,
)
from whimbrel.store.columns.records import Mask, Records, Stop, Walked, frame, walk
from whimbrel.store.columns.scan import Fault, OnFault, Scan
from whimbrel.store.columns.schema import ALL_COLUMNS, COLUMNS, KAFKA_COLUMNS, schema_of
from whimbrel.store.columns.selection import EVERYTHING, Selection, Topics

__all__ = [
    "ALL_COLUMNS",
    "BATCH_BYTES_MAX",
    "BATCH_ROWS_MAX",
    "COLUMNS",
    "EVERYTHING",
    "KAFKA_COLUMNS",
    "Corrupt",
    "Decoder",
    "Fault",
    "Mask",
    "OnCorrupt",
    "OnFault",
    "Predicate",
    "Records",
    "Scan",
    "Selection",
    "Stop",
    "Topics",
    "Walked",
    "frame",
    "schema_of",
    "walk",
]
