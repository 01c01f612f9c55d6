"""Ends of transactions: whoever sent a half says whether its message is to be delivered.

A transaction is named by its topic and its message's id, or by where its half stands in the log and in the
queue of halves, and by the producer group that is its property PGROUP: so clients of RocketMQ 4 do. From
there on both are the same (`transactions/`): an end that comes twice changes nothing, where RocketMQ delivers
twice, and a half that was stored again for a check is still found by its old place.
"""

from whimbrel.broker.engine.detours import Producers
from whimbrel.broker.engine.records import NoRecord, RecordLog, read_at
from whimbrel.broker.transactions.records import open_transaction
from whimbrel.broker.transactions.table import Resolution
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.deferred import Deferred
from whimbrel.errors import InvalidTransactionId
from whimbrel.model.names import HALF_TOPIC, check_topic
from whimbrel.model.properties import PRODUCER_GROUP
from whimbrel.store.codec import StoredMessage

__all__ = ["Ends"]


class Ends:
    """Decides ends of transactions, on the loop's thread of a master."""

    def __init__(self, transactions: Transactions, log: RecordLog, producers: Producers) -> None:
        """Take the transactions, what halves are read of, and who is told of clients that end them."""
        self.transactions, self.log, self.producers = transactions, log, producers

    def by_id(
        self,
        topic: str,
        transaction_id: str,
        message_id: str,
        resolution: Resolution | None,
        client: str,
    ) -> Deferred[None]:
        """End a transaction; answer when that is durable.

        Args:
            topic, transaction_id, message_id, resolution: see `Transactions.end`, also for its errors.
            client: who ends it, and can be asked about others of the topic.

        Raises:
            InvalidTransactionId: the id is blank.
            IllegalTopic: no topic has such a name.
        """
        if not transaction_id.strip():
            raise InvalidTransactionId("the transaction id is blank")
        check_topic(topic)
        self.producers.name(topic, client)
        return self.end(topic, transaction_id, message_id, resolution)

    def by_place(self, place: int, queue_offset: int, group: str, resolution: Resolution) -> Deferred[None]:
        """End the transaction of a half that stands there; answer when that is durable.

        Args:
            place, queue_offset: in the log, and in the queue of halves.
            group: the producer group.
            resolution: whether its message is delivered.

        Raises:
            InvalidTransactionId: there is no such half, or it is another group's.
            WhimbrelError: as `Transactions.end`.
        """
        one = open_transaction(self.half(place, queue_offset, group))
        return self.end(one.topic, one.transaction_id, "", resolution)

    def half(self, place: int, queue_offset: int, group: str) -> StoredMessage:
        """Return the half that stands there."""
        try:
            _, half = read_at(self.log, place)
        except NoRecord as error:
            raise InvalidTransactionId(f"there is no transaction: {error}") from error
        if half.topic != HALF_TOPIC or half.queue_offset != queue_offset:
            raise InvalidTransactionId(f"no half stands at {place}, queue offset {queue_offset}")
        if half.properties.get(PRODUCER_GROUP) != group:
            raise InvalidTransactionId(f"the transaction at {place} is not of producer group {group}")
        return half

    def end(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution | None
    ) -> Deferred[None]:
        """Carry a decision out."""
        deferred: Deferred[None] = Deferred()
        self.transactions.end(
            topic, transaction_id, message_id, resolution, lambda error: deferred.settle(None, error)
        )
        return deferred
