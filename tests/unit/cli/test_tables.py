"""Tables at any width: no word is broken, and a value is whole or not there."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from whimbrel.cli import cluster, replication
from whimbrel.cli.tables import columns_of, lay_out, wrapped

WIDTHS = (60, 80, 120, 200)
ID = "01F2D3C4B5A60718293A4B5C6D7E8F90AB"
TABLES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[Sequence[Any]]]] = {
    "cluster": (
        cluster.COLUMNS,
        cluster.OPTIONAL,
        [
            ("DefaultCluster", "broker-a", 0, "master", "192.168.100.101:10911", "192.168.100.101:10912",
             123_456_789_012, "115.0 GiB", "yes", 4000, "0.5 s ago", "0.1.0"),
            ("DefaultCluster", "broker-a", 1, "slave", "192.168.100.102:10911", "-",
             123_456_789_012, "115.0 GiB", "no", 4000, "1.5 s ago", "off"),
        ],
    ),
    "replication": (
        replication.COLUMNS,
        replication.OPTIONAL,
        [
            ("broker-a", "master", "takes messages", "", "", 123_456_789_012, 123_456_789_000,
             123_456_789_012, 123_456_789_012, "", "sync, flush async"),
            ("", "", "in step", "12.0 KiB", "192.168.100.102:10911", "", "", "", "", 123_456_789_000, ""),
            ("broker-a", "slave 1", "not connected", "1.5 GiB", "192.168.100.101:10912", 123_456_789_012,
             "-", 123_456_789_012, 123_456_789_012, "-", "-"),
        ],
    ),
    "topics": (
        ("topic", "type", "read queues", "write queues", "permission"),
        (),
        [("a" * 50, "transaction", 65535, 65535, "rwx"), ("orders", "normal", 8, 8, "rw")],
    ),
    "queues": (
        ("broker", "queue", "min offset", "max offset", "messages", "last stored (UTC)"),
        (),
        [("broker-a", 0, 0, 123_456_789, 123_456_789, "2026-11-22 15:52:21.490")],
    ),
    "group": (
        ("broker", "topic", "queue", "committed", "next", "max offset", "in flight", "lag"),
        (),
        [("broker-a", "%RETRY%billing-of-everything", 0, 123_456_789, 123_456_789, 123_456_789, 10_000, 9)],
    ),
    "messages": (
        ("broker", "queue", "offset", "message id", "tag", "keys", "attempt", "stored (UTC)", "body"),
        (),
        [
            ("broker-a", 0, 123_456, ID, "new", "4711 4712", 16, "2026-11-22 15:52:21.490", "x" * 40),
            ("broker-a", 1, 7, ID, None, None, None, "2026-11-22 15:52:21.490", "日本語の本文です"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_no_value_is_broken_at_any_width(name: str, width: int) -> None:
    columns, optional, rows = TABLES[name]
    made = lay_out(columns, rows, width=width, optional=optional)
    lines = made.text.splitlines()
    assert max(map(columns_of, lines)) <= width
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            whole = "-" if cell is None else str(cell)
            if column not in made.left_out:
                assert any(whole in line for line in lines), (column, whole)
    assert set(made.left_out) <= set(optional)


@pytest.mark.parametrize("name", ["cluster", "replication"])
def test_what_an_operator_looks_for_is_a_table_at_80_columns(name: str) -> None:
    columns, optional, rows = TABLES[name]
    made = lay_out(columns, rows, width=80, optional=optional)
    head, rule, *body = made.text.splitlines()
    assert set(rule) == {"─"}
    assert len(body) == len(rows)
    assert re.split(r"\s{2,}", head) == [name for name in columns if name not in made.left_out]


@pytest.mark.parametrize("name", TABLES)
def test_without_a_width_every_row_is_one_line(name: str) -> None:
    columns, optional, rows = TABLES[name]
    made = lay_out(columns, rows, width=None, optional=optional)
    assert len(made.text.splitlines()) == 2 + len(rows)
    assert made.left_out == ()


def test_columns_are_aligned_numbers_to_the_right() -> None:
    made = lay_out(("topic", "queues"), [("日本", 8), ("b", 16)], title=["Topics"], width=80)
    assert made.text.splitlines() == [
        "Topics",
        "topic  queues",
        "─────────────",
        "日本        8",
        "b          16",
    ]


def test_a_column_of_numbers_may_lack_some() -> None:
    made = lay_out(("lag",), [(5,), ("-",), (None,), (1000,)], width=80)
    assert made.text.splitlines()[2:] == ["   5", "   -", "   -", "1000"]


def test_a_sentence_is_wrapped_between_words() -> None:
    assert wrapped("so many words\nand more", 9) == "so many\nwords\nand more"


def test_the_least_important_column_goes_first() -> None:
    rows = [("a" * 10, "b" * 10, "c" * 10)]
    made = lay_out(("one", "two", "three"), rows, width=25, optional=("two", "three"))
    assert made.left_out == ("two",)
    assert made.text.splitlines()[-1] == "aaaaaaaaaa  cccccccccc"


def test_records_have_all_columns_and_break_between_words() -> None:
    made = lay_out(("one", "two", "text"), [("a", "", "so many words")], width=12, optional=("one",))
    assert made.left_out == ()
    assert made.text.splitlines() == ["one: a", "  text: so", "  many words"]


def test_a_cell_cant_move_the_cursor() -> None:
    made = lay_out(("key",), [("a\x1b[2Jb\nc",)], width=80)
    assert made.text.splitlines()[-1] == "a\\x1b[2Jb\\nc"
