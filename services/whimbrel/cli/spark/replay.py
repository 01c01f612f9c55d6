"""`whimbrel spark replay`: replays an archive, a store or another cluster into topics."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
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

    from whimbrel.spark.jobs.replay import ReplayOptions

__all__ = ["BrokerOption", "bound_of", "brokers_of", "replay"]

EXAMPLES = examples(
    "whimbrel spark replay /data/archive --create",
    "whimbrel spark replay /data/archive --topic orders --to orders-again --rate 5000",
    "whimbrel spark replay /data/archive --from 2026-11-20T08:00 --until 2026-11-20T09 --dry-run",
    "whimbrel spark replay --servers old-host:8081 --endpoint new-host:8081 --create",
)

BrokerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar="SOURCE=TARGET",
        help="Into which broker those of a source's go, where the names do not tell; may be repeated.",
        show_default=False,
    ),
]


def bound_of(text: str, option: str) -> int | datetime | None:
    """Return an offset or a time, None for "".

    Raises:
        typer.BadParameter: it is neither.
    """
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{option} {text!r} is neither an offset nor a time such as 2026-11-20T08:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def brokers_of(entries: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the pairs of `--broker`.

    Raises:
        typer.BadParameter: one is not SOURCE=TARGET.
    """
    found = []
    for entry in entries or ():
        source, _, target = entry.partition("=")
        if not source or not target:
            raise typer.BadParameter(f"--broker {entry!r} is not SOURCE=TARGET")
        found.append((source, target))
    return tuple(found)


def replay(
    root: Annotated[
        str, typer.Argument(metavar="[ARCHIVE]", help="Archive to read: its folder.", show_default=False)
    ] = "",
    archive: Annotated[str, typer.Option(metavar="ROOT", hidden=True)] = "",  # as it was named before
    store: Annotated[
        str, typer.Option(metavar="PATH", help="Or a store directory.", show_default=False)
    ] = "",
    servers: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Or the nameserver of another cluster.", show_default=False),
    ] = "",
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="This topic only.", show_default=False)] = "",
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Into this topic.", show_default="the same")] = "",
    first: Annotated[
        str,
        typer.Option(
            "--from", metavar="BOUND", help="Queue offset, or store time (UTC).", show_default=False
        ),
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="BOUND", help="The same; exclusive.", show_default=False)
    ] = "",
    rate: Annotated[
        float, typer.Option(metavar="N", min=0, help="Messages a second, all tasks together; 0: no bound.")
    ] = 0.0,
    create: Annotated[bool, typer.Option("--create", help="Make topics that are missing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Store nothing, tell what would be.")] = False,
    broker: BrokerOption = None,
    tasks: Annotated[int, typer.Option(min=0, help="Tasks at most; 0: as many as run at a time.")] = 0,
    allow_partial: PartialOption = False,
    endpoint: EndpointOption = "",
    spark_master: MasterOption = "local[*]",
    spark_config: ConfigOption = None,
    write: WriteOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Put archived messages back into topics of the cluster at --endpoint: in order, each once.

    Run it again to go on after a crash. The brokers need --accept-replays true.
    """
    if root and archive:
        raise typer.BadParameter(f"the archive is named twice, as {root} and with --archive {archive}")
    bounds = bound_of(first, "--from"), bound_of(until, "--until")
    pairs = brokers_of(broker)
    target = endpoint_or_exit(endpoint)

    def options() -> "ReplayOptions":
        from whimbrel.spark.jobs.replay import ReplayOptions, Source

        return ReplayOptions(
            endpoint=target,
            source=Source(
                archive=root or archive,
                store=store,
                servers=servers,
                topic=topic,
                allow_partial=allow_partial,
            ),
            to=to,
            first=bounds[0],
            until=bounds[1],
            rate=rate,
            dry_run=dry_run,
            create=create,
            brokers=pairs,
            tasks=tasks,
        )

    def before() -> None:
        from whimbrel.spark.jobs import replay as module

        module.check(options())

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs import replay as module

        return module.replay(session, options(), note)

    run_job(job, output, master=spark_master, config=spark_config, write=write, before=before)
