"""Ends of transactions (37), and the questions about those that nobody ends (39).

    310 with TRAN_MSG ──► half, whose reply names it by log and queue offset ──► 37 ──► commit, rollback
                            '──(undecided for long)──► 39 to a producer of PGROUP ──► 37

A request names the half by its physical offset and its queue offset, and the producer group, which must be
the half's property PGROUP. From there on it is a transaction like those of gRPC (`transactions/`), by topic
and message id: an end that comes twice changes nothing, where RocketMQ delivers twice, and a half that was
stored again for a check is still found by its old offsets. State 0 (unknown) is not answered, as in RocketMQ.

A question goes to one connection of the producer group, another one each time; where the group has none here
it goes to producers that speak gRPC.

RocketMQ: EndTransactionProcessor, AbstractTransactionalMessageCheckListener.
"""

from typing import Final, cast

from whimbrel.broker.produce.replay import host_bytes
from whimbrel.broker.remoting.records import NoRecord, RecordLog, read_at
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.transactions.records import open_transaction, with_check_times
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.broker.transactions.transactions import Ask, Transactions
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, InvalidTransactionId, WhimbrelError
from whimbrel.model.names import HALF_TOPIC
from whimbrel.model.properties import PRODUCER_GROUP
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error
from whimbrel.store.codec import RecordDraft, StoredMessage, encode_record

__all__ = ["EndTransactions"]

UNKNOWN = 0
RESOLUTIONS: Final = {8: Resolution.COMMIT, 12: Resolution.ROLLBACK}  # bits of the system flag


class EndTransactions:
    """Handles ends of transactions, and asks producers; on the loop's thread of a master."""

    def __init__(
        self, transactions: Transactions, log: RecordLog, clients: RemotingClients, otherwise: Ask
    ) -> None:
        """Take the transactions, and have producers asked by `ask`; `otherwise` asks those of gRPC."""
        self.transactions, self.log, self.clients, self.otherwise = transactions, log, clients, otherwise
        self.asked = 0
        transactions.ask = self.ask

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, peer: Peer, request: Command) -> Outcome:
        """Commit or roll back; answered when that is durable."""
        state = request.int32("commitOrRollback")
        if state != UNKNOWN and state not in RESOLUTIONS:
            raise BadRequest(f"commitOrRollback is {state}; 0 is unknown, 8 commits, 12 rolls back")
        if state == UNKNOWN:
            return None
        half = self.half(request)
        one = open_transaction(half)
        deferred: Deferred[Reply] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            deferred.complete(Reply() if error is None else reply_to_error(error))

        self.transactions.end(one.topic, one.transaction_id, "", RESOLUTIONS[state], answer)
        return deferred

    def half(self, request: Command) -> StoredMessage:
        """Return the half that a request names.

        Raises:
            InvalidTransactionId: there is none, or it is another one's.
        """
        place, queue_offset = request.int64("commitLogOffset"), request.int64("tranStateTableOffset")
        try:
            _, half = read_at(self.log, place)
        except NoRecord as error:
            raise InvalidTransactionId(f"there is no transaction: {error}") from error
        if half.topic != HALF_TOPIC or half.queue_offset != queue_offset:
            raise InvalidTransactionId(f"no half stands at {place}, queue offset {queue_offset}")
        group = request.text("producerGroup")
        if half.properties.get(PRODUCER_GROUP) != group:
            raise InvalidTransactionId(f"the transaction at {place} is not of producer group {group}")
        return half

    def ask(self, one: OpenTransaction, half: StoredMessage) -> bool | None:
        """Ask a live producer about a transaction; return whether one took the question, None without any."""
        members = self.clients.producers_of(half.properties.get(PRODUCER_GROUP, ""))
        if not members:
            return self.otherwise(one, half)
        fields = {
            "commitLogOffset": str(half.physical_offset),
            "tranStateTableOffset": str(half.queue_offset),
            "msgId": one.transaction_id,
            "transactionId": one.transaction_id,
            "offsetMsgId": half.offset_message_id,
        }
        body = question(one, half)
        for _ in range(len(members)):
            self.asked += 1
            peer = cast(Peer, members[self.asked % len(members)].peer)
            if peer.push(RequestCode.CHECK_TRANSACTION_STATE, fields, body):
                return True
        return False


def question(one: OpenTransaction, half: StoredMessage) -> bytes:
    """Return the half as a record of the topic and queue that it is for, with the question's number."""
    draft = RecordDraft(
        one.topic,
        one.queue_id,
        half.body,
        with_check_times(half.properties_raw, one.checks + 1),
        half.born_timestamp,
        host_bytes(half.born_host),
        half.store_host_raw,
        half.flag,
        half.sys_flag,
        half.reconsume_times,
        half.prepared_offset,
    )
    return encode_record(draft, half.physical_offset, half.queue_offset, half.store_timestamp)
