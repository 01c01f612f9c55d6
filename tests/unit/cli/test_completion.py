"""What a shell gets for TAB, what help pages say and import, and what is suggested for a mistyped word."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import ALL
from whimbrel.cli import cluster_names
from whimbrel.cli.main import main
from whimbrel.cli.processes import PROCESSES
from whimbrel.cli.root import SECTIONS, commands
from whimbrel.cli.shells import BASH_SCRIPT, NOTHING
from whimbrel.cli.spark import SparkJobs

HEAVY = ("grpc", "opentelemetry", "pyspark", "rich", "google", "cryptography", "numpy")


PAGES = [" ".join(words) for words in ALL]
# typer reads a group's own options with pydantic before it comes to the command.
BELOW_OPTIONS = [
    " ".join(words) for words in ALL if any(ALL[words[:end]].params for end in range(1, len(words)))
]

Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Give a function that asks as a shell's script does; the line's last word is incomplete."""

    def asked(shell: str, line: str, *, action: str = "get-args", code: int = 0) -> str:
        monkeypatch.setenv("_WHIMBREL_COMPLETE", f"complete_{shell}")
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", action)
        assert main(()) == code
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return asked


def names(shell: str, answer: str) -> list[str]:
    """Return the words that a shell offers after this answer."""
    if shell == "zsh":
        return re.findall(r'^(?:_arguments .*\(\()?"([^"]*)"', answer, flags=re.MULTILINE)
    return [line.split("\t")[0] for line in answer.splitlines() if line]


def test_every_command_of_the_table_resolves() -> None:
    first = {words[0] for words in ALL if len(words) == 1}
    assert first == set(commands())
    assert {words[1] for words in ALL if len(words) == 2 and words[0] == "spark"} == set(SparkJobs.table)
    assert ("profile", "use") in ALL


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("whimbrel ", list(commands())),
        ("whimbrel rep", ["replication", "replicator"]),
        ("whimbrel nosuch", []),
        ("whimbrel --v", ["--version"]),
        ("whimbrel spark ", list(SparkJobs.table)),
        ("whimbrel spark verify", ["verify-index"]),
        ("whimbrel topic ", ["create", "list", "describe", "update", "delete"]),
        ("whimbrel topic create --q", ["--queues"]),
        ("whimbrel topic list --pro", ["--profile"]),
        ("whimbrel topic create --type ", ["normal", "fifo", "delay", "transaction", "priority", "mixed"]),
        ("whimbrel dev --flush ", ["sync", "async"]),
        ("whimbrel dev --flush s", ["sync"]),
        ("whimbrel config show ", ["nameserver", "broker", "replicator"]),
        ("whimbrel profile use ", ["dev"]),
        ("whimbrel broker --fl", ["--flush", "--flush-interval-ms"]),
        ("whimbrel broker --conf", ["--config"]),
        ("whimbrel broker --flush ", ["sync", "async"]),
        ("whimbrel broker --flush async --ro", ["--role"]),
        ("whimbrel broker --accept-replays ", ["true", "false"]),
        ("whimbrel nameserver --lease", ["--lease-s"]),
        ("whimbrel replicator --role s", ["slave"]),
    ],
)
def test_a_shell_is_offered_what_can_stand_there(ask: Ask, shell: str, line: str, offered: list[str]) -> None:
    assert names(shell, ask(shell, line)) == offered


def test_bash_takes_an_equals_sign_for_a_word(ask: Ask) -> None:
    assert names("bash", ask("bash", "whimbrel broker --flush = sy")) == ["sync"]


@pytest.mark.parametrize("line", ["whimbrel broker --store ", "whimbrel replicator --config /e"])
def test_paths_are_left_to_the_shell(ask: Ask, line: str) -> None:
    assert names("bash", ask("bash", line)) == []  # `complete -o default`: then files
    assert ask("zsh", line) == "_files\n"
    ask("fish", line, action="is-args", code=1)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have no cluster where commands look for one."""
    for name in ("WHIMBREL_ENDPOINT", "WHIMBREL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "WHIMBREL_DEV_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.parametrize(
    "line",
    [
        "whimbrel send ",
        "whimbrel send orders --profile nosuch --queue 1 --endpoint 127.0.0.1:1 -o json --tag x --key",
        "whimbrel receive orders --group ",
        "whimbrel topic create ",
        "whimbrel drain b",
        "whimbrel broker drain ",
        "whimbrel spark archive /data --topic orders,",
    ],
)
@pytest.mark.usefixtures("nobody")
def test_no_files_are_offered_where_names_of_a_cluster_are_wanted(ask: Ask, line: str) -> None:
    if line.endswith("--key"):  # that is no name, and left to the shell
        assert names("bash", ask("bash", f"{line} ")) == []
        return
    assert ask("bash", line, code=NOTHING) == ""
    assert ask("zsh", line) == ":\n"
    assert ask("fish", line, action="is-args") == ""
    assert ask("fish", line) == "\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_the_cluster_are_offered(ask: Ask, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def names_of(kind: str, endpoint: str) -> list[str]:
        asked.append((kind, endpoint))
        return [f"{kind}-a", f"{kind}-b", "other"]

    monkeypatch.setattr(cluster_names, "names_of", names_of)
    monkeypatch.setenv("WHIMBREL_ENDPOINT", "127.0.0.1:1")
    assert names(shell, ask(shell, "whimbrel send to")) == ["topic-a", "topic-b"]
    assert names(shell, ask(shell, "whimbrel receive orders --group ")) == ["group-a", "group-b", "other"]
    for command in ("forget", "broker forget"):
        line = f"whimbrel {command} --endpoint 127.0.0.1:2 b"
        assert names(shell, ask(shell, line)) == ["broker-a", "broker-b"]
    assert asked == [
        (kind, f"127.0.0.1:{port}") for kind, port in (("topic", 1), ("group", 1), *[("broker", 2)] * 2)
    ]


def test_the_commands_of_a_broker_are_offered_behind_it(ask: Ask) -> None:
    assert names("bash", ask("bash", "whimbrel broker "))[:3] == ["drain", "forget", "--config"]
    assert names("bash", ask("bash", "whimbrel broker dr")) == ["drain"]


def test_bash_is_told_that_no_file_would_do() -> None:
    assert f"[ $? -eq {NOTHING} ]" in BASH_SCRIPT
    assert "compopt +o default" in BASH_SCRIPT


def test_fish_asks_first_whether_there_is_anything(ask: Ask) -> None:
    assert ask("fish", "whimbrel rep", action="is-args") == ""
    ask("fish", "whimbrel nosuch", action="is-args", code=1)
    ask("fish", "whimbrel broker --fl", action="is-args")


def test_lists_of_commands_come_with_their_help(ask: Ask) -> None:
    assert "rep" not in ask("zsh", "whimbrel broke")
    assert '"broker":"Run a broker, master or slave."' in ask("zsh", "whimbrel broke")
    assert "audit\tCompare a master's log with its slaves'." in ask("fish", "whimbrel spark aud")


def test_bash_completes_with_the_script_that_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "whimbrel"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m whimbrel.cli "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_WHIMBREL_COMPLETE=source_bash whimbrel)"\n'
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _whimbrel_completion whimbrel\n'
        "echo ${COMPREPLY[@]}; }\n"
        "try whimbrel rep; try whimbrel broker --flush ''\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "replication replicator\nsync async\n"
    assert done.stderr == ""


def python(code: str, *, environment: dict[str, str] | None = None) -> str:
    """Run a program with our package, and return what it prints last."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_the_first_word_is_completed_without_typer() -> None:
    code = (
        "import sys\nfrom whimbrel.cli.main import main\nassert main([]) == 0\n"
        "print(sorted({'typer', 'click', 'dataclasses', 'whimbrel.cli.topic'} & set(sys.modules)))"
    )
    question = {"_WHIMBREL_COMPLETE": "complete_bash", "COMP_WORDS": "whimbrel ", "COMP_CWORD": "1"}
    assert python(code, environment=question) == "[]"


@pytest.mark.parametrize("line", ["whimbrel spark ", "whimbrel topic create x --q", "whimbrel dev --flush "])
def test_other_words_are_completed_without_what_takes_long(line: str) -> None:
    code = (
        "import sys\nfrom whimbrel.cli.main import main\nassert main([]) == 0\n"
        f"print(sorted({{'pydantic', *{HEAVY!r}}} & set(sys.modules)))"
    )
    question = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    assert python(code, environment={"_WHIMBREL_COMPLETE": "complete_bash", **question}) == "[]"


def test_no_help_page_imports_what_takes_long() -> None:
    code = (
        "import json, sys\nfrom whimbrel.cli.main import main\nloaded = {}\n"
        f"for page in sorted({PAGES!r}, key={BELOW_OPTIONS!r}.__contains__):\n"
        "    assert main([*page.split(), '--help']) == 0, page\n"
        f"    for name in {HEAVY!r} if page in {BELOW_OPTIONS!r} else ('pydantic', *{HEAVY!r}):\n"
        "        if name in sys.modules: loaded.setdefault(name, page)\n"
        "print(json.dumps(loaded))"
    )
    assert json.loads(python(code)) == {}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_is_not_imported_for_its_help(name: str) -> None:
    code = (
        "import sys\nfrom whimbrel.cli.main import main\n"
        f"assert main(['{name}', '--help']) == 0\n"
        "print(sorted({'typer', 'asyncio', 'ssl', 'mmap', 'whimbrel.store.codec'} & set(sys.modules)))"
    )
    assert python(code) == "[]"


@pytest.mark.parametrize("page", PAGES)
def test_help_is_in_plain_words(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*page.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: whimbrel {page}".rstrip())
    assert not re.search(r"<(int|float|str|path|list)|<=x|x>=|x<=|INTEGER|python -m", text, re.MULTILINE), (
        text
    )


def test_ranges_are_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["dev", "--help"])
    assert "--port N" in (page := capsys.readouterr().out)
    assert "default: 8081; 0 to 65535" in " ".join(page.split())
    main(["pull", "--help"])
    assert "[0 or more; required]" in capsys.readouterr().out


def test_lists_of_commands_have_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    main(["topic", "--help"])
    assert "queue counts are summed over its brokers." in " ".join(capsys.readouterr().out.split())


def test_every_command_has_a_place_in_the_list() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert set(commands()) <= set(placed)
    assert len(placed) == len(set(placed))


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("topc", "Did you mean 'topic'?"),
        ("brokr", "Did you mean 'broker'?"),
        ("profil", "Did you mean 'profile'?"),
        ("topic crate", "Did you mean 'create'?"),
        ("spark audt", "Did you mean 'audit'?"),
        ("topic create x --queus 1", "--queues"),
        ("spark stats --htm x", "--html"),
        ("broker --nmae x", "did you mean --name?"),
        ("config show brkr", "'broker'"),
        ("config show broker --stor x", "did you mean --store?"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    line: str, near: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    if words[0] in PROCESSES:  # it takes the place of the process that starts it
        done = subprocess.run([sys.executable, "-m", "whimbrel.cli", *words], capture_output=True, text=True)
        code, error = done.returncode, done.stderr
    else:
        code, error = main(words), capfd.readouterr().err
    assert code == 2
    assert near in error
