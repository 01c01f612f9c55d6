"""`whimbrel nameserver`, `broker` and `replicator`: replace this process by one of the servers.

The server gets all arguments that follow. It keeps the process id, gets signals itself, and has none of the
command line's memory. It gets the settings of `malloc`. Its `--help` is printed here, from what its settings
say of themselves: the server, which takes several times as long to import, is not.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from whimbrel.cli import malloc

if TYPE_CHECKING:
    from whimbrel.config import Options

__all__ = ["BROKER_COMMANDS", "PROCESSES", "options_of", "run_server"]

BROKER_COMMANDS = ("drain", "forget")  # `broker` alone is the server, which takes no such word

PROCESSES = {
    "nameserver": "Run a nameserver.",
    "broker": "Run a broker, master or slave.",
    "replicator": "Run the replicator beside a broker.",
}


def options_of(name: str) -> "type[Options]":
    """Return the class of a server's settings; only that is imported of the server."""
    match name:
        case "nameserver":
            from whimbrel.nameserver.options import NameserverOptions

            return NameserverOptions
        case "broker":
            from whimbrel.broker.options import BrokerOptions

            return BrokerOptions
        case "replicator":
            from whimbrel.replicator.options import ReplicatorOptions

            return ReplicatorOptions
    raise AssertionError(f"{name} is none of {', '.join(PROCESSES)}")


def run_server(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by one of the servers, or print its help; returns only after the latter.

    Raises:
        OSError: the interpreter can't be started.
    """
    if {"--help", "-h"} & set(arguments):
        from whimbrel.config import help_text

        sys.stdout.write(help_text(options_of(name)))
        return
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a folder named whimbrel in the working directory must not be imported in place of the package.
    words = [sys.executable, "-P", "-m", f"whimbrel.{name}", *arguments]
    os.execve(sys.executable, words, malloc.with_settings(os.environ))
