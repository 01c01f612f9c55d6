"""What a pull asks for (11, 361): the fields of its header, read.

The compiled lane reads those of most pulls (`remote_pull.rs` in `native/core`); a request that it has read
carries what it found (`ReadPull`), and its fields as texts are made when somebody asks for them.

RocketMQ: PullMessageRequestHeader.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from whimbrel.broker.consume.filters import FILTER_CHARS_MAX
from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.command import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Command
from whimbrel.rpc.remoting.frames import decode_frame

__all__ = [
    "BYTES_MAX", "COMMIT", "NAMES_SUBSCRIPTION", "SUSPEND", "SUSPEND_MS_MAX", "PullHeader", "ReadPull",
    "commit_offset", "read_pull",
]  # fmt: skip

BYTES_MAX: Final = 262_144  # RocketMQ: maxTransferBytesOnMessageInMemory
COMMIT, SUSPEND, NAMES_SUBSCRIPTION = 1, 2, 4  # bits of the system flag
FLAGS: Final = (("sysFlag", None, INT_MIN, INT_MAX),)
NUMBERS: Final = (
    ("queueId", None, INT_MIN, INT_MAX),
    ("queueOffset", None, LONG_MIN, LONG_MAX),
    ("maxMsgNums", None, INT_MIN, INT_MAX),
    ("maxMsgBytes", BYTES_MAX, INT_MIN, INT_MAX),
    ("subVersion", 0, LONG_MIN, LONG_MAX),
    ("suspendTimeoutMillis", 0, LONG_MIN, LONG_MAX),
)
SUSPEND_MS_MAX: Final = 60_000  # Java's clients ask for 15 s, and wait 30 s for the answer


class PullHeader(NamedTuple):
    """What a pull says.

    Attributes:
        messages, bytes: it wants no more.
        flags: bits as above.
        version: of the subscription that its client has.
        text: the subscription that it names; empty without one. sql: what kind of filter that is.
        suspend_ms: how long it may wait.
        commit_offset: counts with the bit `COMMIT`; None where it is no number, which the request then says.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    messages: int
    bytes: int
    flags: int
    version: int
    text: str
    sql: bool
    suspend_ms: int
    commit_offset: int | None


class ReadPull(Command):
    """A pull that the lane has read: a request without a body.

    Attributes:
        header: what it says.
    """

    __slots__ = ("frame", "header")

    def __init__(
        self, code: int, opaque: int, flag: int, version: int, language: str, header: PullHeader, frame: bytes
    ) -> None:
        self.code, self.opaque, self.flag, self.version = code, opaque, flag, version
        self.language, self.remark, self.body = language, None, b""
        self.header, self.frame = header, frame

    @property
    def fields(self) -> Mapping[str, str]:  # type: ignore[override]  # made when they are asked for
        """By name."""
        return decode_frame(self.frame).fields


def read_pull(request: Command) -> PullHeader:
    """Return the header of a pull.

    Raises:
        BadRequest: a field is missing, or is no number.
    """
    if isinstance(request, ReadPull):
        return request.header
    fields = request.fields
    text, kind = fields.get("subscription", ""), fields.get("expressionType", "TAG")
    (flags,) = request.numbers(FLAGS)
    if flags & NAMES_SUBSCRIPTION and len(text) > FILTER_CHARS_MAX:
        raise BadRequest(f"a subscription has at most {FILTER_CHARS_MAX} characters, not {len(text)}")
    group = fields.get("consumerGroup") or request.text("consumerGroup")
    topic = fields.get("topic") or request.text("topic")
    queue_id, offset, messages, size, version, suspend_ms = request.numbers(NUMBERS)
    return PullHeader(
        group,
        topic,
        queue_id,
        offset,
        max(messages, 1),
        max(min(size, BYTES_MAX), 1),
        flags,
        version,
        text if flags & NAMES_SUBSCRIPTION else "",
        kind not in ("TAG", ""),
        min(suspend_ms, SUSPEND_MS_MAX),
        None,
    )


def commit_offset(header: PullHeader, request: Command) -> int:
    """Return the position that a pull carries.

    Raises:
        BadRequest: it is no number.
    """
    found = header.commit_offset
    return request.int64("commitOffset", 0) if found is None else found
