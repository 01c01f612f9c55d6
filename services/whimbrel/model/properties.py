"""Names of the properties that stored messages carry, as RocketMQ writes them (RocketMQ: MessageConst).

How the properties stand in a record: store/codec.py. Which names a client may not use: model/names.py. The
property of the trace context: model/trace.py.
"""

__all__ = [
    "BORN_HOST",
    "BORN_TIMESTAMP",
    "CHECK_IMMUNITY_S",
    "CHECK_TIMES",
    "CLUSTER",
    "DEAD_AFTER_ATTEMPTS",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "HANDED_ON_FROM",
    "KEYS",
    "LITE_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "PREPARED_QUEUE_OFFSET",
    "PRIORITY",
    "PRODUCER_GROUP",
    "PROPERTIES_LEFT_OUT",
    "REAL_QUEUE_ID",
    "REAL_TOPIC",
    "REPLAYED_FROM",
    "RETRY_TOPIC",
    "SHARDING_KEY",
    "TAGS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELETE_ID",
    "TIMER_DELIVER_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRANSACTION_ID",
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
PRIORITY = "_SYS_MSG_PRIORITY_"  # a number from 0; the greatest goes first
LITE_TOPIC = "__LITE_TOPIC"
PRODUCER_GROUP = "PGROUP"  # who is asked about a transaction; RocketMQ's gRPC path writes the topic's name

# Delayed messages: when they are due in epoch ms, or a delay as a level, in ms or in seconds.
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
DELAY = "DELAY"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"

# What the timer adds, all in epoch ms but for the last two.
TIMER_OUT_MS = "TIMER_OUT_MS"  # the second in which it is due
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DELETE_ID = "TIMER_DEL_UNIQKEY"  # of a recall: which message is not to be delivered

# Where a message goes that waits in a system topic.
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"

TRAN_MSG = "TRAN_MSG"  # "true" on a message of a transaction
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"  # how often producers were asked
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"  # of a half that is stored again: where it was first
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"  # the recovery duration, in whole seconds

RETRY_TOPIC = "RETRY_TOPIC"  # of a redelivered message: the topic that it was sent to
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"  # of a redelivered message: the offset id of the first one
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
HANDED_ON_FROM = (
    "HANDED_ON_FROM"  # not RocketMQ's: a dead letter's cause, where ORIGIN_MESSAGE_ID is another one
)
DEAD_AFTER_ATTEMPTS = "DEAD_AFTER_ATTEMPTS"  # not RocketMQ's: how often a dead letter had been delivered
PROPERTIES_LEFT_OUT = (
    "PROPERTIES_LEFT_OUT"  # not RocketMQ's: names that a copy of the broker's had no room for
)
REPLAYED_FROM = "REPLAYED_FROM"  # not RocketMQ's: where a replayed message stood originally
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
