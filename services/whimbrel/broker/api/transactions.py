"""Transactions at the edge: the detour of halves, EndTransaction, and the questions to producers.

A question goes over the Telemetry stream of a client that names the topic (`rpc/server/producers.py`), to
another one each time; its answer is an EndTransaction like any other. Where no stream to this broker takes
it, nameservers are asked for one, one after the other.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from whimbrel.broker.api.message_codec import delivered
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.produce.admission import MessageExtras
from whimbrel.broker.transactions.records import make_half
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.deferred import Deferred
from whimbrel.errors import InvalidTransactionId, Throttled, WhimbrelError
from whimbrel.model.names import check_topic
from whimbrel.model.topic import MessageType
from whimbrel.model.wire import CLIENT_ID_HEADER, REGISTRY_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry_pb
from whimbrel.rpc.server.forwarder import TO_NAMESERVER, Forwarder, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import RecordDraft, StoredMessage

__all__ = ["TransactionService"]

logger = logging.getLogger(__name__)

ASK_PRODUCER = f"/{REGISTRY_SERVICE}/AskProducer"
RESOLUTIONS: dict[Any, Resolution] = {v2.COMMIT: Resolution.COMMIT, v2.ROLLBACK: Resolution.ROLLBACK}


class TransactionService:
    """The calls about transactions, and the detour of their messages. On the loop's thread."""

    def __init__(
        self,
        transactions: Transactions,
        sessions: SessionService,
        forwarder: Forwarder,
        nameservers: Callable[[], Sequence[str]],
    ) -> None:
        """Take the transactions, and have producers asked by `ask`.

        Args:
            transactions: whose producers are asked.
            sessions: of the clients here.
            forwarder: hands questions on.
            nameservers: addresses of those that hold our registration.
        """
        self.transactions, self.sessions = transactions, sessions
        self.forwarder, self.nameservers = forwarder, nameservers
        transactions.ask = self.ask

    # The detour

    def sent(self, call: Call, kind: MessageType, topic: str) -> None:
        """Note who sends halves: it can be asked about them."""
        if kind is MessageType.TRANSACTION:
            self.sessions.producers.name(topic, call.metadata.get(CLIENT_ID_HEADER, ""))

    def redirect(self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras]) -> list[RecordDraft]:
        """Return the half of a transaction's message."""
        self.transactions.check_room()
        for draft in drafts:
            make_half(draft)
        return list(drafts)

    def appended(self, drafts: Sequence[RecordDraft], places: Sequence[Any]) -> None:
        """Nothing: halves are taken up from their queue, when something is asked about them."""

    def stored(self, entry: Any, draft: RecordDraft, place: Any) -> None:
        """Name the transaction in the response."""
        entry.transaction_id = draft.keys[0]

    # Calls

    def end(self, call: Call, request: Any) -> Any:
        """Commit or roll back; answered when that is durable."""
        topic, transaction_id = request.topic.name, request.transaction_id
        if not transaction_id.strip():
            raise InvalidTransactionId("the transaction id is blank")
        check_topic(topic)
        self.sessions.producers.name(topic, call.metadata.get(CLIENT_ID_HEADER, ""))
        deferred: Deferred[Any] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if error is None:
                deferred.complete(messaging.EndTransactionResponse(status=OK))
            else:
                deferred.fail(error)

        self.transactions.end(
            topic, transaction_id, request.message_id, RESOLUTIONS.get(request.resolution), answer
        )
        return deferred

    # Questions

    def ask(self, one: OpenTransaction, half: StoredMessage) -> bool | None:
        """Ask a live producer of the topic; return whether one took the question, None without any.

        A question that goes to nameservers counts as taken: whether they know a producer is logged later.
        """
        command = messaging.TelemetryCommand()
        orphaned = command.recover_orphaned_transaction_command
        orphaned.transaction_id = one.transaction_id
        orphaned.message.CopyFrom(delivered(replace(half, topic=one.topic, queue_id=one.queue_id)))
        took = self.sessions.producers.ask_one(
            one.topic, lambda client_id: self.sessions.send_to_newest(command, client_id)
        )
        targets = [Target(address, address) for address in self.nameservers()]
        if took or not targets:
            return took
        request = registry_pb.AskProducerRequest(topic=one.topic, question=orphaned)
        call = Call(ASK_PRODUCER, "", {}, None)
        decode = registry_pb.AskProducerResponse.FromString
        try:
            asked = self.forwarder.forward(
                call, request, targets, TO_NAMESERVER, decode, accept=lambda answer: answer.asked
            )
        except Throttled:
            return False

        def over() -> None:
            if asked.result is None or not asked.result.asked:
                logger.info("transaction %s of %s: no producer could be asked", one.transaction_id, one.topic)

        asked.waker = over
        return True
