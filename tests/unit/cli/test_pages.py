"""The commands on the pages about commands, and those of the help pages, are command lines that parse."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from whimbrel.cli import bench, dlq
from whimbrel.cli.main import command_line
from whimbrel.cli.pull import PULL_EXAMPLES
from whimbrel.cli.receive import RECEIVE_EXAMPLES
from whimbrel.cli.send import SEND_EXAMPLES
from whimbrel.cli.tail import TAIL_EXAMPLES
from whimbrel.cli.template import ALIASES, FIELDS

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "commands.md", DOCS / "dead-letters.md")


def written() -> list[str]:
    """Return the command lines of the pages and of help pages."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found += re.findall(r"`(whimbrel [^`]* [^`]*)`", text.replace("\n", " "))
    epilogs = [command.epilog or "" for app in (bench.app, dlq.app) for command in app.registered_commands]
    for examples in (SEND_EXAMPLES, RECEIVE_EXAMPLES, TAIL_EXAMPLES, PULL_EXAMPLES, *epilogs):
        found += [re.split(r"\s{3,}", line.strip())[0] for line in examples.splitlines()[2:]]
    return sorted({line for line in found if "whimbrel " in line})


def words(line: str) -> list[str]:
    """Return the words behind `whimbrel`, up to a pipe, a redirection or a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    found = list(lexer)
    found = found[found.index("whimbrel") + 1 :]
    ends = [index for index, word in enumerate(found) if word in ("|", "<", ">")]
    return found[: ends[0]] if ends else found


@pytest.mark.parametrize("line", written())
def test_a_written_command_parses(line: str) -> None:
    command: Any = command_line(options=True)
    context: Any = None
    arguments = words(line)
    while hasattr(command, "get_command") and arguments and not arguments[0].startswith("-"):
        context = command.make_context(command.name, arguments[:0], parent=context, resilient_parsing=True)
        name, *arguments = arguments
        command = command.get_command(context, name)
        assert command is not None, f"{line}: there is no command {name}"
    if not arguments or arguments == ["--help"]:
        return
    command.make_context(command.name, arguments, parent=context)  # raises when the line is wrong


def test_enough_commands_are_found() -> None:
    assert len(written()) > 30


def test_the_page_has_every_field_of_a_template() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert all(f"`%{letter}`" in text for letter in (*FIELDS, *ALIASES))
