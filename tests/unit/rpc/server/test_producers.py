"""Who is asked about a topic's transactions."""

import pytest

from whimbrel.rpc.server import producers as module
from whimbrel.rpc.server.producers import TRIES_MAX, Producers


def asking(producers: Producers, topic: str, there: dict[str, bool]) -> tuple[bool | None, list[str]]:
    """Ask once; return what came out, and who was tried among those that are there."""
    tried: list[str] = []

    def ask(client: str) -> bool | None:
        if client in there:
            tried.append(client)
        return there.get(client)

    return producers.ask_one(topic, ask), tried


def test_another_client_is_asked_each_time() -> None:
    producers = Producers()
    for client in ("a", "b", "c", "a"):
        producers.name("t", client)
    there = {"a": True, "c": True}
    assert [asking(producers, "t", there)[1] for _ in range(4)] == [["a"], ["c"], ["a"], ["c"]]
    assert asking(producers, "t", {"b": True}) == (True, ["b"])


def test_nobody_there_differs_from_no_room() -> None:
    producers = Producers()
    assert asking(producers, "t", {}) == (None, [])
    for number in range(5):
        producers.name("t", f"{number}")
    assert asking(producers, "t", {}) == (None, [])
    outcome, tried = asking(producers, "t", {f"{number}": False for number in range(5)})
    assert outcome is False and len(tried) == TRIES_MAX


def test_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    producers = Producers()
    for topic in ("a", "b", "a", "c"):
        for client in "xyz":
            producers.name(topic, client)
    assert {topic: list(clients) for topic, clients in producers.by_topic.items()} == {
        "a": ["y", "z"],
        "c": ["y", "z"],
    }
