"""Bodies of the name server's answers by the remoting protocol, as RocketMQ 4.9.3 writes them. Pure.

    105   {"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"C"}],
           "filterServerTable":{},"orderTopicConf":"a:4",
           "queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}
    106   {"brokerAddrTable":{"a":{...as above}},"clusterAddrTable":{"C":["a"]}}
    206   {"topicList":["T"]}; 304 with "brokerAddr" before it
    219   {"table":{"key":"value"}}

`brokerAddrs` has numbers as keys, which fastjson writes without quotes, and a standard reader refuses. So
105 quotes them for clients of 4.9.4 and later (`STANDARD_VERSION`), and for those who ask for it by
`acceptStandardJsonOnly`, as RocketMQ 5.3.3 does. That one has no such choice for 106, hence no quotes.
`orderTopicConf` is left out where there is none. Brokers stand by name, RocketMQ's in no order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whimbrel.nameserver.registry import QueueCounts
from whimbrel.rpc.remoting.fastjson import dump_body

__all__ = [
    "STANDARD_VERSION",
    "BrokerGroup",
    "address_text",
    "cluster_info",
    "key_values",
    "topic_list",
    "topic_route",
]

STANDARD_VERSION: Final = 401  # V4_9_4


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A master and its slaves (RocketMQ: `BrokerData`).

    Attributes:
        addresses: `host:port` by broker id.
    """

    cluster: str
    name: str
    addresses: Mapping[int, str]


def address_text(host: str, port: int, language: str) -> str:
    """Return an address as a client of that language dials it.

    Go wants brackets around IPv6. Java's own servers write none, and its clients cut at the last colon.
    """
    return f"[{host}]:{port}" if ":" in host and language == "GO" else f"{host}:{port}"


def group_data(group: BrokerGroup, *, quoted: bool = False) -> dict[str, Any]:
    """Return a group; `quoted`: its ids as texts."""
    addresses: Mapping[Any, str] = group.addresses
    if quoted:
        addresses = {str(id_): address for id_, address in addresses.items()}
    return {"brokerAddrs": addresses, "brokerName": group.name, "cluster": group.cluster}


def topic_route(
    rows: Sequence[tuple[BrokerGroup, QueueCounts]], *, order: str | None = None, standard: bool = False
) -> bytes:
    """Return `TopicRouteData`.

    Args:
        rows: the topic's queues, and the group that has them.
        order: the queues to use for ordered messages, where an operator has set them.
        standard: for readers of standard JSON.
    """
    return dump_body(
        {
            "brokerDatas": [group_data(group, quoted=standard) for group, _ in rows],
            "filterServerTable": {},
            "orderTopicConf": order,
            "queueDatas": [
                {
                    "brokerName": group.name,
                    "perm": queues.permission,
                    "readQueueNums": queues.read_queues,
                    "topicSysFlag": queues.system_flag,
                    "writeQueueNums": queues.write_queues,
                }
                for group, queues in rows
            ],
        }
    )


def cluster_info(groups: Iterable[BrokerGroup]) -> bytes:
    """Return `ClusterInfo`."""
    table: dict[str, dict[str, Any]] = {}
    clusters: dict[str, list[str]] = {}
    for group in groups:
        table[group.name] = group_data(group)
        clusters.setdefault(group.cluster, []).append(group.name)
    return dump_body({"brokerAddrTable": table, "clusterAddrTable": clusters})


def topic_list(topics: Collection[str], broker_address: str | None = None) -> bytes:
    """Return `TopicList`.

    Args:
        topics: as the registry has checked them, so that nothing of them is to be escaped: there may be
            65,536 of each broker.
        broker_address: some broker's, where the request wants one.
    """
    names = '","'.join(topics)
    listed = f'["{names}"]' if topics else "[]"
    begin = "" if broker_address is None else f'"brokerAddr":{dump_body(broker_address).decode()},'
    return f'{{{begin}"topicList":{listed}}}'.encode()


def key_values(table: Mapping[str, str]) -> bytes:
    """Return `KVTable`."""
    return dump_body({"table": table})
