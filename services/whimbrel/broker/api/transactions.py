"""Transactions at the edge: EndTransaction, and the questions to producers.

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
from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.transactions.table import OpenTransaction, Resolution
from whimbrel.errors import Throttled
from whimbrel.model.wire import CLIENT_ID_HEADER, REGISTRY_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry_pb
from whimbrel.rpc.server.forwarder import TO_NAMESERVER, Forwarder, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import StoredMessage

__all__ = ["TransactionService"]

logger = logging.getLogger(__name__)

ASK_PRODUCER = f"/{REGISTRY_SERVICE}/AskProducer"
RESOLUTIONS: dict[Any, Resolution] = {v2.COMMIT: Resolution.COMMIT, v2.ROLLBACK: Resolution.ROLLBACK}


class TransactionService:
    """The calls about transactions. On the loop's thread."""

    def __init__(
        self,
        ends: Ends,
        sessions: SessionService,
        forwarder: Forwarder,
        nameservers: Callable[[], Sequence[str]],
    ) -> None:
        """Take what decides, and have producers asked by `ask`.

        Args:
            ends: of the transactions whose producers are asked.
            sessions: of the clients here.
            forwarder: hands questions on.
            nameservers: addresses of those that hold our registration.
        """
        self.ends, self.sessions = ends, sessions
        self.forwarder, self.nameservers = forwarder, nameservers
        ends.transactions.ask = self.ask

    def end(self, call: Call, request: Any) -> Any:
        """Commit or roll back; answered when that is durable."""
        ended = self.ends.by_id(
            request.topic.name,
            request.transaction_id,
            request.message_id,
            RESOLUTIONS.get(request.resolution),
            call.metadata.get(CLIENT_ID_HEADER, ""),
        )
        return ended.mapped(lambda _: messaging.EndTransactionResponse(status=OK))

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
