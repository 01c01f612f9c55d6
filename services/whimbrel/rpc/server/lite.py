"""Lite topics (RocketMQ 5.5), which are left out: refused with a status wherever SDKs ask for them."""

from typing import Any

from whimbrel.errors import LeftOut
from whimbrel.rpc.server.handlers import Call

__all__ = ["refuse_lite"]


def refuse_lite(call: Call, request: Any) -> Any:
    """Refuse the subscriptions of lite consumers, whose topics are not here either."""
    raise LeftOut("lite topics are not supported: use a topic of another type")
