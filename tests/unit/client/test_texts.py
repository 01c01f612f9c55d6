"""Texts that UTF-8 can't hold, at the entry points of the client library."""

from collections.abc import Callable
from typing import Any

import pytest

from whimbrel.client import ClientOptions, Consumer, Message, Producer, PullConsumer, SqlFilter
from whimbrel.client.session import BaseClient
from whimbrel.errors import BadRequest

BYTES = b"\xff".decode(errors="surrogateescape")
NO_TEXT = r"'\\udcff' is not UTF-8"
ENDPOINT = "127.0.0.1:1"


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": BYTES},
        {"tag": BYTES},
        {"keys": ("a", BYTES)},
        {"properties": {BYTES: "a"}},
        {"properties": {"a": BYTES}},
        {"message_group": BYTES},
    ],
)
def test_a_message_takes_any_bytes_in_its_body_alone(fields: dict[str, Any]) -> None:
    Message(topic="orders", body=b"\xff")
    with pytest.raises(ValueError, match=NO_TEXT):
        Message(**{"topic": "orders", "body": b"x", **fields})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer(ENDPOINT, topics=[BYTES]),
        lambda: Consumer(ENDPOINT, BYTES, {"orders": "*"}),
        lambda: Consumer(ENDPOINT, "readers", {BYTES: "*"}),
        lambda: Consumer(ENDPOINT, "readers", {"orders": BYTES}),
        lambda: Consumer(ENDPOINT, "readers", {"orders": SqlFilter(BYTES)}),
        lambda: PullConsumer(ENDPOINT, group=BYTES),
    ],
)
async def test_a_client_with_a_name_that_is_no_text_does_not_start(make: Callable[[], BaseClient]) -> None:
    client = make()
    with pytest.raises(BadRequest, match=NO_TEXT):
        await client.start()
    assert not client.session.started


@pytest.mark.parametrize("options", [ClientOptions(namespace=BYTES), ClientOptions(client_id=BYTES)])
def test_options_are_text(options: ClientOptions) -> None:
    from whimbrel.client import Admin

    with pytest.raises(BadRequest, match=NO_TEXT):
        Admin(ENDPOINT, options=options)
