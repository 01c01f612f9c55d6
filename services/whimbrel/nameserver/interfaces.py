"""The addresses of this machine's interfaces, from the kernel's own tables."""

import ipaddress
from pathlib import Path

__all__ = ["own_addresses", "parse_fib_trie", "parse_if_inet6"]

FIB_TRIE = Path("/proc/net/fib_trie")
IF_INET6 = Path("/proc/net/if_inet6")


def parse_fib_trie(text: str) -> set[str]:
    """Return the local IPv4 addresses: a leaf `|-- ADDRESS` followed by `/32 host LOCAL`."""
    found = set()
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"] and leaf:
            found.add(leaf)
    return found


def parse_if_inet6(text: str) -> set[str]:
    """Return the IPv6 addresses: the first word of each line, in 32 hexadecimal digits."""
    return {str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))) for line in text.splitlines() if line}


def own_addresses() -> frozenset[str]:
    """Return all addresses; none without Linux's tables, and clients then get the host that they used."""
    found: set[str] = set()
    for path, parse in ((FIB_TRIE, parse_fib_trie), (IF_INET6, parse_if_inet6)):
        try:
            found |= parse(path.read_text(encoding="ascii"))
        except OSError:
            continue
    return frozenset(found)
