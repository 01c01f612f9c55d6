"""Jobs on topics, archives and stores. Each is a function `(session, options, on_progress) -> DataFrame`.

The table that a job returns is its report: computed when the function returns, and small enough to be read.
Where a job can find something wrong, the table has a column `finding`: null in a row without one, else a
sentence that says what is wrong and where. A job that can't run raises; `JobError` is for reasons that only
the job knows.

`options` is a frozen data class of the job's module. `on_progress` is called with one line of progress at a
time. Each job is a command as well, `whimbrel spark JOB`; its exit code is 0 without findings, 1 with some, 2
when it could not run (`whimbrel.cli.spark.running`).
"""

from whimbrel.spark.reporting import JobError

__all__ = ["JobError"]
