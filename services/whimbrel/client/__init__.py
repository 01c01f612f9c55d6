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
from whimbrel.client.transactions import Transaction, TransactionCheck
from whimbrel.model.cluster import (
    AbsentBroker,
    BrokerStatus,
    ClientStatus,
    Cluster,
    DeadLetter,
    DeadLetterOutcome,
    DeadLetterResult,
    DrainStatus,
    GroupConfig,
    GroupDescription,
    GroupProgress,
    OffsetMove,
    QueueState,
    ReplicationStatus,
    SlaveStatus,
    TopicConfig,
    TopicDescription,
)
from whimbrel.model.message import (
    DeadLetterOrigin,
    Filter,
    Message,
    MessageType,
    PullResult,
    ReceivedMessage,
    Resolution,
    SendReceipt,
    SqlFilter,
)
from whimbrel.model.retry import Customized as CustomizedRetries
from whimbrel.model.retry import Exponential as ExponentialRetries
from whimbrel.model.route import Endpoint, Queue, Route
from whimbrel.model.topic import OrderedBy
from whimbrel.model.unasked import Unasked

__all__ = [
    "AbsentBroker",
    "Admin",
    "BrokerStatus",
    "ClientOptions",
    "ClientStatus",
    "Cluster",
    "Consumer",
    "ConsumerOptions",
    "CustomizedRetries",
    "DeadLetter",
    "DeadLetterOrigin",
    "DeadLetterOutcome",
    "DeadLetterResult",
    "DrainStatus",
    "Endpoint",
    "ExponentialRetries",
    "Filter",
    "GroupConfig",
    "GroupDescription",
    "GroupProgress",
    "Handler",
    "Message",
    "MessageType",
    "OffsetMove",
    "OrderedBy",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "Queue",
    "QueueSelector",
    "QueueState",
    "ReceivedMessage",
    "ReplicationStatus",
    "Resolution",
    "RetryPolicy",
    "Route",
    "SendReceipt",
    "SlaveStatus",
    "SqlFilter",
    "TopicConfig",
    "TopicDescription",
    "Transaction",
    "TransactionCheck",
    "Unasked",
]
