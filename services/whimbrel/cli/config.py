"""`whimbrel config`: the settings of a process and where they come from, sample files, the reference page."""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, emit, note
from whimbrel.cli.processes import PROCESSES, options_of
from whimbrel.cli.toml import SECRET, effective_toml, example_toml
from whimbrel.config import ConfigError, Effective, build, effective, value_text
from whimbrel.lane import Lane

__all__ = ["app"]

app = group("Show settings and where they come from; print sample files and the reference page.")

HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


class Process(StrEnum):
    """Whose settings."""

    NAMESERVER = "nameserver"
    BROKER = "broker"
    REPLICATOR = "replicator"


class Shown(StrEnum):
    """How settings are printed."""

    TABLE = "table"
    JSON = "json"
    TOML = "toml"


ProcessArgument = Annotated[
    Process, typer.Argument(metavar="PROCESS", help=f"{', '.join(PROCESSES)}. Its own flags may follow.")
]


@app.command(
    context_settings=HANDED_ON,
    epilog=examples(
        "whimbrel config show broker",
        "whimbrel config show broker --config broker.toml --flush sync",
        "whimbrel config show replicator -o toml > replicator.toml",
    ),
)
def show(
    context: typer.Context,
    process: ProcessArgument,
    output: Annotated[
        Shown, typer.Option("-o", "--output", help="table for people, json for programs, toml for --config.")
    ] = Shown.TABLE,
) -> None:
    """Show every setting as a process would have it, and where each value comes from.

    Flags that follow and variables count as for the process itself. Exit code 1: it would not start.
    """
    cls = options_of(process.value)
    found = read(process, context.args, os.environ)
    if output is Shown.TOML:
        print(effective_toml(process.value, found), end="")
    else:
        emit(
            [fields(item) for item in found],
            Format(output.value),
            columns=("setting", "value", "unit", "comes from"),
            rows=[
                (
                    item.setting.name,
                    described(item) or None,
                    item.setting.unit,
                    item.origin,
                )
                for item in found
            ],
        )
    try:
        build(cls, found)
    except ConfigError as error:
        for problem in error.problems:
            note(f"whimbrel config: a {process.value} would not start with these settings: {problem}")
        raise typer.Exit(1) from None


@app.command(
    context_settings=HANDED_ON,
    epilog=examples(
        "whimbrel config example broker > broker.toml",
        "whimbrel config example broker --role slave --id 1 --store /data/a1 > slave.toml",
    ),
)
def example(context: typer.Context, process: ProcessArgument) -> None:
    """Print a file for --config: each setting with its meaning and default.

    What flags that follow say is set in it.
    """
    cls = options_of(process.value)
    chosen = {
        item.setting.name: item.value
        for item in read(process, context.args, {}, rules=False)
        if item.source != "default" and not item.setting.metadata.get("secret")
    }
    print(example_toml(cls, chosen), end="")


@app.command(epilog=examples("whimbrel config reference", "whimbrel config reference > settings.md"))
def reference() -> None:
    """Print the reference page of all settings, in Markdown."""
    from whimbrel.cli.settings_page import reference_page

    print(reference_page(), end="")


def read(
    process: Process, arguments: Sequence[str], environment: Mapping[str, str], *, rules: bool = True
) -> tuple[Effective, ...]:
    """Return the settings as the process would read them; `rules`: see `effective`.

    Raises:
        typer.Exit: it would refuse them, with the same exit code; all that is wrong was printed.
    """
    try:
        return effective(options_of(process.value), arguments, environment, rules=rules)
    except ConfigError as error:
        for problem in error.problems:
            note(f"whimbrel config: {problem}")
        raise typer.Exit(2) from None


def shown(item: Effective) -> Any:
    """Return a value as it may be shown: not a secret's."""
    return SECRET if item.setting.metadata.get("secret") and item.value else item.value


def lane_of(item: Effective) -> str:
    """Return whether the setting `lane` gives a process the compiled lane here; "" for any other setting."""
    if item.setting.name != "lane":
        return ""
    return Lane("off" if item.value == "off" else "auto").described()


def described(item: Effective) -> str:
    """Return a value for people, with what comes of it where the machine decides."""
    lane = lane_of(item)
    return f"{item.value}: {lane}" if lane else value_text(shown(item))


def fields(item: Effective) -> dict[str, Any]:
    """Return a setting for JSON."""
    return {
        "name": item.setting.name,
        "value": shown(item),
        "unit": item.setting.unit,
        "source": item.source,
        "where": item.where,
    } | ({"here": lane} if (lane := lane_of(item)) else {})
