"""Requests that tools have this broker put to a client, and whose response they get as it is.

    307  GET_CONSUMER_RUNNING_INFO   what a consumer is doing (`consumerStatus`)
    309  CONSUME_MESSAGE_DIRECTLY    it is to consume one message now (`queryMsgById -g -d`)

    tool ──307──► broker ──307, on the client's connection──► client
         ◄──its response, code and body──      ◄──response, or none within ANSWER_S: 207──

A client that is no live member of the group is 1. RocketMQ: AdminBrokerProcessor.callConsumer.
"""

import re
from typing import Final, cast

from whimbrel.broker.engine.records import RecordLog, read_at
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, RequestTimeout
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["ANSWER_S", "RemotingClientCalls", "place_in"]

ANSWER_S = 10.0  # RocketMQ's
# An offset message id: host and port, of IPv4 or IPv6, and a place in the log.
MESSAGE_ID: Final = re.compile(r"(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})([0-9A-Fa-f]{16})")


class RemotingClientCalls:
    """Hands such requests on. On the loop's thread."""

    def __init__(self, clients: RemotingClients, log: RecordLog, *, broker_name: str) -> None:
        """Take the members, and the log with the messages."""
        self.clients, self.log, self.broker_name = clients, log, broker_name

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
        }

    def running_info(self, peer: Peer, request: Command) -> Outcome:
        """Ask a consumer what it is doing."""
        return self.hand_on(request, dict(request.fields), b"")

    def consume(self, peer: Peer, request: Command) -> Outcome:
        """Have a consumer consume a message."""
        record, _ = read_at(self.log, place_in(request.text("msgId")))
        return self.hand_on(request, {**request.fields, "brokerName": self.broker_name}, record)

    def hand_on(self, request: Command, fields: dict[str, str], body: bytes) -> Outcome:
        """Put a request to a member of a group, and return its response."""
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        found = self.clients.group(group)
        members = [] if found is None else list(found.members.values())
        mine = [member for member in members if member.identity.client_id == client_id]
        if not mine:
            return Reply(
                ResponseCode.SYSTEM_ERROR, remark=f"client {client_id} of group {group} is not online here"
            )
        asked = cast(Peer, mine[-1].peer).ask(request.code, fields, body, ANSWER_S)
        answer: Deferred[Reply] = Deferred()
        answer.on_cancel = asked.cancel

        def answered() -> None:
            if isinstance(asked.error, RequestTimeout):
                answer.complete(Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=str(asked.error)))
            elif asked.error is not None:
                answer.fail(asked.error)
            else:
                response = cast(Command, asked.result)
                answer.complete(
                    Reply(
                        response.code,
                        response.fields,
                        [response.body] if response.body else (),
                        response.remark,
                    )
                )

        asked.waker = answered
        if asked.done:
            answered()
        return answer


def place_in(message_id: str) -> int:
    """Return the place in the log that an offset message id names.

    Raises:
        BadRequest: it is none.
    """
    found = MESSAGE_ID.fullmatch(message_id)
    place = -1 if found is None else int(found[1], 16)
    if not 0 <= place < 1 << 63:
        raise BadRequest(f"no id of a message in a log: {message_id[:64]!r}")
    return place
