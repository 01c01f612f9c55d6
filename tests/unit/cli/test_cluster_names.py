"""Names that a shell offers: what a parameter names, and what is asked of a cluster within a moment."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from support.commands import ALL
from whimbrel.cli import cluster_names, lazy
from whimbrel.cli.cluster_names import ASK_S, Kind, names_of, wanted
from whimbrel.rpc.remoting.command import RESPONSE, Command
from whimbrel.rpc.remoting.frames import FrameReader, encode_frame

TOPICS, SYSTEM, BROKERS, GROUPS = 206, 304, 106, 201
Serve = Callable[[Mapping[int, bytes]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Give a function that answers requests by their codes; a code without an answer gets none."""
    servers: list[socket.socket] = []

    def answering(server: socket.socket, answers: Mapping[int, bytes]) -> None:
        held = []
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            (request,) = FrameReader().feed(connection.recv(1 << 16))
            if request.code in answers:
                command = Command(code=0, opaque=request.opaque, flag=RESPONSE, body=answers[request.code])
                connection.sendall(encode_frame(command))
                connection.close()
            else:
                held.append(connection)

    def serving(answers: Mapping[int, bytes]) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=answering, args=(server, answers), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield serving
    for each in servers:
        each.close()


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def brokers(**addresses: str) -> bytes:
    """Return `ClusterInfo`, whose ids are no keys of JSON."""
    rows = [
        f'"{name}":{{"brokerAddrs":{{0:"{at}"}},"brokerName":"{name}"}}' for name, at in addresses.items()
    ]
    return f'{{"brokerAddrTable":{{{",".join(rows)}}},"clusterAddrTable":{{}}}}'.encode()


def test_topics_are_those_of_users(serve: Serve) -> None:
    names = ["orders", "bills", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x", "broker-a", "C", "C_REPLY_TOPIC"]
    endpoint = serve({TOPICS: body({"topicList": names}), SYSTEM: body({"topicList": ["broker-a", "C"]})})
    assert names_of("topic", endpoint, 30) == ["bills", "orders"]


def test_groups_are_those_of_all_masters_but_for_rocketmqs_own(serve: Serve) -> None:
    a = serve({GROUPS: body({"subscriptionGroupTable": {"readers": {}, "TOOLS_CONSUMER": {}}})})
    b = serve({GROUPS: body({"subscriptionGroupTable": {"readers": {}, "writers": {}}})})
    endpoint = serve({BROKERS: brokers(a=a, b=b)})
    assert names_of("group", endpoint, 30) == ["readers", "writers"]
    assert names_of("broker", endpoint, 30) == ["a", "b"]


def test_a_list_of_nameservers_is_asked_at_the_first(serve: Serve) -> None:
    endpoint = serve({BROKERS: brokers(a="127.0.0.1:1")})
    assert names_of("broker", f"{endpoint};127.0.0.1:1", 30) == ["a"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"topicList": 1}', b"\xff"])
def test_an_answer_that_is_none_offers_nothing(serve: Serve, answer: bytes) -> None:
    assert names_of("topic", serve({TOPICS: answer}), 30) == []


def test_a_cluster_that_does_not_answer_in_time_offers_nothing(serve: Serve) -> None:
    assert ASK_S <= 0.2
    assert names_of("topic", serve({})) == []


def test_a_cluster_that_is_not_there_offers_nothing() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    assert names_of("topic", f"127.0.0.1:{port}") == []
    assert names_of("topic", "no address") == []


def test_what_is_new_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_names, "asked", None)
    assert names_of("new", "127.0.0.1:1") == []


def kinds() -> dict[str, Kind | None]:
    """Return what each parameter of each command names, by the command and the parameter."""
    found = {}
    for words, command in ALL.items():
        for param in getattr(command, "params", ()):
            name = f"{' '.join(words)} {max(param.opts, key=len)}"
            found[name] = wanted(words, {param.name, *param.opts}, param.metavar or "")
    return found


def test_every_parameter_that_names_something_of_a_cluster_is_known() -> None:
    found = kinds()
    assert {name: kind for name, kind in found.items() if name.endswith(" topic")} == {
        name: "topic" for name in found if name.endswith(" topic")
    }
    for name, kind in {
        "topic describe name": "topic",
        "topic create name": "new",
        "topic create --broker": "broker",
        "group update name": "group",
        "group create name": "new",
        "receive --group": "group",
        "pull --broker": "broker",
        "dlq replay name": "group",
        "dlq replay --topic": "topic",
        "drain name": "broker",
        "forget name": "broker",
        "replication switchover name": "broker",
        "replication cut show --broker": "broker",
        "spark archive --topic": "topic",
        "spark lag --group": "group",
        "spark replay --broker": None,  # SOURCE=TARGET
        "profile set name": "new",
        "profile use name": None,  # which completes by itself
        "send --message-group": None,
        "store dump path": None,
    }.items():
        assert found[name] == kind, name
    named = [name for name in found if name.endswith((" name", " --topic", " --group", " --broker"))]
    assert [name for name in named if found[name] is None] == [
        name
        for name in named
        if name.startswith(("profile use", "profile show", "profile delete", "spark")) and found[name] is None
    ]


class Context:
    """Stands for the command line that is completed."""

    def __init__(self, **given: str) -> None:
        self.meta = {f"{lazy.MEANT}{name}": value for name, value in given.items()}


def test_names_of_a_list_are_completed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def found(kind: Kind, endpoint: str) -> list[str]:
        asked.append(endpoint)
        return ["bills", "orders"]

    monkeypatch.setattr(cluster_names, "names_of", found)
    context = Context(endpoint="127.0.0.1:9")
    assert [each.value for each in lazy.named("topic", "orders,b", context)] == ["orders,bills"]
    assert [each.value for each in lazy.named("topic", "", context)] == ["bills", "orders"]
    assert asked == ["127.0.0.1:9"] * 2


def test_a_profile_that_is_not_there_offers_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert lazy.named("topic", "", Context(profile="nosuch")) == []
