"""Waits until a cluster that has just started takes messages.

    python -m whimbrel.cli.usable ENDPOINT BROKERS SECONDS

A nameserver does not answer for certain until brokers had one renewal period to register, and a master
accepts no messages before that. `whimbrel dev` runs this in a process of its own, since `dev` forks, and
grpcio must not be used in a process that forks. On a timeout, the exit code is 1, and one sentence is printed
on standard output.
"""

import sys
import time

from whimbrel.client import sync
from whimbrel.errors import WhimbrelError

__all__ = ["lacking", "main"]

POLL_S = 0.05


def lacking(admin: sync.Admin, brokers: int) -> str:
    """Return why the cluster does not accept messages, "" when it does."""
    cluster = admin.cluster()
    if not cluster.settled:
        return "the nameserver is not settled yet"
    if len(cluster.brokers) < brokers:
        return f"{len(cluster.brokers)} of {brokers} brokers are registered"
    if not any(master.writable for master in cluster.masters()):
        return "the master takes no messages; `whimbrel replication status` and its log say why"
    return ""


def main(endpoint: str, brokers: int, seconds: float) -> int:
    """Wait until the cluster accepts messages; return the exit code."""
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
