"""Which address of a broker a client is given: a pure function of how the client reached the nameserver.

A broker does not know under which name it is reached from outside, and hand-set addresses are RocketMQ's most
common trouble. But the client has reached the nameserver, and brokers are where the nameserver is: on the
same machine, in the same network of containers, or on a machine that the nameserver reaches. So it depends on
whether the client is there, too:

    access point                           came from                  the client
    loopback (localhost, 127.*, ::1)       the nameserver's machine   is direct
    loopback                               anywhere else              came through a published port
    means one of our own interfaces        anywhere                   is direct
    means the address of a broker          anywhere                   is direct: the broker asks for it
    none                                   anywhere                   is direct
    anything else                          anywhere                   came through a published port

A direct client gets an address of the kind that it used, the other one the only host that it is known to
reach. The first line that fits:

    the operator set the broker's host     that host
    published port                         the client's own text: ports are published as they are
    direct, broker on our machine          the client's own text
    direct, loopback or an address         the address from which the broker's session comes
    direct, a name, or nothing             the broker's own host name: the service's, inside compose

The port is always the broker's, never the nameserver's. What a name means is looked up by the caller
(`resolver.py`) and passed in; a name without a meaning is not ours.
"""

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

__all__ = [
    "Access",
    "BrokerAddress",
    "Meanings",
    "Scheme",
    "access_of",
    "dial_address",
    "host_of",
    "is_loopback",
    "joined",
    "scheme_of",
    "unclear_names",
]

Scheme = Literal["IPv4", "IPv6", "DOMAIN_NAME"]
HOSTS_MAX = 1024  # of which it is remembered what they are
CACHED_CHARS_MAX = 64  # of such a host: a stranger's long name takes no room
# Names, to the addresses that they mean, as `str(ip_address)` writes them.
Meanings = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """What is known of where a broker is.

    Attributes:
        advertised_host: the host that it registers; empty means its host name.
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
    return parsed(host) if len(host) > CACHED_CHARS_MAX else cached(host)


def parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address, or return None for a name."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


# One request asks for the same few hosts half a dozen times, and all requests of a client do.
cached = lru_cache(HOSTS_MAX)(parsed)


def scheme_of(host: str) -> Scheme:
    """Return the kind of a host in the client API's words."""
    address = address_of(host)
    if address is None:
        return "DOMAIN_NAME"
    return "IPv4" if address.version == 4 else "IPv6"


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback name or address."""
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


@dataclass(frozen=True, slots=True)
class Access:
    """How a client reached the nameserver.

    Attributes:
        host: of its access point, as text; empty when the request has none.
        direct: it is in the same network as the nameserver and the brokers.
    """

    host: str
    direct: bool


def unclear_names(hosts: Iterable[str]) -> list[str]:
    """Return the hosts of access points whose meaning `access_of` needs."""
    return [host for host in hosts if host and address_of(host) is None and not is_loopback(host)]


def access_of(
    hosts: Iterable[str],
    *,
    peer: str,
    own: Collection[str],
    meanings: Meanings,
    brokers: Collection[str] = (),
) -> Access:
    """Return how a client reached the nameserver.

    An access point may list several nameservers: a host that is ours comes first, then loopback, else the
    first one of the list.

    Args:
        hosts: of the client's access point.
        peer: address from which the client came.
        own: addresses of the nameserver's interfaces, as `str(ip_address)` writes them.
        meanings: of `unclear_names(hosts)`, as far as they are known here.
        brokers: addresses from which brokers' sessions come. Some SDKs send to brokers what is meant for the
            nameserver, and name that broker as their access point.
    """
    listed = [host.strip("[]") for host in hosts if host]
    if not listed:
        return Access("", direct=True)
    for ours in (own, brokers):
        for host in listed:
            if not is_loopback(host) and means(host, ours, meanings):
                return Access(host, direct=True)
    for host in listed:
        if is_loopback(host):
            return Access(host, direct=is_loopback(peer) or peer in own)
    return Access(listed[0], direct=False)


def means(host: str, addresses: Collection[str], meanings: Meanings) -> bool:
    """Return whether a host is one of these addresses.

    A name that means loopback is this machine's own, as Debian's /etc/hosts has it, unless brokers are asked
    for, which are elsewhere.
    """
    address = address_of(host)
    if address is not None:
        return str(address) in addresses
    found = meanings.get(host, ())
    return any(each in addresses for each in found) or (
        any(map(is_loopback, found)) and any(map(is_loopback, addresses))
    )


def dial_address(broker: BrokerAddress, access: Access, own: Collection[str]) -> tuple[str, int]:
    """Return host and port under which such a client dials the broker."""
    if broker.advertised_explicitly and broker.advertised_host:
        return broker.advertised_host, broker.port
    if not access.direct:
        return access.host, broker.port
    here = is_loopback(broker.peer_host) or broker.peer_host in own
    if access.host and (here or not broker.peer_host):
        return access.host, broker.port
    if access.host and (address_of(access.host) is not None or is_loopback(access.host)):
        return broker.peer_host, broker.port
    return broker.advertised_host or broker.host_name or broker.peer_host, broker.port
