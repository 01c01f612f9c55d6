"""What a role serves by the remoting protocol beside messages: clients, locks, positions, topics, groups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whimbrel.broker.api.table_changes import TableChanges
from whimbrel.broker.remoting.clients import RemotingClientService
from whimbrel.broker.remoting.group_creation import GroupCreation
from whimbrel.broker.remoting.groups import RemotingGroups
from whimbrel.broker.remoting.locks import RemotingLocks
from whimbrel.broker.remoting.positions import RemotingPositions
from whimbrel.broker.remoting.topics import RemotingTopics
from whimbrel.rpc.remoting.admin_access import guarded
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.handlers import Handle, Peer

if TYPE_CHECKING:
    from whimbrel.broker.roles.role import Role

__all__ = ["ROUTED_S", "RemotingParts", "make_parts"]

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


def make_parts(role: "Role") -> RemotingParts:
    """Make the handlers over what a role has opened."""
    context, machine, loop = role.context, role.machine, role.loop
    topics, groups, master = context.topics, context.groups, role.NAME == "master"

    def once_routed(callback: Callable[[], None]) -> None:
        registration = context.registration
        if registration is None:
            loop.call_soon(callback)
        else:
            registration.once_known(callback, ROUTED_S)

    clients = RemotingClientService(
        context.remoting_clients,
        groups,
        GroupCreation(topics, groups, master=master, clock=machine.monotonic),
        clock=machine.monotonic,
        wall_ms=lambda at: machine.wall_ms() - int((machine.monotonic() - at) * 1000),
        later=loop.call_later,
        once_routed=once_routed,
    )
    locks = RemotingLocks(context.queue_locks, clock=machine.monotonic)

    splitting = role.receives.splitting
    positions = RemotingPositions(
        topics,
        groups,
        context.remoting_clients,
        role.client_positions,
        role.store,
        master=master,
        memory_bytes=splitting.memory,
        written=splitting.written,
    )

    changes = TableChanges(topics, groups, role.consumption, role.store, master=master)
    topic_part = RemotingTopics(
        changes, context.remoting_clients, role.consumption.positions, broker_name=role.options.name
    )
    parts = [
        clients.handles(),
        locks.handles(),
        positions.handles(),
        topic_part.handles(),
        RemotingGroups(changes).handles(),
    ]
    access = role.options.remoting_admin

    def sweep() -> None:
        clients.sweep()
        locks.sweep()

    return RemotingParts([guarded(part, CHANGING, access) for part in parts], clients.closed, sweep)
