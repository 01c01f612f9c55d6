"""The event loop that servers run on: uvloop's where it is installed, else asyncio's own."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program's main coroutine on a fresh loop, and return what it returns."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows and PyPy
        return asyncio.run(main)
    return uvloop.run(main)
