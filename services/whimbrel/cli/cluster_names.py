"""Names of topics, groups and brokers for a shell that completes a word: asked from the cluster, or none.

A person waits for the answer, so the cluster has ASK_S for it, name look-ups and all; what takes longer, or
goes wrong, is no answer. It is asked by RocketMQ's remoting protocol, which needs a socket and JSON alone:
gRPC takes longer to import than a person waits.

    topics     the nameserver: 206 all topics, less those of groups, and 304 names of brokers and clusters
    brokers    the nameserver: 106 all brokers
    groups     106, then each broker that is a master: 201 all groups
"""

import json
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from typing import Any, Literal

from whimbrel.errors import PeerError
from whimbrel.model.names import BUILT_IN_GROUPS, GROUP_TOPIC_PREFIXES, is_system_topic
from whimbrel.model.route import Endpoint, parse_endpoints
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.errors import RemotingError
from whimbrel.rpc.remoting.frames import FrameReader, encode_frame

__all__ = ["ASK_S", "Kind", "names_of", "wanted"]

ASK_S = 0.2
READ_BYTES = 1 << 16
NUMBER_AS_KEY = re.compile(r"([{,])(\d+):")  # which JSON has not, and RocketMQ writes

REPLIES = "_REPLY_TOPIC"  # behind a cluster's name: its topic for answers to requests

Kind = Literal["topic", "group", "broker", "new"]

# What the argument NAME of a command names, by the begin of the command; the longest one counts.
NAMES: dict[tuple[str, ...], Kind] = {
    ("topic",): "topic",
    ("topic", "create"): "new",
    ("group",): "group",
    ("group", "create"): "new",
    ("dlq",): "group",
    ("drain",): "broker",
    ("forget",): "broker",
    ("replication",): "broker",
    ("profile", "set"): "new",
}
NO_NAME = ("=",)  # in a placeholder: the value is more than a name


def wanted(command: Sequence[str], names: Collection[str], placeholder: str) -> Kind | None:
    """Return what a parameter of a command names; None where that is nothing of a cluster.

    Args:
        command: its words, without the program's.
        names: of the parameter: `topic`, or `--topic` and so on.
        placeholder: what stands for its value in the help page; "" for none.
    """
    if any(mark in placeholder for mark in NO_NAME):
        return None
    for kind in ("topic", "group", "broker"):
        if kind in names or f"--{kind}" in names:
            return kind
    if "name" not in names:
        return None
    found = [begin for begin in NAMES if tuple(command[: len(begin)]) == begin]
    return NAMES[max(found, key=len)] if found else None


def names_of(kind: Kind, endpoint: str, seconds: float = ASK_S) -> list[str]:
    """Return the names, in order; none where the cluster has not answered in time.

    Args:
        kind: of what; `new` has none.
        endpoint: the cluster's nameservers; the first is asked.
        seconds: for the answer.
    """
    found: list[str] = []
    if kind == "new":
        return found
    deadline = time.monotonic() + seconds

    def ask() -> None:
        try:
            found.extend(asked(kind, parse_endpoints(endpoint)[0], deadline))
        except (OSError, PeerError, RemotingError, ValueError, LookupError, TypeError):
            return

    asking = threading.Thread(target=ask, daemon=True)  # a look-up of a host's name has no time limit
    asking.start()
    asking.join(seconds)
    return [] if asking.is_alive() else sorted(found)


def asked(kind: Kind, nameserver: Endpoint, deadline: float) -> Iterable[str]:
    """Ask for the names of a kind.

    Raises:
        OSError, RemotingError, ValueError, LookupError, TypeError: there is no answer, or none that is one.
    """
    if kind == "topic":
        topics = answer(nameserver, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, deadline)["topicList"]
        own = answer(nameserver, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, deadline)["topicList"]
        replies = (f"{name}{REPLIES}" for name in own)
        return {name for name in topics if is_users(name)}.difference(own, replies)
    brokers = answer(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO, deadline)["brokerAddrTable"]
    if kind == "broker":
        return list(brokers)
    groups: set[str] = set()
    for broker in brokers.values():
        if "0" in broker["brokerAddrs"]:
            master = Endpoint.parse(broker["brokerAddrs"]["0"])
            table = answer(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, deadline)
            groups |= set(table["subscriptionGroupTable"])
    return groups - BUILT_IN_GROUPS


def is_users(topic: str) -> bool:
    """Return whether a topic is neither a system's nor a group's."""
    return not is_system_topic(topic) and not topic.startswith(GROUP_TOPIC_PREFIXES)


def answer(server: Endpoint, code: int, deadline: float) -> Any:
    """Return what a server answers to a request without fields.

    Raises:
        OSError: it does not, until the deadline.
        RemotingError, ValueError: its answer is none.
    """
    reader = FrameReader()
    address = server.host, server.port
    with closing(socket.create_connection(address, timeout=left(deadline))) as connection:
        connection.sendall(encode_frame(Command(code=code, opaque=1)))
        while True:
            connection.settimeout(left(deadline))
            data = connection.recv(READ_BYTES)
            if not data:
                raise ConnectionError(f"{server} has closed the connection")
            for command in reader.feed(data):
                return json.loads(NUMBER_AS_KEY.sub(r'\1"\2":', command.body.decode()))


def left(deadline: float) -> float:
    """Return the seconds until then.

    Raises:
        TimeoutError: there are none.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time is over")
    return seconds
