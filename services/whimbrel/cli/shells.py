"""What shells are told for a word: typer's answers, but no files where names of a cluster are wanted.

bash    a script of our own: exit code NOTHING has it offer nothing, where it would offer files
zsh     a command that does nothing, in place of `_files`
fish    is-args is answered with yes, and get-args with nothing
"""

import os
from typing import Any

from typer import _completion_classes as classes
from typer import _completion_shared as shared
from typer._click.shell_completion import ShellComplete, add_completion_class

from whimbrel.cli.processes import BROKER_COMMANDS

__all__ = ["Closed", "register"]

NOTHING = 3  # exit code: there is nothing, and no file would do
BASH_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [ $? -eq 3 ]; then compopt +o default 2>/dev/null; fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""


class Closed(list[Any]):
    """Completions beside which nothing can stand, files above all."""


class Answering(ShellComplete):
    """What our answers to all shells have in common; each asks for completions several times."""

    found: list[Any] | None = None

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and that: `broker drain` is the command `drain`."""
        args, incomplete = super().get_completion_args()  # type: ignore[safe-super]
        return (
            args[1:] if args[:1] == ["broker"] and set(args[1:2]) & set(BROKER_COMMANDS) else args
        ), incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        """Return the completions; a cluster is asked once."""
        if self.found is None:
            self.found = super().get_completions(args, incomplete)
        return self.found

    @property
    def closed(self) -> bool:
        """Whether there is nothing to offer, and no file would do."""
        return isinstance(self.found, Closed) and not self.found


class BashComplete(Answering, classes.BashComplete):
    """Bash; see the module's text."""

    source_template = BASH_SCRIPT

    def complete(self) -> str:
        """Return the answer.

        Raises:
            SystemExit: there is none, and no file would do.
        """
        answer = super().complete()
        if self.closed:
            raise SystemExit(NOTHING)
        return answer


class ZshComplete(Answering, classes.ZshComplete):
    """Zsh; likewise."""

    def complete(self) -> str:
        """Return the answer."""
        answer = super().complete()
        return ":" if self.closed else answer


class FishComplete(Answering, classes.FishComplete):
    """Fish; likewise."""

    def complete(self) -> str:
        """Return the answer.

        Raises:
            SystemExit: whether there is one was asked.
        """
        self.get_completions(*self.get_completion_args())
        if not self.closed:
            return super().complete()
        if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
            raise SystemExit(0)
        return ""


def register() -> None:
    """Have typer answer, and install, so."""
    classes.completion_init()
    for name, kind in (("bash", BashComplete), ("zsh", ZshComplete), ("fish", FishComplete)):
        add_completion_class(kind, name)
    shared._completion_scripts["bash"] = BASH_SCRIPT
