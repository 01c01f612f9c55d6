"""Runs a Spark job as a command: a session, the job, its table, and the exit code.

    0    all well
    1    findings: a row of the table has a text in its column `finding`
    2    it could not run, with one sentence on standard error
    130  interrupted

Progress goes to standard error: Spark's progress bar if that is a terminal, and the job's lines.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import resolve_endpoint
from whimbrel.cli.output import Format, body_fields, emit, note, time_text
from whimbrel.errors import ClientError
from whimbrel.model.route import parse_endpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ConfigOption",
    "MasterOption",
    "PartialOption",
    "WriteOption",
    "endpoint_or_exit",
    "local_folder",
    "run_job",
    "sentence_of",
    "session_for",
]

ROWS_MAX = 100_000  # of a report, which people read, and which is collected on the driver
ROWS_SHOWN_MAX = 500  # in a table; -o json has all
SILENT = Path(__file__).with_name("log4j2.properties")
FINDINGS, COULD_NOT_RUN, INTERRUPTED = 1, 2, 130


def local_folder(given: Path | None) -> Path | None:
    """Return a folder of this machine that an option names, None without it.

    Raises:
        typer.BadParameter: it is none.
    """
    from whimbrel.spark.local_paths import RemotePath, local_path

    try:
        return None if given is None else local_path(given)
    except RemotePath as error:
        raise typer.BadParameter(str(error)) from None


MasterOption = Annotated[
    str,
    typer.Option(
        "--spark-master",
        metavar="URL",
        help="Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT.",
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-config",
        metavar="NAME=VALUE",
        help="A setting of the session; may be repeated.",
        show_default=False,
    ),
]
PartialOption = Annotated[
    bool,
    typer.Option("--allow-partial", help="Read what is there, though a broker is away, and say who is."),
]
WriteOption = Annotated[
    Path | None,
    typer.Option(
        "--write",
        metavar="FOLDER",
        help="Also write the table, as Parquet.",
        show_default=False,
        callback=local_folder,
    ),
]


def run_job(
    job: "Callable[[SparkSession], DataFrame]",
    output: Format,
    *,
    master: str,
    config: Sequence[str] | None,
    write: Path | None = None,
    before: Callable[[], object] | None = None,
) -> None:
    """Run a job, print its table and leave with its exit code.

    Args:
        before: looks for reasons why the job can't run, since starting Spark takes long, and raises them; not
            called for Spark Connect, where files and brokers are those that the server sees.

    Raises:
        typer.Exit: always.
    """
    try:
        check_installed()
        if not master.startswith("sc://"):
            check_written(write)
            if before is not None:
                before()
        with session_for(master, config) as session:
            frame = job(session)
            columns, rows = frame.columns, [row.asDict(recursive=True) for row in frame.take(ROWS_MAX + 1)]
            if write is not None:
                frame.write.mode("overwrite").parquet(str(write))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        note(f"whimbrel: {sentence_of(error)}")
        raise typer.Exit(COULD_NOT_RUN) from error
    show(columns, rows, output)
    findings = sum(row.get("finding") is not None for row in rows)
    if findings:
        note(f"{findings} finding{'s' if findings > 1 else ''}")
    raise typer.Exit(FINDINGS if findings else 0)


def check_installed() -> None:
    """Raise ImportError, whose text says what to install, if something that jobs need is missing."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f'{", ".join(missing)} is missing: jobs need the extra `spark`, as in pip install ".[spark]" in a'
            " clone of whimbrel"
        )


def check_written(folder: Path | None) -> None:
    """Raise NotADirectoryError or PermissionError if `--write` names what can't be a folder."""
    if folder is None:
        return
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"--write {folder}: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"--write {folder}: {there} can't be written")


def keep_gateway_quiet() -> None:
    """Show our warnings, and none of the gateway to Java, which logs the calls that Ctrl-C interrupts."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.name != "root")  # the gateway uses this logger as well
    logging.getLogger().addHandler(handler)


def endpoint_or_exit(given: str, instead: str = "") -> str:
    """Return the nameserver of `--endpoint`, or of the running `whimbrel dev`.

    Args:
        given: the value of `--endpoint`, "" without it.
        instead: what else can be done when there is no cluster, to end that sentence with.

    Raises:
        typer.Exit: no cluster is named, and none runs, or it is not HOST:PORT; with the exit code of a job
            that could not run.
    """
    try:
        endpoint = resolve_endpoint(given)
        parse_endpoints(endpoint)
    except (ClientError, ValueError) as error:
        note(
            f"whimbrel: --endpoint: {error}"
            if isinstance(error, ValueError)
            else f"whimbrel: {error}{instead}"
        )
        raise typer.Exit(COULD_NOT_RUN) from error
    return endpoint


@contextlib.contextmanager
def session_for(master: str, config: Sequence[str] | None) -> "Iterator[SparkSession]":
    """Yield a session, which is stopped at the end.

    Raises:
        ValueError: a setting is not NAME=VALUE.
        NoJava: Java is missing or too old.
    """
    settings: dict[str, str] = {"spark.sql.session.timeZone": "UTC"}
    for entry in config or ():
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise ValueError(f"--spark-config {entry!r} is not NAME=VALUE")
        settings[name] = value
    settings.setdefault("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    from whimbrel.spark import session

    keep_gateway_quiet()
    if not master.startswith("sc://"):
        settings.setdefault("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={SILENT}"')
    running = session(master, **settings)
    # PySpark's own handler would call Java within a call to Java; stopping the session ends its jobs anyway.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield running
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # after Ctrl-C, the JVM may be gone already
            running.stop()


def sentence_of(error: BaseException) -> str:
    """Return the text of an error in one sentence; of an error from a Spark worker, the worker's text."""
    text = str(error).strip() or type(error).__name__
    ours = re.findall(
        r"\bwhimbrel(?:\.\w+)+: (.+)", text
    )  # an error of ours has no traceback (spark/workers.py)
    if ours:
        return str(ours[-1]).strip()
    _, found, worker = text.rpartition("Traceback (most recent call last):")
    if found:
        for line in worker.splitlines():
            matched = re.match(r"[\w.]*?(\w+): (.+)", line)
            if matched and not line.startswith(" "):
                return matched[2].strip()
    return text.splitlines()[0]


def show(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], output: Format) -> None:
    """Print a report."""
    if len(rows) > ROWS_MAX:
        note(f"only the first {ROWS_MAX} rows are shown: narrow the job, or use --write")
    if output is Format.JSON:
        emit(
            [{name: for_json(value) for name, value in row.items()} for row in rows],
            output,
            columns=(),
            rows=(),
        )
        return
    shown = rows[:ROWS_SHOWN_MAX]
    emit(None, output, columns=columns, rows=[[for_table(row[name]) for name in columns] for row in shown])
    if len(rows) > len(shown):
        note(f"{len(rows) - len(shown)} more rows; -o json has all")


def for_table(value: Any) -> Any:
    """Return a cell for people."""
    if isinstance(value, datetime):
        return time_text(value.timestamp())
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    return value


def for_json(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return next(iter(body_fields(bytes(value)).values()))
    return value
