"""Outbound calls among the members of a group that elects its leader; made by `calls.perform`.

A member that refuses to be asked (it is of another group, or elects nobody) answers with an error.
"""

from collections.abc import Sequence

from whimbrel.escapes import printable
from whimbrel.model.elections import ANSWER_WHY_CHARS_MAX, SealAnswer, Suspicion
from whimbrel.model.wire import ELECTION_SERVICE
from whimbrel.pb.whimbrel.replica.v1 import election_service_pb2 as elections
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = ["empty", "seal", "suspect"]

SERVICE = f"/{ELECTION_SERVICE}/"


@of_text
def suspect(broker_name: str, *, group: str, epoch: int, member: int) -> Outbound[Suspicion]:
    """Ask a member what it hears of the leader, and how far its log goes; it promises nothing.

    Args:
        broker_name: shared by the brokers of the group.
        group: uuid of the group; empty where the asking member belongs to none yet.
        epoch: the newest one that the asking member knows.
        member: id of the asking member.

    Raises (when made):
        BadRequest: the answer holds what no member can say.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> Suspicion:
        response = elections.SuspectResponse.FromString(responses[0])
        return Suspicion(
            silent=response.silent,
            epoch=response.epoch,
            last_epoch=response.last_epoch,
            log_end=response.log_end,
            votes=response.votes,
            seat=response.seat,
            group=response.group,
            member=response.member,
        )

    request = elections.SuspectRequest(broker_name=broker_name, group=group, epoch=epoch, member=member)
    return Outbound(SERVICE + "Suspect", request.SerializeToString(), decode)


@of_text
def seal(broker_name: str, *, group: str, epoch: int, candidate: int, log_begin: int) -> Outbound[SealAnswer]:
    """Ask a member to take nothing from epochs below this one any more.

    Args:
        broker_name: shared by the brokers of the group.
        group: uuid of the group.
        epoch: which the candidate wants to lead.
        candidate: its id as a member.
        log_begin: of its log.

    Raises (when made):
        BadRequest: the answer holds what no member can say.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> SealAnswer:
        response = elections.SealResponse.FromString(responses[0])
        return SealAnswer(
            sealed=response.sealed,
            promised=response.promised,
            promised_to=response.promised_to,
            last_epoch=response.last_epoch,
            log_end=response.log_end,
            seat=response.seat,
            why=printable(response.why[:ANSWER_WHY_CHARS_MAX])[:ANSWER_WHY_CHARS_MAX],
            member=response.member,
            votes=response.votes,
            waiting_below=response.waiting_below,
        )

    request = elections.SealRequest(
        broker_name=broker_name, group=group, epoch=epoch, candidate=candidate, log_begin=log_begin
    )
    return Outbound(SERVICE + "Seal", request.SerializeToString(), decode)


@of_text
def empty(broker_name: str, *, group: str, epoch: int, leader: int) -> Outbound[None]:
    """Ask a member to empty its store, and to follow anew.

    Args:
        broker_name: shared by the brokers of the group.
        group: uuid of the group.
        epoch: that the asking member leads.
        leader: its id as a member.
    """
    request = elections.EmptyRequest(broker_name=broker_name, group=group, epoch=epoch, leader=leader)
    return Outbound(SERVICE + "Empty", request.SerializeToString(), lambda responses, _: None)
