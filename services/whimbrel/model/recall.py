"""Recall handles: the text that names a delayed message, as RocketMQ writes it.

URL-safe Base64, padded, of `v1 <topic> <broker name> <TIMER_OUT_MS + 1> <message id>`, with single spaces.
"""

import base64
import binascii
from typing import NamedTuple

from whimbrel.errors import BadRequest
from whimbrel.model.limits import TIME_MS_MAX

__all__ = ["RecallHandle"]

VERSION = "v1"
CHARS_MAX = 4096  # the longest names and ids of SDKs make fewer; this makes junk cheap to refuse


class RecallHandle(NamedTuple):
    """Which message is not to be delivered."""

    topic: str
    broker_name: str
    time_ms: int
    message_id: str

    def encode(self) -> str:
        """Return the text that the sender gets."""
        text = f"{VERSION} {self.topic} {self.broker_name} {self.time_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Read a handle.

        Raises:
            BadRequest: the text is none.
        """
        try:
            if len(text) > CHARS_MAX:
                raise ValueError("too long")
            data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
            version, topic, broker, time_ms, message_id = data.decode().split(" ", 4)
            if version != VERSION or not time_ms.isdecimal() or not message_id.strip():
                raise ValueError("not of this version")
            handle = cls(topic, broker, int(time_ms[:20]), message_id)
        except (ValueError, binascii.Error):
            raise BadRequest("the recall handle is not one of this cluster's") from None
        if not 0 < handle.time_ms <= TIME_MS_MAX:
            raise BadRequest("the recall handle names no time")
        return handle
