"""How large a request of each method may be, and how many entries it may hold; checked before it is decoded.

    its length (the prefix)  ──► bytes of the method       beyond: RequestTooLarge, nothing more is received
    its bytes                ──► entries of its fields     beyond: TooManyEntries, nothing is decoded

An entry of a repeated field has two bytes at least, and becomes an object of fifty or more, for which the
handler does work. So `LIMITS` bounds their number, and `Walker` counts them on the bytes: it steps from field
to field, looks into messages only where the table names a field in them, and makes no object. What does not
parse is left to the decoder, which stops at the same place.

    length <= free_bytes      no limit can be reached in two bytes an entry: decoded at once, the usual case
    length <= walk_bytes      decoded, then counted: so few bytes make few objects
    longer                    walked, then decoded

**What callers are told.** A size is refused with the gRPC status RESOURCE_EXHAUSTED, for all services: so
gRPC itself answers to a message beyond a limit, and nothing of it was looked at. Entries are refused in the
method's own way: by the client API with BAD_REQUEST (40000) in the body, since one such request is no reason
to slow down or to try again; by ours with INVALID_ARGUMENT. Both texts name the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whimbrel.errors import BadRequest, RequestError
from whimbrel.model.cuts import CUT_PAGE_RECORDS_MAX, REPLAYED_IDS_MAX, REPLAYED_TOPICS_MAX
from whimbrel.model.limits import (
    ACK_ENTRIES_MAX,
    DEAD_LETTERS_MAX,
    RPC_MESSAGE_BYTES_MAX,
    SEND_MESSAGES_MAX,
    TOPICS_MAX,
)
from whimbrel.model.wire import (
    ADMIN_SERVICE,
    BULK_SERVICE,
    CUT_SERVICE,
    DEAD_LETTER_SERVICE,
    ELECTION_ADMIN_SERVICE,
    ELECTION_SERVICE,
    GROUP_SERVICE,
    MESSAGING_SERVICE,
    REGISTRY_SERVICE,
    REPLICA_SERVICE,
)

__all__ = [
    "ACK_ENTRIES_MAX",
    "LIMITS",
    "SEND_ENTRIES_MAX",
    "SEND_MESSAGES_MAX",
    "SMALL_BYTES",
    "UNBOUNDED",
    "Allowed",
    "RequestLimit",
    "RequestTooLarge",
    "TooManyEntries",
    "limit_of",
]

ENTRY_BYTES_MIN = 2  # a key and a length of nothing
WALK_BYTES_MIN = 256 << 10  # 131,072 empty entries make about 9 MB; a batch is rarely larger
# Entries of a counted field are looked into where the request and the entry have more bytes than these: 1 MiB
# of entries within entries makes 16 MB at most, and so do 4096 entries of 512 bytes. Looking costs a batch of
# small messages a tenth of what storing it does.
LOOK_REQUEST_BYTES_MIN, LOOK_BYTES_MIN = 1 << 20, 512
FIELDS_MAX = 200_000  # that a request is walked through: more than all limits of a method allow together
VARINT_BYTES_MAX = 10

SMALL_BYTES = 128 << 10  # names, offsets, and a filter expression of 16 Ki characters
ECHOED_BYTES = 4 << 10  # names of services, which responses repeat

SEND_ENTRIES_MAX = 1 << 16  # of all messages: 16 each, or 128 of each of 512
SETTINGS_TOPICS_MAX = 4096  # that one client sends to, or subscribes to
SETTINGS_ENTRIES_MAX = 1024  # addresses, properties, steps of a backoff
REPLAYED_RECORDS_MAX = 1024  # the call itself takes 256 (REPLAY_BATCH_MAX), and says so
DESCRIBED_TOPICS_MAX = 1 << 14


class RequestTooLarge(RequestError):
    """A request has more bytes than its method takes."""

    reason = "REQUEST_TOO_LARGE"
    grpc = "RESOURCE_EXHAUSTED"


class TooManyEntries(BadRequest):
    """A repeated field of a request has more entries than its method takes."""

    reason = "TOO_MANY_ENTRIES"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What requests of a method may be: their bytes, and the entries of fields by their paths."""

    bytes: int
    entries: Mapping[str, int]


SMALL = Allowed(SMALL_BYTES, {})
LEASE_ENTRIES = Allowed(4 << 20, {})  # in an encoding of their own; peers send 128 KiB at a time


def rows(service: str, small: str, others: Mapping[str, Allowed]) -> dict[str, Allowed]:
    """Return a service's part of the table: small methods by their names, and the others."""
    named = {**dict.fromkeys(small.split(), SMALL), **others}
    return {f"/{service}/{method}": allowed for method, allowed in named.items()}


def within(message: str) -> dict[str, int]:
    """Return what is allowed of a single message."""
    lists = ("user_properties", "system_properties.keys")
    return {f"{message}.{name}": SETTINGS_ENTRIES_MAX for name in lists}


LIMITS: dict[str, Allowed] = {
    **rows(
        MESSAGING_SERVICE,
        "QueryRoute Heartbeat QueryAssignment ReceiveMessage ForwardMessageToDeadLetterQueue PullMessage "
        "UpdateOffset GetOffset QueryOffset EndTransaction NotifyClientTermination ChangeInvisibleDuration "
        "RecallMessage SyncLiteSubscription",
        {
            "SendMessage": Allowed(
                RPC_MESSAGE_BYTES_MAX,
                {
                    "messages": SEND_MESSAGES_MAX,
                    "messages.user_properties": SEND_ENTRIES_MAX,
                    "messages.system_properties": SEND_MESSAGES_MAX,
                    "messages.system_properties.keys": SEND_ENTRIES_MAX,
                },
            ),
            "AckMessage": Allowed(1 << 20, {"entries": ACK_ENTRIES_MAX}),
            # Besides settings: the stack trace of a client with many threads.
            "Telemetry": Allowed(
                4 << 20,
                {
                    "settings.access_point.addresses": SETTINGS_ENTRIES_MAX,
                    "settings.backoff_policy.customized_backoff.next": SETTINGS_ENTRIES_MAX,
                    "settings.client_properties": SETTINGS_ENTRIES_MAX,
                    "settings.publishing.topics": SETTINGS_TOPICS_MAX,
                    "settings.subscription.subscriptions": SETTINGS_TOPICS_MAX,
                    "settings.metric.endpoints.addresses": SETTINGS_ENTRIES_MAX,
                    **within("recover_orphaned_transaction_command.message"),
                    **within("verify_message_command.message"),
                },
            ),
        },
    ),
    **rows(
        ADMIN_SERVICE,
        "CreateTopic UpdateTopic DeleteTopic ListTopics DescribeTopic CreateGroup UpdateGroup DeleteGroup "
        "ListGroups DescribeGroup ResetOffsets DrainBroker ForgetBroker DescribeReplication "
        "DescribePreserved",
        {"AppendPreserved": Allowed(8 << 20, {"records": REPLAYED_RECORDS_MAX})},
    ),
    **rows(
        DEAD_LETTER_SERVICE,
        "ListDeadLetters",
        dict.fromkeys(
            ("ReplayDeadLetters", "DropDeadLetters"),
            Allowed(SMALL_BYTES, {"places": DEAD_LETTERS_MAX}),
        ),
    ),
    **rows(
        BULK_SERVICE,
        "ReadRecords ChecksumLog ReadLog",
        {"DescribeQueues": Allowed(2 << 20, {"topics": DESCRIBED_TOPICS_MAX})},
    ),
    **rows(
        REGISTRY_SERVICE,
        "DescribeCluster ForgetBroker",
        {
            "Session": Allowed(
                16 << 20,
                {"topics": TOPICS_MAX, "changed_topics": TOPICS_MAX, "deleted_topics": TOPICS_MAX},
            ),
            "AskProducer": Allowed(
                RPC_MESSAGE_BYTES_MAX,
                {
                    "question.message.user_properties": SEND_ENTRIES_MAX,
                    "question.message.system_properties.keys": SEND_ENTRIES_MAX,
                },
            ),
        },
    ),
    **rows(GROUP_SERVICE, "Read Swap", {}),
    **rows(ELECTION_SERVICE, "Suspect Seal Empty", {}),
    **rows(ELECTION_ADMIN_SERVICE, "Switchover PauseElections SetVoters Reinit Failover", {}),
    **rows(
        CUT_SERVICE,
        "ListCuts ReadCut MarkCut",
        {
            # A page brought along holds 1 MiB, or one record of up to 16.
            "ReplayCut": Allowed(
                20 << 20,
                {
                    "records": CUT_PAGE_RECORDS_MAX,
                    "topics": REPLAYED_TOPICS_MAX,
                    "message_ids": REPLAYED_IDS_MAX,
                },
            )
        },
    ),
    **rows(REPLICA_SERVICE, "WatchMetadata Introduce", {"SyncLeases": LEASE_ENTRIES}),
    **dict.fromkeys(
        (
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ),
        Allowed(ECHOED_BYTES, {}),
    ),
}


class Field:
    """A field that is counted, or that has some within it.

    Attributes:
        index: in the counts of a walk; -1: it is not counted.
        look_bytes: a message of it that is longer is walked through.
        fields: within it, by number.
    """

    __slots__ = ("allowed", "fields", "index", "look_bytes", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.index, self.allowed, self.look_bytes = -1, 0, 0
        self.fields: dict[int, Field] = {}


class RequestLimit:
    """The limits of one method.

    Attributes:
        bytes: of a request.
        free_bytes, walk_bytes: see the module.
        counted: names of repeated fields of the request itself, and how many entries each may have.
        root: of the fields that a walk looks for.
    """

    __slots__ = ("bytes", "counted", "free_bytes", "root", "size", "walk_bytes")

    def __init__(self, allowed: Allowed, descriptor: Any = None) -> None:
        """Take what is allowed; without a descriptor of the request its bytes are counted alone."""
        self.bytes = self.free_bytes = allowed.bytes
        self.walk_bytes, self.size = WALK_BYTES_MIN, 0
        self.counted: list[tuple[str, int]] = []
        self.root = Field("")
        if descriptor is None:
            return
        for path, count in allowed.entries.items():
            self.add(path, count, descriptor)
            self.free_bytes = min(self.free_bytes, ENTRY_BYTES_MIN * count)
            if any(path.startswith(f"{other}.") for other in allowed.entries):
                continue  # it is looked for in requests of more than LOOK_REQUEST_BYTES_MIN alone
            if "." in path:
                self.walk_bytes = min(self.walk_bytes, ENTRY_BYTES_MIN * count)
            else:
                self.counted.append((path, count))

    def add(self, path: str, count: int, descriptor: Any) -> None:
        """Let a walk count the entries of a field."""
        field = self.root
        names = path.split(".")
        for depth, name in enumerate(names, 1):
            found = descriptor.fields_by_name[name]
            descriptor = found.message_type
            field = field.fields.setdefault(found.number, Field(".".join(names[:depth])))
        field.index, field.allowed, field.look_bytes = self.size, count, LOOK_BYTES_MIN
        self.size += 1

    def read(self, request: Any, data: bytes) -> Any:
        """Return a decoded request of the class `request`.

        Raises:
            RequestTooLarge, TooManyEntries: it is more than the method takes.
            DecodeError: it is no such request.
        """
        if len(data) <= self.free_bytes:
            return request.FromString(data)
        if len(data) > self.bytes:
            raise RequestTooLarge(
                f"the request has {len(data)} bytes, and this method takes {self.bytes}: send less at a time"
            )
        if len(data) > self.walk_bytes and self.size:
            Walker(data, self.size).walk(0, len(data), self.root)
            return request.FromString(data)
        message = request.FromString(data)
        for name, count in self.counted:
            if len(getattr(message, name)) > count:
                raise too_many(name, count)
        return message


UNBOUNDED = RequestLimit(Allowed(RPC_MESSAGE_BYTES_MAX, {}))


class Walker:
    """Counts the entries of one request.

    Attributes:
        counts: of the fields that are counted, by their indices.
        seen: fields that were passed.
        deep: entries of counted fields are looked into.
    """

    __slots__ = ("counts", "data", "deep", "seen")

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.counts, self.seen = data, [0] * size, 0
        self.deep = len(data) > LOOK_REQUEST_BYTES_MIN

    def walk(self, at: int, end: int, within: Field) -> None:
        """Pass the fields of a message from `at` to `end`, or as far as they parse.

        Raises:
            TooManyEntries: there are more than are allowed.
        """
        data, fields = self.data, within.fields
        try:
            while at < end:
                self.seen += 1
                if self.seen > FIELDS_MAX:
                    raise too_many("fields", FIELDS_MAX)
                key = data[at]
                at += 1
                if key > 127:
                    key, at = varint(data, at - 1)
                kind = key & 7
                if kind == 2:
                    size = data[at]
                    at += 1
                    if size > 127:
                        size, at = varint(data, at - 1)
                    field = fields.get(key >> 3)
                    if field is not None:
                        self.count(field, at, min(at + size, end))
                    at += size
                elif kind == 0:
                    _, at = varint(data, at)
                elif kind == 5:
                    at += 4
                elif kind == 1:
                    at += 8
                elif kind > 4:
                    return
                # 3 and 4 are the ends of a group, which no request of ours has: what is in it counts as well.
        except (IndexError, Malformed):
            return

    def count(self, field: Field, at: int, end: int) -> None:
        """Count an entry of a field, and look into it where that is asked for."""
        if field.index >= 0:
            self.counts[field.index] += 1
            if self.counts[field.index] > field.allowed:
                raise too_many(field.path, field.allowed)
        if field.fields and end - at > field.look_bytes and (self.deep or field.index < 0):
            self.walk(at, end, field)


class Malformed(Exception):
    """The bytes are no fields; the decoder will say so."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place behind it.

    Raises:
        IndexError, Malformed: there is none.
    """
    value = shift = 0
    for each in range(at, at + VARINT_BYTES_MAX):
        byte = data[each]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, each + 1
        shift += 7
    raise Malformed


def too_many(name: str, count: int) -> TooManyEntries:
    """Return the error of a request with more than `count` entries."""
    return TooManyEntries(f"the request has more than {count} {name}: send fewer at a time")


def limit_of(path: str, request: Any) -> RequestLimit:
    """Return the limit of a method by its full path; one that the table does not name has only gRPC's."""
    allowed = LIMITS.get(path)
    return UNBOUNDED if allowed is None else RequestLimit(allowed, getattr(request, "DESCRIPTOR", None))
