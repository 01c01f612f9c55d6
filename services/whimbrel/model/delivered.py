"""Which properties of a stored message are not a user's, when it goes to a consumer."""

from whimbrel.model.names import RESERVED_PROPERTY_KEYS
from whimbrel.model.properties import (
    DELAY,
    DLQ_ORIGIN_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)
from whimbrel.model.trace import CONTEXT_PROPERTY

__all__ = ["HIDDEN", "RARE"]

# Properties that are fields of their own, or RocketMQ's bookkeeping without being reserved.
HIDDEN = RESERVED_PROPERTY_KEYS | {
    SHARDING_KEY,
    CONTEXT_PROPERTY,
    "TRANSACTION_CHECK_TIMES",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "__transactionId__",
    "INNER_NUM",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "PROPERTY_FORWARD_QUEUE_ID",
    "REDIRECT",
}

# Properties of messages that are not plain ones.
RARE = frozenset((
    SHARDING_KEY, TIMER_DELIVER_MS, DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TRAN_MSG, PRIORITY,
    DLQ_ORIGIN_TOPIC,
))  # fmt: skip
