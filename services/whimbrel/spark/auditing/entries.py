"""The entries that records of a log should have: units of consume queues, and keys of the index. Pure.

The rules are those of `store/dispatch.py` and `store/indexer.py`, here for many records at once:

- Prepared and rolled-back transactions have no unit; rolled-back ones have no keys.
- A unit has the hash of the tag; in the topic of delayed messages, the time of delivery.
- The index has UNIQ_KEY, then every word of KEYS, under the hash of `topic#key`; then the tag, where
  tags are keys.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.store.codec import (
    RAW_KEYS,
    RAW_TAGS,
    RAW_UNIQ_KEY,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    index_key_hash,
    prefix_hash,
    tag_key,
    tags_code,
)
from whimbrel.store.columns import Records, Topics
from whimbrel.store.columns.records import Ints
from whimbrel.store.columns.texts import Pairs
from whimbrel.store.dispatch import deliver_time

__all__ = ["IndexKeys", "QueueUnits", "key_hashes", "keys_of", "units_of"]

LENGTH_MAX = 256  # of texts that are hashed as a column; longer ones are hashed one by one
Hashes = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class QueueUnits:
    """The units that records should have; `topic_ids` are indices of `topics`."""

    topics: list[str]
    topic_ids: Ints
    queue_ids: Ints
    numbers: Ints
    physical_offsets: Ints
    sizes: Ints
    tags: Ints

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.physical_offsets)


@dataclass(frozen=True, slots=True, eq=False)
class IndexKeys:
    """The keys that records should have in the index, in its order."""

    physical_offsets: Ints
    hashes: Ints
    stored_ms: Ints

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.physical_offsets)


def units_of(records: Records, delays_ms: tuple[int, ...] = ()) -> QueueUnits:
    """Return the units of records.

    Args:
        delays_ms: of the delay levels; without them, units in the topic of delayed messages have 0.
    """
    state = records.head["sys_flag"] & TRANSACTION_MASK
    wanted = (state != TRANSACTION_PREPARED) & (state != TRANSACTION_ROLLBACK)
    wanted &= records.ints("queue_id") >= 0
    records = records.pick(wanted)
    topics = Topics.of(records)
    usable = np.array([is_name(name) for name in topics.names], np.bool_)
    if not usable.all():
        records = records.pick(usable[topics.ids])
        topics = Topics.of(records)
    pairs = Pairs(records)
    tags = tag_codes(pairs)
    if SCHEDULE_TOPIC in topics.names:
        delayed = np.flatnonzero(topics.ids == topics.names.index(SCHEDULE_TOPIC))
        tags[delayed] = times_of(records, delayed, delays_ms, tags) if delays_ms else 0
    return QueueUnits(
        topics.names,
        topics.ids,
        records.ints("queue_id"),
        records.ints("queue_offset"),
        records.ints("physical_offset"),
        records.sizes,
        tags,
    )


def is_name(topic: str) -> bool:
    """Return whether a topic's name can be that of a folder."""
    return bool(topic) and "/" not in topic and topic not in (".", "..")


def tag_codes(pairs: Pairs) -> Ints:
    """Return the tags code of each record."""
    tags = pairs.value_of(RAW_TAGS, pa.string()).dictionary_encode()
    codes = np.array([*(tags_code(tag) for tag in tags.dictionary.to_pylist()), 0], np.int64)
    numbers = np.asarray(pc.fill_null(tags.indices, len(codes) - 1)).astype(np.int64)
    found: Ints = codes[numbers] if len(numbers) else np.zeros(0, np.int64)
    return found


def times_of(records: Records, rows: Ints, delays_ms: tuple[int, ...], tags: Ints) -> Ints:
    """Return the times of delivery of some records."""
    stored = records.ints("stored_ms")
    starts, ends = records.topic_end + 2, records.ends
    return np.array(
        [
            deliver_time(
                bytes(records.data[int(starts[row]) : int(ends[row])]),
                int(stored[row]),
                delays_ms,
                int(tags[row]),
            )
            for row in rows.tolist()
        ],
        np.int64,
    )


def keys_of(records: Records, *, tags: bool) -> IndexKeys:
    """Return the keys of records, and their tags if those are keys."""
    records = records.pick((records.head["sys_flag"] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK)
    if not len(records):
        return IndexKeys(*(np.zeros(0, np.int64),) * 3)
    topics = Topics.of(records)
    pairs = Pairs(records)
    unique = pairs.value_of(RAW_UNIQ_KEY, pa.string())
    words = pc.split_pattern(pairs.value_of(RAW_KEYS, pa.string()), " ")
    all_rows = np.arange(len(records))
    rows = [all_rows, np.asarray(pc.list_parent_indices(words)).astype(np.int64)]
    texts = [unique, pc.list_flatten(words)]
    if tags:
        rows.append(all_rows)
        tag = pairs.value_of(RAW_TAGS, pa.string())
        tag_keys = pc.binary_join_element_wise(tag_key(""), tag, "")
        texts.append(pc.if_else(pc.greater(pc.binary_length(tag), 0), tag_keys, None))
    keys = pa.concat_arrays(texts)
    there = np.asarray(pc.fill_null(pc.greater(pc.binary_length(keys), 0), False))
    keyed = np.concatenate(rows)[there]
    hashes = key_hashes(topics.names, topics.ids[keyed], keys.filter(pa.array(there)))
    order = np.argsort(keyed, kind="stable")  # UNIQ_KEY before the words of its record
    keyed = keyed[order]
    return IndexKeys(records.ints("physical_offset")[keyed], hashes[order], records.ints("stored_ms")[keyed])


def key_hashes(topics: list[str], topic_ids: Ints, keys: pa.Array) -> Ints:
    """Return `codec.index_key_hash` of each key."""
    prefixes = np.array([prefix_hash(topic) for topic in topics], np.uint32)
    hashes, plain = java_hashes(keys, prefixes[topic_ids])
    values = hashes.astype(np.int64)
    found: Ints = np.where(values < 1 << 31, values, (1 << 32) - values & 0x7FFFFFFF)
    for row in np.flatnonzero(~plain).tolist():
        found[row] = index_key_hash(topics[topic_ids[row]], keys[row].as_py())
    return found


def java_hashes(texts: pa.Array, starts: Hashes) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Return Java's hashes of texts, continued from given ones, and which texts were hashed.

    All texts are hashed character by character in parallel, sorted by length, so that those still in work are
    the first ones. Texts that are long or not ASCII are left to the caller.
    """
    count = len(texts)
    if not count:
        return np.zeros(0, np.uint32), np.ones(0, np.bool_)
    _, borders, data = texts.buffers()
    offsets = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    letters = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    lengths = offsets[1:] - offsets[:-1]
    plain = lengths <= LENGTH_MAX
    high = np.concatenate([[0], np.cumsum(letters[: int(offsets[-1])] >= 128)])
    plain &= high[offsets[1:]] == high[offsets[:-1]]
    order = np.argsort(-np.where(plain, lengths, 0), kind="stable")
    physical_offsets, left = offsets[:-1][order], np.where(plain, lengths, 0)[order]
    hashes = starts[order].astype(np.uint32)
    for step in range(int(left[0])):
        alive = int(np.searchsorted(-left, -step, "left"))  # the first ones, which are longer than `step`
        hashes[:alive] = hashes[:alive] * np.uint32(31) + letters[physical_offsets[:alive] + step]
    found = np.empty(count, np.uint32)
    found[order] = hashes
    return found, plain
