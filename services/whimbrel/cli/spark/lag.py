"""`whimbrel spark lag`: the lag of groups over time; `--record` takes the snapshots for it.

Recording needs neither Spark nor Java. It ends after `--for`, or after a whole snapshot on SIGINT or SIGTERM;
the exit code is 0 in all these cases, and 2 if the first snapshot failed or a file could not be written.
"""

import signal
import time
from enum import StrEnum
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.spark.inputs import (
    EndpointOption,
    HtmlOption,
    TopicOption,
    check_inputs,
    checked_page,
    parse_duration,
    topic_names,
)
from whimbrel.cli.spark.running import (
    COULD_NOT_RUN,
    ConfigOption,
    MasterOption,
    WriteOption,
    endpoint_or_exit,
    local_folder,
    run_job,
)
from whimbrel.errors import WhimbrelError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EXAMPLES", "lag"]

EXAMPLES = examples(
    "whimbrel spark lag --snapshots ./lag --record --every 60s         until Ctrl-C; a service, say",
    "whimbrel spark lag --snapshots ./lag --group billing --per 15m",
    "whimbrel spark lag --snapshots ./lag --by queue --html lag.html",
)
EVERY, PER = "60s", "1h"
SLICE_S = 0.5  # of waiting: a signal that comes just before it does not end it


class By(StrEnum):
    """What a row is for, besides the period."""

    GROUP = "group"
    QUEUE = "queue"


SnapshotsOption = Annotated[
    str, typer.Option("--snapshots", metavar="FOLDER", help="Where the snapshots are, or go.")
]
RecordOption = Annotated[
    bool, typer.Option("--record", help="Take snapshots of the cluster, in place of a report.")
]
EveryOption = Annotated[
    str, typer.Option("--every", metavar="TIME", help="With --record: from one to the next.")
]
ForOption = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="TIME",
        help="With --record: for so long. Default: until Ctrl-C.",
        show_default=False,
    ),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        help="This group alone; may be repeated. Default: all.",
        show_default=False,
    ),
]
PeriodOption = Annotated[str, typer.Option("--per", metavar="TIME", help="Of a period of the report.")]
ByOption = Annotated[By, typer.Option("--by", help="What a row is: a group's topic, or each queue.")]


def lag(
    snapshots: SnapshotsOption,
    record: RecordOption = False,
    endpoint: EndpointOption = "",
    every: EveryOption = EVERY,
    for_: ForOption = "",
    group: GroupOption = None,
    topic: TopicOption = None,
    per: PeriodOption = PER,
    by: ByOption = By.GROUP,
    html: HtmlOption = None,
    write: WriteOption = None,
    master: MasterOption = "local[*]",
    config: ConfigOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Tell how far groups were behind, and how fast; exit code 1 when the lag of one only grows."""
    if not snapshots:
        raise typer.BadParameter("--snapshots: name a folder")
    groups, topics = topic_names(group), topic_names(topic)
    if record:
        refuse(
            ("--topic", topic),
            ("--html", html),
            ("--write", write),
            why="--record writes all topics, no report",
        )
        every_s = parse_duration("--every", every)
        for_s = parse_duration("--for", for_) if for_ else None
        take(local_folder(Path(snapshots)) or Path(), endpoint_or_exit(endpoint), groups, every_s, for_s)
        return
    refuse(
        ("--endpoint", endpoint),
        ("--for", for_),
        ("--every", every != EVERY),
        why="a report asks no broker; with --record it is written",
    )
    per_s, page = parse_duration("--per", per), checked_page(html)

    def job(session: "SparkSession") -> "DataFrame":
        from whimbrel.spark.jobs.lag import LagOptions
        from whimbrel.spark.jobs.lag import lag as run

        options = LagOptions(
            snapshots=snapshots, groups=groups, topics=topics, per_s=per_s, by=by.value, html=page
        )
        return run(session, options, note)

    run_job(
        job,
        output,
        master=master,
        config=config,
        write=write,
        before=lambda: check_inputs({}, page, path=snapshots, hint="; --record makes one"),
    )


def refuse(*given: tuple[str, object], why: str) -> None:
    """Check that options are not given which have no meaning here.

    Raises:
        typer.BadParameter: one was given.
    """
    for name, value in given:
        if value:
            raise typer.BadParameter(f"{name} does not go with this: {why}")


class Ended:
    """Whether a signal has come. What takes the signal takes no lock, which who waits may hold."""

    def __init__(self) -> None:
        self.ended = False

    def take(self, *_: object) -> None:
        """Take a signal."""
        self.ended = True

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, for so long; return whether it has come."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))
        return self.ended


def take(folder: Path, endpoint: str, groups: tuple[str, ...], every_s: int, for_s: int | None) -> None:
    """Record until the time is over, or until a signal.

    Raises:
        typer.Exit: a snapshot failed.
    """
    from whimbrel.spark import snapshots

    ended = Ended()
    before = {number: signal.signal(number, ended.take) for number in (SIGINT, SIGTERM)}
    poller = snapshots.GroupPoller(endpoint, groups)
    try:
        count = snapshots.record(
            folder,
            lambda: poller.poll(note),
            every_s=every_s,
            for_s=for_s,
            clock=time.time,
            wait=ended.wait,
            on_progress=note,
        )
    except WhimbrelError as error:
        note(f"whimbrel: {endpoint}: {error}; is the cluster running, and is that its nameserver's address?")
        raise typer.Exit(COULD_NOT_RUN) from error
    except OSError as error:
        note(f"whimbrel: {folder}: {error.strerror or error}")
        raise typer.Exit(COULD_NOT_RUN) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    note(f"{count} snapshot{'s' if count > 1 else ''} below {folder}")
