"""What the names in clients' access points mean here, looked up without blocking the event loop.

    unknown ──ask──► being looked up ──address, error, or LOOKUP_S──► known for KNOWN_S ──► unknown

Clients choose the names, so everything is bounded: a name that is too long, or one too many at a time, means
nothing, like an unknown one. Such a client counts as one that came through a published port.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from whimbrel.nameserver.addresses import Meanings, unclear_names

__all__ = ["Lookup", "Resolver", "system_lookup"]

# Our own name's address changes when a container is connected to another network.
KNOWN_S = 3.0
LOOKUP_S = 1.0  # clients wait 3 s for a route
LOOKUPS_MAX = 4  # at a time; libuv has so many threads for it
NAMES_MAX = 256  # remembered; a nameserver has a handful of names
NAME_CHARS_MAX = 253  # of DNS

Lookup = Callable[[str], Awaitable[Sequence[str]]]

logger = logging.getLogger(__name__)


async def system_lookup(name: str) -> list[str]:
    """Return the addresses of a name, from /etc/hosts or DNS.

    Raises:
        OSError: the name is unknown.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]).partition("%")[0] for *_, address in found]


class Resolver:
    """Looks names up and remembers them for a short while.

    Args:
        lookup: finds the addresses of a name.
        clock: seconds that never go back.
    """

    def __init__(
        self, lookup: Lookup = system_lookup, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lookup = lookup
        self.clock = clock
        self.known: dict[str, tuple[float, frozenset[str]]] = {}  # by name, until when, and addresses
        self.waiting: dict[str, list[Callable[[], None]]] = {}  # by name, callbacks of a look-up under way
        self.tasks: set[asyncio.Task[None]] = set()

    def when_known(self, hosts: Iterable[str], then: Callable[[Meanings], None]) -> None:
        """Call `then` with the meaning of all names among the hosts: at once when it is known, else later."""
        names = [name for name in unclear_names(hosts) if len(name) <= NAME_CHARS_MAX]
        now = self.clock()
        missing = {name for name in names if self.known.get(name, (now, ()))[0] <= now}
        if not missing:
            then({name: self.known[name][1] for name in names})
            return
        left = len(missing)

        def found() -> None:
            nonlocal left
            left -= 1
            if not left:
                then({name: self.known.get(name, (0.0, frozenset[str]()))[1] for name in names})

        for name in missing:
            self.find(name, found)

    def find(self, name: str, found: Callable[[], None]) -> None:
        """Look a name up, unless that is under way, and call `found`."""
        if name in self.waiting:
            self.waiting[name].append(found)
        elif len(self.waiting) >= LOOKUPS_MAX:
            found()
        else:
            self.waiting[name] = [found]
            task = asyncio.get_running_loop().create_task(self.look_up(name))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def look_up(self, name: str) -> None:
        """Look one name up, and call all that wait for it."""
        meaning: frozenset[str] = frozenset()
        try:
            with contextlib.suppress(OSError, UnicodeError, TimeoutError):
                async with asyncio.timeout(LOOKUP_S):
                    meaning = frozenset(map(plain, await self.lookup(name)))
        finally:
            self.known.pop(name, None)
            self.known[name] = (self.clock() + KNOWN_S, meaning)
            if len(self.known) > NAMES_MAX:
                del self.known[next(iter(self.known))]
            for found in self.waiting.pop(name):
                try:
                    found()
                except Exception:  # the other callbacks must run, too
                    logger.exception("an answer about %r failed", name)


def plain(address: str) -> str:
    """Return an address as `str(ip_address)` writes it; mapped IPv4 as IPv4."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
