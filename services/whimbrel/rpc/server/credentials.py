"""Says that credentials are ignored, for as long as there is no access control.

SDKs send `authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=..., Signature=...` with each call.
Whoever configures keys expects them to be checked, so the log tells that they are not: once, then once in
`REPEAT_S` with how many there were. It is looked at only where a client begins (Telemetry, QueryRoute), so
that a send pays nothing. Python's SDK sends the header without keys, too (`Credential=,`): that is no
credential.
"""

import logging

from whimbrel.rpc.server.handlers import Call

__all__ = ["AUTHORIZATION_HEADER", "REPEAT_S", "IgnoredCredentials", "access_key_of"]

AUTHORIZATION_HEADER = "authorization"
REPEAT_S = 3600.0
KEY_CHARS_MAX = 64  # of a key in the log

logger = logging.getLogger(__name__)


class IgnoredCredentials:
    """Counts the calls whose credentials were ignored, and warns of them.

    Attributes:
        count: of such calls since the start.
    """

    def __init__(self) -> None:
        self.count = 0
        self.warned_at: float | None = None

    def note(self, call: Call, now: float) -> None:
        """Look at a call's credentials; `now` is in seconds of a monotonic clock."""
        text = call.metadata.get(AUTHORIZATION_HEADER)
        key = access_key_of(text) if text else ""
        if not key:
            return
        self.count += 1
        if self.warned_at is not None and now - self.warned_at < REPEAT_S:
            return
        self.warned_at = now
        logger.warning(
            "credentials are ignored: this version has no access control, and who reaches this port may do"
            " everything; %s sent the access key %r (calls with credentials so far: %d)",
            call.peer,
            key[:KEY_CHARS_MAX],
            self.count,
        )


def access_key_of(text: str) -> str:
    """Return the access key in an `authorization` header; empty when there is none."""
    _, _, fields = text.partition(" ")
    for field in fields.split(","):
        name, _, value = field.strip().partition("=")
        if name == "Credential":
            return value.strip().partition("/")[0]
    return ""
