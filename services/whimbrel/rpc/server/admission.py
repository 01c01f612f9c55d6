"""Which connections a server lets in: so many in all, so many of a host, and some descriptors are for files.

    accepted ──enter──► let in ──leave──► gone
                └─────► refused: told why and closed, or closed at once when many are being told

A process that runs out of descriptors can open no file any more: a broker could write neither its tables nor
its offsets. So the number of connections follows from the process's limit (`machine.open_files_limit`), less
`reserved_files` of it. One host gets `HOST_CONNECTIONS_MAX` of them, and never all. A host is an IPv4
address, or the network of 64 bits that an IPv6 address belongs to, all of which is usually one machine's.
"""

from ipaddress import IPv6Address

__all__ = [
    "HOST_CONNECTIONS_MAX",
    "Admission",
    "Place",
    "connections_max",
    "network_of",
    "reserved_files",
]

FILES_RESERVED_MIN = 128  # a broker has some 60 files open; mapped queue files hold none
FILES_SHARE = 2  # one of so many descriptors is for files
HOST_CONNECTIONS_MAX = 2000  # clients behind one address of a NAT have one connection to a broker each
HOST_SHARE = 3, 4  # of all, where few are allowed: others must get in as well
TOLD_MAX = 64  # refused connections that are kept until their first byte, to be told why


def reserved_files(open_files: int) -> int:
    """Return how many descriptors connections must leave alone."""
    return max(FILES_RESERVED_MIN, open_files // FILES_SHARE)


def connections_max(open_files: int) -> int:
    """Return how many connections there may be where so many files may be open."""
    return max(1, open_files - reserved_files(open_files))


def network_of(host: str) -> str:
    """Return what connections of an address are counted by."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(IPv6Address(int(address) >> 64 << 64)) if mapped is None else str(mapped)


class Place:
    """What one connection has taken.

    Attributes:
        refused: why it is not let in; empty when it is.
        reason: the same in a word, for metrics: `process` or `host`.
        told: it may wait to be told why.
    """

    __slots__ = ("admission", "host", "left", "reason", "refused", "told")

    def __init__(self, admission: "Admission", host: str, *, reason: str = "", refused: str = "") -> None:
        self.admission, self.host = admission, host
        self.reason, self.refused = reason, refused
        self.told = self.left = False

    def leave(self) -> None:
        """Count the connection out; once, however often it is called."""
        if not self.left:
            self.left = True
            self.admission.left(self)


class Admission:
    """Counts connections, and decides on each.

    Attributes:
        total, by_host: how many there may be.
        open: how many there are; `hosts`: by network.
        telling: refused ones that wait to be told.
        refused: how many were refused since the start, by reason.
    """

    def __init__(self, total: int, by_host: int = HOST_CONNECTIONS_MAX) -> None:
        share, whole = HOST_SHARE
        self.total, self.by_host = total, min(by_host, max(1, total * share // whole))
        self.open = self.telling = 0
        self.hosts: dict[str, int] = {}
        self.refused = {"process": 0, "host": 0}

    def enter(self, host: str) -> Place:
        """Count a connection of an address in, or refuse it."""
        network = network_of(host)
        if self.open >= self.total:
            return self.refuse(
                network, "process", f"this process has {self.total} connections, as many as it takes"
            )
        count = self.hosts.get(network, 0)
        if count >= self.by_host:
            return self.refuse(network, "host", f"{network} has {count} connections, as many as a host gets")
        self.open += 1
        self.hosts[network] = count + 1
        return Place(self, network)

    def refuse(self, network: str, reason: str, text: str) -> Place:
        """Return the place of a refused connection."""
        self.refused[reason] += 1
        place = Place(self, network, reason=reason, refused=text)
        if self.telling < TOLD_MAX:
            self.telling += 1
            place.told = True
        return place

    def left(self, place: Place) -> None:
        """Count a connection out."""
        if place.refused:
            self.telling -= place.told
            return
        self.open -= 1
        count = self.hosts[place.host] - 1
        if count:
            self.hosts[place.host] = count
        else:
            del self.hosts[place.host]
