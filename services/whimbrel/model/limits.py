"""Bounds that more than one part knows: what a request may hold, and defaults that both of its ends assume.

Bounds of one module alone stand in that module.
"""

__all__ = [
    "ACK_ENTRIES_MAX",
    "ATTEMPT_MAX",
    "AUTO_QUEUES",
    "BODY_BYTES_MAX",
    "BULK_RESPONSE_BYTES_MAX",
    "CLIENT_ID_CHARS_MAX",
    "DEAD_LETTERS_MAX",
    "ENDPOINTS_MAX",
    "GROUP_CHARS_MAX",
    "HOST_CHARS_MAX",
    "INFLATED_BYTES_MAX",
    "INVISIBLE_MS_MAX",
    "INVISIBLE_MS_MIN",
    "LEASE_S_DEFAULT",
    "LOG_END_MAX",
    "MESSAGE_GROUP_BYTES_MAX",
    "POLL_MS_MAX",
    "PROPERTIES_COUNT_MAX",
    "PROPERTY_BYTES_MAX",
    "QUEUES_MAX",
    "RECEIVE_BATCH_MAX",
    "RENEW_S_DEFAULT",
    "REPLAY_BATCH_MAX",
    "REPLAY_BYTES_MAX",
    "REPLAY_SELECTION_MAX",
    "RETRY_MAX_DEFAULT",
    "ROUTE_QUEUES_MAX",
    "RPC_MESSAGE_BYTES_MAX",
    "SEND_MESSAGES_MAX",
    "TIME_MS_MAX",
    "TOPICS_MAX",
    "TOPIC_CHARS_MAX",
]

# Names
TOPIC_CHARS_MAX = 127  # the topic's length is a signed byte in a V1 record
GROUP_CHARS_MAX = 255  # RocketMQ: Validators
MESSAGE_GROUP_BYTES_MAX = 63
HOST_CHARS_MAX = 255  # DNS: 253
CLIENT_ID_CHARS_MAX = 255  # SDKs join host name, process and counters with @
ENDPOINTS_MAX = 64  # addresses in a client's access point: a nameserver each

# Topics. RocketMQ has no bounds; its tools make 8 queues, its largest built-in topic has 1,024. A route lists
# every queue of every broker: 16,384 are 0.1 s and 6 MB at the nameserver, for each time that a client asks.
QUEUES_MAX = 4096  # of a topic on one broker: each costs a file, and lease state for every group
ROUTE_QUEUES_MAX = 16_384  # of a topic on all brokers; of one broker's only where RocketMQ made it
TOPICS_MAX = 65_536  # of one broker, and as many groups

# Send
BODY_BYTES_MAX = 4 * 1024 * 1024  # as transmitted, after compression
SEND_MESSAGES_MAX = 4096  # in a request; RocketMQ bounds the bytes alone, 4 MiB: so many messages of 1 KiB
PROPERTIES_COUNT_MAX = 128  # user properties of one message
PROPERTY_BYTES_MAX = 16_384  # keys, values, tag and message keys of one message together
AUTO_QUEUES = 4  # of a topic that a send creates; RocketMQ: defaultTopicQueueNums
INFLATED_BYTES_MAX = 128 * 1024 * 1024  # a larger body, once inflated, is an attack or damage

# Times, in epoch milliseconds: the end of the year 9999, which is protobuf's. SDKs fail to read later ones.
TIME_MS_MAX = 253_402_300_799_999

# Receive
RECEIVE_BATCH_MAX = 32  # the SDKs never ask for more; RocketMQ's broker has the same bound
ATTEMPT_MAX = 1 << 30  # of a message's deliveries; SDKs read a signed number of 32 bits
ACK_ENTRIES_MAX = 1024  # in a request; SDKs acknowledge one message, or the 32 of a receive
INVISIBLE_MS_MIN = 10_000  # receive without renewal; RocketMQ's minimum
INVISIBLE_MS_MAX = 12 * 3600 * 1000
POLL_MS_MAX = 20_000  # RocketMQ: the client's default, and the upper end of the server's clamp
RETRY_MAX_DEFAULT = 16  # redeliveries of a message in a group, the first delivery not among them; RocketMQ's

# Replay: messages in a call (those of a selection are looked up in the index one by one), and bytes unless
# it is one message.
REPLAY_BATCH_MAX = 256  # a call of many more would hold up the sends of others
REPLAY_SELECTION_MAX = 32
REPLAY_BYTES_MAX = 1 << 20
# Dead letters that are put back or dropped in a call, which is answered once they are safe: 64 MiB with the
# largest bodies, as much as waits for disk and slaves at once.
DEAD_LETTERS_MAX = 16

# gRPC messages
RPC_MESSAGE_BYTES_MAX = 130 * 1024 * 1024  # RocketMQ: 32 bodies of 4 MiB and 2 MiB for the rest
BULK_RESPONSE_BYTES_MAX = 8 << 20  # brokers send frames of 1 MiB, and a larger record alone

LOG_END_MAX = 1 << 62  # bytes; a log that grows by 100 GB/s for a year is shorter

# Registration with nameservers. RocketMQ: 120 s and 30 s; here four renewals may be lost before a broker is
# taken for dead.
LEASE_S_DEFAULT = 8.0
RENEW_S_DEFAULT = 2.0
