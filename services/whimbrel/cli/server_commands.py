"""`nameserver`, `broker` and `replicator` as commands that a shell can complete.

They are run, and print their help, before this module is imported (`processes.py`). Their flags come from
what their settings say of themselves.
"""

from typing import Any

from typer.core import TyperCommand

from whimbrel.cli.lazy import Completion
from whimbrel.cli.processes import BROKER_COMMANDS, options_of, run_server
from whimbrel.config import Setting, settings

__all__ = ["ServerCommand", "broker", "nameserver", "replicator"]

CONFIG = Completion("--config", "read settings from this TOML file")


class ServerCommand(TyperCommand):
    """A server: takes any arguments, and hands them on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they are: the server reads them."""
        ctx.args = list(args)
        return ctx.args  # type: ignore[no-any-return]

    def invoke(self, ctx: Any) -> None:
        """Run the server; reached where the name is not the first word, as behind `--`."""
        run_server(str(self.name), ctx.args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the flags that begin so, or the values of the flag before; paths are the shell's own."""
        known = {setting.flag: setting for setting in settings(options_of(str(self.name)))}
        # bash takes `=` for a word of its own.
        words = [word for word in ctx.args if word != "="]
        before = words[-1] if words else ""
        if not incomplete.startswith("-") and (before == CONFIG.value or before in known):
            allowed = values(known[before]) if before in known else ()
            return [Completion(value) for value in allowed if value.startswith(incomplete)]
        first = BROKER_COMMANDS if self.name == "broker" and not ctx.args else ()
        flags = [
            *map(Completion, first),
            CONFIG,
            *(Completion(each.flag, each.description) for each in known.values()),
        ]
        return [flag for flag in flags if flag.value.startswith(incomplete)]


def values(setting: Setting) -> tuple[str, ...]:
    """Return the values of a setting that has few of them, else none."""
    return ("true", "false") if setting.kind is bool else setting.choices


nameserver, broker, replicator = (ServerCommand(name) for name in ("nameserver", "broker", "replicator"))
