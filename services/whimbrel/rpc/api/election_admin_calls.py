"""Outbound calls by which operators change a group that elects its leader; made by `calls.perform`."""

from collections.abc import Collection, Sequence

from whimbrel.escapes import printable
from whimbrel.model.elections import FailoverPlan, MemberPosition
from whimbrel.model.wire import ELECTION_ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import election_admin_service_pb2 as operating
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = ["failover", "pause_elections", "reinit", "set_voters", "switchover"]

SERVICE = f"/{ELECTION_ADMIN_SERVICE}/"


@of_text
def switchover(member: int) -> Outbound[int]:
    """Ask the leader to have another member lead, 0: whose log goes on furthest; return its id."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        return operating.SwitchoverResponse.FromString(responses[0]).member

    request = operating.SwitchoverRequest(member=member)
    return Outbound(SERVICE + "Switchover", request.SerializeToString(), decode)


@of_text
def pause_elections(*, paused: bool) -> Outbound[None]:
    """Have nobody stand for election, or allow it again."""
    request = operating.PauseElectionsRequest(paused=paused)
    return Outbound(SERVICE + "PauseElections", request.SerializeToString(), lambda responses, _: None)


@of_text
def set_voters(members: Collection[int]) -> Outbound[int]:
    """Ask the leader to have these members vote; return the epoch that decides it, 0: nothing changes."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        return operating.SetVotersResponse.FromString(responses[0]).epoch

    request = operating.SetVotersRequest(members=sorted(members))
    return Outbound(SERVICE + "SetVoters", request.SerializeToString(), decode)


@of_text
def reinit(member: int) -> Outbound[None]:
    """Ask the leader to have a member's store emptied."""
    request = operating.ReinitRequest(member=member)
    return Outbound(SERVICE + "Reinit", request.SerializeToString(), lambda responses, _: None)


@of_text
def failover(
    voters: Collection[int] = (), *, accept_loss: bool = False, revision: int = 0
) -> Outbound[FailoverPlan]:
    """Ask a member what it would come to if it led without those that do not answer, or have it do so."""

    def decode(responses: Sequence[bytes], _: Trailers) -> FailoverPlan:
        response = operating.FailoverResponse.FromString(responses[0])
        return FailoverPlan(
            epoch=response.epoch,
            revision=response.revision,
            answered=tuple(
                MemberPosition(one.member, one.last_epoch, one.log_end, one.votes)
                for one in response.answered
            ),
            missing=tuple(response.missing),
            voters=tuple(response.voters),
            committed=response.committed,
            refusal=printable(response.refusal),
        )

    request = operating.FailoverRequest(voters=sorted(voters), accept_loss=accept_loss, revision=revision)
    return Outbound(SERVICE + "Failover", request.SerializeToString(), decode)
