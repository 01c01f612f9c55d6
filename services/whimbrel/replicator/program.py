"""The process: settings, one replicator a store, signals, the ready file, and the exit code."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.config import load_or_exit, settings_line
from whimbrel.errors import StoreError, WhimbrelError
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.metrics import expose_feeder, expose_follower
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.sockets import named, parse_address
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.options import StoreOptions
from whimbrel.telemetry import setup_logging, write_ready_file

if TYPE_CHECKING:
    from whimbrel.exposition import Exposition

__all__ = ["main", "serve"]

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a replicator until it is told to stop; return the exit code."""
    options = load_or_exit(ReplicatorOptions, arguments, environment)
    setup_logging(options.log_level, options.log_format, process="replicator")
    logger.info("settings: %s", settings_line(options))
    try:
        serve(options)
    except (WhimbrelError, OSError) as error:
        logger.error("%s", error)
        return 1
    logger.info("stopped")
    return 0


def serve(options: ReplicatorOptions) -> None:
    """Run one end of the replication until a signal ends it.

    Raises:
        StoreError: the store can't be used, or the address is taken.
    """
    root = Path(options.store)
    if options.master_ha:
        try:
            parse_address(options.master_ha)
        except ValueError as error:
            raise StoreError(f"master_ha: {error}") from error
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the store {root} can't be made: {error}") from error
    with only_replicator(root), contextlib.closing(Loop(root)) as loop:
        loop.catch_signals()
        loop.page.replica_pid = os.getpid()
        if options.role == "master":
            feeder = Feeder(loop, options)
            address = named(feeder.listener.getsockname())
            logger.info("listening on %s", address)
            with exposing(options, lambda: expose_feeder(options, feeder)) as metrics:
                ready(options, address, metrics)
                feeder.run()
        else:
            follow(loop, options)


def follow(loop: Loop, options: ReplicatorOptions) -> None:
    """Recover the log, then follow the master."""
    size = options.commitlog_file_size or loop.page.file_size or StoreOptions().commitlog_file_size
    try:
        # No pages are populated ahead: most of the log is written by system calls, which would find them in
        # the way, and for the rest a fault a page is cheaper than waking a thread.
        store_options = StoreOptions(
            commitlog_file_size=size,
            flush=options.flush,
            prefault_bytes=0,
            reserved_hours=options.reserved_hours,
            disk_used_ratio_max=options.disk_used_ratio_max,
            disk_clean_ratio=options.disk_clean_ratio,
        )
    except ValueError as error:
        raise StoreError(str(error)) from error
    log = LogWriter.open(Path(options.store), store_options, clock=lambda: time.time_ns() // 1_000_000)
    clean = False
    try:
        loop.ring_broker()
        follower = Follower(loop, options, log)
        with exposing(options, lambda: expose_follower(options, follower)) as metrics:
            ready(options, "", metrics)
            follower.run()
        clean = True
    finally:
        log.close(clean=clean)


@contextlib.contextmanager
def exposing(options: ReplicatorOptions, expose: Callable[[], "Exposition"]) -> Iterator[str]:
    """Serve metrics where they are switched on; give the address, "" where they are not.

    Raises:
        OSError: the port can't be had.
    """
    if options.metrics_port < 0:
        yield ""
        return
    with contextlib.closing(expose()) as exposition:
        yield exposition.address


def ready(options: ReplicatorOptions, address: str, metrics: str) -> None:
    """Tell whoever started us that we are there."""
    facts = {
        "grpc": "",
        "ha": address,
        "metrics": metrics,
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
