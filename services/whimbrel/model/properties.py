"""Names of the properties that stored messages carry, as RocketMQ writes them (RocketMQ: MessageConst).

How the properties stand in a record: store/codec.py. Which names a client may not use: model/names.py. The
property of the trace context: model/trace.py.
"""

__all__ = [
    "BORN_HOST",
    "BORN_TIMESTAMP",
    "CLUSTER",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "KEYS",
    "REPLAYED_FROM",
    "RETRY_TOPIC",
    "SHARDING_KEY",
    "TAGS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TRAN_MSG",
    "UNIQ_KEY",
]

UNIQ_KEY = "UNIQ_KEY"  # the message id
CLUSTER = "CLUSTER"
BORN_TIMESTAMP = "BORN_TIMESTAMP"  # ms
TAGS = "TAGS"  # one tag, despite its name
KEYS = "KEYS"  # message keys, joined by spaces
BORN_HOST = "__BORNHOST"  # as the producer's SDK names its machine
SHARDING_KEY = "__SHARDINGKEY"  # the message group of ordered messages

# Delayed messages: when they are due in epoch ms, or a delay as a level, in ms or in seconds.
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
DELAY = "DELAY"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"

TRAN_MSG = "TRAN_MSG"  # "true" on a half message of a transaction
RETRY_TOPIC = "RETRY_TOPIC"  # of a redelivered message: the topic that it was sent to
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
REPLAYED_FROM = "REPLAYED_FROM"  # not RocketMQ's: where a replayed message stood originally
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
