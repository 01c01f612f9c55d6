"""`whimbrel spark archive` and `compact`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import EndpointOption
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.running import (
    ConfigOption,
    MasterOption,
    PartialOption,
    WriteOption,
    endpoint_or_exit,
    local_folder,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archive", "compact"]

ARCHIVE_EXAMPLES = """
Examples:
  whimbrel spark archive /data/archive --topic orders,payments
  whimbrel spark archive /data/archive --pattern "sales-.*" --every 5m
  whimbrel spark archive /data/archive --store /data/broker-a --topic orders
  whimbrel spark archive /data/archive --check --deep
"""
COMPACT_EXAMPLES = """
Examples:
  whimbrel spark compact /data/archive /data/archive-2026
  whimbrel spark compact /data/archive --in-place --before 2026-11-01
"""
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

RootArgument = Annotated[
    Path, typer.Argument(metavar="ARCHIVE", help="Folder of the archive.", callback=local_folder)
]
QueuesOption = Annotated[bool, typer.Option("--queues", help="A row for each queue.")]


TopicOption = Annotated[
    str, typer.Option("--topic", metavar="NAME,...", help="Topics to archive.", show_default=False)
]
PatternOption = Annotated[
    str, typer.Option("--pattern", metavar="REGEX", help="Topics by name.", show_default=False)
]
EveryOption = Annotated[
    str,
    typer.Option(
        "--every", metavar="TIME", help="Go on, with a batch every 60s, 5m or 1h.", show_default=False
    ),
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Archive nothing; look for gaps, overlaps and lost files.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="A new query starts after what the archive has.")
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="Read a store directory, not brokers.",
        show_default=False,
        callback=local_folder,
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FOLDER",
        help="State of the query; else in the archive.",
        show_default=False,
        callback=local_folder,
    ),
]
TableOption = Annotated[
    str,
    typer.Option("--table", metavar="delta|iceberg", help="Make a table of it, too.", show_default=False),
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog", metavar="NAME=VALUE", help="Property of an Iceberg catalog.", show_default=False
    ),
]
TableNameOption = Annotated[
    str, typer.Option("--table-name", metavar="SPACE.NAME", help="Of an Iceberg table.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of the source (docs/spark.md).", show_default=False),
]
TABLE_NAME = "whimbrel.messages"


def archive(
    root: RootArgument,
    topic: TopicOption = "",
    pattern: PatternOption = "",
    every: EveryOption = "",
    check: CheckOption = False,
    deep: Annotated[bool, typer.Option("--deep", help="With --check, read every file.")] = False,
    resume: ResumeOption = False,
    store: StoreOption = None,
    checkpoint: CheckpointOption = None,
    table: TableOption = "",
    catalog: CatalogOption = None,
    table_name: TableNameOption = TABLE_NAME,
    option: SourceOption = None,
    allow_partial: PartialOption = False,
    queues: QueuesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
    write: WriteOption = None,
    spark_master: MasterOption = "local[*]",
    spark_config: ConfigOption = None,
) -> None:
    """Archive topics as Parquet files, by topic and day, every message once; or check an archive.

    The same command goes on where the last one ended. Exit code 1: messages are missing, twice, or damaged.
    """
    writes = {"--topic": topic, "--pattern": pattern, "--every": every, "--store": store, "--resume": resume}
    check_mode(writes, check=check, deep=deep)
    check_table(table, of_iceberg=bool(catalog) or table_name != TABLE_NAME)
    every_s = seconds(every)
    source: dict[str, str] = pairs("--option", option)
    if allow_partial:
        source["allowPartial"] = "true"
    if not check:
        source |= {"subscribe": topic} if topic else {"subscribePattern": pattern}
        source |= {"store": str(store)} if store is not None else {"servers": endpoint_or_exit(endpoint)}
    properties = tuple(pairs("--catalog", catalog).items())

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.archiving.tables import TableOptions
        from whimbrel.spark.jobs import archive as jobs

        if check:
            return jobs.check(session, jobs.CheckOptions(root=root, deep=deep, queues=queues), note)
        kind: Any = table
        options = jobs.ArchiveOptions(
            root=root,
            source=source,
            every_s=every_s,
            checkpoint=checkpoint,
            resume=resume,
            table=TableOptions(kind=kind, name=table_name, catalog=properties) if table else None,
            queues=queues,
        )
        return jobs.archive(session, options, note)

    def before() -> None:
        from whimbrel.spark.archiving.folder import Folder
        from whimbrel.spark.before import check_source

        if check:
            Folder(root).check()
        else:
            check_source(source, streaming=True, whole=not every_s)
            Folder(root).create()

    run_job(job, output, master=spark_master, config=spark_config, write=write, before=before)


def check_mode(writes: Mapping[str, object], *, check: bool, deep: bool) -> None:
    """Leave with a sentence if options of archiving and of checking are mixed, or no topics are named."""
    if check and (meant := [name for name, value in writes.items() if value]):
        refuse(f"--check archives nothing: leave out {', '.join(meant)}")
    if deep and not check:
        refuse("--deep belongs to --check")
    if not check and bool(writes["--topic"]) == bool(writes["--pattern"]):
        refuse("exactly one of --topic and --pattern says what is archived")


def check_table(table: str, *, of_iceberg: bool) -> None:
    """Leave with a sentence if the options of a table contradict each other."""
    if table not in ("", "delta", "iceberg"):
        refuse(f"--table {table!r} is neither delta nor iceberg")
    if of_iceberg and table != "iceberg":
        refuse("--catalog and --table-name belong to --table iceberg")


def compact(
    root: RootArgument,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TARGET]", help="Folder of the new archive.", show_default=False, callback=local_folder
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change the archive itself; nobody may read it meanwhile.")
    ] = False,
    before: Annotated[
        str, typer.Option("--before", metavar="DAY", help="Only days before this one, YYYY-MM-DD.")
    ] = "",
    file_mib: Annotated[
        int, typer.Option("--file-mib", min=1, max=1024, help="Size of a file, about.")
    ] = 512,
    queues: QueuesOption = False,
    output: OutputOption = Format.TABLE,
    write: WriteOption = None,
    spark_master: MasterOption = "local[*]",
    spark_config: ConfigOption = None,
) -> None:
    """Make large files of an archive's small ones: days that are over, by topic and broker.

    The new folder is an archive of its own. In place, a run that was killed is finished by the next one.
    """
    if in_place == (target is not None):
        refuse("name the folder of the new archive, or use --in-place")
    if before and not re.fullmatch(r"\d{4}-\d\d-\d\d", before):
        refuse(f"--before {before!r} is no day such as 2026-11-01")

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs import compact as jobs

        options = jobs.CompactOptions(
            root=root, target=target, before=before, target_bytes=file_mib << 20, queues=queues
        )
        return jobs.compact(session, options, note)

    def check_folder() -> None:
        from whimbrel.spark.archiving.folder import Folder

        Folder(root).check()

    run_job(job, output, master=spark_master, config=spark_config, write=write, before=check_folder)


def refuse(sentence: str) -> None:
    """Print a sentence, and leave with the exit code of a wrong command line.

    Raises:
        typer.Exit: always.
    """
    note(f"whimbrel: {sentence}")
    raise typer.Exit(2)


def seconds(text: str) -> float:
    """Return a duration; 0 for none."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+)\s*([smh])", text.strip())
    if not found or not int(found[1]):
        refuse(f"--every {text!r} is not a time such as 60s, 5m or 1h")
    assert found is not None
    return int(found[1]) * UNITS_S[found[2]]


def pairs(name: str, given: list[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs."""
    found = {}
    for entry in given or ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            refuse(f"{name} {entry!r} is not NAME=VALUE")
        found[key] = value
    return found
