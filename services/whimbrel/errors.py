"""All errors that cross a module border, with what both sides need to know of them.

    WhimbrelError
    ├── RequestError            the caller must change something; nothing was stored
    │   ├── BadRequest, IllegalTopic, IllegalGroup, IllegalTag, IllegalKey, IllegalPropertyKey,
    │   │   IllegalMessageGroup, IllegalMessageId, IllegalFilter, IllegalInvisibleTime, IllegalDeliveryTime,
    │   │   IllegalOffset, IllegalAccessPoint, InvalidReceiptHandle, InvalidTransactionId,
    │   │   MessageTypeConflict, MessageCorrupted, MessageTooLarge, MessageEmpty, PropertiesTooLarge,
    │   │   ClientIdRequired, NotSupported, Forbidden, AlreadyExists, WouldHide
    │   ├── TopicNotFound, QueueNotFound, GroupNotFound, OffsetNotFound
    │   ├── NotSubscribed, SubscriptionOutdated, SubscriptionUnreadable
    │   ├── NoBroker                        a kind of TopicNotFound
    │   ├── LeftOut                         a kind of NotSupported
    │   ├── RangeGone, BeyondConfirmed      kinds of IllegalOffset
    ├── Refused                 this server can't now; nothing was stored
    │   ├── NotWritable, StoreFull, NoReplica, Throttled, NotReady, NotRecovered
    │   ├── NotMaster                       a kind of NotWritable
    ├── OwnerAway               another broker owns the message's queue, and does not answer
    │   ├── LeaderAway                      the group's leader has a call, and does not answer
    ├── Stored                  the message is stored, but its durability was not confirmed in time
    │   ├── FlushTimeout, ReplicaTimeout
    │   ├── NotCommitted                    a kind of ReplicaTimeout: it may be kept or not
    │   │   └── NotStored                   the same of what stands beside the log
    ├── CorruptRecord           bytes on disk do not decode
    ├── StoreError              the store directory can't be used as it is
    ├── PeerError               the other end of a connection
    │   ├── RemoteProtocolError (theirs), LocalProtocolError (ours), ConnectionClosed
    └── ClientError             raised by the client library only
        └── Unavailable, RequestTimeout; ClusterUnreachable is a kind of Unavailable

`reason` names the error for tools; `grpc` is the gRPC status name; `code` is the `apache.rocketmq.v2` code;
`remoting` is the code of a response of the remoting protocol, where 10 to 12 say that the message is stored;
`retry` tells whether the same call may succeed later; `effect` is what has happened on the server: none,
unknown or stored.
"""

from typing import ClassVar, Literal

__all__ = [
    "AlreadyExists", "BadRequest", "BeyondConfirmed", "ClientError", "ClientIdRequired", "ClusterUnreachable",
    "ConnectionClosed", "CorruptRecord", "FlushTimeout", "Forbidden", "GroupNotFound", "IllegalAccessPoint",
    "IllegalDeliveryTime", "IllegalFilter", "IllegalGroup", "IllegalInvisibleTime", "IllegalKey",
    "IllegalMessageGroup", "IllegalMessageId", "IllegalOffset", "IllegalPropertyKey", "IllegalTag",
    "IllegalTopic", "InvalidReceiptHandle", "InvalidTransactionId", "LeaderAway", "LeftOut",
    "LocalProtocolError", "MessageCorrupted", "MessageEmpty", "MessageTooLarge", "MessageTypeConflict",
    "NoBroker", "NoReplica", "NotCommitted", "NotMaster", "NotReady", "NotRecovered", "NotStored",
    "NotSubscribed", "NotSupported", "NotWritable", "OffsetNotFound", "OwnerAway", "PeerError",
    "PropertiesTooLarge", "QueueNotFound", "RangeGone", "Refused", "RemoteProtocolError", "ReplicaTimeout",
    "RequestError", "RequestTimeout", "StoreError", "StoreFull", "Stored",
    "SubscriptionOutdated", "SubscriptionUnreadable", "Throttled", "TopicNotFound",
    "Unavailable", "WhimbrelError", "WouldHide", "error_for_code", "file_trouble",
]  # fmt: skip

Effect = Literal["none", "unknown", "stored"]


class WhimbrelError(Exception):
    """Base of all; its text is one sentence on what is wrong and, where possible, what to do."""

    reason: ClassVar[str] = "INTERNAL"
    grpc: ClassVar[str] = "INTERNAL"
    code: ClassVar[int] = 50001
    remoting: ClassVar[int] = 1
    retry: ClassVar[bool] = False
    effect: ClassVar[Effect] = "unknown"
    known: ClassVar[dict[str, type["WhimbrelError"]]] = {}

    def __init_subclass__(cls) -> None:
        """Register the class under its reason, which must be unique."""
        if "reason" in cls.__dict__:
            assert cls.reason not in WhimbrelError.known, f"reason {cls.reason} is used twice"
            WhimbrelError.known[cls.reason] = cls


class RequestError(WhimbrelError):
    """The caller must change something; nothing was stored."""

    reason = "BAD_REQUEST"
    grpc = "INVALID_ARGUMENT"
    code = 40000
    effect = "none"


class BadRequest(RequestError):
    """The request is invalid in a way that has no code of its own."""

    reason = "MALFORMED_REQUEST"


class IllegalAccessPoint(RequestError):
    """The access point in a request can't be dialled."""

    reason = "ILLEGAL_ACCESS_POINT"
    code = 40001


class IllegalTopic(RequestError):
    """A topic name is blank, too long, has a character outside the alphabet, or is reserved."""

    reason = "ILLEGAL_TOPIC"
    code = 40002


class IllegalGroup(RequestError):
    """A group name is blank, too long, has a character outside the alphabet, or is reserved."""

    reason = "ILLEGAL_CONSUMER_GROUP"
    code = 40003


class IllegalTag(RequestError):
    """A message tag is blank, holds `|` or control characters."""

    reason = "ILLEGAL_MESSAGE_TAG"
    code = 40004


class IllegalKey(RequestError):
    """A message key is blank, or holds a space or control characters."""

    reason = "ILLEGAL_MESSAGE_KEY"
    code = 40005


class IllegalMessageGroup(RequestError):
    """A message group is blank, too long, or holds control characters."""

    reason = "ILLEGAL_MESSAGE_GROUP"
    code = 40006


class IllegalPropertyKey(RequestError):
    """A user property's key is reserved, or key or value holds control characters."""

    reason = "ILLEGAL_MESSAGE_PROPERTY_KEY"
    code = 40007


class InvalidTransactionId(RequestError):
    """A transaction's id is blank or unknown here, or the transaction was decided otherwise."""

    reason = "INVALID_TRANSACTION_ID"
    code = 40008


class IllegalMessageId(RequestError):
    """A message id is blank."""

    reason = "ILLEGAL_MESSAGE_ID"
    code = 40009


class IllegalFilter(RequestError):
    """A filter expression does not parse."""

    reason = "ILLEGAL_FILTER_EXPRESSION"
    code = 40010
    remoting = 23


class IllegalInvisibleTime(RequestError):
    """An invisible duration is outside its limits."""

    reason = "ILLEGAL_INVISIBLE_TIME"
    code = 40011


class IllegalDeliveryTime(RequestError):
    """A delivery time is too far ahead."""

    reason = "ILLEGAL_DELIVERY_TIME"
    code = 40012
    remoting = 13


class InvalidReceiptHandle(RequestError):
    """A receipt handle is malformed, expired, or names a delivery that is over."""

    reason = "INVALID_RECEIPT_HANDLE"
    code = 40013


class MessageTypeConflict(RequestError):
    """A message's properties make it a type that its topic does not take."""

    reason = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    code = 40014
    remoting = 13


class MessageCorrupted(RequestError):
    """A send holds no message, messages of several topics, or a body that does not match its digest."""

    reason = "MESSAGE_CORRUPTED"
    code = 40016
    remoting = 13


class ClientIdRequired(RequestError):
    """The header `x-mq-client-id` is missing, or holds no name."""

    reason = "CLIENT_ID_REQUIRED"
    code = 40017


class IllegalOffset(RequestError):
    """An offset lies outside the queue."""

    reason = "ILLEGAL_OFFSET"
    grpc = "OUT_OF_RANGE"
    code = 40019


class RangeGone(IllegalOffset):
    """A range begins below what is kept: retention, or the deletion of its topic, has passed it."""

    reason = "RANGE_GONE"


class BeyondConfirmed(IllegalOffset):
    """A range ends beyond the confirmed offset here: it may be confirmed later, or elsewhere already."""

    reason = "BEYOND_CONFIRMED"
    retry = True


class Forbidden(RequestError):
    """The topic or group does not allow this."""

    reason = "FORBIDDEN"
    grpc = "PERMISSION_DENIED"
    code = 40300
    remoting = 16


class TopicNotFound(RequestError):
    """No such topic."""

    reason = "TOPIC_NOT_FOUND"
    grpc = "NOT_FOUND"
    code = 40402
    remoting = 17


class NoBroker(TopicNotFound):
    """A nameserver answers, but no broker is registered with it; raised by the client library only."""

    reason = "NO_BROKER"


class QueueNotFound(RequestError):
    """The topic has no such queue."""

    reason = "QUEUE_NOT_FOUND"
    grpc = "NOT_FOUND"


class GroupNotFound(RequestError):
    """No such consumer group."""

    reason = "CONSUMER_GROUP_NOT_FOUND"
    grpc = "NOT_FOUND"
    code = 40403
    remoting = 26


class NotSubscribed(RequestError):
    """The group has no live member here, or none that wants the topic; the client tries again."""

    reason = "NOT_SUBSCRIBED"
    remoting = 24


class SubscriptionOutdated(RequestError):
    """The client has a newer subscription than the last heartbeat; it tries again."""

    reason = "SUBSCRIPTION_OUTDATED"
    remoting = 25


class SubscriptionUnreadable(RequestError):
    """The group's expression does not parse."""

    reason = "SUBSCRIPTION_UNREADABLE"
    remoting = 27


class OffsetNotFound(RequestError):
    """The group has no offset on this queue."""

    reason = "OFFSET_NOT_FOUND"
    grpc = "NOT_FOUND"
    code = 40404
    remoting = 22


class AlreadyExists(RequestError):
    """A topic or group of this name exists."""

    reason = "ALREADY_EXISTS"
    grpc = "ALREADY_EXISTS"


class WouldHide(RequestError):
    """A change of a topic would hide messages that are not finished, and was not told to."""

    reason = "WOULD_HIDE_MESSAGES"
    grpc = "FAILED_PRECONDITION"


class MessageTooLarge(RequestError):
    """A message body or a record is over its limit."""

    reason = "MESSAGE_BODY_TOO_LARGE"
    code = 41301
    remoting = 13


class MessageEmpty(RequestError):
    """A message body is empty."""

    reason = "MESSAGE_BODY_EMPTY"
    code = 41302
    remoting = 13


class PropertiesTooLarge(RequestError):
    """User properties, tag and keys are over their limit."""

    reason = "MESSAGE_PROPERTIES_TOO_LARGE"
    code = 43101
    remoting = 13


class NotSupported(RequestError):
    """This version does not support that."""

    reason = "NOT_IMPLEMENTED"
    grpc = "UNIMPLEMENTED"
    code = 50100


class LeftOut(NotSupported):
    """A part of the API that is left out on purpose."""

    reason = "UNSUPPORTED"
    code = 50500


class Refused(WhimbrelError):
    """This server can't now; nothing was stored, and the same call may succeed later or elsewhere."""

    reason = "REFUSED"
    grpc = "UNAVAILABLE"
    remoting = 2
    retry = True
    effect = "none"


class NotWritable(Refused):
    """The broker takes no writes: a slave, a master behind its slave, or one not yet settled."""

    reason = "NOT_WRITABLE"
    remoting = 14


class StoreFull(Refused):
    """The disk has no room for the next record; reads go on."""

    reason = "STORE_FULL"
    grpc = "RESOURCE_EXHAUSTED"
    remoting = 14

    def __str__(self) -> str:
        """Return the sentence; a dispatcher's also holds the place where it goes on."""
        return str(self.args[0]) if self.args else ""


class NoReplica(Refused):
    """Synchronous replication, and too few slaves are connected and near enough; asked before the append."""

    reason = "HA_NOT_AVAILABLE"
    code = 50002
    remoting = 14


class OwnerAway(WhimbrelError):
    """Another broker owns the queue of a message group and does not answer; it may have stored it."""

    reason = "OWNER_AWAY"
    grpc = "UNAVAILABLE"
    code = 50002
    retry = True
    effect = "unknown"


class LeaderAway(OwnerAway):
    """The leader of this broker's group was handed the call and does not answer; it may have done it."""

    reason = "LEADER_AWAY"


class NotMaster(NotWritable):
    """This broker is a slave: its master takes what ends transactions, recalls messages or gives them up."""

    reason = "NOT_MASTER"
    code = 50002


class Throttled(Refused):
    """Too many calls or bytes are waiting already."""

    reason = "TOO_MANY_REQUESTS"
    grpc = "RESOURCE_EXHAUSTED"
    code = 42900


class NotReady(Refused):
    """A nameserver that has just started does not know all brokers yet."""

    reason = "NOT_READY"


class NotRecovered(Refused):
    """The process that writes the commitlog has not recovered it yet."""

    reason = "NOT_RECOVERED"


class Stored(WhimbrelError):
    """The message is stored, but not yet as safe as was asked: sending it again makes a duplicate."""

    reason = "STORED"
    grpc = "DEADLINE_EXCEEDED"
    retry = True
    effect: ClassVar[Effect] = "stored"


class FlushTimeout(Stored):
    """The local disk did not confirm in time."""

    reason = "MASTER_PERSISTENCE_TIMEOUT"
    code = 50401
    remoting = 10


class ReplicaTimeout(Stored):
    """Too few slaves confirmed in time."""

    reason = "SLAVE_PERSISTENCE_TIMEOUT"
    code = 50402
    remoting = 12


class NotCommitted(ReplicaTimeout):
    """No majority has confirmed it: nobody sees it before, and it is lost if another master leads first.

    Clients get the code of a `ReplicaTimeout`, and the text.
    """

    reason = "NOT_COMMITTED"
    effect = "unknown"


class NotStored(NotCommitted):
    """A change beside the log (an acknowledgement, a position, a topic) is not stored by a majority.

    It is done here, and is undone if a member leads next that does not know of it. Clients get the code of a
    `ReplicaTimeout`, and the text.
    """

    reason = "NOT_STORED"


class CorruptRecord(WhimbrelError):
    """Bytes on disk do not decode as expected."""

    reason = "CORRUPT_RECORD"
    grpc = "DATA_LOSS"


class StoreError(WhimbrelError):
    """A store directory can't be used as it is: locked, of another file size, or not a store."""

    reason = "STORE_ERROR"
    grpc = "FAILED_PRECONDITION"


class PeerError(WhimbrelError):
    """The other end of a connection."""

    reason = "PEER_ERROR"
    grpc = "UNAVAILABLE"


class RemoteProtocolError(PeerError):
    """The peer broke the protocol; the connection ends."""

    reason = "REMOTE_PROTOCOL_ERROR"


class LocalProtocolError(PeerError):
    """We were about to break the protocol: a bug of ours."""

    reason = "LOCAL_PROTOCOL_ERROR"


class ConnectionClosed(PeerError):
    """The peer closed the connection."""

    reason = "CONNECTION_CLOSED"


class ClientError(WhimbrelError):
    """Raised by the client library only."""

    reason = "CLIENT_ERROR"


class Unavailable(ClientError):
    """No server could be reached."""

    reason = "UNAVAILABLE"
    grpc = "UNAVAILABLE"
    retry = True


class ClusterUnreachable(Unavailable):
    """No nameserver has answered this client yet, in all the attempts and the time of a first contact."""

    reason = "CLUSTER_UNREACHABLE"
    retry = False


class RequestTimeout(ClientError):
    """The server did not respond in time."""

    reason = "REQUEST_TIMEOUT"
    grpc = "DEADLINE_EXCEEDED"
    code = 40800
    retry = True


def error_for_code(code: int, message: str) -> WhimbrelError:
    """Return the error that stands for an `apache.rocketmq.v2` code; several share 50001 and 40000."""
    if code == 50001:
        return WhimbrelError(message)
    if code == 40000:
        return BadRequest(message)
    for cls in WhimbrelError.known.values():
        if cls.code == code:
            return cls(message)
    return WhimbrelError(f"{message} (code {code})")


def file_trouble(error: OSError, path: object = None) -> str:
    """Return what the system says of a file, in one sentence.

    Args:
        error: names the file, unless it comes of a write.
        path: is named then; None: nothing is.
    """
    name = error.filename or path
    return f"{name}: {error.strerror}" if name and error.strerror else error.strerror or str(error)
