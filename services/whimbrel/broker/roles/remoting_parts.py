"""What a role serves by the remoting protocol beside messages: clients, locks, positions, topics, groups."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.engine.positions import PositionCalls
from whimbrel.broker.engine.resets import Resets
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.remoting.client_calls import RemotingClientCalls
from whimbrel.broker.remoting.clients import RemotingClientService
from whimbrel.broker.remoting.consume_stats import RemotingConsumeStats
from whimbrel.broker.remoting.groups import RemotingGroups
from whimbrel.broker.remoting.locks import RemotingLocks
from whimbrel.broker.remoting.positions import RemotingPositions
from whimbrel.broker.remoting.resets import RemotingResets
from whimbrel.broker.remoting.runtime import DiskState, RemotingRuntime
from whimbrel.broker.remoting.topics import RemotingTopics
from whimbrel.broker.remoting.traffic_samples import TrafficSamples, sizes_of
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.machine import Files, Machine
from whimbrel.metrics import Histogram
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.model.replication import ReplicationView
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.handlers import Handle, Peer
from whimbrel.store.codec import unpack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import Retention
from whimbrel.store.retention import DiskUse
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.store import MessageStore

__all__ = ["CHANGING", "ROUTED_S", "RemotingParts", "make_parts"]

# How sends are called, by both protocols.
SENDS: frozenset[str | int] = frozenset(
    (
        "SendMessage",
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    )
)
ROUTED_S = 1.0  # how long a nameserver may take to know a new topic, until clients are told anyway

# What changes this broker's state beyond messages and offsets of clients.
CHANGING = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)


@dataclass(frozen=True, slots=True)
class RemotingParts:
    """Handlers over a role's parts.

    Attributes:
        handles: by code, of each part.
        closed: called when a connection has ended.
        sweep: called about once a second.
    """

    handles: list[dict[int, Handle]]
    closed: Callable[[Peer], None]
    sweep: Callable[[], None]


class Opened(Protocol):
    """What a role has opened, as far as these parts stand on it."""

    context: BrokerContext
    options: BrokerOptions
    root: Path
    machine: Machine
    loop: asyncio.AbstractEventLoop
    page: SharedPage
    consumption: GroupConsumption
    creation: GroupCreation
    client_positions: ClientPositions
    position_calls: PositionCalls
    resets: Resets
    sends: Sends
    changes: TableChanges

    @property
    def store(self) -> MessageStore: ...
    def replication(self) -> ReplicationView: ...


def make_parts(role: Opened) -> RemotingParts:
    """Make the handlers over what a role has opened."""
    context, machine, loop = role.context, role.machine, role.loop
    topics, groups = context.topics, context.groups

    def once_routed(callback: Callable[[], None]) -> None:
        registration = context.registration
        if registration is None:
            loop.call_soon(callback)
        else:
            registration.once_known(callback, ROUTED_S)

    clients = RemotingClientService(
        context.remoting_clients,
        groups,
        role.creation,
        clock=machine.monotonic,
        wall_ms=lambda at: machine.wall_ms() - int((machine.monotonic() - at) * 1000),
        later=loop.call_later,
        once_routed=once_routed,
    )
    locks = RemotingLocks(context.queue_locks, topics, groups, clock=machine.monotonic)

    changes, name, traffic = role.changes, role.options.name, context.traffic
    topic_part = RemotingTopics(
        changes, context.remoting_clients, role.consumption.positions, traffic, broker_name=name
    )
    resets = RemotingResets(role.resets, context.remoting_clients, broker_name=name)
    samples = TrafficSamples(
        traffic,
        topics,
        role.store,
        role.consumption.table,
        sizes=lambda: sizes_of(context.counted, topics.is_system),
        clock=machine.monotonic,
        wall_ms=machine.wall_ms,
    )
    parts = [
        clients.handles(),
        locks.handles(),
        RemotingPositions(role.position_calls).handles(),
        topic_part.handles(),
        RemotingGroups(changes).handles(),
        stats_of(role, changes).handles(),
        resets.handles(),
        RemotingClientCalls(context.remoting_clients, role.store, broker_name=name).handles(),
        runtime_of(role, changes).handles(),
    ]

    def sweep() -> None:
        clients.sweep()
        locks.sweep()
        samples.sweep()

    return RemotingParts(parts, clients.closed, sweep)


def stats_of(role: Opened, changes: TableChanges) -> RemotingConsumeStats:
    """Make what tells how far consumers are."""
    return RemotingConsumeStats(
        changes,
        role.context.remoting_clients,
        role.client_positions,
        role.context.traffic,
        broker_name=role.options.name,
        address=lambda: unpack_host(role.sends.policy.store_host),
        wall_ms=role.machine.wall_ms,
        soon=role.loop.call_soon,
    )


def runtime_of(role: Opened, changes: TableChanges) -> RemotingRuntime:
    """Make what tells how the broker is, and takes its settings."""
    context, machine = role.context, role.machine
    return RemotingRuntime(
        changes,
        context.traffic,
        role.options,
        replication=role.replication,
        disk=lambda: disk_state(role.root, machine.files),
        wall_ms=machine.wall_ms,
        started_ms=context.started_ms,
        port=lambda: context.port,
        send_times=lambda: sends_of(context),
        levels=lambda: levels_of(role),
        keep_hours=lambda hours: keep_hours(role, hours),
    )


def disk_state(root: Path, files: Files) -> DiskState:
    """Measure the file system of a store."""
    stats = files.statvfs(root)
    return DiskState(
        DiskUse.of(root, files), stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    )


def keep_hours(role: Opened, hours: float | None) -> float:
    """Return for how many hours log files are kept; set it before, where a number is given."""
    if not isinstance(role.store, MasterStore):
        return role.options.reserved_hours
    writer = role.store.writer
    if hours is not None:
        writer.options = replace(writer.options, reserved_hours=hours)
        role.page.broker_retention = Retention.of(writer.options)
    return writer.options.reserved_hours


def sends_of(context: BrokerContext) -> tuple[Histogram | None, int]:
    """Return how long sends took, in ms, and how many failed; None and 0 without metrics."""
    counted = context.counted
    return (None, 0) if counted is None else (counted.calls.of(SENDS), counted.calls.failed(SENDS))


def levels_of(role: Opened) -> dict[int, tuple[int, int]]:
    """Return the position and the end of each delay level that has messages, by level."""
    found = {}
    for queue_id in range(len(role.store.delays_ms)):
        low, high = role.store.queue_range(SCHEDULE_TOPIC, queue_id)
        if low < high:
            found[queue_id + 1] = min(role.context.delays.position(queue_id + 1), high), high
    return found
