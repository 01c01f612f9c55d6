"""What members ask each other, and operators of them; served whatever the broker's role is.

whimbrel.replica.v1.ElectionService     suspicions, seals, and stores that are to be emptied
whimbrel.admin.v1.ElectionAdminService  switchover, pause, voters, reinit, failover
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol, TypeVar

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotReady, WhimbrelError
from whimbrel.model.elections import (
    FailoverPlan,
    SealAnswer,
    Suspicion,
    check_epoch,
    check_member_id,
    check_size,
    check_uuid,
)
from whimbrel.model.wire import ELECTION_ADMIN_SERVICE, ELECTION_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import election_admin_service_pb2 as operating
from whimbrel.pb.whimbrel.replica.v1 import election_service_pb2 as elections
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod

__all__ = ["Emptied", "Member", "Operated", "election_admin_service", "election_service"]

T = TypeVar("T")
R = TypeVar("R")

# Runs a task until it ends, or the member stops; raises Throttled where too many run.
Operate = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Member(Protocol):
    """Who answers."""

    def suspicion(self, group: str, epoch: int) -> Suspicion:
        """Return what this member hears."""

    def seal(
        self,
        group: str,
        epoch: int,
        candidate: int,
        log_begin: int,
        answer: Callable[[SealAnswer], object],
    ) -> None:
        """Promise, or not, and answer then."""


class Emptied(Protocol):
    """Who empties its store; errors are WhimbrelErrors."""

    async def empty(self, group: str, epoch: int, leader: int) -> None:
        """Empty it, and follow anew."""


def election_service(name: str, member: Member, store: Emptied, operate: Operate) -> Service:
    """Return the service of a broker of the group `name`."""

    def check(broker_name: str, group: str, epoch: int, other: int) -> None:
        if broker_name != name:
            raise BadRequest(f"this is {name}, not {broker_name[:100]}")
        check_uuid("group", group)
        check_epoch("epoch", epoch)
        check_member_id("member", other)

    def suspect(call: Call, request: elections.SuspectRequest) -> elections.SuspectResponse:
        check(request.broker_name, request.group, request.epoch, request.member)
        found = member.suspicion(request.group, request.epoch)
        return elections.SuspectResponse(
            silent=found.silent,
            epoch=found.epoch,
            last_epoch=found.last_epoch,
            log_end=found.log_end,
            votes=found.votes,
            seat=found.seat,
            group=found.group,
            member=found.member,
        )

    def seal(call: Call, request: elections.SealRequest) -> Deferred[elections.SealResponse]:
        check(request.broker_name, request.group, request.epoch, request.candidate)
        if not request.epoch or not request.candidate:
            raise BadRequest("a seal is of an epoch from 1 on, for a member from 1 on")
        check_size("log_begin", request.log_begin)
        deferred: Deferred[elections.SealResponse] = Deferred()

        def answer(found: SealAnswer) -> None:
            deferred.complete(
                elections.SealResponse(
                    sealed=found.sealed,
                    promised=found.promised,
                    promised_to=found.promised_to,
                    last_epoch=found.last_epoch,
                    log_end=found.log_end,
                    seat=found.seat,
                    why=found.why,
                    member=found.member,
                    votes=found.votes,
                    waiting_below=found.waiting_below,
                )
            )

        member.seal(request.group, request.epoch, request.candidate, request.log_begin, answer)
        return deferred

    def empty(call: Call, request: elections.EmptyRequest) -> Deferred[elections.EmptyResponse]:
        check(request.broker_name, request.group, request.epoch, request.leader)
        work = store.empty(request.group, request.epoch, request.leader)
        return later(operate, work, lambda _: elections.EmptyResponse())

    return Service(
        ELECTION_SERVICE,
        (
            UnaryMethod("Suspect", elections.SuspectRequest, suspect),
            UnaryMethod("Seal", elections.SealRequest, seal),
            UnaryMethod("Empty", elections.EmptyRequest, empty),
        ),
    )


class Operated(Protocol):
    """Who does what operators ask; errors are WhimbrelErrors."""

    async def switchover(self, member: int) -> int:
        """Have another member lead; return its id."""

    async def pause(self, *, paused: bool) -> None:
        """Have nobody stand for election, or allow it again."""

    async def set_voters(self, members: Collection[int]) -> int:
        """Have these members vote; return the epoch that decides it."""

    async def reinit(self, member: int) -> None:
        """Have a member's store emptied."""

    async def failover(self, voters: Collection[int], *, accept: bool, revision: int) -> FailoverPlan:
        """Lead without those that do not answer, or tell what that would come to."""


def election_admin_service(member: Operated, operate: Operate) -> Service:
    """Return the service for operators."""

    def switchover(
        call: Call, request: operating.SwitchoverRequest
    ) -> Deferred[operating.SwitchoverResponse]:
        check_member_id("member", request.member)
        return later(
            operate, member.switchover(request.member), lambda to: operating.SwitchoverResponse(member=to)
        )

    def pause(
        call: Call, request: operating.PauseElectionsRequest
    ) -> Deferred[operating.PauseElectionsResponse]:
        return later(
            operate, member.pause(paused=request.paused), lambda _: operating.PauseElectionsResponse()
        )

    def set_voters(call: Call, request: operating.SetVotersRequest) -> Deferred[operating.SetVotersResponse]:
        for voter in request.members:
            check_member_id("members", voter)
        members = frozenset(request.members) - {0}
        return later(
            operate, member.set_voters(members), lambda epoch: operating.SetVotersResponse(epoch=epoch)
        )

    def reinit(call: Call, request: operating.ReinitRequest) -> Deferred[operating.ReinitResponse]:
        check_member_id("member", request.member)
        return later(operate, member.reinit(request.member), lambda _: operating.ReinitResponse())

    def failover(call: Call, request: operating.FailoverRequest) -> Deferred[operating.FailoverResponse]:
        for voter in request.voters:
            check_member_id("voters", voter)
        work = member.failover(
            frozenset(request.voters) - {0}, accept=request.accept_loss, revision=request.revision
        )
        return later(operate, work, plan_message)

    return Service(
        ELECTION_ADMIN_SERVICE,
        (
            UnaryMethod("Switchover", operating.SwitchoverRequest, switchover),
            UnaryMethod("PauseElections", operating.PauseElectionsRequest, pause),
            UnaryMethod("SetVoters", operating.SetVotersRequest, set_voters),
            UnaryMethod("Reinit", operating.ReinitRequest, reinit),
            UnaryMethod("Failover", operating.FailoverRequest, failover),
        ),
    )


def plan_message(plan: FailoverPlan) -> operating.FailoverResponse:
    """Return a plan as it goes over the wire."""
    response = operating.FailoverResponse(
        epoch=plan.epoch,
        revision=plan.revision,
        missing=plan.missing,
        voters=plan.voters,
        committed=plan.committed,
        refusal=plan.refusal,
    )
    for one in plan.answered:
        response.answered.add(
            member=one.member, last_epoch=one.last_epoch, log_end=one.log_end, votes=one.votes
        )
    return response


def later(operate: Operate, work: Coroutine[Any, Any, T], respond: Callable[[T], R]) -> Deferred[R]:
    """Return a response that comes when some work is done, or its error; who leaves early stops nothing.

    Raises:
        Throttled: too much is under way.
    """
    deferred: Deferred[R] = Deferred()

    async def run() -> None:
        try:
            deferred.complete(respond(await work))
        except WhimbrelError as error:
            deferred.fail(error)

    running = run()
    try:
        task = operate(running)
    except WhimbrelError:
        running.close()
        work.close()
        raise

    def over(_: asyncio.Task[None]) -> None:
        work.close()  # it may not have begun
        deferred.fail(NotReady("this member stops, or can't do it: its log says more"))

    task.add_done_callback(over)
    return deferred
