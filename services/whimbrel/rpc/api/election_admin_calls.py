"""Outbound calls by which operators change a group that elects its leader; made by `calls.perform`."""

from collections.abc import Collection, Sequence

from whimbrel.model.wire import ELECTION_ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import election_admin_service_pb2 as operating
from whimbrel.rpc.api.calls import Outbound, Trailers

__all__ = ["pause_elections", "set_voters", "switchover"]

SERVICE = f"/{ELECTION_ADMIN_SERVICE}/"


def switchover(member: int) -> Outbound[int]:
    """Ask the leader to have another member lead, 0: whose log goes on furthest; return its id."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        return operating.SwitchoverResponse.FromString(responses[0]).member

    request = operating.SwitchoverRequest(member=member)
    return Outbound(SERVICE + "Switchover", request.SerializeToString(), decode)


def pause_elections(*, paused: bool) -> Outbound[None]:
    """Have nobody stand for election, or allow it again."""
    request = operating.PauseElectionsRequest(paused=paused)
    return Outbound(SERVICE + "PauseElections", request.SerializeToString(), lambda responses, _: None)


def set_voters(members: Collection[int]) -> Outbound[int]:
    """Ask the leader to have these members vote; return the epoch that decides it, 0: nothing changes."""

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        return operating.SetVotersResponse.FromString(responses[0]).epoch

    request = operating.SetVotersRequest(members=sorted(members))
    return Outbound(SERVICE + "SetVoters", request.SerializeToString(), decode)
