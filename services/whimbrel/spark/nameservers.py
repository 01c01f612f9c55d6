"""Asks nameservers which brokers are registered."""

import re
from collections.abc import Sequence

from whimbrel.errors import WhimbrelError
from whimbrel.model.cluster import Cluster
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel

__all__ = ["describe_any", "describe_cluster"]


def describe_cluster(server: str, timeout_s: float) -> Cluster:
    """Return what a nameserver at HOST:PORT knows of the cluster.

    Raises:
        WhimbrelError: it does not answer.
    """
    host = re.sub(r":\d+$", "", server).strip("[]")
    with open_channel(server) as channel:
        return perform_blocking(channel, admin_calls.describe_cluster(host), (), timeout_s)


def describe_any(servers: Sequence[str], timeout_s: float) -> Cluster:
    """Return what the first nameserver knows that knows a broker.

    Raises:
        WhimbrelError: none answers, or none knows a broker.
    """
    failure = WhimbrelError("no nameserver is named")
    for server in servers:
        try:
            cluster = describe_cluster(server, timeout_s)
        except WhimbrelError as error:
            failure = error
            continue
        if cluster.brokers:
            return cluster
        failure = WhimbrelError("the nameserver knows no broker yet")
    raise failure
