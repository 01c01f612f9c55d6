"""`whimbrel.replica.v1.ElectionService`: what members ask each other; served whatever the broker's role is."""

from collections.abc import Callable
from typing import Protocol

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest
from whimbrel.model.elections import SealAnswer, Suspicion, check_epoch, check_member_id, check_uuid
from whimbrel.model.wire import ELECTION_SERVICE
from whimbrel.pb.whimbrel.replica.v1 import election_service_pb2 as elections
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod

__all__ = ["Member", "election_service"]


class Member(Protocol):
    """Who answers."""

    def suspicion(self, group: str, epoch: int) -> Suspicion:
        """Return what this member hears."""

    def seal(self, group: str, epoch: int, candidate: int, answer: Callable[[SealAnswer], object]) -> None:
        """Promise, or not, and answer then."""


def election_service(name: str, member: Member) -> Service:
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
                )
            )

        member.seal(request.group, request.epoch, request.candidate, answer)
        return deferred

    return Service(
        ELECTION_SERVICE,
        (
            UnaryMethod("Suspect", elections.SuspectRequest, suspect),
            UnaryMethod("Seal", elections.SealRequest, seal),
        ),
    )
