"""Waits until a cluster that has just started takes messages.

    python -m whimbrel.cli.usable ENDPOINT BROKERS SECONDS

A nameserver answers nothing for sure until brokers had one renewal period to find it, and a master takes no
messages before that. `whimbrel dev` runs this beside its children, in a process of its own, because it forks:
a process that forks had better not use grpcio. Exit code 1, and one sentence on standard output, when the
time was not enough.
"""

import sys
import time

from whimbrel.client import sync
from whimbrel.errors import WhimbrelError

__all__ = ["lacking", "main"]

POLL_S = 0.05


def lacking(admin: sync.Admin, brokers: int) -> str:
    """Return what keeps the cluster from taking messages, "" when nothing does."""
    cluster = admin.cluster()
    if not cluster.settled:
        return "the nameserver is not settled yet"
    if len(cluster.brokers) < brokers:
        return f"{len(cluster.brokers)} of {brokers} brokers are registered"
    if not any(master.writable for master in cluster.masters()):
        return "the master takes no messages; `whimbrel replication status` and its log say why"
    return ""


def main(endpoint: str, brokers: int, seconds: float) -> int:
    """Wait; return the exit code."""
    deadline, lack = time.monotonic() + seconds, "no answer"
    with sync.Admin(endpoint) as admin:
        while time.monotonic() < deadline:
            try:
                lack = lacking(admin, brokers)
            except WhimbrelError as error:
                lack = str(error)
            if not lack:
                return 0
            time.sleep(POLL_S)
    print(lack)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
