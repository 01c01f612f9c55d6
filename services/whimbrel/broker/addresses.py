"""The addresses under which a broker, its records and its replicator are known."""

import contextlib
import socket

from whimbrel.broker.options import BrokerOptions
from whimbrel.model.registration import replicator_host
from whimbrel.model.route import WILDCARD_HOSTS
from whimbrel.store.codec import pack_host
from whimbrel.store.page_processes import Processes

__all__ = ["advertised_host", "ha_address", "store_host"]


def advertised_host(options: BrokerOptions) -> str:
    """Return the host that clients are told; empty leaves the choice to the nameserver."""
    return options.advertise_host or ("" if options.host in WILDCARD_HOSTS else options.host)


def store_host(options: BrokerOptions, port: int) -> bytes:
    """Return this broker's address as records hold it; a name or a wildcard is resolved."""
    for host in (options.advertise_host, options.host, socket.gethostname()):
        if host in WILDCARD_HOSTS:
            continue
        with contextlib.suppress(OSError, ValueError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return pack_host(str(found[0][4][0]), port)
    return pack_host("127.0.0.1", port)


def ha_address(options: BrokerOptions, page: Processes) -> str:
    """Return where slaves reach the replicator beside this broker; empty while none listens."""
    if not page.ha_port:
        return ""
    ours = options.advertise_host or options.host
    host = replicator_host(page.ha_host, own_name=socket.gethostname(), ours=ours)
    return f"[{host}]:{page.ha_port}" if ":" in host else f"{host}:{page.ha_port}"
