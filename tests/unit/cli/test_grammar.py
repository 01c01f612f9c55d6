"""One grammar for all commands: what has a name in one has it in the others."""

from collections import defaultdict
from typing import Any

import pytest

from support.cluster.command_line import Shell
from support.every_command import every_command
from support.systems.fake_cluster import FakeCluster
from whimbrel.cli.processes import PROCESSES

# Options that stand for different things in different commands, by what each of them takes.
SEVERAL = {
    "--broker": {"NAME", "SOURCE=TARGET"},  # one, or which one takes whose messages
    "--from": {"WHERE", "OFFSET", "PATH|URL", "HOST:PORT", "BOUND"},
    "--to": {"WHERE", "", "DIR", "FOLDER", "TOPIC"},
    "--topic": {"TOPIC", "NAME,..."},
    "--until": {"TIME", "BOUND"},
}


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, Any]]:
    """Return the options that are shown, by their long names, and by command."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, command in every_command().items():
        if name in PROCESSES:
            continue
        for param in command.params:
            if param.param_type_name == "option" and not param.hidden:
                found[max(param.opts, key=len)][name] = param
    return found


def test_an_option_has_one_short_form(options: dict[str, dict[str, Any]]) -> None:
    for name, by_command in options.items():
        forms = {tuple(sorted(param.opts)) for param in by_command.values()}
        assert len(forms) == 1, (name, {command: param.opts for command, param in by_command.items()})


def test_a_short_form_stands_for_one_option(options: dict[str, dict[str, Any]]) -> None:
    long: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, by_command in options.items():
        for command, param in by_command.items():
            for form in param.opts:
                if not form.startswith("--"):
                    long[command, form].add(name)
    assert {key: names for key, names in long.items() if len(names) > 1} == {}


def test_an_option_takes_the_same_in_all_commands(options: dict[str, dict[str, Any]]) -> None:
    for name, by_command in options.items():
        taken = {param.metavar or "" for param in by_command.values()}
        assert taken == SEVERAL.get(name, taken if len(taken) == 1 else set()), name


def test_messages_are_chosen_alike_by_all_commands_of_dead_letters(
    options: dict[str, dict[str, Any]],
) -> None:
    for name in ("--id", "--key", "--topic", "--since", "--until"):
        assert {"dlq list", "dlq show", "dlq replay", "dlq drop"} <= set(options[name]), name


def test_members_are_named_alike(options: dict[str, dict[str, Any]]) -> None:
    assert {"forget", "replication reinit", "replication cut list"} <= set(options["--member"])
    assert "forget" not in options["--id"]


def test_what_was_named_otherwise_before_is_taken_and_not_shown(cluster: FakeCluster, shell: Shell) -> None:
    shell("broker", "forget", "nobody", "--id", "1", code=1)
    assert "no nameserver misses a broker 1 of nobody" in shell.error or "forget" in shell.error
    assert "--id" not in shell("forget", "--help")
    usage = shell("dlq", "show", "--help")
    assert "Usage: whimbrel dlq show [OPTIONS] {GROUP}\n" in usage and "--id ID" in usage
    shell("dlq", "show", "g", code=2)
    assert "choose by --id" in shell.error


@pytest.mark.parametrize(
    "words",
    [
        ("group", "describe", "nobody"), ("group", "update", "nobody", "--no-consume"),
        ("group", "delete", "nobody"), ("group", "delete", "nobody", "--yes"),
        ("group", "reset-offsets", "nobody", "t", "--to", "earliest"),
    ],
)  # fmt: skip
def test_an_unknown_group_is_told_once(cluster: FakeCluster, shell: Shell, words: tuple[str, ...]) -> None:
    cluster.topics["t"] = [[]]
    shell(*words, code=1)
    assert shell.error.count("no group nobody") == 1
    assert shell.error.count("whimbrel: ") == 1
    assert shell.error.count("`whimbrel group list`") == 1
