"""Replies of request-reply messaging (324, 325): handed to whoever asked, on its own connection.

    requester ──310, REPLY_TO_CLIENT=its id──► broker ──► replier ──325──► broker ──326──► requester

The reply is answered once the requester has taken it, within `ASK_S`, and is stored in
`<cluster>_REPLY_TOPIC` as well, as RocketMQ does by default. A requester that is gone is an error: nobody
waits for the reply.

RocketMQ: ReplyMessageProcessor.
"""

from collections.abc import Callable
from typing import cast

from whimbrel.broker.remoting.send_header import properties_text, read_header
from whimbrel.broker.remoting.sends import SendRequests, failed
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, Unavailable, WhimbrelError
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["Replies"]

ASK_S = 10.0  # RocketMQ's; the requester's own time is in the message
REPLY_TO, PUSH_TIME = "REPLY_TO_CLIENT", "PUSH_REPLY_TIME"


class Replies:
    """Handles replies on the loop's thread."""

    def __init__(
        self,
        sends: SendRequests,
        clients: RemotingClients,
        *,
        clock: Callable[[], int],
        store_host: Callable[[], str],
    ) -> None:
        """Take what stores, and who is connected.

        Args:
            clock: epoch milliseconds. store_host: this broker's address, `host:port`.
        """
        self.sends, self.clients, self.clock, self.store_host = sends, clients, clock, store_host

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return dict.fromkeys((RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2), self.reply)

    def reply(self, peer: Peer, request: Command) -> Outcome:
        """Hand a reply to the client that waits for it, and store it."""
        try:
            return self.hand_over(peer, request)
        except WhimbrelError as error:
            return failed(error)

    def hand_over(self, peer: Peer, request: Command) -> Outcome:
        """Send the reply to its client."""
        header = read_header(request)
        client = header.properties.get(REPLY_TO, "")
        if not client:
            raise BadRequest(f"the reply has no property {REPLY_TO}")
        waiting = self.clients.connections_of(client)
        if not waiting:
            raise Unavailable(f"the client {client}, which asked, is not connected here")
        self.sends.sends.appender.check_writable()
        now_ms = self.clock()
        properties = header.properties | {PUSH_TIME: str(now_ms)}
        fields = {
            "producerGroup": request.fields.get("a") or request.fields.get("producerGroup", ""),
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_queues),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_ms),
            "flag": str(header.flag),
            "properties": properties_text(properties).decode(),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "false",
            "bornHost": f"/{peer.peer}",
            "storeHost": f"/{self.store_host()}",
            "storeTimestamp": str(now_ms),
        }
        requester = cast(Peer, waiting[0])
        asked = requester.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body, ASK_S)
        deferred: Deferred[Reply] = Deferred()

        def answered() -> None:
            taken = asked.result
            if taken is None or taken.code != ResponseCode.SUCCESS:
                why = str(asked.error) if taken is None else taken.remark or f"code {taken.code}"
                deferred.complete(failed(Unavailable(f"the client {client} has not taken the reply: {why}")))
                return
            stored = self.sends.send(peer, request)
            if isinstance(stored, Deferred):
                deferred.follow(stored)
            else:
                assert stored is not None
                deferred.complete(stored)

        asked.waker = answered
        return deferred
