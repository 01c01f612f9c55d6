"""A broker's registration at nameservers, and the members of its group that they report."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from whimbrel.model.topic import DataVersion, TopicConfig

__all__ = ["BrokerFacts", "BrokerRole", "Member", "replicator_host"]

BrokerRole = Literal["master", "slave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The state of a broker at one moment.

    Attributes:
        advertised_host: host for clients; empty leaves the choice to the nameserver.
        advertised_explicitly: an operator set the host by hand: it wins over every rule.
        port: where clients reach its gRPC listener.
        ha_address: `host:port` of the master's replicator; empty on slaves and while unknown. A wildcard host
            (`0.0.0.0`, `::`) means: the host under which the asking member reaches this broker.
        host_name: of the machine or container, for clients in the same network.
        topics: the whole table; sent when `version` differs from the one that the nameserver has.
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


def replicator_host(announced: str, *, own_name: str, ours: str) -> str:
    """Return the host under which slaves reach a master's replicator.

    The replicator may run in another container, and announces its own name. One with our machine's name is
    next to us and is reached where we are: other machines may not know that name, and nameservers replace a
    wildcard.

    Args:
        announced: the replicator's host name; empty when it announces none.
        own_name: the broker's host name.
        ours: the host at which the broker itself is reached, or a wildcard.
    """
    return ours if announced in ("", own_name) else announced
