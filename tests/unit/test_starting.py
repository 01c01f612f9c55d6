"""Ctrl-C ends every program in silence with 130, wherever in its imports it comes, and after its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from whimbrel.cli.processes import PROCESSES
from whimbrel.cli.root import commands
from whimbrel.cli.spark import SparkJobs
from whimbrel.starting import INTERRUPTED

# In the child: an interrupt when the module of this name is looked for, or at the import of this number.
HOOK = """
import os, signal, sys
at, count = os.environ["INTERRUPT_AT"], -1
class Finder:
    def find_spec(self, name, path=None, target=None):
        global count
        if name == "whimbrel.starting":
            count = 0
        if count >= 0:
            count += 1
            if at in (name, str(count)):
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
NOBODY = "--endpoint", "127.0.0.1:1"
LINES = {
    "dev": ("status",),
    "send": ("orders", "x", *NOBODY),
    "receive": ("orders", "--group", "g", *NOBODY),
    "tail": ("orders", *NOBODY),
    "health": NOBODY,
    "bench": ("send", *NOBODY),
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "sitecustomize.py").write_text(HOOK, encoding="utf-8")

    def interrupted(at: str, *words: str, handler: int = signal.SIG_DFL) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path)), "INTERRUPT_AT": at}
        return subprocess.run(
            [sys.executable, *words],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        )

    return interrupted


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


@pytest.mark.parametrize("name", [name for name in commands() if name not in PROCESSES])
def test_while_a_command_is_imported(run: Run, name: str) -> None:
    check(run(commands()[name].module, "-m", "whimbrel.cli", name, *LINES.get(name, ())))


@pytest.mark.parametrize("name", SparkJobs.table)
def test_while_a_job_is_imported(run: Run, name: str) -> None:
    check(run(SparkJobs.table[name].module, "-m", "whimbrel.cli", "spark", name))


@pytest.mark.parametrize("name", [name for name in LINES if name != "dev"])
def test_while_a_command_imports_the_client(run: Run, name: str) -> None:
    check(run("whimbrel.client.session", "-m", "whimbrel.cli", name, *LINES[name]))


@pytest.mark.parametrize("count", [2, 3, 8, 30, 90, 150, 250, 350])
def test_at_any_import(run: Run, count: int) -> None:
    check(run(str(count), "-m", "whimbrel.cli", "send", "orders", "x", *NOBODY))


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("count", [2, 40, 150])
def test_while_a_server_is_imported(run: Run, name: str, count: int, tmp_path: Path) -> None:
    store = () if name == "nameserver" else ("--store", str(tmp_path / "store"))
    check(run(str(count), "-m", f"whimbrel.{name}", "--port", "0", *store))


def test_while_a_module_that_another_program_starts_is_imported(run: Run, tmp_path: Path) -> None:
    words = "-m", "whimbrel.starting", "whimbrel.broker.export", str(tmp_path)
    check(run("whimbrel.broker.export", *words))


def test_what_was_started_without_ctrl_c_ends_as_it_would(run: Run) -> None:
    done = run(
        "whimbrel.cli.config", "-m", "whimbrel.cli", "config", "example", "nameserver", handler=signal.SIG_IGN
    )
    assert (done.returncode, done.stderr) == (0, "")


PROGRAM = "from whimbrel.starting import run\nimport os, signal\n"
RAISE = "os.kill(os.getpid(), signal.SIGINT)"


def test_an_interrupt_in_a_finalizer_is_not_lost(run: Run) -> None:
    code = (
        f"class Held:\n    def __del__(self): {RAISE}\n"
        "def program():\n    held = Held()\n    del held\n    signal.pause()\nrun(program)"
    )
    check(run("", "-c", PROGRAM + code))


def test_one_after_the_program_ends_it_in_silence(run: Run) -> None:
    code = f"import atexit\natexit.register(lambda: {RAISE})\nrun(lambda: 0)"
    check(run("", "-c", PROGRAM + code))


def test_other_errors_of_finalizers_are_told(run: Run) -> None:
    code = (
        "class Held:\n    def __del__(self): raise ValueError('told')\n"
        "def program():\n    held = Held()\n    del held\n    return 0\nrun(program)"
    )
    done = run("", "-c", PROGRAM + code)
    assert done.returncode == 0
    assert "ValueError: told" in done.stderr
