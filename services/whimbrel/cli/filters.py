"""`--tag` and `--sql` of the commands that read messages."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from whimbrel.client import Filter

__all__ = ["SqlOption", "TagOption", "filter_of"]

ALL = "*"

TagOption = Annotated[str, typer.Option("--tag", help="Tags to take, separated by ||; * for all.")]
SqlOption = Annotated[
    str | None,
    typer.Option("--sql", metavar="EXPR", help="Take what matches, as in: price > 100 AND region = 'eu'"),
]


def filter_of(tag: str, sql: str | None) -> "Filter":
    """Return what the two options ask for.

    Raises:
        typer.BadParameter: both are given.
    """
    from whimbrel.client import SqlFilter

    if sql is None:
        return tag
    if tag != ALL:
        raise typer.BadParameter("give --tag or --sql; SQL knows the tag as TAGS", param_hint="--sql")
    return SqlFilter(sql)
