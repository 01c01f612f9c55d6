"""Where Spark looks for `format("whimbrel")`: a top-level module named `pyspark_*` with a `DefaultSource`."""

from whimbrel.spark.source import WhimbrelSource as DefaultSource

__all__ = ["DefaultSource"]
