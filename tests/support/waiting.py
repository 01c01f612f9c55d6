"""Waiting for a condition without sleeping: the loop turns until it holds."""

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["eventually"]


async def eventually(condition: Callable[[], Any], within_s: float = 10) -> None:
    """Return once the condition holds; for what has no event to wait on.

    Raises:
        TimeoutError: it did not hold in time.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)
