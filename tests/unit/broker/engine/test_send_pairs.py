"""What a send is answered, and what it changes, with each rule broken and with each two of them at once.

`send_pairs_v2.json` and `send_pairs_remoting.json` were recorded from the two paths that decided sends before
there was an engine. Answers, their order and side effects are to stay as they were:

    RECORD=1 pytest tests/unit/broker/engine/test_send_pairs.py     records them anew; look at the difference
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.engine.in_process import in_process
from support.engine.recorded_pairs import broken_cases, check_recorded
from support.engine.rules import Rule, combinations
from support.engine.send_rules import (
    REMOTING_RULES,
    V2_RULES,
    RemotingCase,
    V2Case,
    first_turns,
    outcome,
)
from support.remoting.handlers import NOW, send_fields
from support.store.stores import StoppedClock
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

HERE = Path(__file__).parent


def outcomes(root: Path, kind: type[Any], rules: list[Rule]) -> dict[str, str]:
    """Return the outcome of each combination, by the names of its rules."""

    async def play() -> dict[str, str]:
        async with in_process(root, machine=StoppedClock(NOW)) as broker:
            with first_turns():
                return {name: outcome(broker, case) for name, case in broken_cases(kind, combinations(rules))}

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "kind", "rules"),
    [("v2", V2Case, V2_RULES), ("remoting", RemotingCase, REMOTING_RULES)],
    ids=["v2", "remoting"],
)
def test_each_two_rules_broken_at_once(tmp_path: Path, name: str, kind: type[Any], rules: list[Rule]) -> None:
    check_recorded(HERE / f"send_pairs_{name}.json", outcomes(tmp_path, kind, rules))


def test_a_system_topic_is_no_clients_also_after_a_send_that_may_go_there(tmp_path: Path) -> None:
    """One by the remoting protocol that leaves the queue to the broker makes the topic one that is in use."""

    async def play() -> None:
        async with in_process(tmp_path) as broker:
            fields = send_fields("SELF_TEST_TOPIC", e=-1)
            assert broker.request(310, fields, b"x").code == 0
            message = V2Case(0).message("M1")
            message.topic.name = "SELF_TEST_TOPIC"
            answer = broker.call("SendMessage", messaging.SendMessageRequest(messages=[message]))
            assert answer.status.code == v2.ILLEGAL_TOPIC

    asyncio.run(play())
