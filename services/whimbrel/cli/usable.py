"""Says why a cluster takes no messages, or waits until it does.

    python -m whimbrel.cli.usable ENDPOINT BROKERS [SECONDS [REFUSED_SECONDS]]

`whimbrel dev` runs this in a process of its own when its master takes none, since `dev` forks, and grpcio
must not be used in a process that forks. One sentence is printed on standard output, nothing when messages
are taken; the exit code is 1 and 0. A master that has given the same reason for REFUSED_SECONDS is not waited
for any longer.
"""

import math
import sys
import time
from collections.abc import Sequence

from whimbrel.client import sync
from whimbrel.errors import WhimbrelError
from whimbrel.escapes import printable
from whimbrel.model.cluster import Cluster
from whimbrel.model.health import View

__all__ = ["lacking", "main", "refusals"]

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


def refusals(views: Sequence[View]) -> str:
    """Return what masters that take no messages say of that themselves, in one sentence; "" if nothing."""
    return "; ".join(
        f"{view.broker_name}: {view.advice}"
        for view in views
        if not isinstance(view, tuple) and view.role == "master" and not view.writable and view.advice
    )


def main(endpoint: str, brokers: int, seconds: float = 0.0, refused_s: float = math.inf) -> int:
    """Look again and again until messages are taken; print what is lacking, and return the exit code.

    Args:
        endpoint: the nameserver's address.
        brokers: how many there are to be.
        seconds: for so long at most; once at least.
        refused_s: for so long at most while masters give the same reason.
    """
    begun = same_since = time.monotonic()
    refused = ""
    with sync.Admin(endpoint) as admin:
        while True:
            before, refused = refused, ""
            try:
                cluster = admin.cluster()
                lack = lacking(cluster, brokers)
                if lack and cluster.settled:
                    refused = refusals(admin.replication(cluster.brokers))
            except WhimbrelError as error:
                lack = str(error)
            if not lack:
                return 0
            now = time.monotonic()
            if refused != before or not refused:
                same_since = now
            if now - begun >= seconds or (refused and now - same_since >= refused_s):
                print(printable(refused or lack))
                return 1
            time.sleep(POLL_S)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:5])))
