"""Says what an answer of a command lacks: on standard error, and by exit code 1."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from whimbrel.cli.endpoint import Given
from whimbrel.cli.output import note
from whimbrel.model.unasked import Unasked, left_out, sentence

if TYPE_CHECKING:
    from whimbrel.client import sync

__all__ = ["saying_what_lacks", "tell_who_missed"]


@contextmanager
def saying_what_lacks() -> Iterator[list[Unasked]]:
    """Yield a list for who could not be asked; at the end each is told, also when the block fails.

    Raises:
        typer.Exit: with code 1, if somebody was left out.
    """
    unasked: list[Unasked] = []
    try:
        yield unasked
    finally:
        for one in unasked:
            Given.told.add(one.broker_name)
            note(f"whimbrel: {sentence(one)}")
    if unasked:
        raise typer.Exit(1)


def tell_who_missed(admin: "sync.Admin") -> None:
    """Tell which groups are away, and so have not made a change that goes to every master."""
    for one in left_out(admin.cluster()):
        if one.away:
            note(
                f"{one.broker_name} was away and has not made this change: {one.why}; repeat the command once"
                " it is back"
            )
