"""Which address of a broker a client is told: a pure function of how the client came.

A broker does not know under which name it is reached from outside, and hand-set addresses are RocketMQ's most
common trouble. But the client has reached the nameserver, and brokers stand where the nameserver stands: on
the same machine, in the same network of containers, or on a machine that the nameserver sees. From the access
point that the client used follows what it can dial. First rule that fits:

    1  the operator set the broker's host by hand       that host
    2  loopback (localhost, 127.*, ::1)                 the same text: a laptop, or published ports
    3  a name under which brokers dial the nameserver   the broker's own host name: inside compose
    4  an address of the nameserver's own interfaces    the same, for a broker of this machine; else the
                                                        address from which the broker came
    5  anything else                                    the same text: a machine that publishes our ports

The port is always the broker's, never the nameserver's.
"""

import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BrokerAddress",
    "Scheme",
    "access_host",
    "dial_address",
    "host_of",
    "is_loopback",
    "joined",
    "scheme_of",
]

Scheme = Literal["IPv4", "IPv6", "DOMAIN_NAME"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """What is known of where a broker is.

    Attributes:
        advertised_host: what it wants to be called; empty means its host name.
        advertised_explicitly: an operator set it.
        port: of its gRPC listener.
        host_name: of its machine or container.
        nameserver_host: the name under which it dials this nameserver.
        peer_host: the address from which its session comes.
    """

    advertised_host: str
    advertised_explicitly: bool
    port: int
    host_name: str
    nameserver_host: str
    peer_host: str


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, or None for a name; mapped IPv4 counts as IPv4."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def scheme_of(host: str) -> Scheme:
    """Return the kind of a host, as the client API names it."""
    address = address_of(host)
    if address is None:
        return "DOMAIN_NAME"
    return "IPv4" if address.version == 4 else "IPv6"


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine as only itself sees it."""
    address = address_of(host)
    return host.lower().rstrip(".") == "localhost" if address is None else address.is_loopback


def host_of(peer: str) -> str:
    """Return the host in `host:port`, without brackets; mapped IPv4 as IPv4."""
    host = peer.rpartition(":")[0].strip("[]")
    address = address_of(host)
    return host if address is None else str(address)


def joined(host: str, port: int) -> str:
    """Return `host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def access_host(hosts: Iterable[str], own: Collection[str]) -> str:
    """Return the host of a client's access point that stands for this nameserver.

    An access point may list several nameservers: an address of our own is ours, then loopback, else the
    first.
    """
    listed = [host.strip("[]") for host in hosts]
    for host in listed:
        if (address := address_of(host)) is not None and str(address) in own and not address.is_loopback:
            return host
    for host in listed:
        if is_loopback(host):
            return host
    return listed[0] if listed else ""


def dial_address(broker: BrokerAddress, access: str, own: Collection[str]) -> tuple[str, int]:
    """Return host and port under which a client that used `access` dials the broker.

    Args:
        access: host of the client's access point, as text; empty when it did not say.
        own: addresses of the nameserver's interfaces, as `str(ip_address)` writes them.
    """
    access = access.strip("[]")
    named = broker.advertised_host or broker.host_name or broker.peer_host
    if broker.advertised_explicitly and broker.advertised_host:
        return broker.advertised_host, broker.port
    if is_loopback(access):
        return access, broker.port
    address = address_of(access)
    if not access or (address is None and access.lower() == broker.nameserver_host.lower()):
        return named, broker.port
    if address is not None and str(address) in own:
        here = is_loopback(broker.peer_host) or broker.peer_host in own
        return (access if here or not broker.peer_host else broker.peer_host), broker.port
    return access, broker.port
