"""What throws work away, repeats it or hides it says so first, and asks; a script says --yes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from support.asking import ASKS, ASKS_NOT
from support.cluster.command_line import Shell
from support.every_command import every_command
from support.systems.fake_cluster import FakeCluster
from support.unasked import ASKED
from whimbrel.cli.asking import ask, counted
from whimbrel.errors import ClientError
from whimbrel.model.cluster import GroupProgress, OffsetMove

ROOT = Path(__file__).parents[3]


class TerminalInput(io.StringIO):
    """Standard input of somebody who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(text: str) -> None:
        monkeypatch.setattr("sys.stdin", TerminalInput(f"{text}\n"))

    return give


@pytest.fixture(scope="module")
def every() -> dict[str, Any]:
    return every_command()


def test_commands_that_ask_have_yes_and_no_others(every: dict[str, Any]) -> None:
    having = {
        name: param
        for name, command in every.items()
        for param in command.params
        if "--yes" in getattr(param, "opts", ())
    }
    assert set(having) == ASKS
    for name, param in having.items():
        assert sorted(param.opts) == ["--yes", "-y"] and param.help == "Do not ask.", name


def test_every_command_that_changes_something_asks_or_says_why_not(every: dict[str, Any]) -> None:
    assert not ASKS & set(ASKS_NOT)
    assert (ASKS | set(ASKS_NOT)) <= set(ASKED) == set(every)


def test_there_is_one_place_that_asks() -> None:
    asking = [path.name for path in (ROOT / "services").rglob("*.py") if "[y/N]" in path.read_text()]
    assert asking == ["asking.py"]
    assert not [path for path in (ROOT / "services").rglob("*.py") if '.confirm("' in path.read_text()]


def test_without_a_terminal_nothing_is_done_and_yes_is_named() -> None:
    with pytest.raises(ClientError, match=r"this would drop 2 messages; nothing was done, .* --yes does it"):
        ask("drop 2 messages", yes=False)


def test_yes_asks_nobody_and_counts_nothing() -> None:
    ask(lambda: pytest.fail("counted"), yes=True)


def test_nobody_is_asked_about_nothing() -> None:
    ask("", yes=False)


@pytest.mark.parametrize("text", ["n", ""])
def test_no_is_exit_code_1(answer: Any, capsys: pytest.CaptureFixture[str], text: str) -> None:
    answer(text)
    with pytest.raises(typer.Exit) as end:
        ask("drop 2 messages", yes=False)
    assert end.value.exit_code == 1
    shown = capsys.readouterr()
    assert "This would drop 2 messages." in shown.err and "nothing was done" in shown.err
    assert shown.out == ""


def test_y_goes_on(answer: Any) -> None:
    answer("y")
    ask("drop 2 messages", yes=False)


def test_numbers_are_read_easily() -> None:
    assert [counted(count) for count in (0, 1, 1200)] == ["0 messages", "1 message", "1,200 messages"]
    assert counted(2, "dead letter") == "2 dead letters"


@pytest.mark.parametrize(
    ("after", "again", "skipped"),
    [
        (0, 12, 0),  # 10 before the first one that is left, and 2 that were finished behind it
        (10, 2, 0),
        (15, 0, 5),
        (20, 0, 8),
    ],
)
def test_a_reset_counts_what_comes_again_and_what_is_skipped(after: int, again: int, skipped: int) -> None:
    progress = GroupProgress(
        topic="t", queue_id=0, committed_offset=10, next_offset=14, max_offset=20, in_flight=1, lag=8
    )
    move = OffsetMove.of(progress, after)
    assert (move.before, move.after, move.again, move.skipped, move.in_flight) == (
        10,
        after,
        again,
        skipped,
        1,
    )


def test_a_topic_that_would_go_says_how_much_it_holds(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["orders"] = [[], []]
    shell("send", "orders", "x", "--count", "3")
    shell("topic", "delete", "orders", code=1)
    assert "this would delete topic orders with its 3 messages" in shell.error
    assert "orders" in cluster.topics
    shell("topic", "delete", "nothing", code=1)
    assert "no topic nothing" in shell.error


def test_a_group_that_would_go_says_what_it_has_not_finished(cluster: FakeCluster, shell: Shell) -> None:
    shell("group", "create", "g")
    shell("group", "delete", "g", code=1)
    assert "this would delete group g with its positions on t, where it has not finished 2" in shell.error


def test_a_reset_is_shown_first_and_moves_nothing(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "x", "--count", "7")
    shell("group", "create", "g")
    shell("group", "reset-offsets", "g", "t", "--to", "earliest", code=1)
    assert "this would move group g on 1 queue of t" in shell.error
    assert "come again" in shell.error and "skipped" in shell.error
    shown = json.loads(
        shell("group", "reset-offsets", "g", "t", "--to", "earliest", "--dry-run", "-o", "json")
    )
    assert shown["broker-a"][0]["after"] == 0
    assert cluster.count("ResetOffsets") == 0


def test_messages_that_would_be_hidden_are_counted_first(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[], []]
    shell("send", "t", "x", "--count", "3", "--queue", "1")
    shell("topic", "update", "t", "--queues", "1", "--wait", "0", code=1)
    assert "this would hide 3 messages" in shell.error and "--hide does it at once" in shell.error
    shell("topic", "update", "t", "--queues", "1", "--hide", code=1)
    assert "this would hide 3 messages of t, which nobody would be given; nothing was done" in shell.error
    assert len(cluster.topics["t"]) == 2
    shell("topic", "update", "t", "--queues", "1", "--hide", "--yes")
    assert len(cluster.topics["t"]) == 1
