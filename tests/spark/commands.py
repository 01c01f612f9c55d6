"""What the tests of `whimbrel spark ...` run, and what they get; the fixture `command` is in conftest.py."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command", "Done"]


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    exit_code: int
    stdout: str
    stderr: str


Command = Callable[..., Done]
