"""Asks nameservers which brokers are registered.

A nameserver answers from memory, so one that takes longer than ASK_S_MAX is not there, or hangs.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from whimbrel.errors import NotSupported, WhimbrelError
from whimbrel.model.cluster import Cluster
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel

__all__ = ["ASK_S_MAX", "describe_any", "describe_cluster"]

logger = logging.getLogger(__name__)

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
            call = admin_calls.describe_cluster(host, absent_topics=True)
            return perform_blocking(channel, call, (), min(timeout_s, ASK_S_MAX))
        except NotSupported:
            raise NotSupported(f"{server} is not a nameserver (a broker answers there?)") from None


def describe_any(servers: Sequence[str], timeout_s: float) -> Cluster:
    """Return what the first nameserver knows that knows a broker.

    A group that is absent there is looked for at the others: its session with that one may have broken alone.

    Raises:
        NotSupported: what answers there is no nameserver.
        WhimbrelError: none answers, or none knows a broker.
    """
    failures: dict[str, WhimbrelError] = {}
    for number, server in enumerate(servers):
        try:
            cluster = describe_cluster(server, timeout_s)
        except WhimbrelError as error:
            failures[server] = error
            continue
        if cluster.brokers:
            return (
                with_absent_found(cluster, servers[number + 1 :], timeout_s)
                if cluster.absent_groups
                else cluster
            )
        failures[server] = WhimbrelError("the nameserver knows no broker yet")
    if len(failures) == 1 or all(isinstance(failure, NotSupported) for failure in failures.values()):
        raise next(iter(failures.values()))
    raise WhimbrelError("; ".join(f"{server}: {failure}" for server, failure in failures.items()))


def with_absent_found(cluster: Cluster, others: Sequence[str], timeout_s: float) -> Cluster:
    """Return the cluster with the absent groups' brokers that other nameservers know."""
    for server in others:
        try:
            other = describe_cluster(server, timeout_s)
        except WhimbrelError as error:
            logger.info("%s can't say where absent brokers are: %s", server, error)
            continue
        names = {group.broker_name for group in cluster.absent_groups}
        found = tuple(broker for broker in other.brokers if broker.broker_name in names)
        there = {broker.broker_name for broker in found}
        absent = tuple(group for group in cluster.absent_groups if group.broker_name not in there)
        cluster = replace(cluster, brokers=cluster.brokers + found, absent_groups=absent)
    return cluster
