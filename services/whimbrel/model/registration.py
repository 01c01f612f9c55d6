"""What a broker tells nameservers of itself, and what they tell it of its group."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from whimbrel.model.topic import DataVersion, TopicConfig

__all__ = ["BrokerFacts", "BrokerRole", "Member", "replicator_host"]

BrokerRole = Literal["master", "slave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A broker as it is at this moment.

    Attributes:
        advertised_host: host that clients are told; empty leaves the choice to the nameserver.
        advertised_explicitly: an operator set the host by hand: it wins over every rule.
        port: where clients reach its gRPC listener.
        ha_address: `host:port` of the master's replicator; empty on slaves and while unknown. A wildcard host
            (`0.0.0.0`, `::`) means: the host under which the asking member reaches this broker.
        host_name: of the machine or container, for clients in the same network.
        topics: the whole table; sent when `version` differs from what the nameserver was told last.
        writable: whether it takes writes now.
    """

    cluster: str
    broker_name: str
    broker_id: int
    role: BrokerRole
    port: int
    version: DataVersion
    topics: Collection[TopicConfig]
    advertised_host: str = ""
    advertised_explicitly: bool = False
    ha_address: str = ""
    host_name: str = ""
    log_begin: int = 0
    log_end: int = 0
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Another live broker of one's own group, as one nameserver knows it.

    Attributes:
        address: `host:port` of its gRPC listener, as the asking broker can dial it.
        ha_address: `host:port` of its replicator when it is a master, as the asking broker can dial it.
        log_end: as of its last renewal.
    """

    broker_id: int
    address: str
    ha_address: str
    log_begin: int
    log_end: int


def replicator_host(said: str, *, own_name: str, ours: str) -> str:
    """Return the host under which slaves reach a master's replicator.

    It may run in another container, and says itself how it is called. One that has our machine's name is our
    neighbour and is reached where we are: that name may mean nothing to other machines, and nameservers fill
    a wildcard in.

    Args:
        said: by the replicator; empty when it says nothing.
        own_name: the broker's host name.
        ours: the host at which the broker itself is reached, or a wildcard.
    """
    return ours if said in ("", own_name) else said
