"""Records to Arrow record batches: only the columns that are asked for, in the order in which they are.

A batch has at most `rows_max` rows, and at most about `bytes_max` bytes of records and as many of inflated
bodies (but at least one row): Arrow's offsets have 32 bits, and the caller holds several batches in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import CorruptRecord
from whimbrel.model.limits import INFLATED_BYTES_MAX
from whimbrel.store.codec import RAW_KEYS, RAW_TAGS, RAW_UNIQ_KEY
from whimbrel.store.columns.bodies import compressed, crc_good, seal_fault_of
from whimbrel.store.columns.kinds import kinds
from whimbrel.store.columns.records import Ints, Mask, Records
from whimbrel.store.columns.schema import COLUMNS, HEADER, LOG_APPEND_TIME, TIMESTAMP, schema_of
from whimbrel.store.columns.selection import EVERYTHING, Selection
from whimbrel.store.columns.texts import Pairs, hosts, offset_ids, slices, spread, texts
from whimbrel.store.compression import inflate

__all__ = ["BATCH_BYTES_MAX", "BATCH_ROWS_MAX", "INFLATED", "Corrupt", "Decoder", "OnCorrupt", "Predicate"]

BATCH_ROWS_MAX = 10_000  # from 1 000 on, more rows gain nothing; so many keep a batch in the CPU's caches
BATCH_BYTES_MAX = 8 * 1024 * 1024
CORRUPT_KEPT_MAX = 1000  # bodies named one by one; all are counted
US_MAX_MS = (2**63 - 1) // 1000  # what a timestamp in microseconds can hold

OnCorrupt = Literal["fail", "skip", "flag"]
Predicate = Callable[[Records], Mask]

# Columns as large as the records' own bytes; batches without any are bounded by rows alone.
LARGE = frozenset(
    {"body", "value", "properties", "propertiesText", "headers", "keys", "key", "tags", "msgId"}
)
INFLATED = frozenset({"body", "value", "bodyOk"})  # columns for which bodies are decompressed


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A body that does not match its record's CRC or flags."""

    physical_offset: int
    what: str


class Decoder:
    """Makes batches of records.

    Attributes:
        schema: of every batch.
        corrupt: the first bodies that were left out or flagged.
        corrupt_count: how many there were.
    """

    def __init__(
        self,
        columns: Sequence[str] = COLUMNS,
        *,
        broker_name: str = "",
        verify_crc: bool = False,
        on_corrupt: OnCorrupt = "fail",
        raw_bodies: bool = False,
        raw_properties: bool = False,
        selection: Selection = EVERYTHING,
        predicate: Predicate | None = None,
        rows_max: int = BATCH_ROWS_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        """Decide what batches hold.

        Args:
            columns: see `schema.py`.
            verify_crc: compare each body with its CRC, and treat one that does not match as corrupt. A column
                `crcOk` has the result either way.
            on_corrupt: what to do with a body that does not match its CRC, or (when bodies are asked for, and
                not raw) does not decompress. `fail` raises CorruptRecord; `skip` leaves the record out;
                `flag` keeps it with its body as stored; `crcOk` is whether the CRC matches, and `bodyOk` is
                false in either case.
            raw_bodies: return bodies as they are stored.
            raw_properties: return the property text as it is stored, in place of a map.
            selection: which records are selected.
            predicate: a further selection by the fixed fields (`Records.ints`).
            rows_max, bytes_max: of a batch.

        Raises:
            ValueError: no column, an unknown one, or one twice.
        """
        self.schema = schema_of(columns, raw_properties=raw_properties)
        self.columns = tuple(columns)
        self.broker_name = broker_name
        self.verify_crc = verify_crc
        self.on_corrupt = on_corrupt
        self.raw_properties = raw_properties
        self.inflates = not raw_bodies and not INFLATED.isdisjoint(columns)
        self.selection, self.predicate = selection, predicate
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.large = not LARGE.isdisjoint(columns)
        self.corrupt: list[Corrupt] = []
        self.corrupt_count = 0

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        """Decode records.

        Raises:
            CorruptRecord: a body is corrupt, and `on_corrupt` is `fail`.
        """
        if self.predicate is not None and len(records):
            records = records.pick(self.predicate(records))
        records = self.selection.pick(records)
        while len(records):
            rows = Rows(self, records.pick(slice(self.rows_that_fit(records))))
            if self.inflates:
                rows.inflate()
            if self.verify_crc:
                rows.verify()
            records = records.pick(slice(rows.consumed, None))
            if len(rows.records):
                yield pa.RecordBatch.from_arrays(
                    [rows.column(name) for name in self.columns], schema=self.schema
                )

    def rows_that_fit(self, records: Records) -> int:
        """Return how many of the records go into a batch, going by their sizes."""
        if not self.large:
            return self.rows_max
        filled = np.cumsum(records.head["size"][: self.rows_max], dtype=np.int64)
        return max(1, int(np.searchsorted(filled, self.bytes_max, "right")))

    def note(self, physical_offset: int, what: str) -> None:
        """Note a corrupt body.

        Raises:
            CorruptRecord: that is what is to be done with it.
        """
        if self.on_corrupt == "fail":
            raise CorruptRecord(f"the record at {physical_offset}: {what}")
        self.corrupt_count += 1
        if len(self.corrupt) < CORRUPT_KEPT_MAX:
            self.corrupt.append(Corrupt(physical_offset, what))


class Rows:
    """The records of one batch while its columns are made.

    Attributes:
        consumed: how many of the records it was given it has dealt with.
        plain: decompressed bodies, by row.
        opaque: rows whose bodies do not decompress and are kept all the same.
    """

    def __init__(self, decoder: Decoder, records: Records) -> None:
        self.decoder, self.records = decoder, records
        self.consumed = len(records)
        self.plain: dict[int, bytes] = {}
        self.opaque: set[int] = set()
        self.numbers = np.arange(len(records))  # which of the given records each row is
        self.crc: Mask | None = None

    def verify(self) -> None:
        """Compare bodies and sealed records with their CRCs; do what is to be done with those that differ."""
        good = self.crc_ok
        if good.all():
            return
        for row in np.flatnonzero(~good).tolist():
            if row not in self.opaque:
                what = seal_fault_of(self.records, row) or "its body does not match its CRC"
                self.decoder.note(self.place_of(row), what)
        if self.decoder.on_corrupt == "skip":
            self.keep(good)

    def inflate(self) -> None:
        """Decompress bodies until there are bytes enough for a batch; the rest is left for the next one."""
        records = self.records
        rows = compressed(records)
        if not len(rows):
            return
        good = np.ones(len(records), np.bool_)
        flags, filled = records.head["sys_flag"], 0
        for row in rows.tolist():
            body = records.data[int(records.body_start[row]) : int(records.body_end[row])]
            try:
                plain = inflate(body, int(flags[row]), INFLATED_BYTES_MAX)
            except CorruptRecord as error:
                self.decoder.note(self.place_of(row), str(error))
                if self.decoder.on_corrupt == "skip":
                    good[row] = False
                else:
                    self.opaque.add(row)
                continue
            filled += len(plain)
            if filled > self.decoder.bytes_max and row:
                self.consumed = int(self.numbers[row])
                good[row:] = False
                break
            self.plain[row] = plain
        if not good.all():
            self.keep(good)

    def keep(self, which: Mask) -> None:
        """Drop the other rows."""
        self.records, self.numbers = self.records.pick(which), self.numbers[which]
        if self.crc is not None:
            self.crc = self.crc[which]
        new = np.cumsum(which) - 1
        self.plain = {int(new[row]): plain for row, plain in self.plain.items() if which[row]}
        self.opaque = {int(new[row]) for row in self.opaque if which[row]}

    def place_of(self, row: int) -> int:
        """Return the physical offset of a row's record."""
        return int(self.records.head["physical_offset"][row])

    @property
    def crc_ok(self) -> Mask:
        """Which records match their CRCs."""
        if self.crc is None:
            self.crc = crc_good(self.records)
        return self.crc

    @property
    def body_ok(self) -> Mask:
        """Which records match their CRCs and have bodies that decompress."""
        good = self.crc_ok.copy()
        good[list(self.opaque)] = False
        return good

    @cached_property
    def pairs(self) -> Pairs:
        """The properties, parsed."""
        return Pairs(self.records)

    def column(self, name: str) -> pa.Array:
        """Make a column."""
        if name in INTS:
            field, kind = INTS[name]
            return pa.array(self.records.head[field].astype(kind))
        return OTHERS[name](self)

    def text(self, starts: Ints, ends: Ints) -> pa.Array:
        """Return slices of the records as strings."""
        return texts(slices(self.records.buffer, starts, ends, pa.binary()))

    def bodies(self) -> pa.Array:
        """Make the column of bodies."""
        records = self.records
        stored = slices(records.buffer, records.body_start, records.body_end, pa.binary())
        if not self.plain:
            return stored
        rows = np.array(sorted(self.plain))
        plain = pa.array([self.plain[row] for row in rows.tolist()], pa.binary())
        places = np.arange(len(records))
        places[rows] = len(records) + np.arange(len(rows))
        return pc.take(pa.concat_arrays([stored, plain]), pa.array(places))

    def timestamps(self, name: str) -> pa.Array:
        """Make a column of a time in milliseconds."""
        values = self.records.ints(name)
        beyond = (values > US_MAX_MS) | (values < -US_MAX_MS)
        return pa.array(np.where(beyond, 0, values) * 1000, mask=beyond if beyond.any() else None).view(
            TIMESTAMP
        )

    def message_ids(self) -> pa.Array:
        """Make the column of message ids."""
        ids = self.pairs.value_of(RAW_UNIQ_KEY, pa.string())
        if not ids.null_count:
            return ids
        missing = np.asarray(ids.is_null())
        others = offset_ids(self.records.pick(missing))
        return pc.coalesce(ids, spread(others, np.flatnonzero(missing), len(ids)))

    def properties(self) -> pa.Array:
        """Make the column of properties."""
        if self.decoder.raw_properties:
            return self.property_texts()
        self.pairs.unique()
        return pa.MapArray.from_arrays(self.pairs.offsets, self.pairs.names, self.pairs.values)

    def property_texts(self) -> pa.Array:
        """Make the column of properties as they are stored."""
        records = self.records
        return slices(records.buffer, records.topic_end + 2, records.ends, pa.binary())

    def types(self) -> pa.Array:
        """Make the column of kinds of messages."""

        def has(name: str) -> Mask:
            rows, _ = self.pairs.find(name.encode())
            return np.isin(np.arange(len(self.records)), rows)

        return kinds(self.text(self.records.topic_start, self.records.topic_end), has)

    def headers(self) -> pa.Array:
        """Make the column of headers; like Kafka's, null where there are none."""
        self.pairs.unique()
        pairs = self.pairs
        values = pairs.values.cast(pa.binary())
        entries = pa.StructArray.from_arrays([pairs.names, values], fields=list(HEADER))
        none = np.bincount(pairs.row, minlength=pairs.count) == 0
        mask = pa.array(none) if none.any() else None
        kind = self.decoder.schema.field("headers").type
        return pa.ListArray.from_arrays(pairs.offsets, entries, type=kind, mask=mask)


INTS: dict[str, tuple[str, npt.DTypeLike]] = {
    "queueId": ("queue_id", np.int32),
    "queueOffset": ("queue_offset", np.int64),
    "physicalOffset": ("physical_offset", np.int64),
    "size": ("size", np.int32),
    "reconsumeTimes": ("reconsume_times", np.int32),
    "flag": ("flag", np.int32),
    "sysFlag": ("sys_flag", np.int32),
    "preparedTransactionOffset": ("prepared_offset", np.int64),
    "bodyCrc": ("body_crc", np.int32),
    "partition": ("queue_id", np.int32),
    "offset": ("queue_offset", np.int64),
}

OTHERS: dict[str, Callable[[Rows], pa.Array]] = {
    "topic": lambda rows: rows.text(rows.records.topic_start, rows.records.topic_end),
    "brokerName": lambda rows: pa.repeat(pa.scalar(rows.decoder.broker_name, pa.string()), len(rows.records)),
    "msgId": Rows.message_ids,
    "tags": lambda rows: rows.pairs.value_of(RAW_TAGS, pa.string()),
    "keys": lambda rows: rows.pairs.value_of(RAW_KEYS, pa.string()),
    "body": Rows.bodies,
    "bornTimestamp": lambda rows: rows.timestamps("born_ms"),
    "storeTimestamp": lambda rows: rows.timestamps("stored_ms"),
    "bornHost": lambda rows: hosts(rows.records, "born_host"),
    "storeHost": lambda rows: hosts(rows.records, "store_host"),
    "properties": Rows.properties,
    "propertiesText": Rows.property_texts,
    "type": Rows.types,
    "crcOk": lambda rows: pa.array(rows.crc_ok),
    "bodyOk": lambda rows: pa.array(rows.body_ok),
    "key": lambda rows: rows.pairs.value_of(RAW_KEYS, pa.binary()),
    "value": Rows.bodies,
    "timestamp": lambda rows: rows.timestamps("stored_ms"),
    "timestampType": lambda rows: pa.array(np.full(len(rows.records), LOG_APPEND_TIME, np.int32)),
    "headers": Rows.headers,
}
