"""What operators ask of a member beside switchover and voters: an emptied store, a failover that may lose.

    the command ──Reinit──► leader: enough others hold the log? ──Empty──► the member: its role ends, its
                                                    store is emptied, its role begins, and it follows anew
    the command ──Failover (what would be?)──► the member that is to lead ──Suspect──► all others
                ──Failover (accept loss)─────► the same, then the machine stands with the record of `forced`

`machine.py` decides both; this asks, and does what it decides.
"""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from whimbrel.broker.elections.actions import State
from whimbrel.errors import BadRequest, NotMaster, NotReady, StoreError, WhimbrelError
from whimbrel.model.elections import FailoverPlan, MemberPosition, Suspicion
from whimbrel.model.group_record import VOTERS_MAX, ids_text
from whimbrel.rpc.api.election_calls import empty, suspect

if TYPE_CHECKING:
    from whimbrel.broker.elections.elector import Elector

__all__ = ["Operations"]

EMPTY_S: Final = 60.0  # for a member to remove its log, which has some files of 1 GiB each
POLL_S: Final = 0.02
ASKED_MAX: Final = 64  # members; ids are below


class Operations:
    """What operators ask of one member; runs on the broker's loop."""

    def __init__(self, elector: "Elector") -> None:
        self.elector = elector
        self.reiniting = 0  # the member whose store is being emptied at our request; 0: none

    # An emptied store

    async def reinit(self, member: int) -> None:
        """Have a member's store emptied; return once it is.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: the member is this one.
            NotReady: too few others hold the log, voters are being changed, or the member does not answer.
        """
        elector = self.elector
        machine, page, record = elector.machine, elector.page, elector.machine.record
        if machine.state is not State.LEADING or record is None:
            raise NotMaster(
                "this member does not lead: ask the leader, which `whimbrel replication status` shows"
            )
        if member == elector.options.id:
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
        voters = set(dict(record.voters))
        holding = {other for other, end in page.member_acks() if end >= page.commit} | {elector.options.id}
        if member in voters and len(voters & holding - {member}) < record.acks:
            who = ids_text(voters & holding - {member})
            raise NotReady(
                f"without member {member} only {who} hold all that is committed, and {record.acks} have to:"
                " wait until another one is in step"
            )
        address = elector.addresses.get(member, "")
        if not address:
            raise NotReady(f"member {member} is not there: start its broker and its replicator")
        outbound = empty(
            elector.options.name, group=record.group, epoch=record.epoch, leader=elector.options.id
        )
        self.reiniting = member
        try:
            await elector.peers.call(address, outbound, EMPTY_S + POLL_S)
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
        elector = self.elector
        if elector.stopped or elector.page.seat_group != group:
            raise NotReady(f"this member is stopping, or its store does not belong to group {group}")
        if not elector.facts().seat:
            raise NotReady("its replicator does not run: start it")
        if why := elector.machine.begin_emptying(epoch, leader):
            raise NotReady(why)
        try:
            await elector.reopen(self.emptied)
        except (StoreError, OSError) as error:
            elector.spawn(elector.close("its store was to be emptied, and it can't follow again yet"))
            raise StoreError(f"this broker can't follow again yet, see its log: {error}") from error
        finally:
            elector.machine.emptied()

    async def emptied(self) -> None:
        """Have the replicator empty the store, which the broker has closed.

        Raises:
            NotReady: it does not come to that.
        """
        elector = self.elector
        page, clock = elector.page, elector.host
        token = page.empty_asked = clock.monotonic_ns()
        elector.bell.ring("replicator")
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
        elector = self.elector
        machine = elector.machine
        if len(voters) > VOTERS_MAX:
            raise BadRequest(f"a group has 1 to {VOTERS_MAX} voters, not {len(voters)}")
        try:
            record, revision_now = await elector.coordinator.read()
        except WhimbrelError as error:
            raise NotReady(
                f"the coordinator does not answer, and without it nobody can be made the leader: {error}"
            ) from error
        elector.feed(machine.learned(record, revision_now, elector.facts()))
        answers = await self.ask_all()
        facts = elector.facts()
        refusal, forced = machine.forced(answers, voters, facts)
        known = machine.record
        told = machine.revision
        plan = FailoverPlan(
            epoch=0,
            revision=told,
            answered=(
                MemberPosition(elector.options.id, facts.last_epoch, facts.end, facts.votes),
                *(
                    MemberPosition(member, answer.last_epoch, answer.log_end, answer.votes)
                    for member, answer in sorted(answers.items())
                ),
            ),
            missing=tuple(
                sorted(set() if known is None else known.members - answers.keys() - {elector.options.id})
            ),
            voters=() if forced is None else tuple(member for member, _ in forced.voters),
            committed=max(elector.page.confirmed, elector.page.heard_commit),
            refusal=refusal,
        )
        if not accept:
            return plan
        if forced is None:
            raise NotReady(refusal)
        if told != revision:
            raise NotReady("the group's record has changed meanwhile: look at it again")
        elector.feed(machine.force(forced, facts))
        return FailoverPlan(
            epoch=forced.epoch,
            revision=told,
            answered=plan.answered,
            missing=plan.missing,
            voters=plan.voters,
            committed=plan.committed,
            refusal="",
        )

    async def ask_all(self) -> dict[int, Suspicion]:
        """Return what all other members say that answer."""
        elector = self.elector
        record = elector.machine.record
        outbound = suspect(
            elector.options.name,
            group="" if record is None else record.group,
            epoch=elector.machine.known_epoch,
            member=elector.options.id,
        )

        async def ask(member: int, address: str) -> Suspicion | None:
            try:
                answer = await elector.peers.call(address, outbound)
            except WhimbrelError:
                return None
            return answer if answer.member == member and answer.seat else None

        others = [each for each in elector.addresses.items() if each[0] != elector.options.id][:ASKED_MAX]
        found = await asyncio.gather(*(ask(*other) for other in others))
        return {answer.member: answer for answer in found if answer is not None}
