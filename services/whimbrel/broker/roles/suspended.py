"""The services of a broker that has no role at the moment: one role has ended, the next has not started.

What needs no role goes on: clients keep their sessions and may ask for routes, members elect. Everything
else is refused with NotReady, which SDKs answer by trying again, here or elsewhere. In a group that elects
its leader, calls of clients are held instead, for a while, and served by the next role or handed on
(`api/leader_calls.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

from whimbrel.broker.api.leader_calls import LeaderCalls
from whimbrel.model.wire import MESSAGING_SERVICE
from whimbrel.rpc.server.handlers import Method, Service, UnaryMethod
from whimbrel.rpc.server.refusing import refusing

__all__ = ["suspended"]

WITHOUT_ROLE = frozenset(
    {
        "Telemetry",
        "Heartbeat",
        "NotifyClientTermination",
        "QueryRoute",
        "QueryAssignment",
        "Suspect",
        "Seal",
        "Switchover",
        "PauseElections",
        "SetVoters",
        "Empty",
        "Reinit",
        "Failover",
        "ListCuts",
        "ReadCut",
        "MarkCut",
    }
)


def suspended(services: Sequence[Service], reason: str, calls: LeaderCalls | None = None) -> list[Service]:
    """Return services with the same methods, of which those that need a role refuse with `reason`.

    Args:
        services: of the role that has ended.
        reason: for people, as a sentence.
        calls: what holds clients' calls, and has wrapped the services; None: nothing does.
    """
    held = frozenset() if calls is None else calls.suspend(reason)

    def without_role(service: Service, method: Method) -> Method:
        if method.name in WITHOUT_ROLE:
            return method
        if service.name != MESSAGING_SERVICE or method.name not in held:
            return refusing(method, reason)
        return replace(method, lane=None) if isinstance(method, UnaryMethod) else method

    return [
        Service(service.name, tuple(without_role(service, method) for method in service.methods))
        for service in services
    ]
