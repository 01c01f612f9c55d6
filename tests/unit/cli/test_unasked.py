"""Every command stands in a table: what it asks, and what holds that it says what it lacks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from support.cluster.statuses import registered
from support.every_command import every_command
from support.unasked import ASKED, ELSEWHERE
from whimbrel.cli import replication
from whimbrel.cli.unasked import saying_what_lacks
from whimbrel.errors import TopicNotFound, Unavailable
from whimbrel.model.cluster import AbsentBroker, Cluster
from whimbrel.model.health import missing_brokers
from whimbrel.model.unasked import Unasked

ROOT = Path(__file__).parents[3]
MEMBER = registered(epoch=3, member_id=1)


def test_every_command_says_what_it_asks() -> None:
    found = sorted(every_command())
    assert len(found) > 70
    assert sorted(ASKED) == found  # whoever adds a command says what it asks, and once


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values())))
def test_what_holds_a_command_elsewhere_is_there(place: str) -> None:
    assert (ROOT / place).is_file()


def test_what_lacks_is_told_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, saying_what_lacks() as unasked:
        unasked.append(Unasked("broker-b", "no answer"))
        print("the rest")
    assert ended.value.exit_code == 1
    shown = capsys.readouterr()
    assert shown.out == "the rest\n"
    assert shown.err.startswith(
        "whimbrel: broker-b could not be asked, and what it holds is left out: no answer"
    )


def test_what_lacks_is_told_of_an_error_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TopicNotFound), saying_what_lacks() as unasked:
        unasked.append(Unasked("broker-b", "no answer"))
        raise TopicNotFound("no topic t")
    assert "broker-b could not be asked" in capsys.readouterr().err


def test_an_answer_that_is_whole_ends_as_it_would() -> None:
    with saying_what_lacks() as unasked:
        assert unasked == []


def test_a_group_whose_history_nobody_tells_is_named() -> None:
    silent = replace(MEMBER, broker_name="broker-b", member_id=2)
    pair = replace(MEMBER, broker_name="broker-c", member_id=0)
    gone = AbsentBroker(cluster="c", broker_name="broker-d", broker_id=0, member_id=1, since=0.0)
    known = Cluster((MEMBER, silent, pair), settled=True, absent=(gone,))
    views = [(silent, Unavailable("no answer from it")), (pair, Unavailable("no answer"))]
    found = replication.unknown_history(known, views, {"broker-a"})
    assert [one.broker_name for one in found] == ["broker-b", "broker-d"]  # nobody is elected in broker-c


def test_json_of_a_lost_broker_has_a_verdict() -> None:
    (lost,) = missing_brokers(
        [], [], [AbsentBroker(cluster="c", broker_name="broker-b", broker_id=0, since=0.0)]
    )
    shown = json.loads(json.dumps(replication.lost_object(lost)))
    assert (shown["broker_name"], shown["role"], shown["healthy"]) == ("broker-b", "master", False)
