"""`whimbrel spark dlq`: dead letters by group, origin and reason; replays a selection of them."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.replay import BrokerOption, bound_of, brokers_of
from whimbrel.cli.spark.running import (
    ConfigOption,
    MasterOption,
    PartialOption,
    WriteOption,
    endpoint_or_exit,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from whimbrel.spark.jobs.dlq import DlqOptions

__all__ = ["dlq", "since_of"]

EXAMPLES = examples(
    "whimbrel spark dlq",
    "whimbrel spark dlq --group billing --since 2h --messages",
    "whimbrel spark dlq --group billing --reason attempts --replay-to ORIGIN --dry-run",
    "whimbrel spark dlq --store /data/broker-a --replay-to billing-again",
)
UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def since_of(text: str, now: datetime, option: str = "--since") -> datetime | None:
    """Return the time of `--since`, or of another option, None without it.

    Raises:
        typer.BadParameter: it is neither a time nor a duration.
    """
    found = re.fullmatch(r"(\d+)([mhd])", text)
    if found:
        return now - timedelta(**{UNITS[found[2]]: int(found[1])})
    at = bound_of(text, option) if not text.isdecimal() else 0
    if isinstance(at, int):
        raise typer.BadParameter(f"{option} {text!r} is neither a duration such as 2h nor a time")
    return at


GroupOption = Annotated[
    str, typer.Option("--group", "-g", help="Of this consumer group only.", show_default=False)
]
ReasonOption = Annotated[
    str, typer.Option(metavar="REASON", help="attempts, early, forwarded or unknown.", show_default=False)
]
SinceOption = Annotated[
    str, typer.Option(metavar="TIME", help="Stored since: 30m, 2h, 7d, or a time (UTC).", show_default=False)
]
ReplayToOption = Annotated[
    str,
    typer.Option(
        metavar="TOPIC",
        help="Put what is selected into this topic; ORIGIN: each where it came from.",
        show_default=False,
    ),
]
ArchiveOption = Annotated[
    str, typer.Option(metavar="ROOT", help="Read an archive instead.", show_default=False)
]
StoreOption = Annotated[
    str, typer.Option(metavar="PATH", help="Read a store directory instead.", show_default=False)
]


def dlq(
    group: GroupOption = "",
    reason: ReasonOption = "",
    since: SinceOption = "",
    messages: Annotated[bool, typer.Option("--messages", help="List single messages.")] = False,
    replay_to: ReplayToOption = "",
    rate: Annotated[float, typer.Option(metavar="N", min=0, help="Messages a second; 0: no bound.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --replay-to: store nothing.")] = False,
    archive: ArchiveOption = "",
    store: StoreOption = "",
    broker: BrokerOption = None,
    allow_partial: PartialOption = False,
    endpoint: EndpointOption = "",
    spark_master: MasterOption = "local[*]",
    spark_config: ConfigOption = None,
    write: WriteOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show dead letters by group and origin: how many, why, how old, top keys; put a selection back."""
    at = since_of(since, datetime.now(UTC))
    pairs = brokers_of(broker)
    only_files = (archive or store) and not replay_to
    cluster = "" if only_files else endpoint_or_exit(endpoint)

    def options() -> "DlqOptions":
        from whimbrel.spark.jobs.dlq import DlqOptions

        return DlqOptions(
            endpoint=cluster,
            archive=archive,
            store=store,
            group=group,
            reason=reason,
            since=at,
            messages=messages,
            replay_to=replay_to,
            rate=rate,
            dry_run=dry_run,
            brokers=pairs,
            allow_partial=allow_partial,
        )

    def before() -> None:
        from whimbrel.spark.jobs import dlq as module

        module.check(options())

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs import dlq as module

        return module.dlq(session, options(), note)

    run_job(job, output, master=spark_master, config=spark_config, write=write, before=before)
