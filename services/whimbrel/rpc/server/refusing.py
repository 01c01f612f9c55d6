"""Methods that refuse every call: what a server offers while it can't do what they are for."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from whimbrel.errors import NotReady
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Method,
    Outbox,
    PulledStreamMethod,
    StreamHandler,
    UnaryMethod,
)

__all__ = ["refusing", "refusing_stream"]


class RefusedStream:
    """A stream that was ended as it began."""

    def received(self, message: Any) -> None:
        """Nothing: it is over."""

    def half_closed(self) -> None:
        """Nothing: it is over."""

    def closed(self) -> None:
        """Nothing: it held nothing."""


def refusing(method: Method, reason: str) -> Method:
    """Return a method of the same name and kind that raises NotReady with `reason`."""

    def refuse(call: Call, request: Any) -> Any:
        raise NotReady(reason)

    async def refuse_pull(call: Call, request: Any) -> AsyncGenerator[Any, None]:
        raise NotReady(reason)
        yield  # makes it a generator

    if isinstance(method, PulledStreamMethod):
        return replace(method, open=refuse_pull)
    if isinstance(method, BidiMethod):
        return replace(method, open=refusing_stream(reason))
    if isinstance(method, UnaryMethod):
        return replace(method, handle=refuse, lane=None)
    return replace(method, handle=refuse)


def refusing_stream(reason: str) -> Callable[[Call, Outbox], StreamHandler]:
    """Return what a `BidiMethod` opens to end every stream with NotReady."""

    def opened(call: Call, outbox: Outbox) -> StreamHandler:
        outbox.close(NotReady(reason))
        return RefusedStream()

    return opened
