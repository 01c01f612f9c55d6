"""Runs command lines of `whimbrel` in the test's own process, or in a shell as the reader of a page does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import COMMAND, INTERRUPTIBLE, environment
from support.pages import Places, Written
from support.waiting import until
from whimbrel.cli.main import main

__all__ = ["Going", "Output", "Shell", "Terminal"]

APART = ("bench", "dev")  # these start processes, or fork, which a test's own process must not
SHELL = "bash"
BOUND_S = 60.0


class Shell:
    """Runs command lines, all of which begin with the same words, and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *first: str) -> None:
        self.capsys = capsys
        self.first = first
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        outcome = main((*self.first, *arguments))
        captured = self.capsys.readouterr()
        self.error = captured.err
        assert outcome == code, captured.err
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed; the errors as one line, as they do not break where a terminal would."""

    out: str
    err: str


class Terminal:
    """Runs the commands of pages, in a folder, with variables of its own.

    Where a command is only `whimbrel` and its words, it runs in the test's process, which is quicker, unless
    `apart` is set: commands that are traced leave their tracer there.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path, **variables: object) -> None:
        """Stand in `folder`, which is also the home: what whoever runs the tests has set is not seen."""
        self.capsys, self.folder, self.apart = capsys, folder, False
        programs = folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        program = programs / "whimbrel"
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{INTERRUPTIBLE}{COMMAND}' \"$@\"\n")
        program.chmod(0o755)
        own = {
            "HOME": folder,
            "XDG_CONFIG_HOME": folder / "config",
            "XDG_STATE_HOME": folder / "state",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            **variables,
        }
        self.variables = environment() | {name: str(value) for name, value in own.items()}

    def set(self, name: str, value: object) -> None:
        """Set a variable, as `export` does."""
        self.variables[name] = str(value)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Have the test's own process see the folder and the variables while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in set(os.environ) - set(self.variables):
                patch.delenv(name)
            for name, value in self.variables.items():
                patch.setenv(name, value)
            patch.setattr("whimbrel.cli.endpoint.Given.profile", "")
            yield

    def __call__(
        self, written: Written, places: Places | None = None, *more: object, code: int | None = 0
    ) -> Output:
        """Run a command to its end; `more` words stand behind its own; `code` None: any exit code will do."""
        words = [*written.words(places), *map(str, more)]
        if self.apart or written.of_a_shell or words[0] != "whimbrel" or words[1] in APART:
            # Not its last line: the shell stays, and is found by what asks which shell it is.
            typed = f"{written.line(places, *more)}\nexit $?"
            done = subprocess.run(
                [SHELL, "-c", typed], env=self.variables, cwd=self.folder, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=BOUND_S, check=False,
            )  # fmt: skip
            outcome, out, err = done.returncode, done.stdout, done.stderr
        else:
            self.capsys.readouterr()
            with self.standing():
                outcome = main(words[1:])
            out, err = self.capsys.readouterr()
        assert code in (None, outcome), f"{written.text}: {outcome}\n{out}{err}"
        assert "Traceback" not in err
        return Output(out, " ".join(err.split()))

    @contextmanager
    def going(self, written: Written, places: Places | None = None, *more: object) -> Iterator["Going"]:
        """Start a command that goes on, and end it as Ctrl-C does after the block, with exit code 130."""
        log = self.folder / "output"
        with log.open("w") as file:
            child = subprocess.Popen(
                [SHELL, "-c", written.line(places, *more)], env=self.variables, cwd=self.folder, text=True,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        going = Going(child, log)
        try:
            yield going
            assert child.poll() is None, f"{written.text} has ended: {going.said()}"
            os.killpg(child.pid, signal.SIGINT)
            child.wait(BOUND_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        # A shell that was interrupted itself has no code.
        assert child.returncode in (going.code, -signal.SIGINT), going.said()
        assert "Traceback" not in going.said()

    def interrupted(self, written: Written, places: Places | None = None, *more: object, seen: str) -> str:
        """Start a command, and end it as Ctrl-C does when it has printed something; return all of that."""
        with self.going(written, places, *more) as going:
            going.wait_for(seen)
        return going.said()


@dataclass(slots=True)
class Going:
    """A command that goes on, both of its outputs in a file; `code` is that with which it is to end."""

    child: "subprocess.Popen[str]"
    log: Path
    code: int = 130

    def said(self) -> str:
        """Return what it has printed."""
        return self.log.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Wait until it has printed something, or has ended."""
        until(lambda: text in self.said() or self.child.poll() is not None, timeout=BOUND_S, what=text)
        assert text in self.said(), self.said()
