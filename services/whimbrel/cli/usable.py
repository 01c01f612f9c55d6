"""Says why a cluster takes no messages, or waits until it does.

    python -m whimbrel.cli.usable ENDPOINT BROKERS [SECONDS]

`whimbrel dev` runs this in a process of its own when its master takes none, since `dev` forks, and grpcio
must not be used in a process that forks. One sentence is printed on standard output, nothing when messages
are taken; the exit code is 1 and 0.
"""

import sys
import time

from whimbrel.client import sync
from whimbrel.errors import WhimbrelError
from whimbrel.escapes import printable
from whimbrel.model.cluster import Cluster

__all__ = ["lacking", "main"]

POLL_S = 0.05


def lacking(cluster: Cluster, brokers: int) -> str:
    """Return why a cluster does not accept messages, "" when it does."""
    if not cluster.settled:
        return "the nameserver is not settled yet"
    if len(cluster.brokers) < brokers:
        return f"{len(cluster.brokers)} of {brokers} brokers are registered"
    masters = cluster.masters()
    if len(masters) > 1 and not all(master.writable for master in masters):
        names = ", ".join(master.broker_name for master in masters if not master.writable)
        return f"{names} takes no messages; `whimbrel replication status` and its log say why"
    if not any(master.writable for master in masters):
        return "the master takes no messages; `whimbrel replication status` and its log say why"
    return ""


def main(endpoint: str, brokers: int, seconds: float = 0.0) -> int:
    """Look again and again for so long, once at least; print what is lacking, and return the exit code."""
    deadline = time.monotonic() + seconds
    with sync.Admin(endpoint) as admin:
        while True:
            try:
                lack = lacking(admin.cluster(), brokers)
            except WhimbrelError as error:
                lack = str(error)
            if not lack:
                return 0
            if time.monotonic() >= deadline:
                print(printable(lack))
                return 1
            time.sleep(POLL_S)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:4])))
