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

Written piece by piece, since each client asks for each of its topics every 30 s, and `dump_body` takes
several times as long. Names of topics, brokers and clusters need no escapes: `model/registration.py` has
checked them when the brokers registered.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whimbrel.nameserver.registry import QueueCounts
from whimbrel.rpc.remoting.fastjson import dump_body
from whimbrel.rpc.remoting.json_header import json_text

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


def group_text(group: BrokerGroup, quote: str = "") -> str:
    """Return a group; `quote`: what stands around its ids."""
    addresses = ",".join(
        f"{quote}{id_}{quote}:{json_text(address)}" for id_, address in sorted(group.addresses.items())
    )
    return f'{{"brokerAddrs":{{{addresses}}},"brokerName":"{group.name}","cluster":"{group.cluster}"}}'


def queues_text(name: str, queues: QueueCounts) -> str:
    """Return the queues of a topic at a broker (RocketMQ: `QueueData`)."""
    return (
        f'{{"brokerName":"{name}","perm":{queues.permission},"readQueueNums":{queues.read_queues}'
        f',"topicSysFlag":{queues.system_flag},"writeQueueNums":{queues.write_queues}}}'
    )


def topic_route(
    rows: Sequence[tuple[BrokerGroup, QueueCounts]], *, order: str | None = None, standard: bool = False
) -> bytes:
    """Return `TopicRouteData`.

    Args:
        rows: the topic's queues, and the group that has them.
        order: the queues to use for ordered messages, where an operator has set them.
        standard: for readers of standard JSON.
    """
    quote = '"' if standard else ""
    groups = ",".join(group_text(group, quote) for group, _ in rows)
    queues = ",".join(queues_text(group.name, each) for group, each in rows)
    ordered = "" if order is None else f'"orderTopicConf":{json_text(order)},'
    text = f'{{"brokerDatas":[{groups}],"filterServerTable":{{}},{ordered}"queueDatas":[{queues}]}}'
    return text.encode("utf-8", "replace")


def cluster_info(groups: Sequence[BrokerGroup]) -> bytes:
    """Return `ClusterInfo`; groups come by name."""
    clusters: dict[str, list[str]] = {}
    for group in groups:
        clusters.setdefault(group.cluster, []).append(group.name)
    table = ",".join(f'"{group.name}":{group_text(group)}' for group in groups)
    names = ",".join(f'"{cluster}":{list_text(names)}' for cluster, names in sorted(clusters.items()))
    return f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{{{names}}}}}'.encode()


def list_text(names: Collection[str]) -> str:
    """Return names as a list."""
    joined = '","'.join(names)
    return f'["{joined}"]' if names else "[]"


def topic_list(topics: Collection[str], broker_address: str | None = None) -> bytes:
    """Return `TopicList`.

    Args:
        topics: there may be 65,536 of each broker.
        broker_address: some broker's, where the request wants one.
    """
    begin = "" if broker_address is None else f'"brokerAddr":{json_text(broker_address)},'
    return f'{{{begin}"topicList":{list_text(topics)}}}'.encode()


def key_values(table: Mapping[str, str]) -> bytes:
    """Return `KVTable`."""
    return dump_body({"table": table})
