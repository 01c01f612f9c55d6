"""The processes of this machine that listen at an address.

    /proc/net/tcp, tcp6   sockets that listen: address, port, inode
    /proc/PID/fd          who has a socket of that inode; those of other users may not be read

A proxy that stands before a broker, such as Docker's, is not the broker: it is left out.
"""

import os
import socket
from pathlib import Path

__all__ = ["listening_processes"]

LISTENING = "0A"  # the state of a socket (net/tcp_states.h)
PROXIES = frozenset(("docker-proxy", "rootlessport", "slirp4netns", "ssh", "kubectl", "socat"))
PROCESSES_MAX = 65_536  # that are looked at


def listening_processes(host: str, port: int) -> list[int]:
    """Return the ids of processes of this machine that listen there; empty where that can't be known."""
    if not is_local(host):
        return []
    try:
        inodes = listening_inodes(port)
        wanted = {f"socket:[{inode}]" for inode in inodes}
        found = [pid for pid in processes() if wanted and owns(pid, wanted)]
    except OSError:
        return []
    return [] if any(name_of(pid) in PROXIES for pid in found) else found


def is_local(host: str) -> bool:
    """Return whether an address is one of this machine's: whether a socket can be bound to it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(address)
    except OSError:
        return False
    return True


def listening_inodes(port: int) -> set[str]:
    """Return the inodes of sockets that listen at a port, at whatever address of this machine."""
    found = set()
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net") / name
        if not path.exists():
            continue
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def processes() -> list[int]:
    """Return the ids of the processes that run."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()][:PROCESSES_MAX]


def owns(pid: int, wanted: set[str]) -> bool:
    """Return whether a process has one of these sockets, as far as that may be read."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(link_of(Path(entry.path)) in wanted for entry in entries)
    except OSError:
        return False


def link_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
