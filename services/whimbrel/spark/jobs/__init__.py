"""Jobs on topics, archives and stores. Each is a function `(session, options) -> DataFrame`.

The table that a job returns is its report: computed when the function returns, and small enough to be read.
Where a job can find something wrong, the table has a column `finding`: null where all is well, else a
sentence that says what is wrong and where. A job that can't run raises; `JobError` is for what only the job
knows.

`options` is a frozen data class of the job's module, and `tell` takes one line of progress at a time. Each
job is a command as well, `whimbrel spark JOB`; the exit code is 0 without findings, 1 with some, 2 when it
could not run (`whimbrel.cli.spark.running`).
"""

from collections.abc import Callable

__all__ = ["JobError", "Tell", "silent"]

Tell = Callable[[str], None]


class JobError(RuntimeError):
    """A job can't run; the text says why and what to do."""


def silent(line: str) -> None:
    """Take a line of progress and show it to nobody."""
