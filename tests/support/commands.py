"""All commands of `whimbrel`, for tests that hold each of them to something."""

from collections.abc import Iterator
from typing import Any

from whimbrel.cli.root import command_line

__all__ = ["ALL", "tree"]


def tree(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that name it."""
    yield words, command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            found = command.get_command(None, name)
            assert found is not None, f"{name} is in the table and leads nowhere"
            yield from tree(found, (*words, name))


ALL = dict(tree(command_line(options=True)))
