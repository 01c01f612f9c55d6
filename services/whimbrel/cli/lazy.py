"""Command groups whose commands are imported when they are called.

`whimbrel --help` has to be fast, and so has the completion of a shell. So the list of commands with their
one-line help is a table, and a command's module is imported only to run it, or for its own help.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

__all__ = ["Command", "LazyGroup", "examples", "group"]


@dataclass(frozen=True, slots=True)
class Command:
    """The place of a command: a function, or a `typer.Typer` of a group; `help` is one line for the list."""

    module: str
    name: str
    help: str


class LazyGroup(TyperGroup):
    """A group that imports its commands on demand; subclasses fill `table`."""

    table: ClassVar[Mapping[str, Command]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None for an unknown name."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module = import_module(entry.module)
        target = getattr(module, entry.name)
        if isinstance(target, typer.Typer):
            command = typer.main.get_command(target)
        else:
            command = single(target, epilog=examples_of(module, cmd_name))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list from the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])


def group(text: str) -> typer.Typer:
    """Return a plain command group with this help."""
    app = typer.Typer(help=text, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
    app.callback()(lambda: None)
    return app


def examples(*lines: str) -> str:
    """Return the examples at the end of a help page; their lines are not re-wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def examples_of(module: ModuleType, name: str) -> str | None:
    """Return the examples of a command's module: NAME_EXAMPLES, else EXAMPLES."""
    own = getattr(module, f"{name.upper().replace('-', '_')}_EXAMPLES", None)
    found = getattr(module, "EXAMPLES", None) if own is None else own
    return found if isinstance(found, str) else None


def single(function: Callable[..., Any], epilog: str | None) -> Any:
    if epilog is not None and "\b" not in epilog:
        # Examples are lines, not paragraphs: the mark keeps the help page from re-wrapping them.
        epilog = "\b\n" + "\n".join(line for line in epilog.splitlines() if line.strip())
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog=epilog)(function)
    return typer.main.get_command(app)
