"""`whimbrel nameserver`, `broker` and `replicator`: become one of the processes.

The process replaces this one, with all arguments that follow, so that it keeps its process id, gets its
signals itself, and carries none of the command line's memory. It gets the settings of `malloc`. Its own
`--help` lists its settings.
"""

import os
import sys
from collections.abc import Sequence

from whimbrel.cli import malloc

__all__ = ["PROCESSES", "become"]

PROCESSES = {
    "nameserver": "Run a nameserver.",
    "broker": "Run a broker, master or slave.",
    "replicator": "Run the replicator beside a broker.",
}


def become(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by one of ours; does not return.

    Raises:
        OSError: the interpreter can't be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: no folder named whimbrel in the working directory may stand in for the installed one.
    words = [sys.executable, "-P", "-m", f"whimbrel.{name}", *arguments]
    os.execve(sys.executable, words, malloc.with_settings(os.environ))
