"""Durations and moments on the command line."""

import re
from datetime import UTC, datetime

import typer

__all__ = ["duration_of", "moment_of"]

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_of(text: str, option: str) -> float:
    """Return seconds, above 0, of a text such as 500ms, 1.5s, 10m, 2h, 1d.

    Raises:
        typer.BadParameter: it is no such text.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", text.strip().lower())
    seconds = float(found[1]) * UNITS_S[found[2]] if found else 0.0
    if not seconds:
        raise typer.BadParameter(f"{text!r} is not a duration such as 500ms, 10s, 5m, 1h", param_hint=option)
    return seconds


def moment_of(text: str) -> float:
    """Return a time in ISO 8601 as epoch seconds; UTC unless it says else.

    Raises:
        ValueError: it is none.
    """
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
