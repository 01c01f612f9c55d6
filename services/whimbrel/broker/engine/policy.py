"""What sends may have, and what the broker writes into each record: one value for checks and the lane.

It is frozen. Where something of it changes (the port is known, tracing begins), another one takes its place,
with the next generation: whoever has made something of a policy compares generations, or the objects.
"""

from dataclasses import dataclass
from typing import Final

from whimbrel.model.limits import (
    BODY_BYTES_MAX,
    PROPERTIES_COUNT_MAX,
    PROPERTY_BYTES_MAX,
    SEND_MESSAGES_MAX,
    TIME_MS_MAX,
)
from whimbrel.model.names import RESERVED_PROPERTY_KEYS
from whimbrel.store.codec import PROPERTIES_BYTES_MAX

__all__ = ["BATCH_MESSAGES_MAX", "SendPolicy"]

BATCH_MESSAGES_MAX: Final = 65_536  # in 4 MiB there is room for more empty ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """The policy of sends.

    Attributes:
        generation: 0, and one more with each change.
        cluster: the broker's, in each record.
        store_host: this broker's address as records hold it.
        traced: tracing is on, so that messages without a trace context may be given one.
        body_bytes_max: of a body as it is stored.
        users_max: properties of a user.
        weight_max: bytes of user properties, tag and keys together.
        text_bytes_max: of a record's property text.
        time_ms_max: the latest born time, in epoch milliseconds.
        messages_max, batch_messages_max: in a request, and in a batch of RocketMQ 4.
        reserved: names of properties that users can't have.
    """

    generation: int = 0
    cluster: str
    store_host: bytes
    traced: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    users_max: int = PROPERTIES_COUNT_MAX
    weight_max: int = PROPERTY_BYTES_MAX
    text_bytes_max: int = PROPERTIES_BYTES_MAX
    time_ms_max: int = TIME_MS_MAX
    messages_max: int = SEND_MESSAGES_MAX
    batch_messages_max: int = BATCH_MESSAGES_MAX
    reserved: frozenset[str] = RESERVED_PROPERTY_KEYS
