"""Items are printed as they come, in each format; a pipe without a reader is noticed."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import environment
from unit.cli.test_template import MESSAGE
from whimbrel.cli.output import Format, emit, note
from whimbrel.cli.printing import HELD_MAX, Items, portions, printer_of, reader_gone, was_read
from whimbrel.cli.template import Template


def table(items: Sequence[int]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    return ("number",), [(item,) for item in items]


ITEMS: Items[int] = Items(table=table, line=lambda item: f"line {item}", as_object=lambda item: {"n": item})


def test_a_table_is_held_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(ITEMS, Format.TABLE)
    assert printer.add([1, 2]) == ()
    assert capsys.readouterr().out == ""
    assert printer.end() == [1, 2]
    assert capsys.readouterr().out.split()[0] == "number"
    assert printer.end() == []
    assert capsys.readouterr().out == ""


def test_a_long_table_is_printed_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(ITEMS, Format.TABLE)
    assert len(printer.add(range(HELD_MAX + 1))) == HELD_MAX + 1
    assert printer.held == []


def test_what_has_no_end_is_printed_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(ITEMS, Format.TABLE, endless=True)
    assert printer.add([1, 2]) == [1, 2]
    assert capsys.readouterr().out == "line 1\nline 2\n"


def test_json_is_one_array_whenever_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(ITEMS, Format.JSON)
    printer.add([1])
    printer.add([])
    printer.add([2, 3])
    printer.end()
    text = capsys.readouterr().out
    assert json.loads(text) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert text == json.dumps([{"n": 1}, {"n": 2}, {"n": 3}], indent=2) + "\n"
    printer_of(ITEMS, Format.JSON).end()
    assert capsys.readouterr().out == "[]\n"


def test_json_lines_are_a_line_each_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    printer = printer_of(ITEMS, Format.JSONL)
    printer.add([1, 2])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"n": 1}, {"n": 2}]


def test_a_template_writes_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = printer_of(ITEMS, Format.TABLE, lambda item: b"\xff%d" % item)
    printer.add([1, 2])
    assert capfdbinary.readouterr().out == b"\xff1\xff2"


def test_the_first_item_of_all_goes_alone() -> None:
    assert list(portions([1, 2, 3], first=True)) == [[1], [2, 3]]
    assert list(portions([1, 2, 3], first=False)) == [[1, 2, 3]]
    assert list(portions([1], first=True)) == [[1]]


def test_only_a_pipe_is_watched(capfd: pytest.CaptureFixture[str]) -> None:
    assert not reader_gone()
    assert was_read(1)
    assert was_read(2)


@pytest.mark.parametrize(
    ("taken", "outcome"),
    [
        (0, "gone True one False two False"),
        (1, "gone True one True two False"),
    ],
)
def test_what_a_reader_that_goes_has_taken_was_read_if_it_is_one_item(taken: int, outcome: str) -> None:
    program = (
        "import os, sys\n"
        "from whimbrel.cli.printing import reader_gone, was_read\n"
        "assert not reader_gone() and was_read(1) and was_read(2)\n"
        "os.write(1, b'x')\n"
        "assert not reader_gone() and was_read(2)  # a paused reader\n"
        "print('written', file=sys.stderr, flush=True)\n"
        "sys.stdin.read()\n"
        "print('gone', reader_gone(), 'one', was_read(1), 'two', was_read(2), file=sys.stderr)\n"
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stderr.readline() == b"written\n"
    os.read(child.stdout.fileno(), 1) if taken else None
    child.stdout.close()
    child.stdout = None
    assert child.communicate(b"")[1].decode().strip() == outcome


HOSTILE = "a\x1b[2J\x9b1m\u202eb\nc"
STRANGE: Items[str] = Items(
    table=lambda items: (("name",), [(item,) for item in items]),
    line=lambda item: f"name {item}",
    as_object=lambda item: {item: [item]},
)


@pytest.mark.parametrize("output", list(Format))
@pytest.mark.parametrize("endless", [True, False])
def test_names_reach_no_terminal_as_they_are(
    output: Format, endless: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = printer_of(STRANGE, output, endless=endless)
    printer.add([HOSTILE])
    printer.end()
    emit([HOSTILE], output, columns=("name",), rows=[(HOSTILE,)], title=[HOSTILE])
    note(HOSTILE)
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).split("\n")
    assert all(line.isprintable() for line in lines)
    assert "c" in printed.err.split("\n"), "a note may have lines"


def test_a_template_is_escaped_on_a_terminal_and_byte_for_byte_elsewhere() -> None:
    body = b"\x1b[2J\x9b\xff\n\ttext"
    message = replace(MESSAGE, body=body, properties={"k": "v\x1b"})
    template = Template(r"\x1b[1m%v %h\n")
    assert template.render(message) == b"\x1b[1m" + body + b" k=v\x1b\n"
    shown = rb"\x1b[2J\x9b\xff" + b"\n\ttext " + rb"k=v\x1b" + b"\n"
    assert template.render_for_terminal(message) == b"\x1b[1m" + shown


def test_a_terminal_gets_the_escaped_form(tmp_path: Path) -> None:
    """A program whose standard output is a terminal prints a message with a template."""
    code = (
        "from clikit_messages import MESSAGE\n"
        "from whimbrel.cli.output import Format\n"
        "from whimbrel.cli.shown_messages import message_printer\n"
        "from whimbrel.cli.template import Template\n"
        "message_printer(Format.TABLE, Template('%v')).add([MESSAGE])\n"
    )
    path = tmp_path / "clikit_messages.py"
    path.write_text("from types import SimpleNamespace\nMESSAGE = SimpleNamespace(body=b'\\x1b[2Jx')\n")
    found = environment()
    found["PYTHONPATH"] = f"{found['PYTHONPATH']}:{tmp_path}"
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", code], env=found, stdout=theirs) as child:
        assert child.wait() == 0
    os.close(theirs)
    assert os.read(ours, 100) == b"\\x1b[2Jx"
    os.close(ours)
    assert subprocess.run([sys.executable, "-c", code], env=found, capture_output=True).stdout == b"\x1b[2Jx"
