"""Command groups whose commands are imported when they are called.

`whimbrel --help` has to be fast, and so has the completion of a shell. So the list of commands with their
one-line help is a table, and a command's module is imported only to run it, for its own help, or to complete
what stands behind its name. What typer and click call `<int range>` and `0<=x<=9` is said in words here, for
all commands, and each command with `--endpoint` gets a `--profile` beside it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from whimbrel.cli.command import Command
from whimbrel.errors import ClientError
from whimbrel.model.names import is_text, no_text

if TYPE_CHECKING:
    from whimbrel.cli.cluster_names import Kind

__all__ = ["Command", "Completion", "LazyGroup", "examples", "group", "named"]

# Types as typer writes them, and what stands for the value in a help page.
PLACEHOLDERS = {
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "str": "TEXT",
    "path": "PATH",
    "list[str]": "TEXT",
    "list[int]": "N",
    "list[path]": "PATH",
}
MEANT = "whimbrel.cli."  # with the name of a parameter: its value, while a line is completed
BYTES = frozenset({"body", "template"})  # names of parameters whose text goes out as the bytes that it was
BETWEEN = re.compile(r"(-?[\d.]+)<=x<=(-?[\d.]+)")
AT_LEAST = re.compile(r"x>=(-?[\d.]+)")
AT_MOST = re.compile(r"x<=(-?[\d.]+)")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a shell may put in place of an incomplete word; typer's writers read these attributes."""

    value: str
    help: str = ""
    type: str = "plain"


class Group(TyperGroup):
    """A group whose list of commands has the whole first paragraph of each one's help, for shells as well."""

    def listed(self) -> list[tuple[str, str]]:
        """Return the commands' names, each with its help."""
        return [(name, str(command.help or "").split("\n\n")[0]) for name, command in self.commands.items()]

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, which is off unless given."""
        return off_unless_given(super().get_help_option(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands that begin so; for `-`, the group's options."""
        if incomplete.startswith("-"):
            return TyperCommand.shell_complete(self, ctx, incomplete)
        return [Completion(name, text) for name, text in self.listed() if name.startswith(incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.listed())


class LazyGroup(Group):
    """A group that imports its commands on demand.

    Subclasses fill `table`, and may fill `sections`: headings with the names below each. Commands without a
    section are listed first.
    """

    table: ClassVar[Mapping[str, Command]] = {}
    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def listed(self) -> list[tuple[str, str]]:
        """Return names and help from the table, without importing any command."""
        return [(name, entry.help) for name, entry in self.table.items()]

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
        if isinstance(target, TyperCommand):
            command: Any = target
        elif isinstance(target, typer.Typer):
            command = typer.main.get_command(target)
        else:
            command = single(target, epilog=examples_of(module, cmd_name))
        command.name = cmd_name
        return finished(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a command line; an unknown name is answered with the nearest ones.

        Raises:
            UsageError: there is no such command.
        """
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = ", ".join(repr(each) for each in get_close_matches(name, self.table))
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, below the headings of their sections."""
        texts = dict(self.listed())
        placed = {name for names in self.sections.values() for name in names}
        rest = [name for name in texts if name not in placed]
        for title, names in {"Commands": rest, **self.sections}.items():
            rows = [(name, texts[name]) for name in names if name in texts]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def group(text: str) -> typer.Typer:
    """Return a plain command group with this help."""
    app = typer.Typer(cls=Group, help=text, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
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


def finished(command: Any) -> Any:
    """Return a command, and those below it, with help in plain words and `--profile` beside `--endpoint`."""
    for below in getattr(command, "commands", {}).values():
        finished(below)
    endpoints = [place for place, param in enumerate(command.params) if param.name == "endpoint"]
    if endpoints:
        from whimbrel.cli.endpoint import ENDPOINT_HELP, profile_parameter

        if command.params[endpoints[0]].help == ENDPOINT_HELP:  # others do not ask `resolve_endpoint`
            command.params.insert(endpoints[0] + 1, profile_parameter())
    for param in command.params:
        param.get_help_record = partial(plain_record, param.get_help_record, param.param_type_name)
        param.process_value = partial(process, param, param.process_value)
        param.shell_complete = partial(complete, param, param.shell_complete)
        if param.param_type_name == "argument" and param.hidden:
            param.get_usage_pieces = lambda ctx: []
    if not isinstance(command, Group):
        help_option = command.get_help_option
        command.get_help_option = lambda ctx: off_unless_given(help_option(ctx))
    return command


def off_unless_given(option: Any) -> Any:
    """Return `--help` with a default: what is not set at all, typer imports pydantic to read."""
    if option is not None:
        option.default = False
    return option


def process(param: Any, read: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return a parameter's value, as text while a line is completed: typer imports pydantic for more.

    Raises:
        BadParameter: it is not UTF-8. Paths, and what goes out as bytes, may be anything.
    """
    if ctx.resilient_parsing:
        ctx.meta[MEANT + str(param.name)] = value
        return value
    if param.name not in BYTES and not is_path(param):
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str) and not is_text(text):
                raise typer.BadParameter(no_text(text), ctx=ctx, param=param)
    return read(ctx, value)


def complete(param: Any, find: Callable[[Any, str], Any], ctx: Any, incomplete: str) -> Any:
    """Return what can stand in place of an incomplete value; names of the cluster's are asked for."""
    from whimbrel.cli.cluster_names import wanted

    kind = wanted(ctx.command_path.split()[1:], {param.name, *param.opts}, param.metavar or "")
    if kind is None or param.type_descriptor.is_choice:
        return find(ctx, incomplete)
    return named(kind, incomplete, ctx)


def named(kind: "Kind", incomplete: str, ctx: Any) -> list[Completion]:
    """Return the names of the cluster's that begin so; none where it does not answer at once."""
    from whimbrel.cli.cluster_names import names_of
    from whimbrel.cli.endpoint import resolve
    from whimbrel.cli.shells import Closed

    endpoint, profile = (str(ctx.meta.get(MEANT + name) or "") for name in ("endpoint", "profile"))
    try:
        found = names_of(kind, resolve(endpoint, profile=profile).endpoint) if kind != "new" else []
    except ClientError:
        found = []
    before, _, start = incomplete.rpartition(",")  # of a list
    begin = f"{before}," if before else ""
    return Closed(Completion(begin + name) for name in found if name.startswith(start))


def is_path(param: Any) -> bool:
    """Return whether a parameter takes paths."""
    annotation = param.type_descriptor.annotation
    return Path in (annotation, *get_args(annotation))


def plain_record(record: Callable[[Any], Any], kind: str, ctx: Any) -> tuple[str, str] | None:
    """Return a parameter's row of the help page in plain words; `record` is typer's own."""
    row = record(ctx)
    if row is None:
        return None
    name, text = row
    if kind == "argument":
        name = re.sub(r" <[^>]*>$", "", name)
    else:
        name = re.sub(r"<([^>]*)>", lambda found: PLACEHOLDERS.get(found[1], found[1]), name)
    text = BETWEEN.sub(r"\1 to \2", text)
    return name, AT_MOST.sub(r"\1 or less", AT_LEAST.sub(r"\1 or more", text))
