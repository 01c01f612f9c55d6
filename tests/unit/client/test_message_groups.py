"""Which broker a message group is sent to, as the SDKs for Java, Go and Node.js have it."""

import pytest

from whimbrel.client.message_groups import place_of, signed_hash, siphash24


def test_the_hash_is_the_one_of_its_authors() -> None:
    # The vectors of the reference implementation: key 0 to 15, and 0, 1, ... as the message.
    assert siphash24(b"") == 0x726FDB47DD0E0E31
    assert siphash24(bytes(range(7))) == 0xAB0200F58B01D137
    assert siphash24(bytes(range(8))) == 0x93F5F5799A932462
    assert siphash24(bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("group", ["a", "order-1", "用户", "g3", "g4", "x" * 64])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_place_is_the_signed_hash_modulo_the_count(group: str, count: int) -> None:
    assert -(1 << 63) <= signed_hash(group) < 1 << 63
    assert place_of(group, count) == signed_hash(group) % count
    assert 0 <= place_of(group, count) < count


def test_hashes_above_half_are_negative_as_in_java() -> None:
    groups = [f"group-{n}" for n in range(64)]
    negative = [group for group in groups if signed_hash(group) < 0]
    assert negative
    for group in negative:
        assert siphash24(group.encode()) == signed_hash(group) + (1 << 64)
    # Unsigned, as the SDK for Node.js has it, is the same where the count divides 2^64.
    assert all(place_of(group, 8) == siphash24(group.encode()) % 8 for group in groups)
