"""The W3C text of a trace context."""

import pytest

from whimbrel.model.trace import TraceContext, parse_context

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_context_comes_back_as_the_same_text() -> None:
    context = parse_context(GOOD)
    assert context == TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, sampled=True)
    assert str(context) == GOOD


def test_only_the_lowest_flag_says_sampled() -> None:
    assert [parse_context(GOOD[:-2] + flags).sampled for flags in ("00", "02", "03", "ff")] == [  # type: ignore[union-attr]
        False,
        False,
        True,
        True,
    ]


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_context("cc" + GOOD[2:] + "-what-comes") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spam",
        GOOD + "-more",
        "ff" + GOOD[2:],
        GOOD.upper(),
        GOOD[:-1],
        "00-" + "0" * 32 + GOOD[35:],
        GOOD[:36] + "0" * 16 + "-01",
    ],
)
def test_anything_else_is_no_context(text: str) -> None:
    assert parse_context(text) is None
