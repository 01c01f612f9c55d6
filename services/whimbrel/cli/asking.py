"""Asks before a command throws work away, repeats it, or hides it: says what it would do, and how much.

Commands that only read, or whose work the same command takes back (`drain --undo`, `group update --consume`),
ask nothing. `tests/support/asking.py` has the table of all commands.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from whimbrel.cli.output import note
from whimbrel.errors import ClientError

__all__ = ["YesOption", "ask", "counted"]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def ask(deed: str | Callable[[], str], *, yes: bool) -> None:
    """Return if a person wants it so, or if `yes` says that nobody is to be asked.

    Args:
        deed: what would be done, with how much it concerns, behind "this would"; or what finds that out,
            which is called only if it is shown. Empty: nothing would be, so nobody is asked.
        yes: `--yes` was given.

    Raises:
        ClientError: there is no terminal to ask at.
        typer.Exit: with code 1: the answer is no.
    """
    if yes:
        return
    text = deed if isinstance(deed, str) else deed()
    if not text:
        return
    if not sys.stdin.isatty():
        raise ClientError(
            f"this would {text}; nothing was done, since there is no terminal to ask at: --yes does it"
        )
    note(f"This would {text}.")
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)  # standard output has the result alone
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was done")
        raise typer.Exit(1)


def counted(count: int, what: str = "message") -> str:
    """Return a number with its noun: `1 message`, `1,200 messages`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
