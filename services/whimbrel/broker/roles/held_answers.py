"""Which answers of an elected leader wait for a majority, and which calls wait for it to serve.

    call ──► not serving yet: NotReady (held by `leader_calls.py`) ──► its handler ──► `StateQuorum.hold`

    waits for leases     ReplayDeadLetters, DropDeadLetters
    waits for metadata   heartbeats of the remoting protocol, which make groups

RecallMessage and EndTransaction change the log alone, and wait for its commit (`timing/`, `transactions/`).
What sends, takes, settles, calls about positions and changes of tables wait for, the engine knows
(`engine/send.py`, `take.py`, `settle.py`, `positions.py`, `resets.py`, `tables.py`).

Requests of the remoting protocol wait likewise, by their codes. The offset that a pull carries is the
exception: its reply does not wait, since the client sends it again with the next one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from whimbrel.broker.cluster.leader_state import LeaderState
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.engine.send import KNOWN_ALREADY
from whimbrel.broker.roles.remoting_parts import CHANGING
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady
from whimbrel.model.wire import ADMIN_SERVICE, DEAD_LETTER_SERVICE, MESSAGING_SERVICE
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.handlers import Handle as RemotingHandle
from whimbrel.rpc.server.handlers import Method, RemotingService, ServerStreamMethod, Service, UnaryMethod

__all__ = ["READING", "REMOTING_METADATA", "HeldAnswers"]

Handle = Callable[[Any, Any], Any]

LEASES: Final = frozenset({"ReplayDeadLetters", "DropDeadLetters"})
R: Final = RequestCode
REMOTING_METADATA: Final = frozenset({R.HEART_BEAT})
READING: Final = frozenset(
    {
        R.PULL_MESSAGE,
        R.LITE_PULL_MESSAGE,
        R.GET_ALL_CONSUMER_OFFSET,
        R.GET_CONSUME_STATS,
        R.GET_BROKER_CONSUME_STATS,
        R.QUERY_CONSUME_TIME_SPAN,
        R.QUERY_CORRECTION_OFFSET,
    }
)
# What some peers may not ask for is refused as long before that is looked at.
REMOTING_SERVING: Final = (READING | CHANGING) - {R.UPDATE_BROKER_CONFIG}

# Not before this leader serves: what they read or change is not known before. Sends, and what else appends,
# are refused as long; receives are held by their own service.
SERVING: Final = LEASES | {"PullMessage"}


class HeldAnswers:
    """Wraps the services of an elected leader."""

    def __init__(self, state: LeaderState, *, why_not: Callable[[], str]) -> None:
        """Take what counts; `why_not` returns why this leader does not serve yet, "" once it does."""
        self.state, self.why_not = state, why_not

    def wrap(self, services: Sequence[Service]) -> list[Service]:
        """Return the services to serve."""
        return [
            Service(service.name, tuple(map(self.wrapped, service.methods)))
            if service.name in (MESSAGING_SERVICE, ADMIN_SERVICE, DEAD_LETTER_SERVICE)
            else service
            for service in services
        ]

    def wrap_remoting(self, service: RemotingService) -> RemotingService:
        """Return what is served by the remoting protocol."""
        handles: dict[int, RemotingHandle] = {}
        for code, handle in service.handles.items():
            if code in REMOTING_METADATA:
                handle = self.holding(handle, self.state.metadata, at_once=True)
            if code in REMOTING_SERVING:
                handle = self.serving(handle)
            handles[code] = handle
        return replace(service, handles=handles)

    def wrapped(self, method: Method) -> Method:
        """Return a method whose answers wait as long as they must."""
        if not isinstance(method, UnaryMethod | ServerStreamMethod):
            return method
        name, handle = method.name, method.handle
        if name in LEASES:
            handle = self.holding(handle, self.state.leases)
        if name in SERVING:
            handle = self.serving(handle)
        return method if handle is method.handle else replace(method, handle=handle)

    def serving(self, handle: Handle) -> Handle:
        """Return a handler that is called once this leader serves."""

        def serve(call: Any, request: Any) -> Any:
            if why := self.why_not():
                raise NotReady(why)
            return handle(call, request)

        return serve

    def holding(self, handle: Handle, quorum: StateQuorum, *, at_once: bool = False) -> Handle:
        """Return a handler whose answers wait for a majority.

        `at_once`: whatever it changes of that kind it has changed when it returns.
        """

        def hold(call: Any, request: Any) -> Any:
            try:
                answer = handle(call, request)
            except KNOWN_ALREADY as error:
                return quorum.hold(error)
            if isinstance(answer, Deferred):
                # What a send changes of metadata, it has changed by now.
                return answer if at_once and not quorum.behind else quorum.hold_later(answer)
            return quorum.hold(answer)

        return hold
