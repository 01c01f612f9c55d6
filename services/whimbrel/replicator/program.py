"""The process: settings, one replicator a store, signals, the ready file, and the exit code."""

import contextlib
import faulthandler
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from whimbrel.config import load_or_exit, settings_line
from whimbrel.errors import StoreError, WhimbrelError, file_trouble
from whimbrel.lane import Lane
from whimbrel.machine import FILES, Machine
from whimbrel.probes import serve_health
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.store.modes import apply_mode
from whimbrel.store.seat_file import check_no_member
from whimbrel.telemetry import setup_logging, write_ready_file

__all__ = ["begin", "main", "serve"]

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a replicator until it is told to stop; return the exit code."""
    options = load_or_exit(ReplicatorOptions, arguments, environment)
    apply_mode(options.store_mode)
    setup_logging(options.log_level, options.log_format, process="replicator")
    logger.info("settings: %s", settings_line(options))
    try:
        serve(options)
    except WhimbrelError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("%s", file_trouble(error))
        return 1
    logger.info("stopped")
    return 0


def serve(options: ReplicatorOptions) -> None:
    """Run one end of the replication until a signal ends it.

    Raises:
        StoreError: the store can't be used, or the address is taken.
        OSError: the port of metrics or health can't be had.
    """
    root = Path(options.store)
    machine = Machine(lane=Lane(options.lane))
    machine.lane.tell()
    if machine.lane.active:
        faulthandler.enable()  # should the lane crash after all, the place is in the log
    try:
        FILES.make_directory(root)
    except OSError as error:
        raise StoreError(f"the store {root} can't be made: {error}") from error
    with (
        only_replicator(root),
        contextlib.closing(Loop(root, machine)) as loop,
        Replicator(loop, options) as replicator,
    ):
        loop.catch_signals()
        loop.page.replica_pid = os.getpid()
        health = serve_health(replicator.probes, host=options.host, port=options.health_port)
        with contextlib.nullcontext() if health is None else contextlib.closing(health):
            begin(replicator, loop, options)
            ready(
                options,
                address="" if replicator.role is None else replicator.role.address,
                metrics=replicator.metrics.address,
                health="" if health is None else health.address,
            )
            replicator.run()


def begin(
    replicator: Replicator,
    loop: Loop,
    options: ReplicatorOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Have a replicator take the role of its settings, or those that the broker beside says.

    Raises:
        StoreError, OSError: as `serve`.
    """
    loop.page.replica_retention = options.retention
    if options.role != "elected":
        check_no_member(Path(options.store), loop.machine.files)
        kind = MasterRole if options.role == "master" else SlaveRole
        replicator.start(kind(loop, options, clock=clock))
    else:
        slave = SlaveRole(loop, options, clock=clock)
        replicator.start_elected(MasterRole(loop, options, promises=slave.promises, clock=clock), slave)


def ready(options: ReplicatorOptions, *, address: str, metrics: str, health: str) -> None:
    """Write the ready file for the process that started this one."""
    facts = {
        "grpc": "",
        "ha": address,
        "metrics": metrics,
        "health": health,
        "name": "replicator",
        "role": options.role,
        "store": str(Path(options.store).absolute()),
    }
    write_ready_file(options.ready_file, facts)


@contextlib.contextmanager
def only_replicator(root: Path) -> Iterator[None]:
    """Keep a second replicator from the store: two would write the same cells of the page.

    Raises:
        StoreError: there is one already.
    """
    path = root / "whimbrel" / "replicator.lock"
    try:
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path} can't be opened: {error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes away with the process, however it ends
    except OSError as error:
        os.close(fd)
        raise StoreError(f"another replicator runs on {root}") from error
    try:
        yield
    finally:
        os.close(fd)
