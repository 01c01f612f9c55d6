"""Templates of `--format`: every field, escapes, and what is refused."""

import re

import pytest

from whimbrel.cli.template import ALIASES, FIELDS, FIELDS_HELP, Template
from whimbrel.client import MessageType, Queue, ReceivedMessage

QUEUE = Queue(
    topic="orders",
    broker_name="broker-a",
    broker_id=0,
    queue_id=-1,
    readable=True,
    writable=True,
    endpoints=(),
)
MESSAGE = ReceivedMessage(
    topic="orders",
    body=b"\xff body",
    message_id="01AB",
    tag="new",
    keys=("k1", "k2"),
    properties={"a": "1", "b": "2"},
    type=MessageType.NORMAL,
    queue=QUEUE,
    queue_id=3,
    queue_offset=42,
    born_at=None,
    born_host="",
    stored_at=1_700_000_000.125,
    store_host="",
    delivery_attempt=2,
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%t %b %q %o", b"orders broker-a 3 42"),
        ("%p", b"3"),
        ("%i", b"01AB"),
        ("%k|%g|%h", b"k1 k2|new|a=1,b=2"),
        ("%a", b"2"),
        ("%v", b"\xff body"),
        ("%s", b"\xff body"),
        ("%S", b"6"),
        ("%T %d", b"1700000000125 2023-11-14T22:13:20.125+00:00"),
        (r"100%%\n\t\r\0\\\x41", b"100%\n\t\r\0\\A"),
        ("plain é", "plain é".encode()),
        ("", b""),
    ],
)
def test_fields_and_escapes(template: str, text: bytes) -> None:
    assert Template(template).render(MESSAGE) == text


@pytest.mark.parametrize("template", ["%z", "%", r"\y", "\\", r"\xg0", "%é"])
def test_what_is_unknown_is_named(template: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(template[:2])}.* is no (field|escape); there are"):
        Template(template)


def test_the_help_lists_every_field() -> None:
    assert all(f"%{letter} " in FIELDS_HELP for letter in FIELDS)
    assert set(ALIASES.values()) <= set(FIELDS)
