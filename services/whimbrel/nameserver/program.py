"""The nameserver's program: it serves until SIGTERM or SIGINT, then ends with code 0."""

import asyncio
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from whimbrel.config import load_or_exit, settings_line
from whimbrel.errors import NotReady, StoreError, WhimbrelError, file_trouble
from whimbrel.machine import FILES, Files
from whimbrel.nameserver.addresses import joined
from whimbrel.nameserver.group_file import GroupFile
from whimbrel.nameserver.group_service import GroupService
from whimbrel.nameserver.group_table import GroupTable
from whimbrel.nameserver.interfaces import own_addresses
from whimbrel.nameserver.kv_file import KvStore
from whimbrel.nameserver.metrics import expose
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.nameserver.registry import Registry
from whimbrel.nameserver.registry_service import TICK_S, RegistryService
from whimbrel.nameserver.remoting import NameRequests
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.routes_service import RoutesService
from whimbrel.probes import Condition, Probes, serve_health
from whimbrel.rpc.api.secret_files import read_accounts
from whimbrel.rpc.server.call_metrics import CallTimes
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.limits import RunningServer
from whimbrel.rpc.server.loop import run as run_loop
from whimbrel.rpc.server.remoting import IDLE_S
from whimbrel.rpc.server.serving import serve
from whimbrel.telemetry import setup_logging, write_ready_file

__all__ = ["main", "run"]

# Interfaces come and go: a container that is connected to its network again, a VPN.
INTERFACES_S = 1.0

logger = logging.getLogger("whimbrel.nameserver")


class Interfaces:
    """This machine's addresses, read again when they may have changed."""

    def __init__(self) -> None:
        self.addresses = own_addresses()
        self.read_at = time.monotonic()

    def __call__(self) -> frozenset[str]:
        """Return the addresses."""
        now = time.monotonic()
        if now - self.read_at > INTERFACES_S:
            self.addresses, self.read_at = own_addresses(), now
        return self.addresses


async def run(options: NameserverOptions, files: Files = FILES) -> int:
    """Serve until a signal comes; return the exit code.

    Args:
        options: the settings.
        files: where the records of groups are kept, if they are.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    logger.info("settings: %s", settings_line(options))
    own = Interfaces()
    registry = Registry(
        lease_s=options.lease_s,
        renew_s=options.renew_s,
        started=time.monotonic(),
        expected_brokers=options.expected_brokers,
    )
    resolver = Resolver()
    routes = RoutesService(
        registry, own=own, resolver=resolver, now=time.monotonic, route_members=options.route_members
    )
    brokers = RegistryService(
        registry, own=own, resolver=resolver, now=time.monotonic, wall=time.time, sessions=routes.sessions
    )
    try:
        groups = groups_of(options, files)
    except StoreError as error:
        logger.error("%s", error)
        return 1
    try:
        accounts = read_accounts(options.remoting_accounts, "remoting_accounts")
        kv = KvStore.open(options.kv_config, files)
    except (StoreError, NotReady) as error:
        logger.error("%s", error)
        groups.close()
        return 1
    requests = NameRequests(
        registry,
        kv,
        own=own,
        now=time.monotonic,
        later=loop.call_later,
        admin=options.remoting_admin,
        shown=shown_settings(options),
        accounts=accounts,
    )
    times = CallTimes() if options.metrics_port >= 0 else None
    try:
        server = await serve(
            [routes.service, brokers.service, groups.service],
            host=options.host,
            port=options.port,
            on_call_end=None if times is None else times.observe,
            tls=TlsSettings(certificate=options.tls_certificate, key=options.tls_key),
            remoting=requests.service,
            on_request_end=None if times is None else times.observe_many,
            extra_ports=() if options.remoting_port < 0 else (options.remoting_port,),
        )
    except (WhimbrelError, OSError) as error:
        logger.error("%s", error)
        groups.close()
        kv.close()
        return 1
    logger.info("serves on %s", ", ".join((server.address, *extra_addresses(server))))
    requests.shown["listenPort"] = str((server.port, *server.extra_ports)[-1])
    probes = Probes("nameserver")
    probes.serve("nameserver", lambda: [settled(registry, time.monotonic())])
    metrics = health = None
    try:
        health = serve_health(probes, host=options.host, port=options.health_port)
        if times is not None:
            metrics = expose(options, registry, brokers, routes.forwarder, server, times, probes)
    except OSError as error:
        logger.error("%s", error)
        if health is not None:
            health.close()
        groups.close()
        kv.close()
        await server.stop()
        return 1
    loop.call_later(options.renew_s, brokers.notify_settled)
    write_ready_file(
        options.ready_file,
        {
            "grpc": server.address,
            "remoting": next(iter(extra_addresses(server)), ""),
            "ha": "",
            "metrics": "" if metrics is None else metrics.address,
            "health": "" if health is None else health.address,
            "name": "nameserver",
            "role": "nameserver",
            "store": "",
        },
    )
    while not stopping.is_set():
        brokers.tick(time.monotonic())
        probes.turn()
        try:
            async with asyncio.timeout(min(TICK_S, options.lease_s / 4)):
                await stopping.wait()
        except TimeoutError:
            continue
    logger.info("stops")
    for port in (metrics, health):
        if port is not None:
            port.close()
    groups.close()
    kv.close()
    await server.stop()
    await routes.forwarder.close()
    return 0


def groups_of(options: NameserverOptions, files: Files) -> GroupService:
    """Return the service of the groups' records, with those that are kept.

    Raises:
        StoreError: their file can't be had, see `GroupFile.open`.
    """
    if not options.keeps_groups:
        return GroupService(None, GroupTable(), now=time.monotonic)
    file, table = GroupFile.open(Path(options.keeps_groups), files)
    logger.info("keeps the records of %d groups in %s", len(table.records), options.keeps_groups)
    return GroupService(file, table, now=time.monotonic)


def shown_settings(options: NameserverOptions) -> dict[str, str]:
    """Return what RocketMQ's tools are shown of the settings, by RocketMQ's names; no path is among them."""
    return {
        "bindAddress": options.host,
        "orderMessageEnable": "true",
        "clusterTest": "false",
        "serverChannelMaxIdleTimeSeconds": f"{IDLE_S:g}",
        "supportActingMaster": "true",
        "deleteTopicWithBrokerRegistration": "true",
        "needWaitForService": "true",
        "waitSecondsForService": f"{options.renew_s:g}",
        "remotingAdmin": options.remoting_admin,
    }


def extra_addresses(server: RunningServer) -> list[str]:
    """Return where a server listens besides."""
    return [joined(server.host, port) for port in server.extra_ports]


def settled(registry: Registry, now: float) -> Condition:
    """Return the condition under which this nameserver is ready."""
    met = registry.settled(now)
    return Condition("settled", met, "" if met else "it has just started: brokers may still be missing")


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a nameserver until SIGTERM or SIGINT; return the exit code."""
    options = load_or_exit(NameserverOptions, arguments, environment)
    setup_logging(options.log_level, options.log_format, process="nameserver")
    try:
        return run_loop(run(options))
    except WhimbrelError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("%s", file_trouble(error))
        return 1
