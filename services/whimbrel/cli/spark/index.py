"""`whimbrel spark verify-index` and `rebuild-index`: a store's queues and index against its log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.running import ConfigOption, MasterOption, WriteOption, local_folder, run_job
from whimbrel.store.view import check_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["REBUILD_INDEX_EXAMPLES", "VERIFY_INDEX_EXAMPLES", "rebuild_index", "verify_index"]

VERIFY_INDEX_EXAMPLES = examples(
    "whimbrel spark verify-index ./store", "whimbrel spark verify-index ./store -o json"
)
REBUILD_INDEX_EXAMPLES = examples("whimbrel spark rebuild-index ./store --to ./rebuilt")

PathArgument = Annotated[
    Path, typer.Argument(help="Store directory: the one with commitlog/ in it.", callback=local_folder)
]
SlotsOption = Annotated[
    int,
    typer.Option(
        "--index-slots",
        min=0,
        help="Slots of an index file, where they are not a quarter of its entries.",
        show_default=False,
    ),
]


def check_directory(path: Path, master: str) -> None:
    """Raise StoreError if a directory of this machine is no store; executors elsewhere may see others."""
    if master.startswith("local"):
        check_store(path)


def verify_index(
    path: PathArgument,
    index_slots: SlotsOption = 0,
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    write: WriteOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Compare a store's consume queues and index with its log; nothing is changed."""

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.verify_index import VerifyOptions
        from whimbrel.spark.jobs.verify_index import verify_index as run

        return run(session, VerifyOptions(store=path, index_slots=index_slots), note)

    run_job(
        job, output, master=master, config=config, write=write, before=lambda: check_directory(path, master)
    )


def rebuild_index(
    path: PathArgument,
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Where to write them: a new folder.",
            show_default=False,
            callback=local_folder,
        ),
    ],
    index_slots: SlotsOption = 0,
    delay_levels: Annotated[
        str,
        typer.Option(
            "--delay-levels",
            help="As the broker's delay_levels, when they are not the default: times of delivery need them.",
            show_default=False,
        ),
    ] = "",
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    write: WriteOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Build a store's consume queues and index from its log, in a new folder.

    The store is only read. docs/audit.md says how to put the new ones in the place of the old.
    """

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.rebuild_index import RebuildOptions
        from whimbrel.spark.jobs.rebuild_index import rebuild_index as run

        options = RebuildOptions(store=path, to=to, index_slots=index_slots, delay_levels=delay_levels)
        return run(session, options, note)

    run_job(
        job, output, master=master, config=config, write=write, before=lambda: check_directory(path, master)
    )
