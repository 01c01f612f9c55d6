"""Control characters on their way out."""

import json

import pytest

from whimbrel.escapes import printable, printable_json, printable_lines

HOSTILE = [
    "a\nb", "a\r\nb", "a\x1b[2Jb", "a\x9b2Jb", "a\x07b", "a\x00b", "a\x7fb", "a\u2028b", "a\u202eb", "\ud800",
    "a\U000e0001b",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_could_move_a_cursor_or_begin_a_line_is_escaped(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) != text


@pytest.mark.parametrize("text", ["", "orders", "größe", "数据", "😀", "a\\nb"])
def test_what_people_read_stays(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


def test_lines_stay_lines() -> None:
    assert printable_lines("a\x1b[2J\n\tb\r\n") == "a\\x1b[2J\n\tb\\r\n"


@pytest.mark.parametrize("text", [*HOSTILE, "größe", 'a"b\\'])
def test_json_means_the_same_and_is_printable(text: str) -> None:
    made = printable_json(json.dumps({text: [text]}, ensure_ascii=False, indent=2))
    assert json.loads(made) == {text: [text]}
    assert all(line.isprintable() for line in made.split("\n"))
    assert ("größe" in made) == (text == "größe")
