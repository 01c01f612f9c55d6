"""`whimbrel nameserver`, `broker` and `replicator`: replace this process by one of the servers.

The server gets all arguments that follow. It keeps the process id, gets signals itself, and has none of the
command line's memory. It gets the settings of `malloc`. Its own `--help` lists its options.
"""

import os
import sys
from collections.abc import Sequence

from whimbrel.cli import malloc

__all__ = ["PROCESSES", "exec_server"]

PROCESSES = {
    "nameserver": "Run a nameserver.",
    "broker": "Run a broker, master or slave.",
    "replicator": "Run the replicator beside a broker.",
}


def exec_server(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by one of the servers; does not return.

    Raises:
        OSError: the interpreter can't be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a folder named whimbrel in the working directory must not be imported in place of the package.
    words = [sys.executable, "-P", "-m", f"whimbrel.{name}", *arguments]
    os.execve(sys.executable, words, malloc.with_settings(os.environ))
