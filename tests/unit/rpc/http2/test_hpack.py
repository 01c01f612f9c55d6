"""Header blocks: what the `hpack` package encodes is decoded, what it decodes was encoded, no more."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.rpc.http2.hpack import SHAPES_MAX, HeaderDecoder, HpackError, ListTooLarge, encode, value_of
from whimbrel.rpc.http2.huffman import SYMBOLS, HuffmanError, decode

NAMES = st.sampled_from([b":path", b":method", b"x-mq-request-id", b"te", b"a", b"grpc-timeout"]) | st.binary(
    min_size=1, max_size=40
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=80)), max_size=12)
HUGE = 1 << 20


def decoded(decoder: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(field[0], value_of(field)) for field in decoder.decode(block)]


def test_the_code_has_every_symbol_once() -> None:
    assert sorted(symbol for symbols in SYMBOLS.values() for symbol in symbols) == list(range(257))


@given(st.binary(max_size=200))
def test_coded_strings_come_back(text: bytes) -> None:
    oracle = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    assert decode(oracle.encode(text)) == text


@given(st.binary(max_size=24))
def test_any_bytes_decode_or_are_refused_as_the_oracle_does(data: bytes) -> None:
    try:
        expected = hpack.huffman_table.decode_huffman(data) if data else b""
    except hpack.exceptions.HPACKDecodingError:
        with pytest.raises(HuffmanError):
            decode(data)
    else:
        assert decode(data) == expected


@given(st.lists(st.tuples(FIELDS, st.booleans()), min_size=1, max_size=8), st.integers(0, 4096))
def test_the_blocks_of_a_connection_come_back(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool]], size: int
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(list_bytes_max=HUGE)
    encoder.header_table_size = size
    for fields, coded in blocks:
        assert decoded(decoder, encoder.encode(fields, huffman=coded)) == fields
        assert decoder.size <= decoder.capacity <= 4096
        assert decoder.size == sum(len(name) + len(value) + 32 for name, value, _ in decoder.table)


FEW = st.sampled_from([b"", b"a", b"b", b"x" * 130])
CALLS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from([b"te", b"id", b"date", b":path"]), FEW), min_size=1, max_size=5),
        st.sampled_from(["in full", "in full", "in full", "coded", "into the table"]),
    ),
    min_size=2,
    max_size=24,
)


@given(CALLS)
def test_blocks_of_a_shape_are_what_the_oracle_says(
    calls: list[tuple[list[tuple[bytes, bytes]], str]],
) -> None:
    encoder, oracle = hpack.Encoder(), hpack.Decoder(max_header_list_size=HUGE)
    decoder = HeaderDecoder(list_bytes_max=HUGE)
    for fields, way in calls:
        if way == "in full":
            block = encode(fields)
        elif way == "coded":  # never indexed: Huffman's code in full, with names of the peer's table
            block = encoder.encode([(name, value, True) for name, value in fields], huffman=True)
        else:
            block = encoder.encode(fields)
        found = [(bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True)]
        assert decoded(decoder, block) == found == fields
        assert len(decoder.shapes) <= SHAPES_MAX


def test_only_what_varies_is_looked_at_again() -> None:
    decoder = HeaderDecoder(list_bytes_max=HUGE)

    def call(number: int, path: bytes = b"/s/M") -> list[tuple[bytes, bytes]]:
        fields = [(b":path", path), (b"te", b"trailers"), (b"id", b"%d" % number), (b"language", b"CPP")]
        assert decoded(decoder, encode(fields)) == fields
        return fields

    call(1)
    assert decoder.shape is None  # nothing is known of a first block
    call(2)
    call(3)
    shape = decoder.shape
    assert shape is not None and shape.varying == {b"id"}
    shape.memo = "of M"
    call(4, b"/s/N")  # another method: its path may vary, too, from now on
    call(5)
    assert decoder.shape is not shape
    decoder.decode(hpack.Encoder().encode([(b"new", b"field")]))  # the table changes: numbers mean others
    assert decoder.shapes == []


def test_a_list_that_is_too_long_is_refused_whatever_its_shape() -> None:
    decoder = HeaderDecoder(list_bytes_max=200)
    for size in (1, 2, 3):
        decoder.decode(encode([(b"te", b"trailers"), (b"id", b"x" * size)]))
    assert decoder.shape is not None
    with pytest.raises(ListTooLarge):
        decoder.decode(encode([(b"te", b"trailers"), (b"id", b"x" * 130)]))


@given(FIELDS)
def test_what_is_encoded_the_oracle_decodes(fields: list[tuple[bytes, bytes]]) -> None:
    oracle = hpack.Decoder(max_header_list_size=HUGE)
    found = oracle.decode(encode(fields), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in found] == fields
    assert decoded(HeaderDecoder(list_bytes_max=HUGE), encode(fields)) == fields


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_leave_typed_errors_only(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder(list_bytes_max=1000)
    try:
        for block in blocks:
            for field in decoder.decode(block):
                value_of(field)
    except HpackError:
        pass
    assert decoder.size <= 4096


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (b"\x80", "no field 0"),
        (b"\xbe", "no field 62"),
        (b"\xff\x80\x80\x80\x80\x80", "cut off, or larger"),
        (b"\x7e\x01a", "no field 62 to name"),
        (b"\x00\x01", "within a string"),
        (b"\x00", "before a string"),
        (b"\x82\x20", "behind a field"),
        (b"\x3f\xe2\x1f", "4096 are allowed"),
        (b"\x40\x81\xff\x01a", "not padded|its end"),
        (b"\x00\x84\xff\xff\xff\xff\x01a", "its end"),
    ],
)
def test_a_wrong_block_is_refused(block: bytes, words: str) -> None:
    with pytest.raises(HpackError, match=words):
        HeaderDecoder(list_bytes_max=HUGE).decode(block)


def test_a_list_has_a_bound_that_counts_decoded_bytes() -> None:
    coded = hpack.Encoder().encode([(b"n", b"0" * 900)], huffman=True)
    assert len(HeaderDecoder(list_bytes_max=1000).decode(coded)) == 1
    with pytest.raises(ListTooLarge):
        HeaderDecoder(list_bytes_max=900).decode(coded)
    decoder = HeaderDecoder(list_bytes_max=10_000)
    decoder.decode(encode([]) + b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)  # in the table, 4,033 bytes
    with pytest.raises(ListTooLarge):
        decoder.decode(b"\xbe" * 100)  # 100 bytes that name 400,000
