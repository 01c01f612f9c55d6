"""The client library: producers, consumers, readers and administration, for asyncio.

`whimbrel.client.sync` has the same for programs without an event loop. Errors are those of `whimbrel.errors`.
May be used beside RocketMQ's official SDK in one process.

Public are the names of `__all__`, and of each class the methods and attributes that its docstring lists.
"""

from whimbrel.client.admin import Admin
from whimbrel.client.consumer import Consumer, Handler
from whimbrel.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from whimbrel.client.producer import Producer, QueueSelector
from whimbrel.client.pull import PullConsumer
from whimbrel.client.retry import RetryPolicy
from whimbrel.model.cluster import (
    BrokerStatus,
    ClientStatus,
    Cluster,
    GroupConfig,
    GroupDescription,
    GroupProgress,
    QueueState,
    ReplicationStatus,
    SlaveStatus,
    TopicConfig,
    TopicDescription,
)
from whimbrel.model.message import Message, MessageType, PullResult, ReceivedMessage, SendReceipt
from whimbrel.model.route import Endpoint, Queue, Route

__all__ = [
    "Admin",
    "BrokerStatus",
    "ClientOptions",
    "ClientStatus",
    "Cluster",
    "Consumer",
    "ConsumerOptions",
    "Endpoint",
    "GroupConfig",
    "GroupDescription",
    "GroupProgress",
    "Handler",
    "Message",
    "MessageType",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "Queue",
    "QueueSelector",
    "QueueState",
    "ReceivedMessage",
    "ReplicationStatus",
    "RetryPolicy",
    "Route",
    "SendReceipt",
    "SlaveStatus",
    "TopicConfig",
    "TopicDescription",
]
