"""Shared by jobs and by what they are made of: how progress is reported, how a job that can't run ends."""

from collections.abc import Callable

__all__ = ["JobError", "ProgressCallback", "ignore_progress"]

ProgressCallback = Callable[[str], None]  # takes one line of progress at a time


class JobError(RuntimeError):
    """A job can't run; the text says why and what to do."""


def ignore_progress(line: str) -> None:
    """Take a line of progress and drop it."""
