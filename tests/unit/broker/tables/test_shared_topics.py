"""Which topics other brokers have, too: absent brokers keep their queues, and those that are there decide."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from whimbrel.broker.tables.shared_topics import FORGOTTEN_MAX, TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest
from whimbrel.model.registration import SharedTopics
from whimbrel.model.topic import TopicConfig


def table(tmp_path: Path) -> TopicTable:
    topics = TopicTable(tmp_path / "config", cluster="c", broker_name="a", auto_create=False, clock=lambda: 1)
    for name in ("t", "u"):
        if name not in topics.rows:
            topics.add(TopicConfig(name=name, read_queues=4, write_queues=4))
    return topics


@pytest.fixture
def sharing(tmp_path: Path) -> TopicSharing:
    return TopicSharing(table(tmp_path), "a", tmp_path)


def there(*brokers: str, away: Iterable[str] = (), **queues: dict[str, int]) -> SharedTopics:
    masters = {name: f"{name}:8091" for name in brokers} | dict.fromkeys(away, "")
    return SharedTopics(queues=queues, masters=masters)


def test_queues_of_others_are_known_and_dropped_when_they_say_so(sharing: TopicSharing) -> None:
    sharing.told("n", there("b", "c", t={"b": 4, "c": 2}, u={"b": 1}))
    assert sharing.others == {"t": {"b": 4, "c": 2}, "u": {"b": 1}}
    assert (sharing.address("b"), sharing.address("x")) == ("b:8091", "")
    sharing.told("n", there("b", "c", t={"c": 2}))
    assert sharing.others == {"t": {"c": 2}}


def test_a_broker_that_is_away_keeps_its_queues(sharing: TopicSharing) -> None:
    sharing.told("n", there("b", t={"b": 4}))
    sharing.told("n", there())
    assert (sharing.others, sharing.address("b")) == ({"t": {"b": 4}}, "")
    sharing.told("n", there(away=["b"]))  # its slave is there, and has not the topic yet
    assert sharing.others == {"t": {"b": 4}}
    sharing.told("n", there("b", t={"b": 8}))
    assert sharing.others == {"t": {"b": 8}}


def test_a_restart_knows_them_still(sharing: TopicSharing, tmp_path: Path) -> None:
    sharing.told("n", there("b", t={"b": 4}))
    again = TopicSharing(table(tmp_path), "a", tmp_path)
    assert (again.others, again.address("b")) == ({"t": {"b": 4}}, "")


def test_topics_that_are_not_ours_do_not_count(sharing: TopicSharing) -> None:
    sharing.told("n", there("b", other={"b": 4}))
    assert sharing.others == {}


def test_several_nameservers_add_up_and_one_that_is_gone_does_not_count(sharing: TopicSharing) -> None:
    sharing.told("n1", there("b", t={"b": 4}))
    sharing.told("n2", there())
    assert sharing.address("b") == "b:8091"
    sharing.lost("n1")
    sharing.told("n2", there())
    assert (sharing.others, sharing.address("b")) == ({"t": {"b": 4}}, "")


def test_without_any_nameserver_brokers_are_taken_to_be_where_they_were(sharing: TopicSharing) -> None:
    sharing.told("n", there("b", t={"b": 4}))
    sharing.lost("n")
    assert sharing.address("b") == "b:8091"
    sharing.told("n", there())
    assert sharing.address("b") == ""


@pytest.mark.parametrize("text", ["[]", '{"t": 5}', '{"t": {"b": "x"}}', "junk"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "whimbrel" / "shared-topics.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert TopicSharing(table(tmp_path), "a", tmp_path).others == {}


def test_a_broker_that_is_let_go_of_no_longer_counts_and_may_be_let_go_of_again(
    sharing: TopicSharing, tmp_path: Path
) -> None:
    sharing.told("n", there("b", "c", t={"b": 4, "c": 2}, u={"b": 1}))
    sharing.told("n", there("c", t={"c": 2}))
    assert sharing.others == {"t": {"b": 4, "c": 2}, "u": {"b": 1}}
    assert sharing.forget("b") == ["t", "u"]
    again = TopicSharing(table(tmp_path), "a", tmp_path)
    for known in (sharing, again):
        known.told("n", there("c", t={"c": 2}))
        assert known.others == {"t": {"c": 2}}
        assert known.forget("b") == []


def test_only_brokers_that_are_known_and_away_are_let_go_of(sharing: TopicSharing) -> None:
    with pytest.raises(BadRequest, match="no nameserver says here"):
        sharing.forget("b")
    sharing.told("n", there("b", t={"b": 4}))
    sharing.told("m", there())
    for name in ("a", "b"):
        with pytest.raises(BadRequest, match=f"{name} is registered: stop its master"):
            sharing.forget(name)
    sharing.told("n", there(away=["b"]))  # a slave of it is there
    with pytest.raises(BadRequest, match="b is registered"):
        sharing.forget("b")
    assert sharing.forget("x") is None
    assert sharing.others == {"t": {"b": 4}}


def test_a_broker_that_comes_back_after_all_counts_again(sharing: TopicSharing) -> None:
    sharing.told("n", there("b", t={"b": 4}))
    sharing.told("n", there())
    sharing.forget("b")
    sharing.told("n", there("b", t={"b": 4}))
    assert (sharing.others, sharing.forgotten) == ({"t": {"b": 4}}, [])


def test_names_that_were_let_go_of_are_bounded(sharing: TopicSharing) -> None:
    for n in range(FORGOTTEN_MAX + 1):
        sharing.told("n", there(f"b{n}", t={f"b{n}": 1}))
        sharing.told("n", there())
        sharing.forget(f"b{n}")
    assert sharing.forgotten == [f"b{n}" for n in range(1, FORGOTTEN_MAX + 1)]


def test_a_slave_takes_the_masters_table_and_keeps_it(sharing: TopicSharing, tmp_path: Path) -> None:
    sharing.told("n", there("b", "c", t={"b": 4, "c": 1}))
    sharing.told("n", there("b", t={"b": 4}))
    sharing.forget("c")
    root = tmp_path / "slave"
    TopicSharing(table(root), "a", root).replace(sharing.text)
    leading = TopicSharing(table(root), "a", root)  # made anew when it becomes the master
    leading.told("n", there())
    assert (leading.others, leading.forgotten) == ({"t": {"b": 4}}, ["c"])
