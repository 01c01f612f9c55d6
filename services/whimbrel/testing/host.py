"""`python -m whimbrel.testing.host JSON`: the process that runs a test's cluster.

    JSON     {"parent": pid, "options": those of `DevOptions`}
    output   one line: {"endpoint": "HOST:PORT"} when the cluster takes messages, else {"error": "why"}

It ends the cluster on SIGTERM, and when the parent is gone. Then it removes the directory, unless the file
`run/keep` is in it: nobody else may be left to do that. Events stand in `logs/cluster.log`.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whimbrel.cli.dev_plan import DevOptions, StartError, disk_full_ratio_of, full_disk_of
from whimbrel.cli.supervisor import Child, Supervisor
from whimbrel.testing.cluster import EXCERPT_LINES_MAX, KEEP_FILE

__all__ = ["main"]


class Reporter:
    """The view: tells the parent when the cluster is ready, and writes events to a log."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "logs" / "cluster.log"

    def notify(self, text: str) -> None:
        """Write an event down."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def ready(self, endpoint: str, children: Sequence[Child], ready_s: float, lack: str = "") -> None:
        """Tell the parent."""
        self.notify(f"ready in {ready_s:.2f} s")
        say({"endpoint": endpoint})

    def refresh(self, children: Sequence[Child]) -> None:
        """Do nothing: nobody looks."""


def say(words: dict[str, str]) -> None:
    """Write the one line; a parent that is gone needs none."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{json.dumps(words)}\n")
        sys.stdout.flush()


def described(error: StartError) -> str:
    """Return why the cluster did not start, with the end of the log that says more."""
    if error.log is None or not error.log.exists():
        return str(error)
    lines = error.log.read_text(encoding="utf-8", errors="replace").splitlines()[-EXCERPT_LINES_MAX:]
    return "\n".join((str(error), *lines))


def main(told: dict[str, Any]) -> int:
    """Run a cluster; return the exit code."""
    options = told["options"]
    directory = Path(options.pop("directory"))
    try:
        parent = os.pidfd_open(told["parent"])
    except ProcessLookupError:
        parent = -1
    try:
        if parent < 0 or os.getppid() != told["parent"]:
            return 1
        disk: dict[str, Any] = {
            "full_disk": full_disk_of(os.environ),
            "disk_full_ratio": disk_full_ratio_of(os.environ),
        }
        settings = DevOptions(directory=directory, **disk, **options)
        Supervisor(settings, Reporter(directory), ends_with=parent, must_be_ready=True).run()
    except StartError as error:
        say({"error": described(error)})
        return 1
    finally:
        if not (directory / KEEP_FILE).exists():
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    raise SystemExit(main(json.loads(sys.argv[1])))
