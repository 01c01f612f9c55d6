"""`whimbrel spark audit`: a master's log against its slaves'."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.running import (
    ConfigOption,
    MasterOption,
    WriteOption,
    endpoint_or_exit,
    local_folder,
    run_job,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from whimbrel.spark.jobs.audit import AuditOptions

__all__ = ["EXAMPLES", "audit"]

EXAMPLES = examples(
    "whimbrel spark audit                                    of the running `whimbrel dev`",
    "whimbrel spark audit --master ./store-master --slave ./store-slave",
    "whimbrel spark audit --master 127.0.0.1:8091 --slave 127.0.0.1:8092 --known ./checksums",
    "whimbrel spark audit --endpoint 127.0.0.1:8081 --broker broker-a",
    "whimbrel spark audit --master ./store-master --slave ./store-slave --deep -o json",
)


MasterLogOption = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="DIRECTORY|HOST:PORT",
        help="The master: its store directory, or the broker itself.",
        show_default=False,
    ),
]
SlaveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slave",
        metavar="DIRECTORY|HOST:PORT",
        help="A slave, likewise; may be repeated.",
        show_default=False,
    ),
]
BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="NAME",
        help="In place of the two: the broker whose members the nameserver tells. Default: the only one.",
        show_default=False,
    ),
]
KnownOption = Annotated[
    Path | None,
    typer.Option(
        "--known",
        metavar="FOLDER",
        help="Keep the checksums of full files here, and read only new files the next time.",
        show_default=False,
        callback=local_folder,
    ),
]


def audit(
    master_log: MasterLogOption = "",
    slaves: SlaveOption = None,
    endpoint: EndpointOption = "",
    broker: BrokerOption = "",
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare each store's queues and index with its log too.")
    ] = False,
    known: KnownOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="With --known: read everything, and write down what is found.")
    ] = False,
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    write: WriteOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Compare a master's log with its slaves', by checksums and then by record.

    Without --master and --slave, the members are those that the nameserver at --endpoint knows. A slave that
    is behind is no finding, nor is a file that retention has removed on one side.
    """

    for text in (master_log, *(slaves or ())):
        local_folder(Path(text))
    named = bool(master_log or slaves)
    if named and (endpoint or broker):
        raise typer.BadParameter("give either --master and --slave, or --endpoint and --broker")
    server = "" if named else endpoint_or_exit(endpoint, "; or name stores with --master and --slave")

    @functools.cache
    def options() -> "AuditOptions":
        from whimbrel.spark.auditing.members import group_addresses
        from whimbrel.spark.jobs.audit import AuditOptions

        first, *others = [master_log, *(slaves or ())] if named else group_addresses(server, broker)
        return AuditOptions(master=first, slaves=tuple(others), deep=deep, known=known, again=again)

    def before() -> None:
        from whimbrel.spark.auditing.members import check_member

        for text in options().members:
            check_member(text, local=master.startswith("local"))

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.audit import audit as run

        return run(session, options(), note)

    run_job(job, output, master=master, config=config, write=write, before=before)
