"""Taking the log over and giving it back, as the machine wants: the broker's role, and the replicator's.

    follows --`Open`: the replicator is told to be a master's, the role begins--> leads
                                                              --it can't--> as `Close`
    leads   --`Close`: the replicator is told to be a slave's, the role ends--> follows
            --it can't follow yet--> tried again every `AGAIN_S`, for as long as this member takes part

Changes of the role are made one at a time: the machine asks for the next one only when it was told how the
last one ended. While this broker leads, the replicator feeds others by `leader_log` in the page: 0 there ends
the streams.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from whimbrel.broker.elections.actions import Action
from whimbrel.broker.elections.journal import logger
from whimbrel.broker.elections.peers import AGAIN_S
from whimbrel.broker.elections.self_view import SelfView
from whimbrel.errors import WhimbrelError
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.registration import BrokerRole

__all__ = ["Takeover"]

REPLICA_ROLES: Final[dict[BrokerRole, int]] = {"master": 1, "slave": 2}


class Takeover:
    """Who has the log: this broker or the replicator beside.

    Attributes:
        term: the record under which this broker leads, or is about to; None while it does neither.
    """

    def __init__(
        self,
        own: SelfView,
        switch: Callable[[BrokerRole], Awaitable[None]],
        feed: Callable[[Sequence[Action]], None],
    ) -> None:
        """Have the replicator be a slave's.

        Args:
            switch: gives this broker another role; raises WhimbrelError or OSError.
            feed: does what the machine wants done then.
        """
        self.own, self.switch, self.feed = own, switch, feed
        self.machine, self.label = own.machine, f"{own.options.name}/{own.options.id}"
        self.term: GroupRecord | None = None
        self.set_replica_role("slave")

    async def open(self, record: GroupRecord) -> None:
        """Lead: take the log over from the replicator."""
        self.term = record
        self.own.page.higher_epoch = 0
        self.set_replica_role("master")
        logger.info("%s leads epoch %d", self.label, record.epoch)
        if self.kept_elsewhere:
            logger.warning("%s", self.kept_elsewhere)
        try:
            await self.switch("master")
        except (WhimbrelError, OSError) as error:
            why = f"the log could not be taken over: {error}"
            logger.error("%s", why)
            self.machine.open_failed(self.own.facts())
            await self.close(why)
            return
        self.feed(self.machine.opened(self.own.facts()))

    async def close(self, why: str) -> None:
        """Follow: give the log back to the replicator."""
        logger.warning("%s leads no longer: %s", self.label, why)
        self.set_replica_role("slave")
        while True:
            try:
                await self.switch("slave")
                break
            except (WhimbrelError, OSError) as error:
                if self.own.stopped:
                    return
                logger.error("this broker can't follow yet: %s", error)
                await asyncio.sleep(AGAIN_S)
        self.term = None
        self.feed(self.machine.closed(self.own.facts(), why))

    @property
    def waiting_elsewhere(self) -> dict[int, int]:
        """By member, how many messages wait in its log that this leader's log lacks."""
        return self.machine.seals.kept_elsewhere if self.term is not None else {}

    @property
    def kept_elsewhere(self) -> str:
        """Say that this leader's log lacks messages that wait in others' logs, and what to do; "": none."""
        return "; ".join(
            f"member {member} holds {count} delayed messages and undecided transactions that this leader's"
            f" log has no more: `whimbrel replication switchover {self.own.options.name} --to {member}`"
            " brings them back, until they are due or it removes them"
            for member, count in self.waiting_elsewhere.items()
        )

    def set_replica_role(self, role: BrokerRole) -> None:
        """Tell the replicator beside what it is."""
        self.own.page.replica_role = REPLICA_ROLES[role]
        self.own.bell.ring("replicator")

    def stream(self, *, on: bool) -> None:
        """Have the replicator feed nobody while this broker leads, or the others again."""
        page = self.own.page
        if on and (self.term is None or page.leader_epoch != self.term.epoch):
            return  # the log is given back, or about to be
        page.leader_log = page.epoch if on else 0
        self.own.bell.ring("replicator")
