"""Message ids have the official SDKs' form."""

import re

from whimbrel.client.ids import MessageIds, client_id, pack_message_id


def test_a_message_id_is_seventeen_bytes_in_upper_case_hex() -> None:
    text = pack_message_id(hardware=0x0A0B0C0D0E0F, process=0x12345, seconds=0x01020304, sequence=0x05060708)
    assert text == "01" + "0A0B0C0D0E0F" + "2345" + "01020304" + "05060708"
    assert len(text) == 34


def test_ids_differ_within_a_process() -> None:
    one, other = MessageIds(), MessageIds()
    made = {ids.next() for ids in (one, other) for _ in range(1000)}
    assert len(made) == 2000
    assert all(re.fullmatch(r"01[0-9A-F]{32}", text) for text in made)


def test_the_sequence_wraps() -> None:
    assert pack_message_id(hardware=0, process=0, seconds=0, sequence=1 << 32).endswith("00000000")


def test_client_ids_differ() -> None:
    assert client_id("h") != client_id("h")
    assert client_id("h").startswith("h@")
