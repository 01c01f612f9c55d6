"""Says who is down when a command has failed, since when, and what to look at.

What a call's failure says is what its transport knows: a refused connection, a topic without queues. The
nameserver knows more, and a master can be asked what it takes; that is one more question to each, and only
then.
"""

from whimbrel.cli.endpoint import Given
from whimbrel.cli.output import note
from whimbrel.errors import (
    ClientError,
    ClusterUnreachable,
    CorruptRecord,
    GroupNotFound,
    NoBroker,
    NotSupported,
    PeerError,
    QueueNotFound,
    RequestError,
    Stored,
    StoreError,
    TopicNotFound,
    WhimbrelError,
)

__all__ = ["may_be_down", "sentences", "tell_who_is_down"]

LOOK_S = 1.5  # for the nameserver; brokers have the time that a view of replication takes
OF_A_REQUEST = (TopicNotFound, GroupNotFound, QueueNotFound)  # what is looked for may be at who is down
OTHERWISE = (ClusterUnreachable, NotSupported, CorruptRecord, Stored, StoreError, PeerError)


def may_be_down(error: WhimbrelError) -> bool:
    """Return whether an error may come of a broker that is down."""
    if isinstance(error, RequestError):
        return isinstance(error, OF_A_REQUEST)
    return not isinstance(error, OTHERWISE) and type(error) not in (ClientError, WhimbrelError)


def sentences(error: WhimbrelError) -> list[str]:
    """Return a sentence for each broker group that takes no messages, as far as none was told before.

    Nothing where the command asks no cluster, or its nameserver does not answer now.
    """
    target = Given.target
    if target is None or not may_be_down(error):
        return []
    from whimbrel.client import ClientOptions, sync
    from whimbrel.model.health import masters_down

    try:
        with sync.Admin(target.endpoint, options=ClientOptions(request_timeout_s=LOOK_S)) as admin:
            known = admin.cluster()
            down = masters_down(known, admin.replication(known.masters()))
    except WhimbrelError:
        return []  # the failure itself has been told
    new = [name for name in sorted(down) if name not in Given.told]
    Given.told.update(new)
    if isinstance(error, OF_A_REQUEST) and not isinstance(error, NoBroker):
        return [f"it may be at a broker that is not there: {down[name]}" for name in new]
    return [down[name] for name in new]


def tell_who_is_down(error: WhimbrelError) -> None:
    """Tell it, of a failure after which the command goes on."""
    for sentence in sentences(error):
        note(f"whimbrel: {sentence}")
