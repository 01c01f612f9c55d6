"""`whimbrel spark`: the jobs, a module each; `running` and `inputs` are what they share."""

import typer

from whimbrel.cli.lazy import Command, LazyGroup

__all__ = ["SparkJobs", "jobs"]


class SparkJobs(LazyGroup):
    """The jobs."""

    table = {  # noqa: RUF012  declared a ClassVar in LazyGroup
        "archive": Command(
            "whimbrel.cli.spark.archive", "archive", "Topics into Parquet files; --check them."
        ),
        "compact": Command(
            "whimbrel.cli.spark.archive", "compact", "An archive's small files into large ones."
        ),
        "replay": Command("whimbrel.cli.spark.replay", "replay", "An archive back into topics."),
        "audit": Command("whimbrel.cli.spark.audit", "audit", "Compare a master's log with its slaves'."),
        "verify-index": Command(
            "whimbrel.cli.spark.index", "verify_index", "Compare a store's queues and index with its log."
        ),
        "rebuild-index": Command(
            "whimbrel.cli.spark.index", "rebuild_index", "Build queues and index from a log, in a new folder."
        ),
        "latency": Command(
            "whimbrel.cli.spark.latency", "latency", "How long messages took, from spans or the log."
        ),
        "stats": Command(
            "whimbrel.cli.spark.stats", "stats", "Counts, bytes and rates of topics and queues."
        ),
        "dlq": Command("whimbrel.cli.spark.dlq", "dlq", "What is in the dead-letter topics, and why."),
        "lag": Command("whimbrel.cli.spark.lag", "lag", "How far groups were behind, over time."),
    }


jobs = typer.Typer(
    cls=SparkJobs,
    help="Jobs on topics, archives and stores. They need Java 17 or later and the extra `spark`:"
    ' pip install ".[spark]" in a clone of whimbrel.',
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
jobs.callback()(lambda: None)
