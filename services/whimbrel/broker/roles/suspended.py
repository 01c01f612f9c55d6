"""The services of a broker that has no role at the moment: one role has ended, the next has not started.

What needs no role goes on: clients keep their sessions and may ask for routes, members elect. Everything
else is refused with NotReady, which SDKs answer by trying again, here or elsewhere.
"""

from collections.abc import Sequence

from whimbrel.rpc.server.handlers import Service
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
    }
)


def suspended(services: Sequence[Service], reason: str) -> list[Service]:
    """Return services with the same methods, of which those that need a role refuse with `reason`."""
    return [
        Service(
            service.name,
            tuple(
                method if method.name in WITHOUT_ROLE else refusing(method, reason)
                for method in service.methods
            ),
        )
        for service in services
    ]
