"""docs/settings.md: every setting of every process, and every variable of the command line and its clients.

The page is made of what settings say of themselves (`whimbrel config reference`, `make docs-settings`).
"""

from whimbrel.cli.processes import PROCESSES, options_of
from whimbrel.config import Options, Setting, env_prefix, settings, value_text

__all__ = ["VARIABLES", "reference_page"]

# Variables that are no setting of a process: of whom, and what for.
VARIABLES = (
    (
        "WHIMBREL_ENDPOINT",
        "commands",
        "nameserver to ask, HOST:PORT; several joined by `;`. `--endpoint` wins",
    ),
    ("WHIMBREL_PROFILE", "commands", "profile to use in place of the current one. `--profile` wins"),
    ("WHIMBREL_DEV_DIR", "commands", "directory of `whimbrel dev`, and where others look for it"),
    ("WHIMBREL_CLIENT_TRACE_TO", "commands", "spans go to `file:PATH` or a collector, `http://HOST:PORT`"),
    ("WHIMBREL_CLIENT_TRACE_FROM", "`whimbrel trace`", "where it looks for spans, as its `--from`"),
    (
        "WHIMBREL_CLIENT_TRANSPORT",
        "commands, the client library, and servers that ask each other",
        "what calls are made with: `native` (the default) or `grpcio`",
    ),
    (
        "WHIMBREL_LANE",
        "broker, replicator, commands that open a store",
        "the compiled lane: `auto` (used if it is there), `off` or `required`; the setting `lane` wins",
    ),
    ("XDG_CONFIG_HOME", "commands", "`whimbrel/profiles.toml` is in it; without it in `~/.config`"),
    ("XDG_STATE_HOME", "commands", "`whimbrel/dev` is in it; without it in `~/.local/state`"),
)

HEAD = """# Settings

This page is made from the settings themselves: `make docs-settings` writes it, and a test compares. Of the
version that is installed, `whimbrel config reference` prints it.

A setting has three names: a flag, a variable and a name in a TOML file. Flags win over variables, those over
the file, that over the default. Unknown names are refused with the nearest known one, and so are values that
are not allowed: all at once, a line for each. Whole numbers may carry KiB, MiB or GiB. Lists are separated by
`,` or `;`; in a file they are lists.

    whimbrel config example broker --store /data/a > broker.toml   # every setting, its meaning and default
    whimbrel config show broker --config broker.toml               # what would be in effect, and what says so
    whimbrel broker --config broker.toml

[deploy/config](../deploy/config) has such a file for each process."""


def reference_page() -> str:
    """Return the page."""
    parts = [HEAD, *(section(options_of(name)) for name in PROCESSES), variables()]
    return "\n\n".join(parts) + "\n"


def section(cls: type[Options]) -> str:
    """Return what the page has about a process."""
    return "\n".join(
        [
            f"## {cls.process.capitalize()}",
            "",
            (cls.__doc__ or "").strip().splitlines()[0],
            f"The file is named by `--config` or `{env_prefix(cls)}CONFIG`.",
            "",
            "| Name | Flag | Variable | Type | Unit | Default | Meaning |",
            "|---|---|---|---|---|---|---|",
            *map(row, settings(cls)),
        ]
    )


def row(setting: Setting) -> str:
    """Return a setting's row."""
    needed = setting.metadata.get("example") is not None
    default = f"`{value_text(setting.default)}`" if setting.default not in ("", ()) else "empty"
    cells = (
        f"`{setting.name}`",
        f"`{setting.flag}`",
        f"`{setting.variable}`",
        setting.allowed if setting.choices else ", ".join(filter(None, (setting.type_text, setting.allowed))),
        setting.unit,
        "none: has to be given" if needed else default,
        setting.metadata.get("help", ""),
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def variables() -> str:
    """Return what the page has about variables that are no setting of a process."""
    return "\n".join(
        [
            "## Variables of commands and clients",
            "",
            "Which of them names the cluster: [operating.md](operating.md), section Profiles.",
            "",
            "| Variable | Read by | Meaning |",
            "|---|---|---|",
            *(f"| `{name}` | {reader} | {meaning} |" for name, reader, meaning in VARIABLES),
            "",
            "A process refuses any other variable that begins with `WHIMBREL_`, but for those of other",
            "processes, and of tests and benchmarks (`WHIMBREL_TEST_...`, `WHIMBREL_BENCH_...`).",
        ]
    )
