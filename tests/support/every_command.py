"""All commands of the command line, each with its words."""

from collections.abc import Iterator
from typing import Any

from whimbrel.cli.root import command_line

__all__ = ["every_command"]


def every_command() -> dict[str, Any]:
    """Return the commands by their words, as click has them."""
    root = command_line(options=False)
    return dict(below(root, root.make_context("whimbrel", [], resilient_parsing=True)))


def below(command: Any, context: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all commands below one, each with its words."""
    if not hasattr(command, "get_command"):
        yield " ".join(words), command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        its = None
        if hasattr(inner, "get_command"):
            its = inner.make_context(name, [], parent=context, resilient_parsing=True)
        yield from below(inner, its, (*words, name))
