"""A broker's registration at nameservers, and the members of its group that they report.

The `check_*` functions are the door for what the other process sent: a nameserver calls them for each
registration, a broker for each member that a nameserver reports.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from whimbrel.errors import BadRequest
from whimbrel.model.elections import check_epoch, check_member_id
from whimbrel.model.group_record import VOTERS_MAX
from whimbrel.model.limits import GROUP_CHARS_MAX, LOG_END_MAX, ROUTE_QUEUES_MAX
from whimbrel.model.names import BROKER_NAME, GROUP_TOPIC_PREFIXES, check_broker_name
from whimbrel.model.route import Endpoint, check_host
from whimbrel.model.topic import DataVersion, Permission, TableChange, TopicConfig

__all__ = [
    "BrokerFacts",
    "BrokerRole",
    "Member",
    "SharedTopics",
    "check_broker",
    "check_log",
    "check_member",
    "check_queue_counts",
    "check_topic_name",
    "replicator_host",
]

BrokerRole = Literal["master", "slave"]

BROKER_ID_MAX = 2**31 - 1
INSTANCE_CHARS_MAX = 64
# A group's retry topic has the group's name in it.
TOPIC_NAME_CHARS_MAX = GROUP_CHARS_MAX + max(map(len, GROUP_TOPIC_PREFIXES))
PERMISSION_MAX = int(Permission.READ | Permission.WRITE | Permission.INHERIT | Permission.PRIORITY)


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
        change_since: returns what leads from a version of the table to `version`, to be sent instead, or None
            when that is not known.
        writable: whether it takes writes now.
        instance: names this process of the broker, so that its place is not taken for another one's.
        epoch: in a group that elects its leader: which one this broker leads or follows, 0 while it does
            neither. As master it takes the place of one with a lower epoch.
        member_id: in such a group: its id as a member, whatever its role is; 0 elsewhere.
        voters: in such a group: how many members vote; 0 elsewhere.
    """

    cluster: str
    broker_name: str
    broker_id: int
    role: BrokerRole
    port: int
    version: DataVersion
    topics: Collection[TopicConfig]
    change_since: Callable[[DataVersion], TableChange[TopicConfig] | None] = lambda version: None
    advertised_host: str = ""
    advertised_explicitly: bool = False
    ha_address: str = ""
    host_name: str = ""
    log_begin: int = 0
    log_end: int = 0
    writable: bool = False
    instance: str = ""
    epoch: int = 0
    member_id: int = 0
    voters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Another live broker of one's own group, as one nameserver knows it.

    Attributes:
        address: `host:port` of its gRPC listener, as the asking broker can dial it.
        ha_address: `host:port` of its replicator when it is a master, as the asking broker can dial it.
        log_end: as of its last renewal.
        epoch, member_id: see `BrokerFacts`.
    """

    broker_id: int
    address: str
    ha_address: str
    log_begin: int
    log_end: int
    epoch: int = 0
    member_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTopics:
    """The topics for message groups that a broker shares with others, as one nameserver knows them.

    Attributes:
        queues: by topic, the other brokers and how many queues may be written there.
        masters: `host:port` of all other masters by broker name; empty while only slaves of a name are there.
    """

    queues: Mapping[str, Mapping[str, int]]
    masters: Mapping[str, str]


def check_broker(
    *,
    cluster: str,
    name: str,
    broker_id: int,
    master: bool,
    port: int,
    ha_address: str,
    hosts: dict[str, str],
    instance: str,
    epoch: int = 0,
    member_id: int = 0,
    voters: int = 0,
) -> None:
    """Raise BadRequest unless a broker may register so.

    Args:
        cluster, name, broker_id, master, port, ha_address, instance: see `BrokerFacts`.
        epoch, member_id, voters: as well.
        hosts: fields that hold a host, by their names; each may be empty.
    """
    try:
        check_broker_name("broker_name", name)
        check_broker_name("cluster", cluster)
        for field, host in hosts.items():
            check_host(field, host)
        if ha_address:
            Endpoint.parse(ha_address)
    except ValueError as error:
        raise BadRequest(f"the registration is refused: {error}") from None
    if not 0 < port < 65536:
        raise BadRequest(f"a broker can't listen on port {port}")
    if master != (broker_id == 0) or not 0 <= broker_id <= BROKER_ID_MAX:
        raise BadRequest(
            f"broker id {broker_id} does not fit its role: the master's is 0, slaves' are above,"
            f" up to {BROKER_ID_MAX}"
        )
    if len(instance) > INSTANCE_CHARS_MAX or not instance.isprintable():
        raise BadRequest(f"instance_id: at most {INSTANCE_CHARS_MAX} characters, none of them for control")
    check_epoch("epoch", epoch)
    check_member_id("member_id", member_id)
    if not 0 <= voters <= VOTERS_MAX:
        raise BadRequest(f"{voters} voters: a group has at most {VOTERS_MAX}")
    if voters and not member_id:
        raise BadRequest("a broker of a group that elects its leader names its member_id, which is above 0")


def check_log(begin: int, end: int) -> None:
    """Raise BadRequest unless a log may begin and end there."""
    if not (0 <= begin <= LOG_END_MAX and 0 <= end <= LOG_END_MAX):
        raise BadRequest(f"a log can't reach from byte {begin} to {end}")


def check_topic_name(name: str) -> None:
    """Raise BadRequest unless a broker may have a topic of that name; its own and its groups' are some."""
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise BadRequest(f"a topic's name has {len(name)} characters; {TOPIC_NAME_CHARS_MAX} are allowed")
    if BROKER_NAME.fullmatch(name) is None:
        raise BadRequest(
            f"topic {name!r}: a name has characters, of % | a-z A-Z 0-9 _ - and the dot; rename or delete it"
        )


def check_queue_counts(read_queues: int, write_queues: int, permission: int) -> None:
    """Raise BadRequest unless a topic may have these queues."""
    if not (0 <= read_queues <= ROUTE_QUEUES_MAX and 0 <= write_queues <= ROUTE_QUEUES_MAX):
        raise BadRequest(
            f"{read_queues} queues to read and {write_queues} to write: a route lists at most"
            f" {ROUTE_QUEUES_MAX}; give it fewer"
        )
    if not 0 <= permission <= PERMISSION_MAX:
        raise BadRequest(f"permission {permission} is no sum of 8, 4, 2 and 1")


def check_member(member: Member) -> None:
    """Raise BadRequest unless a nameserver may report such a member."""
    check_epoch("epoch", member.epoch)
    check_member_id("member_id", member.member_id)
    try:
        Endpoint.parse(member.address)
        if member.ha_address:
            Endpoint.parse(member.ha_address)
    except ValueError as error:
        raise BadRequest(f"a nameserver reports a member that can't be dialled: {error}") from None
    check_log(member.log_begin, member.log_end)


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
