"""Targets of a replay: a refusal is found before a topic is made for it."""

from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from whimbrel.errors import Forbidden, TopicNotFound
from whimbrel.model.message import MessageType
from whimbrel.spark.jobs import replay
from whimbrel.spark.jobs.replay import check_targets
from whimbrel.spark.masters import Masters


class OneMaster:
    """Masters of a cluster with one broker, which has some topics."""

    servers = ("127.0.0.1:8081",)
    timeout_s = 1.0

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)

    def broker_for(self, source: str) -> str:
        return "broker-a"

    def queues(self, broker: str, topic: str) -> int:
        return 4 if topic in self.topics else 0


def checked(
    monkeypatch: pytest.MonkeyPatch, master: OneMaster, ask: Callable[..., None], *, dry: bool = False
) -> list[str]:
    """Check a replay into `orders` and `bills`; return the topics that were made."""
    made = []

    class Admin:
        def __init__(self, endpoint: str) -> None: ...

        def __enter__(self) -> "Admin":
            return self

        def __exit__(self, *_: object) -> None: ...

        def create_topic(self, name: str, *, queues: int, message_type: MessageType) -> None:
            made.append(name if message_type is MessageType.NORMAL else f"{name} of {message_type}")
            master.topics.add(name)

    monkeypatch.setattr(replay, "Admin", Admin)
    monkeypatch.setattr(replay, "ask_for_replay", ask)
    wanted = {("broker-a", "orders"): 4, ("broker-a", "bills"): 2}
    try:
        check_targets(
            cast(Masters, master), wanted, lambda line: None, create=True, dry=dry, kinds={"bills": {"FIFO"}}
        )
    except Forbidden:
        made.append("refused")
    return made


@pytest.mark.parametrize("dry", [False, True])
def test_a_replay_that_is_refused_leaves_no_topic(monkeypatch: pytest.MonkeyPatch, dry: bool) -> None:
    def refuse(*_: Any) -> None:
        raise Forbidden("this broker takes no replayed messages")

    assert checked(monkeypatch, OneMaster("orders"), refuse, dry=dry) == ["refused"]
    assert checked(monkeypatch, OneMaster(), refuse, dry=dry) == ["refused"]


def test_topics_are_made_when_the_broker_only_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    master, asked = OneMaster("orders"), []

    def ask(masters: Any, source: str, topic: str) -> None:
        asked.append(topic)
        if topic not in master.topics:
            raise TopicNotFound(topic)

    assert checked(monkeypatch, master, ask) == ["bills of fifo"]
    assert asked == ["bills", "orders", "bills"]
