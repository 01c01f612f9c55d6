"""What an etcd's answers and refusals mean. Pure: `etcd_client.py` asks, and this says what to make of it.

**An answer** of a linearizable call is taken only if it goes on from what was known when the call was sent:

    the cluster id is another one      the address is another cluster's, or etcd was restored from a backup
    the raft term is smaller           it has not heard of an election that was seen: cut off, or restored
    the store's revision is smaller    etcd was restored from a backup, with the same ids

A linearizable read never goes back, so none of these happens in a cluster that is only ill. (The term is that
of the moment of the answer: a member that is cut off just then may tell one that its cluster has not got
to. Then answers are refused until that elects again, or until the broker is restarted.)

**A refusal** has a gRPC code and a text:

    UNAVAILABLE, UNKNOWN, DEADLINE_EXCEEDED,     NEXT: this member can't now, another one may
    UNIMPLEMENTED, CANCELLED
    UNAUTHENTICATED, "auth store is old"         RENEW: the token is not, or no longer, good
    all others                                   FINAL: each member would say the same

The codes and texts are those of `api/v3rpc/rpctypes/error.go` of etcd 3.4 and 3.5.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import grpc

from whimbrel.errors import NotReady
from whimbrel.model.coordinators import RESTORED

__all__ = [
    "DETAIL_CHARS_MAX",
    "EtcdRefusal",
    "Otherwise",
    "Seen",
    "Verdict",
    "sentence_of",
    "verdict_of",
]

DETAIL_CHARS_MAX: Final = 160  # of a text that a stranger sends


class EtcdRefusal(NotReady):
    """Etcd answers, and what it says can't be used; the text is a sentence for operators."""


class Otherwise(Exception):
    """An answer that does not go on from what was known; another member's may."""


class Verdict(Enum):
    """What to do about a refusal; see the module's text."""

    NEXT = "next"
    RENEW = "renew"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Seen:
    """The furthest that answers have told.

    Attributes:
        cluster: id of the cluster; 0 before the first answer.
        term: the raft term.
        revision: of the store.
    """

    cluster: int = 0
    term: int = 0
    revision: int = 0

    def check(self, header: Any) -> None:
        """Refuse an answer to a call that was sent when this was known.

        Raises:
            Otherwise: it does not go on from here; the text says how.
        """
        if self.cluster and header.cluster_id != self.cluster:
            raise Otherwise(
                f"it is of cluster {header.cluster_id:x}, and {self.cluster:x} keeps the record: {RESTORED}"
            )
        if header.raft_term < self.term:
            raise Otherwise(
                f"it is in raft term {header.raft_term}, and {self.term} was seen: it is cut off from its"
                f" cluster; {RESTORED}"
            )
        if header.revision < self.revision:
            raise Otherwise(f"its revision is {header.revision}, and {self.revision} was seen: {RESTORED}")

    def with_header(self, header: Any) -> "Seen":
        """Return this with what an answer tells that was taken."""
        return Seen(
            self.cluster or header.cluster_id,
            max(self.term, header.raft_term),
            max(self.revision, header.revision),
        )


NEXT_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.CANCELLED,
    }
)


def verdict_of(code: grpc.StatusCode | None, details: str) -> Verdict:
    """Return what to do about a refusal."""
    if code is None or code in NEXT_CODES:
        return Verdict.NEXT
    if code is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in details:
        return Verdict.RENEW
    return Verdict.FINAL


def sentence_of(code: grpc.StatusCode | None, details: str, key: str) -> str:
    """Return a refusal as a sentence for operators, which says what to do where that is known.

    Args:
        key: what was to be read or written.
    """
    plain = printable(details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "database space exceeded" in details:
        return (
            "etcd takes no writes, since its database is full (alarm NOSPACE): compact and defragment it,"
            " then `etcdctl alarm disarm`"
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in details:
        return f"the key {key} of etcd holds far more than a group's record: somebody else has written it"
    if code is grpc.StatusCode.DATA_LOSS:
        return f"etcd finds its own data corrupt, and takes nothing ({plain}): see `etcdctl alarm list`"
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return (
            f"etcd denies the permission: grant readwrite on the key {key} to the user, who is"
            " coordinator_user, else the common name of coordinator_certificate"
        )
    if code is grpc.StatusCode.INVALID_ARGUMENT and "user name is empty" in details:
        return "etcd asks who calls: set coordinator_user and coordinator_password_file"
    if code is grpc.StatusCode.INVALID_ARGUMENT and "invalid user ID or password" in details:
        return "etcd knows no such user and password: see coordinator_user and coordinator_password_file"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return f"etcd does not take the token that it has just given ({plain})"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "there is no etcd of version 3.4 or later"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it does not answer in time"
    return f"{plain or 'it ends the call'} ({code.name if code else 'no status'})"


def printable(details: str) -> str:
    """Return the beginning of a stranger's text, without what would break a line."""
    plain = "".join(each if each.isprintable() else " " for each in details[: DETAIL_CHARS_MAX + 1])
    return plain if len(plain) <= DETAIL_CHARS_MAX else plain[:DETAIL_CHARS_MAX] + "..."
