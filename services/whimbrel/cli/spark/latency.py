"""`whimbrel spark latency`: how long messages took, from spans or from the log."""

from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.inputs import (
    ArchiveOption,
    EndpointOption,
    HtmlOption,
    PerOption,
    StoreOption,
    TopicOption,
    check_inputs,
    checked_page,
    parse_duration,
    source_options,
    topic_names,
)
from whimbrel.cli.spark.running import (
    ConfigOption,
    MasterOption,
    PartialOption,
    WriteOption,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EXAMPLES", "latency"]

EXAMPLES = examples(
    "whimbrel spark latency --spans ./dev/traces              stages, from spans",
    "whimbrel spark latency --spans ./traces --per 5m --html latency.html",
    "whimbrel spark latency --endpoint 127.0.0.1:8081         from born to stored, from the log",
)


def latency(
    spans: Annotated[
        str,
        typer.Option(
            "--spans",
            metavar="PATH",
            help="OTLP JSON lines, a file or a folder: what --trace-to file:PATH or a collector wrote.",
            show_default=False,
        ),
    ] = "",
    endpoint: EndpointOption = "",
    store: StoreOption = None,
    archive: ArchiveOption = "",
    topic: TopicOption = None,
    per: PerOption = "",
    html: HtmlOption = None,
    allow_partial: PartialOption = False,
    write: WriteOption = None,
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Tell how long the stages of messages took; without --spans, how old messages were when stored."""
    if spans and (endpoint or store or archive):
        raise typer.BadParameter("--spans excludes --endpoint, --store and --archive: name one")
    per_s = parse_duration("--per", per) if per else 0
    page = checked_page(html)
    source = {} if spans else source_options(endpoint, store, archive, topic, allow_partial=allow_partial)

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.latency import LatencyOptions
        from whimbrel.spark.jobs.latency import latency as run

        topics = topic_names(topic)
        options = LatencyOptions(spans=spans, source=source, topics=topics, per_s=per_s, html=page)
        return run(session, options, note)

    run_job(
        job,
        output,
        master=master,
        config=config,
        write=write,
        before=lambda: check_inputs(source, page, path=spans),
    )
