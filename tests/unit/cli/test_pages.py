"""The commands on all pages, in blocks and in the text, and those of the help pages, are ones that there are.

Words in capitals and `...` stand for something else. `tests/unit/test_pages.py` sees which are run.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException

from support.pages import Written, blocks, commands, mentions, pages, plain
from whimbrel.cli import bench, dlq
from whimbrel.cli.endpoint import Given
from whimbrel.cli.processes import BROKER_COMMANDS, PROCESSES, options_of
from whimbrel.cli.pull import PULL_EXAMPLES
from whimbrel.cli.receive import RECEIVE_EXAMPLES
from whimbrel.cli.root import command_line
from whimbrel.cli.send import SEND_EXAMPLES
from whimbrel.cli.tail import TAIL_EXAMPLES
from whimbrel.cli.template import ALIASES, FIELDS
from whimbrel.config import ConfigError, Problems, read_arguments, settings

ROOT = Path(__file__).parents[3]
ELLIPSES = ("...", "…")
NUMBERS = {"N": "1", "RATIO": "1"}  # placeholders that stand for a number
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")


def of_help_pages() -> list[str]:
    """Return the examples of help pages."""
    found: list[str] = []
    epilogs = [command.epilog or "" for app in (bench.app, dlq.app) for command in app.registered_commands]
    for examples in (SEND_EXAMPLES, RECEIVE_EXAMPLES, TAIL_EXAMPLES, PULL_EXAMPLES, *epilogs):
        found += [re.split(r"\s{3,}", line.strip())[0] for line in examples.splitlines()[2:]]
    return sorted({line for line in found if "whimbrel " in line})


def words_of(line: str) -> list[str]:
    """Return the words behind the first `whimbrel`, up to a pipe or a redirection."""
    found = Written(line).split()
    found = found[found.index("whimbrel") + 1 :]
    ends = [index for index, word in enumerate(found) if set(word) <= set("|<>")]
    return found[: ends[0]] if ends else found


def read(line: str, *, whole: bool) -> None:
    """Read a command line as the command does.

    Args:
        line: the text.
        whole: it is one that is typed so; else arguments may be missing, as where a command is only named.

    Raises:
        AssertionError: there is no such command.
        TyperException: it has no such option or argument.
        ConfigError: a process has no such setting.
    """
    words = words_of(line)
    if words[:1] == ["broker"] and words[1:2] and words[1] in BROKER_COMMANDS:
        words = words[1:]
    left_open = any(word in ELLIPSES for word in words)
    words = [NUMBERS.get(word, word) for word in words if word not in ELLIPSES]
    if words and words[0] in PROCESSES:
        schema = {setting.name: setting for setting in settings(options_of(words[0]))}
        wrong = Problems()
        read_arguments(schema, words[1:], wrong)
        if wrong.problems:
            raise ConfigError(*wrong.problems)
        return
    command: Any = command_line(options=True)
    context: Any = None
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
        name, *words = words
        if PLACEHOLDER.fullmatch(name) and not whole:
            return
        below = command.get_command(context, name)
        assert below is not None, f"{command.name} has no command {name}"
        command = below
    if "--help" in words:
        words.remove("--help")
    if context is None:  # options of `whimbrel` itself, which act as soon as they are read
        command.make_parser(command.context_class(command)).parse_args(words)
        return
    if hasattr(command, "get_command") and not words:
        return
    try:
        command.make_context(command.name, words, parent=context)
    except TyperException as error:
        if type(error).__name__ != "MissingParameter" or (whole and not left_open):
            raise


@pytest.fixture(autouse=True)
def nobodys_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a line names as its cluster is forgotten afterwards."""
    monkeypatch.setattr(Given, "profile", "")


def in_blocks() -> list[str]:
    """Return the commands of blocks, and those behind a pipe."""
    found = {each.text for each in commands() if "whimbrel " in each.text}
    for page, content in pages().items():
        for block in blocks(page, content):
            found |= {plain(text) for _, text in block.lines if "| whimbrel " in text}
    return sorted(found)


@pytest.mark.parametrize("line", in_blocks())
def test_a_command_of_a_block_can_be_read(line: str) -> None:
    read(line, whole=True)


def alternatives(text: str) -> list[str]:
    """Return what a mention stands for: `create|update` is both, and what is in brackets is there, too."""
    text = re.sub(r"[\[\]]", "", text)
    either = re.search(r"(\w+)\|(\w+)", text)
    return [text.replace(either[0], one) for one in either.groups()] if either else [text]


@pytest.mark.parametrize("text", sorted({each.text for each in mentions() if each.text[0] == "w"}))
def test_a_command_in_the_text_can_be_read(text: str) -> None:
    for line in alternatives(text):
        read(line, whole=False)


@pytest.mark.parametrize("line", of_help_pages())
def test_an_example_of_a_help_page_can_be_read(line: str) -> None:
    read(line, whole=True)


@pytest.mark.parametrize(
    "wrong",
    [
        "whimbrel sent orders x",
        "whimbrel send orders x y",
        "whimbrel send orders x --colour red",
        "whimbrel send orders x --tag",
        "whimbrel tail orders --until-end yes",
        "whimbrel bench send --count many",
        "whimbrel replication voters broker-a",
        "whimbrel broker --colour red",
        "whimbrel broker --port many",
        "whimbrel dev begin",
        "whimbrel dev --slave 2",
    ],
)
def test_what_is_wrong_is_found(wrong: str) -> None:
    with pytest.raises((TyperException, ConfigError, AssertionError)):
        read(wrong, whole=True)


def services(file: str) -> set[str]:
    """Return the services of a file of compose."""
    text = (ROOT / file).read_text(encoding="utf-8").split("\nservices:\n")[1].split("\nvolumes:\n")[0]
    return set(re.findall(r"^  ([\w-]+):", text, re.MULTILINE))


def of_compose() -> list[str]:
    texts = [*(each.text for each in commands()), *(each.text for each in mentions())]
    return sorted({text for text in texts if "docker compose" in text})


@pytest.mark.parametrize("text", of_compose())
def test_a_command_of_compose_names_services_that_there_are(text: str) -> None:
    takes_services = {"up", "stop", "start", "build", "exec"}
    words = text.partition("docker compose ")[2].split()
    names = [word for word in words if not word.startswith("-") and word != "observability"]
    assert names[0] in takes_services, text
    named = names[1:2] if names[0] == "exec" else names[1:]
    assert set(named) <= services("docker-compose.yml") | {"SERVICE"}, text


def test_enough_commands_are_found() -> None:
    assert len(commands()) > 160 and len(mentions()) > 180 and len(of_help_pages()) > 20


def test_the_page_has_every_field_of_a_template() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(f"`%{letter}`" in text for letter in (*FIELDS, *ALIASES))
