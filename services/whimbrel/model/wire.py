"""Names of services, headers and trailers as they stand on the wire, and the ports that are used by default.

apache.rocketmq.v2   the client API of RocketMQ 5; nameserver and broker serve it
whimbrel.*.v1        our own services
x-mq-*               headers of RocketMQ's SDKs
whimbrel-*           headers and trailers of ours, which SDKs ignore
"""

__all__ = [
    "ADMIN_SERVICE",
    "BROKER_PORT",
    "BULK_SERVICE",
    "CLIENT_ID_HEADER",
    "CLIENT_PEER_HEADER",
    "CUT_SERVICE",
    "DATE_TIME_HEADER",
    "DEAD_LETTER_SERVICE",
    "ELECTION_ADMIN_SERVICE",
    "ELECTION_SERVICE",
    "GROUP_SERVICE",
    "HA_PORT",
    "HOPS_HEADER",
    "LANGUAGE_HEADER",
    "LEADER_TRAILER",
    "MESSAGING_SERVICE",
    "NAMESERVER_PORT",
    "NAMESPACE_HEADER",
    "PROTOCOL_HEADER",
    "PROTOCOL_V2",
    "QUEUE_HEADER",
    "REASON_TRAILER",
    "REGISTRY_SERVICE",
    "REPLICA_SERVICE",
    "REQUEST_ID_HEADER",
    "SUGGESTION_TRAILER",
    "VERSION_HEADER",
]

MESSAGING_SERVICE = "apache.rocketmq.v2.MessagingService"
ADMIN_SERVICE = "whimbrel.admin.v1.AdminService"
DEAD_LETTER_SERVICE = "whimbrel.admin.v1.DeadLetterService"
BULK_SERVICE = "whimbrel.bulk.v1.BulkService"
REGISTRY_SERVICE = "whimbrel.registry.v1.RegistryService"
CUT_SERVICE = "whimbrel.admin.v1.CutService"
ELECTION_ADMIN_SERVICE = "whimbrel.admin.v1.ElectionAdminService"
ELECTION_SERVICE = "whimbrel.replica.v1.ElectionService"
GROUP_SERVICE = "whimbrel.group.v1.GroupService"
REPLICA_SERVICE = "whimbrel.replica.v1.ReplicaService"

CLIENT_ID_HEADER = "x-mq-client-id"
LANGUAGE_HEADER = "x-mq-language"
VERSION_HEADER = "x-mq-client-version"
PROTOCOL_HEADER = "x-mq-protocol"
PROTOCOL_V2 = "v2"  # value of PROTOCOL_HEADER
NAMESPACE_HEADER = "x-mq-namespace"
REQUEST_ID_HEADER = "x-mq-request-id"
DATE_TIME_HEADER = "x-mq-date-time"

# Address of the client on whose behalf a server calls another one.
CLIENT_PEER_HEADER = "x-whimbrel-client-peer"

# The queue that a sender chose. The protocol's own field can't carry it: proto3 does not tell queue 0 from
# "not set", and SDKs that leave the choice to the broker send 0. A broker refuses a queue it does not have.
QUEUE_HEADER = "whimbrel-queue-id"

# How a call came here that another server handed on: each kind of hop at most once. Such a call is not handed
# on for that reason again. Names of hops, see rpc/server/forwarder.py, with commas between them.
HOPS_HEADER = "whimbrel-hops"

# Which broker id of the group a puller should ask next; set by brokers on PullMessage.
SUGGESTION_TRAILER = "whimbrel-suggest-broker-id"

# Reason of the error in the body of an OK call: several of our errors share one code of the client API
# (NotWritable and a bug are both 50001), and whether to retry differs.
REASON_TRAILER = "whimbrel-reason"

# Where the leader of the group serves, `host:port`; set by brokers that answer NotMaster, where they know it.
LEADER_TRAILER = "whimbrel-leader"

NAMESERVER_PORT = 8081
BROKER_PORT = 8091
HA_PORT = 10912  # RocketMQ's haListenPort
