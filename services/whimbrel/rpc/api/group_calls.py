"""Outbound calls to the nameserver that keeps the records of groups; made by `calls.perform`."""

from collections.abc import Sequence

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.wire import GROUP_SERVICE
from whimbrel.pb.whimbrel.group.v1 import group_service_pb2 as groups
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = ["read_record", "swap_record"]

SERVICE = f"/{GROUP_SERVICE}/"


@of_text
def read_record(
    cluster: str, name: str, *, after_revision: int = 0, wait_ms: int = 0
) -> Outbound[tuple[GroupRecord | None, int]]:
    """Ask for a group's record; the result is that, or None where there is none, and its revision.

    Args:
        cluster: the group's.
        name: shared by its brokers.
        after_revision: with `wait_ms`: answered at once where the revision is another one than this.
        wait_ms: milliseconds, how long to wait for another one, up to the server's bound. A caller's deadline
            is to be longer.

    Raises (when made):
        BadRequest: what is answered is no record.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[GroupRecord | None, int]:
        response = groups.ReadResponse.FromString(responses[0])
        if not response.record and not response.revision:
            return None, 0
        return GroupRecord.decode(response.record), revision_of(response.revision)

    request = groups.ReadRequest(
        cluster=cluster, broker_name=name, after_revision=after_revision, wait_ms=wait_ms
    )
    return Outbound(SERVICE + "Read", request.SerializeToString(), decode)


@of_text
def swap_record(
    cluster: str, name: str, record: GroupRecord, revision: int
) -> Outbound[tuple[bool, GroupRecord, int]]:
    """Replace a group's record if its revision is still that one.

    A call that fails leaves open whether it was swapped; a read tells.

    Args:
        cluster: the group's.
        name: shared by its brokers.
        record: the new one.
        revision: of the one that it replaces; 0 where there is to be none.

    Returns (when made):
        Whether the new record stands, the record that stands now, and its revision.

    Raises (when made):
        BadRequest: the record lowers the group's epoch, is of another group, or can't be; none is kept
            although a revision was named; or what is answered is no record.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[bool, GroupRecord, int]:
        response = groups.SwapResponse.FromString(responses[0])
        return response.swapped, GroupRecord.decode(response.record), revision_of(response.revision)

    request = groups.SwapRequest(cluster=cluster, broker_name=name, revision=revision, record=record.encode())
    return Outbound(SERVICE + "Swap", request.SerializeToString(), decode)


def revision_of(revision: int) -> int:
    """Return a record's revision.

    Raises:
        BadRequest: a record has none below 1.
    """
    if revision < 1:
        raise BadRequest(f"a group's record of revision {revision}: they begin at 1")
    return revision
