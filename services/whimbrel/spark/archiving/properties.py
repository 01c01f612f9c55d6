"""The property text: left out of an archive where the map of properties renders to the same text.

The text is `name 0x01 value 0x02 name ...`. Its parsed form, the map, has no pairs without name or value, and
only the last of equal names. Where nothing was dropped and there is no 0x02 at the end, the map renders to
the same text, and `propertiesText` is null in an archive: so it is for nearly every record of RocketMQ 4.9.3
and later, and of ours. It is recognized by the length: the text has the map's names and values in the same
order, so a text as long as what the map renders to has nothing else in it. A text that is not UTF-8 is kept.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["filled", "reduced", "rendered"]


def rendered(properties: pa.Array) -> pa.Array:
    """Return the text that each map renders to, as binary."""
    keys, values = properties.keys.cast(pa.binary()), properties.items.cast(pa.binary())
    pairs = pc.binary_join_element_wise(keys, values, pa.scalar(b"\x01", pa.binary()))
    lists = pa.ListArray.from_arrays(properties.offsets, pairs)
    return pc.binary_join(lists, pa.scalar(b"\x02", pa.binary()))


def reduced(texts: pa.Array, properties: pa.Array) -> pa.Array:
    """Return the texts, null where the map renders to the same."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return texts
    offsets = np.asarray(properties.offsets).astype(np.int64)
    sizes = np.asarray(pc.binary_length(properties.keys)).astype(np.int64)
    sizes = sizes + np.asarray(pc.binary_length(properties.items))
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes + 2)])
    length = sums[offsets[1:]] - sums[offsets[:-1]]
    length -= (length > 0).astype(np.int64)  # without 0x02 behind the last pair
    same = np.asarray(pc.binary_length(texts)).astype(np.int64) == length
    return pc.if_else(pa.array(same), pa.scalar(None, pa.binary()), texts)


def filled(texts: pa.Array, properties: pa.Array) -> pa.Array:
    """Return the texts as they were stored."""
    return pc.coalesce(texts, rendered(properties)) if texts.null_count else texts
