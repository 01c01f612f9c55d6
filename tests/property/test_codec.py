"""The record codec: what is encoded decodes to the same, and no other bytes decode."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import (
    MAGIC_V2,
    RecordDraft,
    decode_record,
    encode_record,
    format_properties,
    index_key_hash,
    index_key_hashes,
    java_hash,
    keys_of,
    pack_host,
    parse_properties,
    property_of,
    record_fault,
    record_size,
    tags_code,
    unpack_host,
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PLACE = st.integers(0, 2**62)
HOSTS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
NAMES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
TOPICS = st.text("abcXYZ019_-%|é漢", min_size=1, max_size=30)


@st.composite
def drafts(draw: st.DrawFn) -> RecordDraft:
    return RecordDraft.from_properties(
        topic=draw(TOPICS),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        body=draw(st.binary(max_size=300)),
        properties=format_properties(draw(st.dictionaries(NAMES, NAMES, max_size=5)).items()),
        born_timestamp=draw(I64),
        born_host=pack_host(draw(HOSTS), draw(st.integers(0, 65535))),
        store_host=pack_host(draw(HOSTS), draw(st.integers(0, 65535))),
        flag=draw(I32),
        sys_flag=draw(st.integers(0, 0xF)),
        reconsume_times=draw(I32),
        prepared_offset=draw(I64),
    )


@given(drafts(), PLACE, PLACE, I64, st.binary(max_size=20))
def test_a_record_decodes_to_what_was_encoded(
    draft: RecordDraft, place: int, number: int, stored_ms: int, before: bytes
) -> None:
    record = encode_record(draft, physical_offset=place, queue_offset=number, store_timestamp=stored_ms)
    assert len(record) == record_size(draft)
    message = decode_record(before + record + b"\x00", len(before))
    assert (message.physical_offset, message.queue_offset, message.store_timestamp) == (
        place,
        number,
        stored_ms,
    )
    assert (message.topic, message.queue_id, message.body) == (draft.topic, draft.queue_id, draft.body)
    assert message.properties_raw == draft.properties
    assert message.properties == parse_properties(draft.properties)
    assert (message.born_host, message.store_host) == (
        unpack_host(draft.born_host),
        unpack_host(draft.store_host),
    )
    assert (message.flag, message.sys_flag & 0xF) == (draft.flag, draft.sys_flag)
    assert (message.reconsume_times, message.prepared_offset) == (
        draft.reconsume_times,
        draft.prepared_offset,
    )
    assert message.born_timestamp == draft.born_timestamp
    assert not record_fault(before + record, len(before), place)


@given(drafts(), st.data())
def test_a_record_with_any_byte_of_body_or_lengths_changed_does_not_decode(
    draft: RecordDraft, data: st.DataObject
) -> None:
    record = bytearray(encode_record(draft, physical_offset=7, queue_offset=1, store_timestamp=2))
    head = len(record) - len(draft.body) - len(draft.properties) - len(draft.topic.encode()) - 3
    places = [*range(8), *range(head - 4, head + len(draft.body))]
    at = data.draw(st.sampled_from(places))
    record[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord):
        decode_record(bytes(record))


@given(drafts(), st.data())
def test_a_record_cut_anywhere_does_not_decode(draft: RecordDraft, data: st.DataObject) -> None:
    record = encode_record(draft, physical_offset=7, queue_offset=1, store_timestamp=2)
    length = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(CorruptRecord):
        decode_record(record[:length])
    with pytest.raises(CorruptRecord):  # zeros in place of the rest, as a torn write leaves them
        torn = record[:length] + bytes(len(record) - length)
        if torn == record:
            raise CorruptRecord("the rest was zeros anyway")
        message = decode_record(torn)
        # Topic and properties have no CRC: a tear within them can only be seen by the lengths.
        if message.body == draft.body:
            raise CorruptRecord("torn behind the body")


@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        decode_record(data)
    except CorruptRecord:
        return


@given(drafts(), PLACE)
def test_version_2_records_have_a_topic_length_of_two_bytes(draft: RecordDraft, place: int) -> None:
    record = bytearray(encode_record(draft, physical_offset=place, queue_offset=1, store_timestamp=2))
    topic = draft.topic.encode()
    at = len(record) - len(draft.properties) - 2 - len(topic) - 1
    assert record[at] == len(topic)
    record[at : at + 1] = len(topic).to_bytes(2, "big")
    record[0:4] = len(record).to_bytes(4, "big")
    record[4:8] = MAGIC_V2.to_bytes(4, "big")
    message = decode_record(bytes(record))
    assert (message.topic, message.body, message.magic) == (draft.topic, draft.body, MAGIC_V2)
    assert not record_fault(bytes(record), 0, place)


def test_a_record_that_claims_a_place_before_the_log_still_has_an_id() -> None:
    draft = RecordDraft.from_properties(
        topic="t",
        queue_id=0,
        body=b"",
        properties=b"",
        born_timestamp=0,
        born_host=pack_host("10.0.0.1", 1),
        store_host=pack_host("10.0.0.1", 1),
    )
    message = decode_record(encode_record(draft, physical_offset=-2, queue_offset=0, store_timestamp=0))
    assert message.offset_message_id == "0A00000100000001FFFFFFFFFFFFFFFE"


def hash_by_definition(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=600))
def test_java_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


@given(TOPICS, st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_an_index_key_hashes_topic_and_key_together(topic: str, key: str) -> None:
    value = hash_by_definition(f"{topic}#{key}")
    assert index_key_hash(topic, key) == (0 if value == -(2**31) else abs(value))


@given(st.lists(st.tuples(NAMES, NAMES), max_size=6), st.booleans())
def test_properties_parse_with_or_without_a_final_separator(
    pairs: list[tuple[str, str]], final: bool
) -> None:
    raw = format_properties(pairs) + (b"\x02" if final and pairs else b"")
    assert parse_properties(raw) == dict(pairs)
    for name, value in dict(pairs).items():
        assert property_of(raw, name.encode()) == value.encode()


@given(
    st.lists(
        st.sampled_from([b"TAGS\x01a", b"TAGS\x01", b"XTAGS\x01b", b"K\x01TAGS\x01c", b"", b"TAGS", b"\x01"])
    )
)
def test_one_property_is_found_as_the_parser_finds_it(parts: list[bytes]) -> None:
    raw = b"\x02".join(parts)
    assert property_of(raw, b"TAGS").decode() == parse_properties(raw).get("TAGS", "")


KEYS = st.one_of(st.text("abcXYZ019#-\0", max_size=70), st.text(max_size=20))


@given(st.lists(st.tuples(st.text("Tt-%", min_size=1, max_size=12), KEYS), max_size=80))
def test_many_index_keys_hash_as_each_alone(pairs: list[tuple[str, str]]) -> None:
    assert index_key_hashes(pairs) == [index_key_hash(topic, key) for topic, key in pairs]


def test_the_hashes_of_many_index_keys_reach_both_ends_of_their_range() -> None:
    pairs = [("T", f"{number:x}") for number in range(4096)]
    hashes = index_key_hashes(pairs)
    assert hashes == [index_key_hash(topic, key) for topic, key in pairs]
    long = [("T", "~" * length) for length in range(63)]
    assert index_key_hashes(long) == [index_key_hash(topic, key) for topic, key in long]


def test_tags_codes_are_those_of_rocketmq() -> None:
    assert tags_code("TagA") == 2598919
    assert tags_code("order-created") == -392709271
    assert tags_code(None) == tags_code("") == 0
    assert index_key_hash("TopicTest", "key1") == 1655984460


def test_keys_are_the_unique_id_and_then_every_word_of_keys() -> None:
    raw = format_properties([("KEYS", " a  b "), ("UNIQ_KEY", "u")])
    assert keys_of(raw) == ("u", "a", "b")
    assert keys_of(format_properties([("KEYS", "x")])) == ("x",)
    assert keys_of(b"") == ()


def test_the_worked_example_of_the_format_encodes_to_its_bytes() -> None:
    draft = RecordDraft.from_properties(
        topic="TopicTest",
        queue_id=2,
        body=b"message",
        properties=format_properties([("KEYS", "key1"), ("TAGS", "TagA")]),
        born_timestamp=1700000000000,
        born_host=pack_host("10.1.2.3", 54321),
        store_host=pack_host("192.168.0.10", 10911),
    )
    record = encode_record(draft, physical_offset=0x1000, queue_offset=5, store_timestamp=1700000000005)
    assert record.hex() == (
        "0000007edaa320a736bd307f000000020000000000000000000000050000000000001000"
        "000000000000018bcfe568000a0102030000d4310000018bcfe56805c0a8000a00002a9f"
        "000000000000000000000000000000076d65737361676509546f70696354657374001"
        "34b455953016b65793102544147530154616741"
    )
    message = decode_record(record)
    assert message.offset_message_id == "C0A8000A00002A9F0000000000001000"
    assert zlib.crc32(b"message") & 0x7FFFFFFF == message.body_crc
