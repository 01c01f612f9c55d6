"""`whimbrel dev`: a whole cluster on this machine, in the foreground or detached.

`cli/supervisor.py` runs the processes, `cli/dev_view.py` shows them, and `cli/dev_directory.py` knows who
runs in a directory and what is left there. A detached cluster is this very program, forked before it starts
anything: it has a session of its own, writes to `DIR/logs/dev.log`, and goes on when the command that
started it ends.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import typer
from typer.core import TyperGroup

from whimbrel.cli.asking import YesOption, ask
from whimbrel.cli.dev_plan import (
    GROUP_LETTERS,
    LOG_FILE_SIZE,
    LOG_FILE_SIZE_MIN,
    DevOptions,
    StartError,
    disk_full_ratio_of,
    full_disk_of,
    vip_ports_of,
)
from whimbrel.cli.endpoint import DEV_DIR_VARIABLE, default_dev_dir, running_cluster
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note, size_text
from whimbrel.errors import ClientError, file_trouble
from whimbrel.model.wire import NAMESERVER_PORT
from whimbrel.starting import INTERRUPTED
from whimbrel.store.modes import apply_mode

__all__ = ["app"]

STARTED_TIMEOUT_S = 60.0  # more than the supervisor itself waits for before it gives up
STOPPED_TIMEOUT_S = 30.0  # more than it gives its children, in two groups, before it kills them
POLL_S = 0.02
PORTS = range(65536)
SLAVES = range(10)
BROKERS = range(1, len(GROUP_LETTERS) + 1)
LOG_FILE_SIZE_TEXT = f"{LOG_FILE_SIZE >> 20}MiB"
EXCERPT_LINES = 12  # of what a cluster that did not start has logged
DETACHED_LOG = Path("logs") / "dev.log"
READY = "cluster ready in"  # in what the plain view prints (`dev_view.py`)


class StoreAccess(StrEnum):
    """Who may read the stores (`store/modes.py`)."""

    PRIVATE = "private"
    GROUP = "group"
    ALL = "all"


class FullDisk(StrEnum):
    """What a full disk does."""

    DROP = "drop"
    REFUSE = "refuse"


class Mode(StrEnum):
    """When a send is answered: after the disk or slave has it, or at once."""

    SYNC = "sync"
    ASYNC = "async"


class Replication(StrEnum):
    """When a send is answered: after slaves have it, or at once."""

    SYNC = "sync"
    ASYNC = "async"
    MAJORITY = "majority"


def size(text: str) -> int:
    """Return a number of bytes, for an option.

    Raises:
        typer.BadParameter: it is no size, or none that a log file can have.
    """
    if text == LOG_FILE_SIZE_TEXT:
        return LOG_FILE_SIZE
    from whimbrel.config import whole

    try:
        found = whole(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no size: write bytes, or 64MiB for instance") from None
    if found < LOG_FILE_SIZE_MIN:
        raise typer.BadParameter(f"a log file needs at least {LOG_FILE_SIZE_MIN >> 20}MiB")
    return found


DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help=f"Stores, logs and cluster.json are there. Default: {DEV_DIR_VARIABLE}, where commands look too,"
        " else a directory of the user's.",
        show_default=False,
    ),
]
PortOption = Annotated[
    int,
    typer.Option(
        min=PORTS[0],
        max=PORTS[-1],
        help="Of the nameserver, for RocketMQ 5's SDKs and RocketMQ 4's clients; others follow from PORT+10."
        " 0: any free ports.",
    ),
]
FlushOption = Annotated[
    Mode | None,
    typer.Option(
        help="sync: answer a send when it is on the disk. Default: async, sync with a majority.",
        show_default=False,
    ),
]
ReplicationOption = Annotated[
    Replication,
    typer.Option(
        help="sync: answer a send when a slave has it. majority: when more than half of a group's brokers"
        " have it, and show it to nobody before; with --slaves 2, one may be missing."
    ),
]
BrokersOption = Annotated[
    int,
    typer.Option(min=BROKERS[0], max=BROKERS[-1], help="How many broker groups: broker-a, broker-b, ..."),
]
SlavesOption = Annotated[
    int, typer.Option(min=SLAVES[0], max=SLAVES[-1], help="How many slaves each master has.")
]
TraceOption = Annotated[
    float,
    typer.Option(
        min=0, max=1, metavar="RATIO", help="Share of messages to trace; see `whimbrel trace MESSAGE_ID`."
    ),
]
MetricsOption = Annotated[
    bool, typer.Option("--metrics", help="Serve metrics; cluster.json says at which addresses.")
]
ReplaysOption = Annotated[
    bool,
    typer.Option("--accept-replays", help="Take archived messages back, see `whimbrel spark replay --help`."),
]
CreateOption = Annotated[
    bool,
    typer.Option(
        "--auto-create/--no-auto-create",
        help="Whether a send creates its topic and a receive its group. In production they do not.",
    ),
]
FullDiskOption = Annotated[
    FullDisk | None,
    typer.Option(
        help="What a disk above --disk-clean-ratio does: drop the oldest messages, read or not; or keep them,"
        " and refuse sends above --disk-full-ratio. Default: refuse.",
        show_default=False,
    ),
]
CleanRatioOption = Annotated[
    float | None,
    typer.Option(
        "--disk-clean-ratio",
        min=0,
        max=1,
        metavar="RATIO",
        show_default=False,
        help="How full the disk may be before the oldest messages go, where they do. Default: 0.85.",
    ),
]
FullRatioOption = Annotated[
    float | None,
    typer.Option(
        "--disk-full-ratio",
        min=0,
        max=1,
        metavar="RATIO",
        show_default=False,
        help="How full the disk may be before sends are refused. Default: 0.98.",
    ),
]
StoreModeOption = Annotated[
    StoreAccess,
    typer.Option("--store-mode", help="Who may read the stores: this user, its group as well, or everybody."),
]
LogFileOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Of a new store's log files, reserved whole, at least 8MiB. An existing store keeps its size.",
    ),
]


class Dev(TyperGroup):
    """The group of `dev`, which starts within a second, and so reads its usual options itself.

    typer imports pydantic to read any value but a flag's, also a default that has its type already, or none.
    That takes a quarter of the time that a cluster takes to start. What is wrong is left to typer.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the command line."""
        for param in self.params:
            param.process_value = partial(quickly, param, param.process_value)  # type: ignore[method-assign]
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, which is off unless it is given: then it is a flag with a value."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


def number(within: range, text: str) -> int:
    """Return a number.

    Raises:
        ValueError: it is none, or out of range.
    """
    if int(text) not in within:
        raise ValueError(text)
    return int(text)


READERS: dict[str, Callable[[str], Any]] = {
    "directory": Path,
    "port": partial(number, PORTS),
    "brokers": partial(number, BROKERS),
    "slaves": partial(number, SLAVES),
    "flush": Mode,
    "replication": Replication,
    "store_mode": StoreAccess,
    "full_disk": FullDisk,
}


def quickly(param: Any, read: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return a parameter's value, by `read` where it is not one of the usual ones."""
    if value is None or value is param.get_default(ctx):
        return value
    if isinstance(value, str) and param.name in READERS:
        with contextlib.suppress(ValueError):
            return READERS[param.name](value)
    return read(ctx, value)


app = typer.Typer(
    cls=Dev,
    add_completion=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    epilog=examples(
        "whimbrel dev                       a nameserver at 127.0.0.1:8081",
        "whimbrel dev --replication sync    answer a send when a slave has it",
        "whimbrel dev --replication majority --slaves 2    when two of three have it",
        "whimbrel dev --flush sync          answer a send when it is on disk",
        "whimbrel dev --no-auto-create      be as strict as in production",
        "whimbrel dev --trace 1             then: whimbrel trace MESSAGE_ID",
        "whimbrel dev --port 0 --dir ./c    any free ports: ./c/cluster.json",
        f"export {DEV_DIR_VARIABLE}=./c        so that commands find it there",
        "whimbrel dev start --slaves 2      detached, until: whimbrel dev stop",
        "whimbrel dev --brokers 2           broker-a and broker-b, a slave each",
        "touch DIR/run/master.hold          keep the master down when it dies",
    ),
)


@app.callback()
def dev(
    context: typer.Context,
    directory: DirOption = None,
    port: PortOption = NAMESERVER_PORT,
    flush: FlushOption = None,
    replication: ReplicationOption = Replication.ASYNC,
    brokers: BrokersOption = 1,
    slaves: SlavesOption = 1,
    trace: TraceOption = 0.0,
    metrics: MetricsOption = False,
    accept_replays: ReplaysOption = False,
    auto_create: CreateOption = True,
    log_file_size: LogFileOption = LOG_FILE_SIZE_TEXT,
    full_disk: FullDiskOption = None,
    disk_clean_ratio: CleanRatioOption = None,
    disk_full_ratio: FullRatioOption = None,
    store_mode: StoreModeOption = StoreAccess.PRIVATE,
) -> None:
    """Run a whole cluster on this machine: nameserver, master, slaves, a replicator beside each.

    It runs until Ctrl-C, also while it takes no messages, and says why. `whimbrel dev start` takes the same
    options, and runs it detached.
    """
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if from_command_line(context, name)]
        if given:
            sub = context.invoked_subcommand
            raise typer.BadParameter(f"options stand behind the command: whimbrel dev {sub} OPTIONS")
        return
    options = options_of(
        directory,
        port,
        flush,
        replication,
        brokers,
        slaves,
        trace,
        metrics,
        accept_replays,
        auto_create,
        log_file_size,
        full_disk,
        disk_clean_ratio,
        disk_full_ratio,
        store_mode,
    )
    raise typer.Exit(run(options))


@app.command(
    epilog=examples(
        "whimbrel dev start",
        "whimbrel dev start --dir ./cluster --port 0 && whimbrel dev status --dir ./cluster",
    )
)
def start(
    directory: DirOption = None,
    port: PortOption = NAMESERVER_PORT,
    flush: FlushOption = None,
    replication: ReplicationOption = Replication.ASYNC,
    brokers: BrokersOption = 1,
    slaves: SlavesOption = 1,
    trace: TraceOption = 0.0,
    metrics: MetricsOption = False,
    accept_replays: ReplaysOption = False,
    auto_create: CreateOption = True,
    log_file_size: LogFileOption = LOG_FILE_SIZE_TEXT,
    full_disk: FullDiskOption = None,
    disk_clean_ratio: CleanRatioOption = None,
    disk_full_ratio: FullRatioOption = None,
    store_mode: StoreModeOption = StoreAccess.PRIVATE,
) -> None:
    """Run a cluster detached; return when it takes messages. One that takes none is stopped: exit code 1."""
    options = options_of(
        directory,
        port,
        flush,
        replication,
        brokers,
        slaves,
        trace,
        metrics,
        accept_replays,
        auto_create,
        log_file_size,
        full_disk,
        disk_clean_ratio,
        disk_full_ratio,
        store_mode,
    )
    log = options.directory / DETACHED_LOG
    umask = apply_mode(options.store_mode)
    log.parent.mkdir(parents=True, exist_ok=True)
    os.umask(umask)
    before = log.stat().st_size if log.exists() else 0
    reader, writer = os.pipe()  # a full disk takes no words into the log
    with log.open("ab") as output:
        pid = os.fork()
        if pid == 0:
            run_detached(options, output, writer)
    os.close(writer)

    def said() -> str:
        return log.read_bytes()[before:].decode(errors="replace").rstrip() if log.exists() else ""

    try:
        code = wait_started(pid, lambda: READY in said() and running_cluster(options.directory) is not None)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    if code is None:
        print(said())
        return
    with open(reader, "rb") as words:  # noqa: PTH123  a descriptor, not a path
        told = words.read().decode(errors="replace").rstrip()
    note(told or said() or f"whimbrel dev: it ended with code {code} and said nothing (log: {log})")
    raise typer.Exit(1)


@app.command()
def stop(directory: DirOption = None) -> None:
    """Stop a cluster that runs detached or elsewhere."""
    from whimbrel.cli import dev_directory

    where = chosen(directory)
    match dev_directory.stop(where, STOPPED_TIMEOUT_S):
        case None:
            raise ClientError(f"no cluster runs in {where}")
        case False:
            raise ClientError(
                f"the cluster in {where} has not stopped in {STOPPED_TIMEOUT_S:.0f} s; see {where / 'logs'}"
            )
    note(f"the cluster in {where} is stopped; its messages stay until `whimbrel dev purge`")


@app.command()
def status(directory: DirOption = None, output: OutputOption = Format.TABLE) -> None:
    """Show a cluster's processes; exit code 1: none runs."""
    from whimbrel.cli import dev_directory

    where = chosen(directory)
    pid = dev_directory.running_pid(where)
    cluster = running_cluster(where) if pid is not None else None
    state = "stopped" if pid is None else "running" if cluster is not None else "starting"
    processes = [dict(each) for each in cluster.processes] if cluster is not None else []
    found = {
        "state": state,
        "directory": str(where),
        "pid": pid,
        "endpoint": cluster.endpoint if cluster is not None else "",
        "processes": processes,
    }
    if output is Format.TABLE:
        at = f", endpoint {cluster.endpoint}" if cluster is not None else ""
        print(f"{state} in {where}{at}")
    if output is Format.JSON or processes:
        rows = [(each["name"], each["pid"], each["grpc"] or each["ha"]) for each in processes]
        emit(found, output, columns=("process", "pid", "address"), rows=rows)
    raise typer.Exit(0 if cluster is not None else 1)


@app.command(epilog=examples("whimbrel dev purge --yes", "whimbrel dev purge --dir ./cluster"))
def purge(
    directory: DirOption = None,
    yes: YesOption = False,
) -> None:
    """Remove what a stopped cluster left: stores and logs.

    Only what `whimbrel dev` has made itself is removed.
    """
    from whimbrel.cli import dev_directory

    where = chosen(directory)
    if not where.exists():
        raise ClientError(f"there is nothing to remove: {where} does not exist")
    if not dev_directory.marked(where):
        raise ClientError(
            f"{where} is not removed: it has no file {dev_directory.MARK}, so `whimbrel dev` did not make it"
        )
    (where / "run").mkdir(exist_ok=True)
    with dev_directory.held(where) as mine:
        if not mine:
            raise ClientError(f"a cluster runs in {where}: stop it first, with `whimbrel dev stop`")
        names = ", ".join(path.name for path in dev_directory.contents(where))
        ask(f"remove {names} in {where}", yes=yes)
        gone = dev_directory.purge(where)
    note(f"removed {where}" if gone else f"removed {names}; {where} stays, since there is more in it")


def from_command_line(context: typer.Context, name: str) -> bool:
    """Return whether an option was given."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def chosen(directory: Path | None) -> Path:
    """Return the directory that an option means."""
    return (directory or default_dev_dir()).absolute()


def options_of(
    directory: Path | None,
    port: int,
    flush: Mode | None,
    replication: Replication,
    brokers: int,
    slaves: int,
    trace: float,
    metrics: bool,
    accept_replays: bool,
    auto_create: bool,
    log_file_size: str,
    full_disk: FullDisk | None,
    disk_clean_ratio: float | None,
    disk_full_ratio: float | None,
    store_mode: StoreAccess,
) -> DevOptions:
    """Return the options of a cluster."""
    from whimbrel.cli import dev_directory

    where = chosen(directory)
    asked, there = size(log_file_size), dev_directory.log_file_size(where)
    if there is not None and asked not in (there, LOG_FILE_SIZE):
        note(f"the stores in {where} have log files of {size_text(there)} and keep that size")
    if flush is None:  # a majority that loses its memory in a power cut would be none
        flush = Mode.SYNC if replication is Replication.MAJORITY else Mode.ASYNC
    return DevOptions(
        directory=where,
        port=port,
        flush=flush.value,
        replication=replication.value,
        brokers=brokers,
        slaves=slaves,
        trace_ratio=trace,
        metrics=metrics,
        accept_replays=accept_replays,
        auto_create=auto_create,
        log_file_size=there or asked,
        full_disk=full_disk_of(os.environ) if full_disk is None else full_disk.value,
        disk_clean_ratio=disk_clean_ratio,
        disk_full_ratio=disk_full_ratio_of(os.environ) if disk_full_ratio is None else disk_full_ratio,
        store_mode=store_mode.value,
        vip_ports=vip_ports_of(os.environ),
    )


def run(options: DevOptions, *, must_be_ready: bool = False, tell: Callable[[str], None] = note) -> int:
    """Run a cluster until a signal comes; return the exit code.

    Args:
        options: what is to run.
        must_be_ready: one that takes no messages is ended.
        tell: gets what keeps it from running.
    """
    from whimbrel.cli.dev_view import viewing
    from whimbrel.cli.supervisor import Supervisor

    apply_mode(options.store_mode)
    try:
        with viewing(options.directory, default_dev_dir(chosen="")) as view:
            supervisor = Supervisor(options, view, must_be_ready=must_be_ready)
            supervisor.run()
        return INTERRUPTED if supervisor.interrupted else 0
    except OSError as error:
        trouble = file_trouble(error, options.directory)
        tell(f"whimbrel dev: {trouble}; choose another directory with --dir, or see to this one")
        return 1
    except StartError as error:
        tell(f"whimbrel dev: {error}")
        if not sys.stderr.isatty() and error.log is not None:
            tell(excerpt(error.log))
        return 1


def excerpt(log: Path) -> str:
    """Return the last lines of a log, indented."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-EXCERPT_LINES:]
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines)


def run_detached(options: DevOptions, output: BinaryIO, told: int) -> NoReturn:
    """Run a cluster in this process, which was forked for it, without a terminal.

    Args:
        options: what is to run.
        output: gets all output.
        told: a descriptor that gets, too, what keeps the cluster from running.
    """
    code = 1

    def tell(text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever started it does not wait any more
            os.write(told, f"{text}\n".encode(errors="backslashreplace"))
        with contextlib.suppress(OSError):
            note(text)

    try:
        os.setsid()
        with Path(os.devnull).open("rb") as nothing:
            for number, file in ((0, nothing), (1, output), (2, output)):
                os.dup2(file.fileno(), number)
        code = run(options, must_be_ready=True, tell=tell)
    except Exception:  # noqa: BLE001 nobody above is to see it: there, the command goes on that was forked
        traceback.print_exc()
    finally:
        os._exit(code)


def wait_started(pid: int, ready: Callable[[], bool]) -> int | None:
    """Wait until a detached cluster is ready; return the exit code of one that has ended instead."""
    deadline = time.monotonic() + STARTED_TIMEOUT_S
    while time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(code)
        if ready():
            return None
        time.sleep(POLL_S)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
