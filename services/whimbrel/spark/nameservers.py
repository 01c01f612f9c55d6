"""Asks nameservers which brokers are registered.

A nameserver answers from memory, so one that takes longer than ASK_S_MAX is not there, or hangs.
"""

import re
from collections.abc import Sequence

from whimbrel.errors import NotSupported, WhimbrelError
from whimbrel.model.cluster import Cluster
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel

__all__ = ["ASK_S_MAX", "describe_any", "describe_cluster"]

ASK_S_MAX = 3.0


def describe_cluster(server: str, timeout_s: float) -> Cluster:
    """Return what a nameserver at HOST:PORT knows of the cluster.

    Raises:
        NotSupported: something else answers there.
        WhimbrelError: it does not answer.
    """
    host = re.sub(r":\d+$", "", server).strip("[]")
    with open_channel(server) as channel:
        try:
            call = admin_calls.describe_cluster(host)
            return perform_blocking(channel, call, (), min(timeout_s, ASK_S_MAX))
        except NotSupported:
            raise NotSupported(f"{server} is not a nameserver (a broker answers there?)") from None


def describe_any(servers: Sequence[str], timeout_s: float) -> Cluster:
    """Return what the first nameserver knows that knows a broker.

    Raises:
        NotSupported: what answers there is no nameserver.
        WhimbrelError: none answers, or none knows a broker.
    """
    failures: dict[str, WhimbrelError] = {}
    for server in servers:
        try:
            cluster = describe_cluster(server, timeout_s)
        except WhimbrelError as error:
            failures[server] = error
            continue
        if cluster.brokers:
            return cluster
        failures[server] = WhimbrelError("the nameserver knows no broker yet")
    if len(failures) == 1 or all(isinstance(failure, NotSupported) for failure in failures.values()):
        raise next(iter(failures.values()))
    raise WhimbrelError("; ".join(f"{server}: {failure}" for server, failure in failures.items()))
