"""How long a call may wait for messages."""

import pytest
from google.protobuf.duration_pb2 import Duration

from whimbrel.broker.api.message_frames import poll_ms
from whimbrel.rpc.server.handlers import Call


@pytest.mark.parametrize(
    ("requested", "remaining", "expected"),
    [
        (5_000, 8_000, 5_000),
        (1_000, 4_000, 1_000),
        (30_000, 33_000, 20_000),
        (5_000, 5_000, 4_500),  # Rust: its deadline is its polling time
        (None, 9_000, 7_500),  # Go: names no polling time
        (None, None, 20_000),
        (7_000, None, 7_000),
        (5_000, 300, 0),
        (-1, 8_000, 0),
        (None, 1_000, 0),
        (None, 60_000, 20_000),
    ],
)
def test_poll_time_ends_before_the_deadline(
    requested: int | None, remaining: int | None, expected: int
) -> None:
    call = Call("m", "p", {}, None if remaining is None else remaining / 1000)
    polling = Duration()
    if requested is not None:
        polling.FromMilliseconds(requested)
    assert poll_ms(call, polling if requested is not None else None, lambda: 0.0) == expected
