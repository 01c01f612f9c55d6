"""The CRC of a whole record, RocketMQ's property `__CRC32#`: written on demand, checked where it is there."""

import dataclasses
import zlib
from pathlib import Path

import pytest

from support.store.stores import HOST, NOW, OPTIONS, make_draft, open_master
from whimbrel.errors import CorruptRecord, PropertiesTooLarge, StoreError
from whimbrel.store.codec import (
    MAGIC_V1,
    SEAL_SIZE,
    RecordDraft,
    decode_record,
    encode_record,
    encode_sealed,
    format_properties,
    record_fault,
    without_seal,
)
from whimbrel.store.segment import segment_name
from whimbrel.store.verify import verify

SEALED = dataclasses.replace(OPTIONS, append_property_crc=True)


def by_rocketmq(unsealed: bytes) -> bytes:
    """Return the seal as RocketMQ 5 computes it: digits from the lowest on."""
    rest = zlib.crc32(unsealed) & 0x7FFFFFFF
    digits = b""
    for _ in range(10):
        digits += b"%d" % (rest % 10)
        rest //= 10
    return b"__CRC32#\x01" + digits + b"\x02"


@pytest.mark.parametrize("text", [b"", b"KEYS\x01k", b"KEYS\x01k\x02"])
def test_the_seal_is_the_last_property_and_covers_all_before_it(text: bytes) -> None:
    draft = dataclasses.replace(make_draft(1), properties=text)
    record = encode_sealed(draft, 1000, 5, NOW)
    assert len(record) == int.from_bytes(record[:4], "big")
    assert record[-SEAL_SIZE:] == by_rocketmq(record[:-SEAL_SIZE])
    message = decode_record(record)
    joint = b"\x02" if text and not text.endswith(b"\x02") else b""
    assert message.properties_raw == text + joint + record[-SEAL_SIZE:]
    assert record_fault(record, 0, 1000) == ""
    assert b"__CRC32#" not in encode_record(draft, 1000, 5, NOW)


def test_every_bit_of_a_sealed_record_counts() -> None:
    draft = dataclasses.replace(make_draft(1, size=16))
    record = encode_sealed(draft, 0, 5, NOW)
    for bit in range(8 * len(record)):
        hurt = bytearray(record)
        hurt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_record(bytes(hurt))
        size, magic = int.from_bytes(hurt[:4], "big"), int.from_bytes(hurt[4:8], "big")
        if size <= len(hurt) and magic == MAGIC_V1:  # else the caller's checks find it
            assert record_fault(bytes(hurt), 0, 0), bit


def test_a_text_that_is_moved_on_loses_its_old_seal() -> None:
    """Else the copy, which is another record, would be taken for damaged."""
    old = decode_record(encode_sealed(make_draft(1), 0, 0, NOW)).properties_raw
    assert without_seal(old + b"A\x01b\x02") == b"KEYS\x01key-1\x02TAGS\x01tag\x02A\x01b\x02"
    moved = RecordDraft.from_properties(
        topic="other",
        queue_id=0,
        body=b"x",
        properties=old,
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
    )
    assert b"__CRC32#" not in moved.properties
    for count, encoder in enumerate((encode_record, encode_sealed)):
        found = decode_record(encoder(moved, 77, 1, NOW)).properties_raw
        assert found.count(b"__CRC32#") == count


def test_properties_that_leave_no_room_for_the_seal_are_refused() -> None:
    text = b"a\x01" + b"v" * (32767 - 2 - SEAL_SIZE - 1)
    draft = dataclasses.replace(make_draft(1), properties=text)
    assert decode_record(encode_sealed(draft, 0, 0, NOW))
    for longer in (text + b"v",):
        with pytest.raises(PropertiesTooLarge):
            encode_sealed(dataclasses.replace(draft, properties=longer), 0, 0, NOW)


def test_a_store_seals_when_it_is_told_and_reads_both(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = open_master(root)
    plain = store.append([make_draft(0)])[0]
    store.close()
    store = open_master(root, SEALED)
    sealed = [*store.append([make_draft(1)]), *store.append([make_draft(2), make_draft(3)])]
    assert [answer.size - plain.size for answer in sealed] == [SEAL_SIZE + 1] * 3
    for answer in (plain, *sealed):
        decode_record(store.read(answer.physical_offset, answer.size))
    store.close()
    assert verify(root) == []
    path = root / "commitlog" / segment_name(0)
    data = bytearray(path.read_bytes())
    at = data.index(b"TAGS\x01tag", sealed[1].physical_offset)
    data[at + 5] ^= 1
    path.write_bytes(data)
    assert ["it does not match its CRC"] == [damage.what for damage in verify(root)[:1]]
    with pytest.raises(StoreError, match="it does not match its CRC"):
        open_master(root)
    data[at + 5] ^= 1
    path.write_bytes(data)
    store = open_master(root)
    with path.open("r+b") as file:
        file.seek(at + 5)
        file.write(b"T")
    assert store.find_by_key("topic", "key-1")
    assert store.find_by_key("topic", "key-2") == []
    with pytest.raises(CorruptRecord):
        decode_record(store.read(sealed[1].physical_offset, sealed[1].size))
    store.close()


def test_a_page_of_properties_that_did_not_reach_the_disk_ends_the_log(tmp_path: Path) -> None:
    """No CRC covers them unless the record is sealed; zeros for as long as a sector are a hole."""
    root = tmp_path / "s"
    pairs = [("amount", "100"), *((f"k{number}", "v" * 500) for number in range(24)), ("TAGS", "t")]
    draft = RecordDraft.from_properties(
        topic="topic",
        queue_id=0,
        body=b"pay",
        properties=format_properties(pairs),
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
    )
    store = open_master(root)
    store.append([draft])
    store.append([make_draft(1)])
    store.close(clean=False)
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))
    store = open_master(root)
    assert store.queue_range("topic", 0) == (0, 0)
    assert store.written == 0
    store.close()


def test_a_topic_with_a_wrong_bit_that_no_topic_has_ends_the_log(tmp_path: Path) -> None:
    record = bytearray(encode_record(make_draft(1), 0, 0, NOW))
    at = record.index(b"\x05topic") + 1
    for mask in (0x80, 0x60):
        hurt = bytearray(record)
        hurt[at] ^= mask
        assert record_fault(bytes(hurt), 0, 0) == "its topic is none"
