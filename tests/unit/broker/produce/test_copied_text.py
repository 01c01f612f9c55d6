"""The properties of records that the broker makes of others: there is always room."""

import pytest

from whimbrel.broker.produce.copied_text import SEALED_BYTES_MAX, copied_text
from whimbrel.store.codec import PROPERTIES_BYTES_MAX

ADDED = (("RETRY_TOPIC", "orders"), ("DLQ_ORIGIN_TOPIC", "orders"), ("ORIGIN_MESSAGE_ID", "7F" * 16))


def names(text: bytes) -> list[str]:
    return [pair.partition(b"\x01")[0].decode() for pair in text.split(b"\x02") if pair]


def test_with_room_all_is_there_and_byte_by_byte_the_same() -> None:
    raw = b"UNIQ_KEY\x01id\x02DELAY\x013\x02k\x01\xff=\x01\x02RETRY_TOPIC\x01other"
    text = copied_text(raw, ADDED, ("DELAY",))
    assert text.startswith(b"UNIQ_KEY\x01id\x02k\x01\xff=\x01\x02RETRY_TOPIC\x01orders\x02")
    assert names(text) == ["UNIQ_KEY", "k", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "ORIGIN_MESSAGE_ID"]


def test_what_only_tells_a_reader_something_goes_first() -> None:
    fill = b"UNIQ_KEY\x01id\x02k\x01" + b"x" * (PROPERTIES_BYTES_MAX - 95)
    text = copied_text(fill, ADDED)
    assert len(text) <= PROPERTIES_BYTES_MAX
    assert names(text) == ["UNIQ_KEY", "k", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"]


def test_then_the_largest_of_the_message_go_and_are_named() -> None:
    raw = b"UNIQ_KEY\x01id\x02a\x01" + b"x" * 20_000 + b"\x02b\x01" + b"x" * 12_700 + b"\x02c\x01d"
    text = copied_text(raw, ADDED)
    assert names(text) == ["UNIQ_KEY", "b", "c", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "PROPERTIES_LEFT_OUT"]
    assert b"PROPERTIES_LEFT_OUT\x01a\x02" in text


@pytest.mark.parametrize("room", [PROPERTIES_BYTES_MAX, SEALED_BYTES_MAX])
@pytest.mark.parametrize("size", [1, 3, 1000, 16_000, 32_000])
@pytest.mark.parametrize("missing", range(0, 300, 37))
def test_it_always_fits(room: int, size: int, missing: int) -> None:
    """Whatever the sizes, also those of names, and whatever is missing."""
    total = PROPERTIES_BYTES_MAX - missing
    raw = b""
    while len(raw) < total:
        raw += (b"%d" % len(raw) + b"n" * size + b"\x01v\x02")[: total - len(raw)]
    text = copied_text(raw, ADDED, room=room)
    assert len(text) <= room
    assert {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID"} <= set(names(text))
