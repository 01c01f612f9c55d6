"""Variable fields as Arrow arrays: slices of bytes, texts, hosts, and the pairs of the property text.

A column of slices is one Arrow array over the bytes themselves, whose offsets are
`start0, end0, start1, end1, ...`; taking every second element copies the slices in C++ and skips the gaps.

The property text of all records is split the same way. In the joined text (`name 0x01 value 0x02 name ...`),
the positions of all 0x02 and of the ends of the texts are the ends of its pairs; the first 0x01 in each pair
ends its name. As `parse_properties` does: pairs without name or value are ignored, and of several equal names
the last one wins.

Bytes that are not UTF-8 become U+FFFD, as everywhere in whimbrel.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.store.codec import BORN_V6, HOST_V4_SIZE, HOST_V6_SIZE, STORE_V6, unpack_host
from whimbrel.store.columns.records import Ints, Mask, Records, gather

__all__ = ["Pairs", "hosts", "offset_ids", "slices", "texts"]

TABLE_WIDTH = 64  # names told apart at once; most logs have fewer
HEX_DIGITS = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "S2")


def slices(buffer: pa.Buffer, starts: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """Copy slices of a buffer into an array of a binary or string type; they must be in ascending order."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    whole = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(borders), buffer])
    return pc.take(whole, pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)), boundscheck=False)


def texts(raw: pa.Array) -> pa.Array:
    """Return binary values as strings."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(value, "utf-8", "replace") for value in raw.to_pylist()], pa.string())


class Pairs:
    """The properties of records, parsed.

    Attributes:
        row: of each pair, the record that it belongs to; ascending.
        start, middle, end: of each pair in the joined text; `middle` is the 0x01 behind the name.
    """

    def __init__(self, records: Records) -> None:
        self.count = len(records)
        self.text = texts(slices(records.buffer, records.topic_end + 2, records.ends, pa.binary()))
        _, borders, data = self.text.buffers()
        self.buffer: pa.Buffer = data if data is not None else pa.py_buffer(b"")
        offsets = np.frombuffer(borders, np.int32)[: self.count + 1] if self.count else np.zeros(1, np.int32)
        self.letters = memoryview(self.buffer)[: int(offsets[-1])]
        self.data = np.frombuffer(self.letters, np.uint8) if len(self.letters) else NOTHING
        self.row, self.start, self.end = split(self.data, offsets)
        self.middle = self.end
        self.find_middles()

    def find_middles(self) -> None:
        """Find where each name ends, and drop what is no pair."""
        middles = np.flatnonzero(self.data == 1)
        self.keep(self.start != self.end)  # behind a last 0x02, most often
        if len(middles) == len(self.row) and bool(((self.start < middles) & (middles + 1 < self.end)).all()):
            self.middle = middles
            return
        following = np.append(middles, len(self.data))
        self.middle = following[np.searchsorted(middles, self.start)]
        self.keep((self.start < self.middle) & (self.middle + 1 < self.end))

    def keep(self, which: Mask) -> None:
        """Drop the other pairs."""
        if not which.all():
            self.row, self.start, self.end = self.row[which], self.start[which], self.end[which]
            self.middle = self.middle[which]

    @cached_property
    def lengths(self) -> Ints:
        """How long each name is."""
        return self.middle - self.start

    @cached_property
    def names(self) -> pa.Array:
        """The name of each pair."""
        return slices(self.buffer, self.start, self.middle, pa.string())

    @cached_property
    def values(self) -> pa.Array:
        """The value of each pair."""
        return slices(self.buffer, self.middle + 1, self.end, pa.string())

    @cached_property
    def offsets(self) -> pa.Array:
        """Where each record's pairs begin, and where the last ones end."""
        counts = np.bincount(self.row, minlength=self.count)
        return pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))

    def unique(self) -> None:
        """Drop pairs whose name comes again in the same record, of which real logs have few.

        Counted in a table of records by names; many names share the columns of the table.
        """
        if not len(self.row):
            return
        codes = np.asarray(self.names.dictionary_encode().indices).astype(np.int64)
        kinds = int(codes.max()) + 1
        width = min(kinds, TABLE_WIDTH)
        cells = self.row * width + (codes if kinds == width else codes % width)
        table = np.bincount(cells, minlength=self.count * width)
        if int(table.max()) == 1:
            return
        suspects = table.reshape(self.count, width).max(axis=1) > 1
        among = np.flatnonzero(suspects[self.row])
        marks = self.row[among] * kinds + codes[among]
        _, last = np.unique(marks[::-1], return_index=True)
        which = np.ones(len(self.row), np.bool_)
        which[among] = False
        which[among[len(among) - 1 - last]] = True
        if not which.all():
            self.keep(which)
            for name in ("names", "values", "offsets", "lengths"):
                self.__dict__.pop(name, None)

    def find(self, name: bytes) -> tuple[Ints, Ints]:
        """Return the records that have a property, and for each of them the pair that counts."""
        found = np.flatnonzero(self.lengths == len(name))
        step = 4 if len(name) % 4 == 0 else 1  # the names that matter have 4 or 8 letters
        for place in range(0, len(name), step):
            letters = gather(self.letters, self.start[found] + place, f"<u{step}")
            found = found[letters == int.from_bytes(name[place : place + step], "little")]
        rows = self.row[found]
        last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, np.bool_)
        return rows[last], found[last]

    def value_of(self, name: bytes, kind: pa.DataType) -> pa.Array:
        """Return one property of each record, null where it has none."""
        rows, found = self.find(name)
        values = slices(self.buffer, self.middle[found] + 1, self.end[found], kind)
        return spread(values, rows, self.count)


NOTHING = np.zeros(0, np.uint8)


def split(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> tuple[Ints, Ints, Ints]:
    """Cut texts that stand side by side at each 0x02; return row, start and end of the parts."""
    commas = np.flatnonzero(data == 2)
    # A text's end stands where the next text may have its first comma, and goes before it.
    borders = np.concatenate([offsets[1:].astype(np.int64) * 2, commas * 2 + 1])
    borders.sort(kind="stable")  # merges two runs that are sorted already
    ends, commas = borders >> 1, borders & 1
    starts, rows = np.zeros_like(ends), np.zeros_like(ends)
    np.add(ends[:-1], commas[:-1], out=starts[1:])
    np.cumsum(1 - commas[:-1], out=rows[1:])
    return rows, starts, ends


def spread(values: pa.Array, rows: Ints, count: int) -> pa.Array:
    """Give each value its row, and the other rows null."""
    if len(values) == count:
        return values
    places = np.zeros(count, np.int32)
    places[rows] = np.arange(len(rows))
    missing = np.ones(count, np.bool_)
    missing[rows] = False
    return pc.take(values, pa.array(places, mask=missing))


def hosts(records: Records, name: str) -> pa.Array:
    """Return `born_host` or `store_host` as text: there are few, each is written once and then repeated."""
    flags = records.head["sys_flag"]
    wide = (flags & (BORN_V6 if name == "born_host" else STORE_V6)) != 0
    packed = np.ascontiguousarray(records.head[name]).view(">u8").astype(np.uint64)
    if not wide.any():
        found = pa.array(packed).dictionary_encode()
        return names_of(found, HOST_V4_SIZE).take(found.indices)
    place = records.positions[wide] + 48
    if name == "store_host":
        place += np.where(flags[wide] & BORN_V6, HOST_V6_SIZE, HOST_V4_SIZE) + 8
    long = gather(records.data, place, f"V{HOST_V6_SIZE}")
    found = pa.array(packed[~wide]).dictionary_encode()
    kind = pa.binary(HOST_V6_SIZE)
    more = pa.Array.from_buffers(kind, len(long), [None, pa.py_buffer(long)]).dictionary_encode()
    places = np.empty(len(records), np.int64)
    places[~wide] = np.asarray(found.indices)
    places[wide] = np.asarray(more.indices) + len(found.dictionary)
    return pa.concat_arrays([names_of(found, HOST_V4_SIZE), names_of(more, HOST_V6_SIZE)]).take(
        pa.array(places)
    )


def names_of(found: pa.DictionaryArray, length: int) -> pa.Array:
    """Write the hosts of a dictionary."""
    packed = [
        value if isinstance(value, bytes) else value.to_bytes(length, "big")
        for value in found.dictionary.to_pylist()
    ]
    return pa.array([unpack_host(value) for value in packed], pa.string())


def offset_ids(records: Records) -> pa.Array:
    """Return the offset message id of each record: store host and physical offset in hex digits."""
    wide = (records.head["sys_flag"] & STORE_V6) != 0
    if not len(records) or not wide.any():
        return hex_texts(joined(records, np.ascontiguousarray(records.head["store_host"])))
    ids = np.empty(len(records), object)
    for which in (~wide, wide):
        some = records.pick(which)
        place = some.positions + 56 + np.where(some.head["sys_flag"] & BORN_V6, HOST_V6_SIZE, HOST_V4_SIZE)
        length = HOST_V6_SIZE if bool(wide[which].any()) else HOST_V4_SIZE
        ids[which] = hex_texts(joined(some, gather(some.data, place, f"V{length}"))).to_pylist()
    return pa.array(ids, pa.string())


def joined(records: Records, packed: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """Return packed hosts, each with the physical offset behind it, as rows of bytes."""
    count = len(records)
    offset = np.ascontiguousarray(records.head["physical_offset"]).view(np.uint8).reshape(count, 8)
    return np.concatenate([packed.view(np.uint8).reshape(count, packed.itemsize), offset], axis=1)


def hex_texts(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Write rows of bytes as hex digits."""
    count, length = rows.shape
    borders = (np.arange(count + 1) * 2 * length).astype(np.int32)
    digits = HEX_DIGITS[rows]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(borders), pa.py_buffer(digits)])
