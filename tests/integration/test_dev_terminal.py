"""`whimbrel dev` looked at in a real terminal, of 80 and of 120 columns."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cluster.processes import COMMAND, environment
from support.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing (apt install tmux)"),
]

PROCESSES = ["nameserver", "master", "master-replicator", "slave-1", "slave-1-replicator"]
TITLES = {
    80: ["process", "state", "pid", "address", "MB", "log"],
    120: ["process", "state", "pid", "address", "MB", "anon", "files", "log"],
}


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give a directory whose name is short enough for a line of 80 columns."""
    with tempfile.TemporaryDirectory(prefix="w-") as path:
        yield Path(path)


class Terminal:
    """A terminal of tmux, with a server of its own."""

    def __init__(self, folder: Path, columns: int, command: list[str]) -> None:
        self.socket = folder / "tmux"
        # The size of the terminal counts, not that of another one, which workers of pytest are told.
        variables = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
        words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        line = f"env -i {' '.join(words)} TERM=screen-256color {shlex.join(command)}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "40", line)
        self.pid = int(self.tmux("display-message", "-p", "#{pane_pid}"))

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.socket), *words], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout

    def screen(self) -> list[str]:
        """Return the lines that stand on the screen."""
        return self.tmux("capture-pane", "-p").rstrip("\n").split("\n")

    def press(self, key: str) -> None:
        self.tmux("send-keys", key)

    def runs(self) -> bool:
        """Tell whether the command still runs: tmux ends with it."""
        return subprocess.run(
            ["tmux", "-S", str(self.socket), "has-session"], capture_output=True, check=False
        ).returncode == 0  # fmt: skip


@contextlib.contextmanager
def terminal(folder: Path, columns: int, command: list[str]) -> Iterator[Terminal]:
    shown = Terminal(folder, columns, command)
    try:
        yield shown
    finally:
        if shown.runs():
            shown.tmux("kill-server")  # the command gets SIGHUP


@pytest.mark.parametrize("columns", [80, 120])
def test_each_process_has_a_whole_line_and_no_word_is_broken(
    columns: int, directory: Path, measured: Callable[[str], None]
) -> None:
    command = [sys.executable, "-c", COMMAND, "dev", "--dir", str(directory / "dev"), "--port", "0"]
    with terminal(directory, columns, command) as shown:

        def table() -> list[str]:
            """Return the lines of the table, the titles first; memory gets columns once it was looked at."""
            lines = shown.screen()
            starts = [number for number, line in enumerate(lines) if line.split() == TITLES[columns]]
            return lines[starts[-1] :] if starts and "\n".join(lines).count("connected") else []

        lines = until(
            table,
            timeout=40,
            what=lambda: "the table with all its columns; there is\n" + "\n".join(shown.screen()),
        )
        screen = shown.screen()
        measured("\n" + "\n".join(screen))
        described = json.loads((directory / "dev" / "cluster.json").read_text())
        assert all(len(line) <= columns for line in screen)
        rows = [line for line in lines[1:] if line.strip()]
        assert [row.split()[0] for row in rows] == PROCESSES
        for row, process in zip(rows, described["processes"], strict=True):
            assert row.split()[1:3] == ["ready", str(process["pid"])]
            assert (process["grpc"] or process["ha"]) in row
        assert rows[-1].endswith(" connected")
        endpoint = described["endpoint"]
        assert re.fullmatch(
            rf"cluster ready in \d+\.\d s: endpoint {endpoint}\. Ctrl-C ends it\.", screen[0]
        ), screen
        # What is to be copied stands on a line of its own, whole.
        assert f"commands find it after: export WHIMBREL_DEV_DIR={directory / 'dev'}" in screen
        shown.press("C-c")
        until(lambda: not shown.runs(), timeout=20, what="the end")
    assert not (directory / "dev" / "cluster.json").exists()
