"""Spans of OpenTelemetry as a table: files of OTLP's JSON lines, as our processes and collectors write them.

A line is an `ExportTraceServiceRequest`: resourceSpans, in them scopeSpans, in them spans. It is read with
the schema below and exploded, so that only the fields named here are parsed. In that form 64-bit numbers are
text, and ids hexadecimal. Lines without resourceSpans (metrics and logs, in a collector's file) are passed
over. A span in two files, ours and a collector's, counts once.

A row has the ids, name, begin_ns, end_ns, the attributes that `TEXTS` and `NUMBERS` name, and

    ms          duration in milliseconds; negative where a clock was set back, null without both times
    stage       the stage of a message's life that it covers (`STAGES`, in their order), null for other spans
    failed      its status is an error

Stages of clients are recognized by `messaging.operation.type` of the conventions, and only where
`messaging.system` is rocketmq: a collector has spans of other systems too. `settle` covers acknowledging and
changing the invisible time.
"""

from typing import TYPE_CHECKING, Any

from whimbrel.telemetry import (
    ACKNOWLEDGE,
    APPEND,
    DISPATCH,
    FLUSH,
    FRAME,
    SLAVE_APPEND,
    TRANSFER,
    Attribute,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["GLOB", "OURS", "STAGES", "span_lines", "spans_of"]

GLOB = "{*.jsonl,*.jsonl.1,*.json}"  # ours, our rotated ones, and a collector's
KEY_VALUES = "array<struct<key:string,value:struct<stringValue:string,intValue:string>>>"
SPAN = (
    "struct<traceId:string,spanId:string,name:string,startTimeUnixNano:string,endTimeUnixNano:string,"
    f"attributes:{KEY_VALUES},status:struct<code:string>>"
)
SCHEMA = f"resourceSpans array<struct<scopeSpans:array<struct<spans:array<{SPAN}>>>>>, _corrupt string"

# Stages whose spans our brokers and replicators name; the others are the conventions' types of operations.
OURS = {
    APPEND: "append",
    FLUSH: "flush",
    TRANSFER: "transfer",
    SLAVE_APPEND: "slave append",
    ACKNOWLEDGE: "acknowledge",
    DISPATCH: "dispatch",
}
OPERATIONS = ("create", "send", "receive", "process", "settle")
STAGES = ("create", "send", *OURS.values(), "receive", "process", "settle")

TEXTS = {
    "topic": Attribute.TOPIC,
    "system": Attribute.SYSTEM,
    "operation": Attribute.OPERATION_TYPE,
    "broker": Attribute.BROKER,
    "slave": Attribute.SLAVE,
}
NUMBERS = {
    "broker_id": Attribute.BROKER_ID,
    "offset": Attribute.OFFSET,
    "size": Attribute.RECORD_SIZE,
    "frame_offset": Attribute.FRAME_OFFSET,
    "frame_size": Attribute.FRAME_SIZE,
    "acknowledged": Attribute.ACKNOWLEDGED,
}
ERROR_CODES = ("2", "STATUS_CODE_ERROR")


def span_lines(session: "SparkSession", path: str) -> "DataFrame":
    """Return the lines of a file, or of all files below a folder; `_corrupt` has lines that are no JSON."""
    return (
        session.read.schema(SCHEMA)
        .option("columnNameOfCorruptRecord", "_corrupt")
        .option("pathGlobFilter", GLOB)
        .option("recursiveFileLookup", "true")
        .json(path)
    )


def spans_of(span_lines: "DataFrame") -> "DataFrame":
    """Return a row for each span."""
    from pyspark.sql import functions as F

    resource = span_lines.select(F.explode("resourceSpans").alias("one"))
    scope = resource.select(F.explode("one.scopeSpans").alias("one"))
    span = scope.select(F.explode("one.spans").alias("span"))
    row = span.select(
        F.col("span.traceId").alias("trace_id"),
        F.col("span.spanId").alias("span_id"),
        F.col("span.name").alias("name"),
        F.col("span.startTimeUnixNano").try_cast("bigint").alias("begin_ns"),
        F.col("span.endTimeUnixNano").try_cast("bigint").alias("end_ns"),
        F.coalesce(F.col("span.status.code").isin(*ERROR_CODES), F.lit(False)).alias("failed"),
        *(attribute(name).alias(alias) for alias, name in TEXTS.items()),
        *(attribute(name).try_cast("bigint").alias(alias) for alias, name in NUMBERS.items()),
    )
    begun, ended = F.col("begin_ns") > 0, F.col("end_ns") > 0
    took = F.when(begun & ended, (F.col("end_ns") - F.col("begin_ns")) / F.lit(1e6))
    return row.withColumn("ms", took).withColumn("stage", stage()).dropDuplicates(["trace_id", "span_id"])


def attribute(name: str) -> "Column":
    """Return an attribute of `span` as text, null where it is missing."""
    from pyspark.sql import functions as F

    same: Any = F.filter("span.attributes", lambda one: one["key"] == F.lit(name))
    value = F.get(same, F.lit(0)).getField("value")
    return F.coalesce(value.getField("stringValue"), value.getField("intValue"))


def stage() -> "Column":
    """Return the stage of a row, null for other spans."""
    from pyspark.sql import functions as F

    ours = F.create_map(*(F.lit(text) for pair in OURS.items() for text in pair))
    theirs = (F.col("system") == "rocketmq") & F.col("operation").isin(*OPERATIONS)
    return F.coalesce(ours[F.col("name")], F.when(theirs & (F.col("name") != FRAME), F.col("operation")))
