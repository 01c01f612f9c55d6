"""Writes TOML: values and sample files; Python's `tomllib` only reads it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from whimbrel.config import Effective, Options, Setting, env_prefix, settings

__all__ = ["effective_toml", "example_toml", "toml_value"]

SECRET = "***"  # in place of a secret's value


def toml_value(value: Any) -> str:
    """Return a text, a number, a yes or no, or a list of them as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def effective_toml(process: str, found: Sequence[Effective]) -> str:
    """Return settings as a file that `--config` takes, with where each comes from; a secret is left out."""
    lines = [f"# The settings of a {process}, as they are in effect.", ""]
    for item in found:
        if item.setting.metadata.get("secret") and item.value:
            lines.append(f"# {item.setting.name} = {toml_value(SECRET)}  # a secret; {item.origin}")
        else:
            lines.append(f"{item.setting.name} = {toml_value(item.value)}  # {item.origin}")
    return "\n".join(lines) + "\n"


def example_toml(cls: type[Options], chosen: Mapping[str, Any]) -> str:
    """Return a sample file: each setting with its meaning and default.

    Defaults are comments, so that a later version's are not overridden by those of today. `chosen` are values
    by name that are set; so is what a process does not start without.
    """
    process = cls.process
    lines = [
        *(f"# {line}" for line in (cls.__doc__ or "").strip().splitlines()[:1]),
        "#",
        f"#     whimbrel {process} --config THIS_FILE",
        "#",
        "# A line without # is set; one with #, a name and = shows the default. Flags and variables",
        f"# ({env_prefix(cls)}...) win over this file. docs/settings.md has the settings of all processes.",
    ]
    for setting in settings(cls):
        needed = setting.metadata.get("example")
        value = chosen.get(setting.name, setting.default if needed is None else needed)
        mark = "" if setting.name in chosen or needed is not None else "#"
        lines += ["", *comment(setting), f"{mark}{setting.name} = {toml_value(value)}"]
    return "\n".join(lines) + "\n"


def comment(setting: Setting) -> list[str]:
    """Return what is said above a setting in a sample file."""
    lines = [f"# {setting.metadata.get('help', '')}"]
    rule = "; ".join(part for part in (setting.unit, setting.allowed) if part)
    if setting.metadata.get("example") is not None:
        rule = "; ".join(part for part in (rule, "has to be given") if part)
    return [*lines, f"# ({rule})"] if rule else lines
