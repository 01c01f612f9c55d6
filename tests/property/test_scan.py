"""A scan of any queue finds at each offset what reading it alone finds, as far as the budgets go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.broker.consumption import FakeStore
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.errors import CorruptRecord
from whimbrel.store import scan as scan_module
from whimbrel.store.codec import StoredMessage
from whimbrel.store.scan import Scan

ANSWER_BYTES_MAX = 4000
SIZES = (1, 500, ANSWER_BYTES_MAX // 2)
entries = st.lists(
    st.tuples(st.sampled_from([None, "a", "Aa", "BB"]), st.sampled_from(SIZES), st.booleans()), max_size=12
)


@given(entries, st.sampled_from(["*", "a", "Aa", "a || BB"]), st.integers(0, 6), st.data())
def test_scan_finds_what_stands_there(
    queue: list[tuple[str | None, int, bool]], expression: str, batch: int, choice: st.DataObject
) -> None:
    store, wanted = FakeStore(), compile_filter("tag", expression)
    for tag, size, damaged in queue:
        offset = store.put("t", 0, bytes(size), tag=tag)
        if damaged:
            store.log[store.queues["t", 0][offset][0] + 8] ^= 1  # the CRC of the body
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "ANSWER_BYTES_MAX", ANSWER_BYTES_MAX)
        scan = Scan(store, "t", wanted, batch)
    start, found = 0, list[StoredMessage | CorruptRecord | None]()
    while start < len(queue):
        stop = choice.draw(st.integers(start + 1, len(queue)))
        for begin, first, end, _, _, messages in scan.walk(0, start, stop):
            assert begin == len(found)
            found += [None] * (first - begin)
            if isinstance(messages, list):
                found += messages
            else:
                assert isinstance(messages, CorruptRecord)
                found.append(messages)
            assert len(found) == end
        start = scan.reached
        assert start == len(found)
        if start < stop:
            break
    room, size_left = batch, ANSWER_BYTES_MAX
    for offset, one in enumerate(found):
        (tag, _, damaged), (_, size, code) = queue[offset], store.queues["t", 0][offset]
        assert room > 0 and (room == batch or size <= size_left)
        if not wanted.admits_code(code) or (not damaged and not wanted.admits({}, tag)):
            assert one is None
        elif damaged:
            assert isinstance(one, CorruptRecord)
        else:
            assert isinstance(one, StoredMessage) and one.queue_offset == offset
            room, size_left = room - 1, size_left - size
    assert (scan.room, scan.bytes_left) == (room, size_left)
    if len(found) < len(queue):  # the answer had no room
        assert room == 0 or (room < batch and store.queues["t", 0][len(found)][1] > size_left)
