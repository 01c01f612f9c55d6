"""Messages that a consumer could not deal with (36): the fields of the request, and the reply.

What becomes of them: `engine/send_back.py`. Why a record could not be stored has code 1, as by RocketMQ.
"""

from dataclasses import replace

from whimbrel.broker.engine.send_back import SendBacks
from whimbrel.broker.remoting.sends import VERSION_WITH_MAXIMUM
from whimbrel.errors import WhimbrelError
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error

__all__ = ["SendBackRequests"]


class GivenBack:
    """What a request says of a message; see `engine/send_back.py GivenBack`."""

    def __init__(self, request: Command) -> None:
        self.request = request

    @property
    def group(self) -> str:
        return self.request.text("group")

    @property
    def level(self) -> int:
        return self.request.int32("delayLevel")

    @property
    def place(self) -> int:
        return self.request.int64("offset")

    @property
    def retries_max(self) -> int | None:
        request = self.request
        told = request.version >= VERSION_WITH_MAXIMUM and "maxReconsumeTimes" in request.fields
        return request.int32("maxReconsumeTimes") if told else None


class SendBackRequests:
    """Handles messages that are sent back, on the loop's thread of a master."""

    def __init__(self, backs: SendBacks) -> None:
        """Take what decides about them."""
        self.backs = backs

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, peer: Peer, request: Command) -> Outcome:
        """Store a message again for the group."""
        answer = self.backs.take(GivenBack(request))
        return Reply() if answer is None else answer.mapped(reply_of)


def reply_of(error: WhimbrelError | None) -> Reply:
    """Return the reply once a record is durable, or why it is not."""
    return Reply() if error is None else replace(reply_to_error(error), code=ResponseCode.SYSTEM_ERROR)
