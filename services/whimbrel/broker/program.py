"""The broker's program: settings, logging, the loop, and the signals that stop it."""

import asyncio
import faulthandler
import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.config import load_or_exit, settings_line
from whimbrel.errors import WhimbrelError, file_trouble
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.rpc.server.loop import run as run_loop
from whimbrel.store.modes import apply_mode, exposure
from whimbrel.telemetry import setup_logging

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a broker until SIGTERM or SIGINT; return the exit code."""
    options = load_or_exit(BrokerOptions, arguments, environment)
    apply_mode(options.store_mode)
    setup_logging(options.log_level, options.log_format, process=f"broker {options.name}/{options.id}")
    logger.info("settings: %s", settings_line(options))
    try:
        if exposed := exposure(Path(options.store), options.store_mode):
            logger.warning("%s", exposed)
        run_loop(run(options))
    except WhimbrelError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("%s", file_trouble(error))
        return 1
    return 0


async def run(options: BrokerOptions) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    machine = Machine(lane=Lane(options.lane))
    machine.lane.tell()
    if machine.lane.active:
        faulthandler.enable()  # a fault in compiled code leaves a trace of where it was
    broker = Broker(options, machine=machine)
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stopped.wait())
    # A slave may wait for its replicator for as long as it takes: a signal must reach it there too.
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    try:
        starting.result()
        await stopping
        logger.info("stopping")
    finally:
        stopping.cancel()
        await broker.stop()
