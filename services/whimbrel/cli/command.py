"""Where a command's code is, and its line of help: what lists of commands consist of."""

from typing import NamedTuple

__all__ = ["Command"]


class Command(NamedTuple):
    """The place of a command: a function, or a `typer.Typer` of a group; `help` is one line for the list."""

    module: str
    name: str
    help: str
