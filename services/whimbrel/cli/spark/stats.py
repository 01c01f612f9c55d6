"""`whimbrel spark stats`: counts, sizes and rates of topics and queues."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.inputs import (
    ArchiveOption,
    EndpointOption,
    HtmlOption,
    StoreOption,
    TopicOption,
    check_inputs,
    checked_page,
    source_options,
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

__all__ = ["EXAMPLES", "stats"]

EXAMPLES = examples(
    "whimbrel spark stats                                    of the running `whimbrel dev`",
    "whimbrel spark stats --endpoint 127.0.0.1:8081 --topic orders --by hour",
    "whimbrel spark stats --store /data/broker-a --html stats.html",
)


class By(StrEnum):
    """What a row is."""

    TOPIC = "topic"
    QUEUE = "queue"
    HOUR = "hour"


def stats(
    endpoint: EndpointOption = "",
    store: StoreOption = None,
    archive: ArchiveOption = "",
    topic: TopicOption = None,
    by: Annotated[By, typer.Option("--by", help="What a row is.")] = By.QUEUE,
    html: HtmlOption = None,
    allow_partial: PartialOption = False,
    write: WriteOption = None,
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Count the messages of topics and queues: how many, how large, how often they came, and when most."""
    source = source_options(endpoint, store, archive, topic, allow_partial=allow_partial)
    page = checked_page(html)

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.stats import StatsOptions
        from whimbrel.spark.jobs.stats import stats as run

        return run(session, StatsOptions(source=source, by=by.value, html=page), note)

    run_job(
        job,
        output,
        master=master,
        config=config,
        write=write,
        before=lambda: check_inputs(source, page),
    )
