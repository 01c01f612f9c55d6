"""A broker that stores waiting messages again after seconds. Usual are two days, which no setting changes."""

import subprocess
from pathlib import Path

from support.cluster.processes import Process, program

__all__ = ["RollingBroker"]

PROGRAM = """
import runpy
from whimbrel.store import timer_layout
timer_layout.ROLL_WINDOW_MS = {window_ms}
runpy.run_module("whimbrel.broker", run_name="__main__", alter_sys=True)
"""


class RollingBroker(Process):
    """A broker with a window of its own."""

    def __init__(self, root: Path, name: str, *, window_s: int, **settings: object) -> None:
        super().__init__(root, "broker", name, **settings)
        self.window_s = window_s

    def started_child(self) -> subprocess.Popen[bytes]:
        """Start it with the window."""
        _, _, *arguments = self.command()
        return program(["-c", PROGRAM.format(window_ms=self.window_s * 1000), *arguments], self.log)
