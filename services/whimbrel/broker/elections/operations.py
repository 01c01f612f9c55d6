"""What operators ask of a member: another leader, a pause, other voters; and to mend a group.

    Switchover  leader: nobody takes sends, the other one holds all of the log, the record prefers it
    Pause       the record says so, whoever leads
    SetVoters   leader ──Suspect──► those members: their stores; the machine has the record changed
    Reinit      leader: enough others hold the log? ──Empty──► the member: its role ends,
                its store is emptied, its role begins, and it follows anew
    Failover    what would be?  the member that is to lead ──Suspect──► all others
                accept loss     the same, then the machine stands with the record of `forced`

`machine.py` decides what the record becomes; this asks, and does what it decides. A member whose store was
emptied keeps its promises, and does not vote until it has all that is committed (R9), as after a power cut
that left nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

from whimbrel.broker.elections.actions import State
from whimbrel.broker.elections.answers import PROMISE_POLL_S
from whimbrel.broker.elections.questions import Questions
from whimbrel.broker.elections.takeover import Takeover
from whimbrel.broker.elections.tasks import Tasks
from whimbrel.errors import BadRequest, NotMaster, NotReady, StoreError, WhimbrelError
from whimbrel.model.elections import FailoverPlan, MemberPosition, Suspicion
from whimbrel.model.group_record import VOTERS_MAX, GroupRecord, ids_text
from whimbrel.rpc.api.election_calls import empty

__all__ = ["Operations"]

EMPTY_S: Final = 60.0  # for a member to remove its log, which has some files of 1 GiB each
POLL_S: Final = 0.02
ASKED_MAX: Final = 64  # members; ids are below
HANDED_BYTES_MAX: Final = 16 << 20  # a member that lacks more is not handed over to
HAND_OVER_S: Final = 2.0  # for it to come to hold the rest
SWAPS_MAX: Final = 5  # of an operator's change, while others change the record


class Operations:
    """What operators ask of one member; runs on the broker's loop.

    Attributes:
        reiniting: the member whose store is being emptied at our request; 0: none.
    """

    def __init__(
        self,
        questions: Questions,
        takeover: Takeover,
        tasks: Tasks,
        *,
        drain: Callable[[], Awaitable[None]],
        reopen: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        """Take what asks others, what gives the log back, and what the broker does; see `Elector`."""
        self.questions, self.takeover, self.tasks = questions, takeover, tasks
        self.drain, self.reopen = drain, reopen
        self.own, self.machine, self.roster = questions.own, questions.machine, questions.roster
        self.coordinator, self.feed = questions.coordinator, questions.feed
        self.member, self.page, self.host = self.machine.member, self.own.page, self.own.host
        self.reiniting = 0

    def led(self) -> GroupRecord:
        """Return the record under which this member leads.

        Raises:
            NotMaster: it does not lead.
        """
        record = self.machine.view.record
        if self.machine.state is not State.LEADING or record is None:
            raise NotMaster(
                "this member does not lead: ask the leader, which `whimbrel replication status` shows"
            )
        return record

    # Another leader

    async def switchover(self, member: int) -> int:
        """Have another member lead, once it holds all that this one does; return its id.

        Args:
            member: NOBODY takes the one whose log goes on furthest.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: that one can't.
            NotReady: it does not follow closely enough, or the coordinator does not answer.
        """
        page, record = self.page, self.led()
        if record.paused:
            raise NotReady("elections are paused, so nobody could take over: resume them first")
        await self.coordinator.read()  # an error of it comes before this member leads no longer
        chosen = member or self.own.furthest()
        if chosen == self.member or chosen not in dict(record.voters):
            raise BadRequest(f"member {chosen} can't take over: voters besides the leader can")
        if page.written - dict(page.member_acks()).get(chosen, 0) > HANDED_BYTES_MAX:
            raise NotReady(
                f"member {chosen} lacks more than {HANDED_BYTES_MAX} bytes, or is not connected: try later"
            )
        await self.drain()
        try:
            await self.hand_over(chosen)
        except WhimbrelError:
            # It takes no sends any more: whoever is elected next does.
            if self.machine.state is State.LEADING:
                await self.takeover.close("it could not hand over")
            raise
        return chosen

    async def hand_over(self, chosen: int) -> None:
        """Resign in favour of a member, once it holds all of the log.

        Raises:
            NotReady: it does not come to hold it, we lead no longer, or the record changes all the time.
            WhimbrelError: the coordinator does not answer.
        """
        machine, page = self.machine, self.page
        deadline = self.host.monotonic() + HAND_OVER_S
        while machine.state is State.LEADING and dict(page.member_acks()).get(chosen, 0) < page.written:
            if self.host.monotonic() > deadline:
                raise NotReady(f"member {chosen} did not come to hold all of the log in {HAND_OVER_S:g} s")
            await asyncio.sleep(PROMISE_POLL_S)
        for _ in range(SWAPS_MAX):
            record = machine.view.record
            if machine.state is not State.LEADING or record is None:
                if record is not None and chosen in (record.leader, record.prefer):
                    return
                raise NotReady(
                    "this member has ceased to lead meanwhile: see `whimbrel replication status`, and ask the"
                    " leader"
                )
            resigned = record.resigned(chosen)
            done, found, revision = await self.coordinator.swap(resigned, machine.view.revision)
            self.feed(machine.swapped(done, found, revision, self.own.facts()))
            if done:
                return
        raise NotReady("the record of the group changes all the time: try again")

    # The record

    async def pause(self, *, paused: bool) -> None:
        """Have nobody stand for election, or allow it again.

        Raises:
            NotReady: there is no group yet, or its record changes all the time.
            WhimbrelError: the coordinator does not answer.
        """
        for _ in range(SWAPS_MAX):
            record, revision = await self.coordinator.read()
            if record is None:
                raise NotReady("the group is not made yet")
            if record.paused == paused:
                return
            done, _, _ = await self.coordinator.swap(replace(record, paused=paused), revision)
            if done:
                return
        raise NotReady("the record of the group changes all the time: try again")

    async def set_voters(self, members: Collection[int]) -> int:
        """Have these members vote, with the stores that they have now; return the epoch that decides it.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: they can't be a group's voters.
            NotReady: one of them does not answer, or another change is under way.
        """
        if not 0 < len(members) <= VOTERS_MAX:
            raise BadRequest(f"a group has 1 to {VOTERS_MAX} voters, not {len(members)}")
        self.led()
        seats = {self.member: self.page.seat} if self.member in members else {}
        for member in members:
            if member != self.member:
                seats[member] = await self.seat_of(member)
        why, actions = self.machine.change_voters(tuple(sorted(seats.items())), self.own.facts())
        if why:
            raise NotReady(why)
        change = self.machine.leadership.change
        self.feed(actions)
        return 0 if change is None or not actions else change.epoch

    async def seat_of(self, member: int) -> str:
        """Return the uuid of a member's store.

        Raises:
            NotReady: it does not answer, or its store belongs elsewhere.
        """
        record, address = self.machine.view.record, self.roster.addresses.get(member, "")
        if not address or record is None:
            raise NotReady(f"member {member} is not there: start its broker and its replicator")
        try:
            answer = await self.roster.peers.call(address, self.questions.suspect())
        except WhimbrelError as error:
            raise NotReady(f"member {member} does not answer: {error}") from error
        if answer.member != member or not answer.seat or answer.group not in ("", record.group):
            raise NotReady(f"member {member} has no store that could be a voter's of this group")
        return answer.seat

    # An emptied store

    async def reinit(self, member: int) -> None:
        """Have a member's store emptied; return once it is.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: the member is this one.
            NotReady: too few others hold the log, voters are being changed, or the member does not answer.
        """
        page, record = self.page, self.led()
        if member == self.member:
            raise BadRequest(
                f"member {member} leads, and its log is the one that counts: have another one lead first,"
                " with `whimbrel replication switchover`"
            )
        if record.prior or record.loss:
            raise NotReady(
                "the voters are being changed: try again when `whimbrel replication status` is well"
            )
        if self.reiniting:
            raise NotReady(f"the store of member {self.reiniting} is being emptied: one after the other")
        holding = {other for other, end in page.member_acks() if end >= page.commit} | {self.member}
        rest = holding.intersection(dict(record.voters)) - {member}
        if member in dict(record.voters) and len(rest) < record.acks:
            raise NotReady(
                f"without member {member} only {ids_text(rest)} hold all that is committed, and {record.acks}"
                " have to: wait until another one is in step"
            )
        address = self.roster.addresses.get(member, "")
        if not address:
            raise NotReady(f"member {member} is not there: start its broker and its replicator")
        name = self.own.options.name
        outbound = empty(name, group=record.group, epoch=record.epoch, leader=self.member)
        self.reiniting = member
        try:
            await self.roster.peers.call(address, outbound, EMPTY_S + POLL_S)
        except WhimbrelError as error:
            raise NotReady(f"member {member} at {address}: {error}") from error
        finally:
            self.reiniting = 0

    async def empty(self, group: str, epoch: int, leader: int) -> None:
        """Empty our store, as the leader asks; return once that is done.

        Raises:
            NotReady: this member does more than follow, knows of another leader, or its replicator is away.
            StoreError: the role can't begin again.
        """
        if self.own.stopped or self.page.seat_group != group:
            raise NotReady(f"this member is stopping, or its store does not belong to group {group}")
        if not self.own.facts().seat:
            raise NotReady("its replicator does not run: start it")
        if why := self.machine.begin_emptying(epoch, leader):
            raise NotReady(why)
        try:
            await self.reopen(self.emptied)
        except (StoreError, OSError) as error:
            closing = self.takeover.close("its store was to be emptied, and it can't follow again yet")
            self.tasks.spawn(closing)
            raise StoreError(f"this broker can't follow again yet, see its log: {error}") from error
        finally:
            self.machine.emptied()

    async def emptied(self) -> None:
        """Have the replicator empty the store, which the broker has closed.

        Raises:
            NotReady: it does not come to that.
        """
        page, clock = self.page, self.host
        token = page.empty_asked = clock.monotonic_ns()
        self.own.bell.ring("replicator")
        deadline = clock.monotonic() + EMPTY_S
        while page.emptied != token:
            if clock.monotonic() > deadline:
                page.empty_asked = 0
                raise NotReady(
                    f"its replicator has not emptied the store in {EMPTY_S:g} s: see its log, and try again"
                )
            await asyncio.sleep(POLL_S)

    # Accepted loss

    async def failover(self, voters: Collection[int], *, accept: bool, revision: int) -> FailoverPlan:
        """Tell what a failover to this member would come to, or begin it.

        Args:
            voters: ids of those that vote afterwards; empty: of all members that answer.
            accept: what the others hold may be lost.
            revision: of the record that the operator has seen.

        Raises:
            BadRequest: too many voters.
            NotReady: it can't be, or the record is another one now.
            WhimbrelError: the coordinator does not answer.
        """
        machine = self.machine
        if len(voters) > VOTERS_MAX:
            raise BadRequest(f"a group has 1 to {VOTERS_MAX} voters, not {len(voters)}")
        try:
            record, revision_now = await self.coordinator.read()
        except WhimbrelError as error:
            raise NotReady(
                f"the coordinator does not answer, and without it nobody can be made the leader: {error}"
            ) from error
        self.feed(machine.learned(record, revision_now, self.own.facts()))
        answers = await self.ask_all()
        facts = self.own.facts()
        refusal, forced = machine.forced(answers, voters, facts)
        known, told = machine.view.record, machine.view.revision
        plan = FailoverPlan(
            epoch=0,
            revision=told,
            answered=(
                MemberPosition(self.member, facts.last_epoch, facts.end, facts.votes),
                *(
                    MemberPosition(member, answer.last_epoch, answer.log_end, answer.votes)
                    for member, answer in sorted(answers.items())
                ),
            ),
            missing=tuple(sorted(set() if known is None else known.members - answers.keys() - {self.member})),
            voters=() if forced is None else tuple(member for member, _ in forced.voters),
            committed=max(self.page.confirmed, self.page.heard_commit),
            refusal=refusal,
        )
        if not accept:
            return plan
        if forced is None:
            raise NotReady(refusal)
        if told != revision:
            raise NotReady("the group's record has changed meanwhile: look at it again")
        self.feed(machine.force(forced, facts))
        return replace(plan, epoch=forced.epoch, refusal="")

    async def ask_all(self) -> dict[int, Suspicion]:
        """Return what all other members say that answer."""
        outbound = self.questions.suspect()

        async def ask(member: int, address: str) -> Suspicion | None:
            try:
                answer = await self.roster.peers.call(address, outbound)
            except WhimbrelError:
                return None
            return answer if answer.member == member and answer.seat else None

        others = [each for each in self.roster.addresses.items() if each[0] != self.member][:ASKED_MAX]
        found = await asyncio.gather(*(ask(*other) for other in others))
        return {answer.member: answer for answer in found if answer is not None}
