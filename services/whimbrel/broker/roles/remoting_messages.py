"""What a role serves of messages by the remoting protocol: sends and pulls, and what belongs to them."""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from whimbrel.broker.consume.pulled_queues import PulledQueues
from whimbrel.broker.consume.receiving import NO_QUEUES
from whimbrel.broker.remoting.pulls import Pulls
from whimbrel.broker.remoting.records import Records
from whimbrel.broker.remoting.sends import SendRequests
from whimbrel.errors import StoreFull
from whimbrel.rpc.remoting.handlers import Handle
from whimbrel.store.bulk_source import BulkSource

if TYPE_CHECKING:
    from whimbrel.broker.roles.role import Role

__all__ = ["RemotingMessages"]

logger = logging.getLogger(__name__)


class RemotingMessages:
    """Handlers over a role's parts.

    Attributes:
        sends, pulls: the handlers of messages; a pull may wait.
    """

    def __init__(self, role: "Role") -> None:
        """Make the handlers over what a role has opened, and have held pulls told of new messages."""
        context, options, store = role.context, role.options, role.store
        self.positions, master = role.client_positions, role.NAME == "master"
        self.sends = SendRequests(role.sends)
        self.pulls = Pulls(
            context.topics,
            role.creation,
            context.remoting_clients,
            BulkSource(store),
            role.receives.splitting,
            master=master,
            clock=lambda: int(role.machine.monotonic() * 1000),
            soon=role.loop.call_soon,
            commit=self.commit_pulled,
            passes=store.passes,
        )
        self.pulls.on_delivered = role.receives.on_delivered
        self.pulls.on_pull = context.traffic.pulled
        self.pulls.redirect = self.positions.redirect
        self.records = Records(store)
        self.clients, self.pulled, self.clock = context.remoting_clients, PulledQueues(), self.pulls.clock
        if not options.share_pulled_queues:
            self.pulls.on_shared = self.note_pulled
            role.consumption.receiving.left_out = self.left_out
        wakeups, held = role.consumption.wakeups, self.pulls.held

        def arrived(topic: str, queue_id: int, offset: int, tags_code: int) -> None:
            wakeups.on_arrival(topic, queue_id, offset, tags_code)
            held.on_arrival(topic, queue_id)

        store.on_arrival = arrived

    def handles(self) -> list[dict[int, Handle]]:
        """Return the handlers by code, of each part."""
        return [self.sends.handles(), self.pulls.handles(), self.records.handles()]

    def note_pulled(self, group: str, topic: str, queue_id: int) -> None:
        """Take note of a queue that a member pulls."""
        self.pulled.note(group, topic, queue_id, self.clock())

    def left_out(self, group: str, topic: str) -> frozenset[int]:
        """Return the queues that receives of a group leave to its members that pull."""
        if not self.clients.owns_positions(group):
            return NO_QUEUES
        found = self.pulled.recent(group, topic, self.clock())
        if found and self.pulled.first_told(group, topic):
            logger.info(
                "group %s consumes %s by the remoting protocol as well: receives leave out the queues that it"
                " pulls (share_pulled_queues gives them all)",
                group,
                topic,
            )
        return found

    def sweep(self) -> None:
        """Forget what no longer counts."""
        self.pulled.sweep(self.clock())

    def commit_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Take the offset that a pull carries."""
        with suppress(StoreFull):  # it comes again with the next pull
            self.positions.commit(group, topic, queue_id, offset, owned=True)
