"""Counts calls of the package's functions while something runs.

What counts are the "call" events of `sys.setprofile` for code below `services/whimbrel`, but for `rpc/http2`
and `pb`; generators' resumptions are left out, and so is what has no file (the `__init__` of dataclasses).
The count ends with the first call of `last`, which is in it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import whimbrel

__all__ = ["calls_until"]

PACKAGE = str(Path(whimbrel.__file__).parent)
LEFT_OUT = (f"{PACKAGE}/rpc/http2", f"{PACKAGE}/pb")
GENERATOR = 0x20  # CO_GENERATOR
STARTED = 5  # `f_lasti` of a frame that has gone further than its first instructions


def calls_until(last: str, run: Callable[[], Any]) -> list[str]:
    """Run something; return the calls as `file function`, up to the first of the function `last`."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if (
            event != "call"
            or not code.co_filename.startswith(PACKAGE)
            or code.co_filename.startswith(LEFT_OUT)
        ):
            return
        if code.co_flags & GENERATOR and frame.f_lasti > STARTED:
            return
        if not found or not found[-1].endswith(f" {last}"):
            found.append(f"{code.co_filename[len(PACKAGE) + 1 :]} {code.co_qualname}")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert found and found[-1].endswith(f" {last}"), found
    return found
