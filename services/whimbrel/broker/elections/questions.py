"""What a member asks the coordinator and the other members; each answer goes to the machine.

    watch      the coordinator's record: read once, then told whenever it changes
    swap       a record put in the place of another; without an answer it counts as not done
    suspicion  what a member hears
    seal       a member's promise for our candidacy

Each question is asked once: the machine asks again. `answered` notes that somebody is there, also by a
refusal. Nobody is there where the transport says so (`ClientError`, `PeerError`).
"""

import asyncio
from collections.abc import Callable, Sequence

from whimbrel.broker.elections.actions import Action, Swap
from whimbrel.broker.elections.coordinator import Coordinator, trouble_of
from whimbrel.broker.elections.journal import Journal, logger
from whimbrel.broker.elections.peers import AGAIN_S
from whimbrel.broker.elections.self_view import SelfView
from whimbrel.errors import ClientError, PeerError, WhimbrelError
from whimbrel.model.elections import Suspicion
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.election_calls import seal, suspect

__all__ = ["Questions"]


class Questions:
    """What one member asks.

    Attributes:
        trouble: with the coordinator; "" without any.
    """

    def __init__(
        self,
        own: SelfView,
        coordinator: Coordinator,
        journal: Journal,
        feed: Callable[[Sequence[Action]], None],
    ) -> None:
        """Take what does what the machine wants done then."""
        self.own, self.coordinator, self.journal, self.feed = own, coordinator, journal, feed
        self.machine, self.roster = own.machine, own.roster
        self.trouble = ""

    async def watch(self) -> None:
        """Keep the record up to date."""
        view = self.machine.view
        while True:
            try:
                revision = max(view.revision, 0)
                record, revision = (
                    await self.coordinator.read()
                    if view.revision < 0
                    else await self.coordinator.watch(revision)
                )
            except WhimbrelError as error:
                self.trouble = trouble_of(error)
                self.journal.tell(self.trouble)
                self.answered(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self.answered()
            lost = record is None and view.record is not None
            trouble = self.coordinator.trouble
            self.trouble = trouble and f"the coordinator can't be used: {trouble}"
            if lost:
                self.trouble = "the coordinator has lost the record of the group: put the newest one back"
            self.feed(self.machine.learned(record, revision, self.own.facts()))
            if lost:
                await asyncio.sleep(AGAIN_S)  # it is told at once, again and again

    async def swap(self, action: Swap) -> None:
        """Have the coordinator put a record in the place of another."""
        done, record, revision = False, None, 0
        try:
            done, record, revision = await self.coordinator.swap(action.record, action.revision)
        except WhimbrelError as error:
            self.journal.tell(trouble_of(error))
            self.answered(error)
        else:
            self.answered()
        self.feed(self.machine.swapped(done, record, revision, self.own.facts()))

    async def read(self) -> None:
        """Ask the coordinator for the record."""
        try:
            record, revision = await self.coordinator.read()
        except WhimbrelError as error:
            self.answered(error)
            return
        self.answered()
        self.feed(self.machine.learned(record, revision, self.own.facts()))

    def suspect(self) -> Outbound[Suspicion]:
        """Return the question what a member hears."""
        view, options = self.machine.view, self.own.options
        group = "" if view.record is None else view.record.group
        return suspect(options.name, group=group, epoch=view.known_epoch, member=options.id)

    async def suspicion(self, member: int) -> None:
        """Ask a member what it hears."""
        address = self.roster.addresses.get(member, "")
        if not address:
            return
        try:
            answer = await self.roster.peers.call(address, self.suspect())
        except WhimbrelError as error:
            logger.debug("member %d at %s: %s", member, address, error)
            self.answered(error)
            return
        if answer.member == member:
            self.feed(self.machine.suspected(answer, self.own.facts()))

    async def seal(self, member: int, epoch: int) -> None:
        """Ask a member for its seal."""
        candidacy, address = self.machine.candidacy, self.roster.addresses.get(member, "")
        if not address or candidacy is None:
            return
        options, begin = self.own.options, self.own.page.begin
        outbound = seal(
            options.name, group=candidacy.group, epoch=epoch, candidate=options.id, log_begin=begin
        )
        try:
            answer = await self.roster.peers.call(address, outbound)
        except WhimbrelError as error:
            logger.debug("member %d at %s: %s", member, address, error)
            return
        if answer.member == member:
            self.feed(self.machine.sealed(answer, self.own.facts()))

    def answered(self, error: WhimbrelError | None = None) -> None:
        """Note that a member or the coordinator has answered, unless that is what the error says."""
        if not isinstance(error, ClientError | PeerError):
            self.feed(self.machine.reached(self.own.host.monotonic()))
