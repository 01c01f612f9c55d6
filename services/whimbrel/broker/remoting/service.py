"""The requests that a broker serves by the remoting protocol: which part of this package handles which code.

    clients.py     34 35 38 and 40           who consumes and produces, and what they subscribe to
    locks.py       41 42                     queues that ordered consumers have locked
    positions.py   14 15 29 30 31 32         offsets of groups and of queues
    pulls.py       11 361                    reads of one queue, now or when a message comes
    sends.py       10 310 320                messages of all kinds; plain_sends.py those that come together
    topics.py      17 200 202 351 ...        topics and groups
    long_reads.py  43 21 201 300 ...         when those that read whole tables have their turn

A role makes its handlers over what it has opened (`roles/role.py`), and the server serves them from then on.
While a broker has no role every request is answered with SYSTEM_BUSY.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from whimbrel.errors import NotReady
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Peer
from whimbrel.rpc.server.handlers import RemotingService

__all__ = ["remoting_service", "suspended_remoting"]


def remoting_service(
    parts: Iterable[Mapping[int, Handle]], closed: Callable[[Peer], None]
) -> RemotingService:
    """Return what is served: the handlers of all parts, each code once."""
    handles: dict[int, Handle] = {}
    for part in parts:
        for code, handle in part.items():
            assert code not in handles, f"code {code} is served twice"
            handles[code] = handle
    return RemotingService(handles, closed)


def suspended_remoting(service: RemotingService, reason: str) -> RemotingService:
    """Return a service that refuses the requests of another one with `reason`."""

    def refuse(peer: Peer, request: Command) -> NoReturn:
        raise NotReady(reason)

    return RemotingService(dict.fromkeys(service.handles, refuse), service.closed)
