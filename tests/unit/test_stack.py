"""What `make up` reads out of an engine's answers."""

import pytest

from stack import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T17:41:00Z", 1795282860.0),
        ("2026-11-21T17:41:00.5Z", 1795282860.5),
        ("2026-11-21T17:41:00.123456789Z", 1795282860.123456),
        ("2026-11-21T18:41:00.123456789+01:00", 1795282860.123456),
        ("2026-11-21T18:41:00+01:00", 1795282860.0),
    ],
)
def test_times_of_the_engine_have_nanoseconds_and_zones(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected, abs=1e-6)
