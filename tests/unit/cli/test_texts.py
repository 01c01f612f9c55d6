"""Arguments that are not UTF-8: every command refuses them in a sentence; bodies and paths are taken."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.commands import ALL
from whimbrel.cli.lazy import BYTES as TAKEN
from whimbrel.cli.lazy import is_path
from whimbrel.cli.main import main
from whimbrel.cli.processes import PROCESSES
from whimbrel.cli.template import Template

BYTES = b"\xff".decode(errors="surrogateescape")


def lines() -> list[tuple[str, ...]]:
    """Return a command line for each argument and option of a command that is a text."""
    found: list[tuple[str, ...]] = []
    for words, command in ALL.items():
        if hasattr(command, "commands") or words[:1] in [(name,) for name in PROCESSES]:
            continue
        for param in command.params:
            kind: Any = getattr(param, "type_descriptor", None)
            if kind is None or kind.annotation is bool or is_path(param) or param.name in TAKEN:
                continue
            if param.param_type_name == "argument":
                before = [each for each in command.params if each.param_type_name == "argument"]
                found.append((*words, *("x" for _ in before[: before.index(param)]), BYTES))
            else:
                found.append((*words, f"{max(param.opts, key=len)}={BYTES}"))
    return found


LINES = lines()


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(" ".join(line)))
def test_what_is_no_text_is_refused_with_2(line: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    error = capfd.readouterr().err
    assert "\\udcff" in error
    assert "Traceback" not in error


def test_there_are_lines_of_all_kinds() -> None:
    words = {word.split("=")[0] for line in LINES for word in line}
    assert {"--key", "--tag", "--property", "--group", "--message-group", "--sql", "--endpoint"} <= words
    assert {"send", "receive", "topic", "group", "dlq", "spark", "profile", "recall"} <= words


def whimbrel(*words: bytes | str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a shell does, in a locale whose output refuses what it can't encode."""
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "whimbrel.cli", *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, check=False)


@pytest.mark.parametrize("word", [b"\xff", b"--\xff", b"topic"])
def test_what_is_no_command_is_said(word: bytes) -> None:
    done = whimbrel(word, b"\xff")
    assert done.returncode == 2
    assert b"udcff" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["table", "json", "toml"])
def test_a_path_of_any_bytes_is_taken_and_shown(output: str) -> None:
    done = whimbrel("config", "show", "broker", "--store", b"/data/\xff", "-o", output)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"/data/\\udcff" in done.stdout


def test_a_directory_of_any_bytes_is_taken(tmp_path: Path) -> None:
    done = whimbrel("dev", "status", "--dir", bytes(tmp_path) + b"/\xff")
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"stopped in" in done.stdout


def test_a_template_goes_out_as_the_bytes_that_it_was() -> None:
    assert Template(f"{BYTES}\\n").render(None) == b"\xff\n"  # type: ignore[arg-type]


def test_a_body_is_the_bytes_of_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    from whimbrel.client import sync

    sent: list[bytes] = []

    class Producer:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> "Producer":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send_batch(self, messages: Any, **_: object) -> list[object]:
            sent.extend(message.body for message in messages)
            return []

    monkeypatch.setattr(sync, "Producer", Producer)
    for body in (b"\xff", "é€".encode(), b"a"):
        assert main(["send", "orders", os.fsdecode(body), "--endpoint", "127.0.0.1:1"]) == 0
        assert sent.pop() == body
