"""Ends of transactions (37), and the questions about those that nobody ends (39).

    310 with TRAN_MSG ──► half, whose reply names it by log and queue offset ──► 37 ──► commit, rollback
                            '──(undecided for long)──► 39 to a producer of PGROUP ──► 37

A request names the half by its physical offset and its queue offset, and the producer group
(`engine/ends.py`). State 0 (unknown) is not answered, as in RocketMQ.

A question goes to one connection of the producer group, another one each time; where the group has none here
it goes to producers that speak gRPC.

RocketMQ: EndTransactionProcessor, AbstractTransactionalMessageCheckListener.
"""

from typing import Final, cast

from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.produce.replay import host_bytes
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.transactions.records import with_check_times
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.broker.transactions.transactions import Ask
from whimbrel.errors import BadRequest
from whimbrel.model.properties import PRODUCER_GROUP
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply
from whimbrel.store.codec import RecordDraft, StoredMessage, encode_record

__all__ = ["EndTransactions"]

UNKNOWN = 0
RESOLUTIONS: Final = {8: Resolution.COMMIT, 12: Resolution.ROLLBACK}  # bits of the system flag


class EndTransactions:
    """Handles ends of transactions, and asks producers; on the loop's thread of a master."""

    def __init__(self, ends: Ends, clients: RemotingClients, otherwise: Ask) -> None:
        """Take what decides, and have producers asked by `ask`; `otherwise` asks those of gRPC."""
        self.ends, self.clients, self.otherwise = ends, clients, otherwise
        self.asked = 0
        ends.transactions.ask = self.ask

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
        ended = self.ends.by_place(
            request.int64("commitLogOffset"),
            request.int64("tranStateTableOffset"),
            request.text("producerGroup"),
            RESOLUTIONS[state],
        )
        return ended.mapped(lambda _: Reply())

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
