"""Members of groups over the remoting protocol: who they are, what groups subscribe to, whom to tell.

Texts in quotes with a number, "6.1/15", are statements of the specification's checklist.
"""

import pytest

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.tables import remoting_clients
from whimbrel.broker.tables.remoting_clients import (
    SILENT_S,
    ConsumerGroup,
    Consumes,
    Identity,
    RemotingClients,
)
from whimbrel.errors import Throttled


class Table:
    """The table, with connections that are texts."""

    def __init__(self) -> None:
        self.clients = RemotingClients(compile_filter)
        self.now = 100.0

    def beat(
        self,
        peer: str,
        /,
        group: str = "G",
        *,
        client: str = "",
        model: str = "CLUSTERING",
        keep: bool = False,
        sql: bool = False,
        **topics: tuple[int, str],
    ) -> bool:
        """Take a heartbeat: topics with version and expression."""
        named = {
            topic: self.clients.subscription(topic, version, text, sql=sql)
            for topic, (version, text) in topics.items()
        }
        said = Consumes(group=group, model=model, topics=None if keep else named)
        return self.clients.consumes(peer, Identity(client or f"id-{peer}", "JAVA", 399), said, self.now)

    def produce(self, peer: str, group: str = "P", client: str = "") -> None:
        self.clients.produces(peer, Identity(client or f"id-{peer}", "JAVA", 399), group, self.now)

    @property
    def group(self) -> ConsumerGroup:
        found = self.clients.group("G")
        assert found is not None
        return found

    def wanted(self, topic: str = "T", group: str = "G") -> tuple[int, str] | None:
        found = self.clients.group(group)
        one = None if found is None else found.subscription(topic)
        return None if one is None else (one.version, one.expression)

    def empty(self) -> bool:
        clients = self.clients
        counts = (clients.count, clients.subscribed, clients.chars)
        tables = (clients.groups, clients.producers, clients.joined, clients.clients)
        return counts == (0, 0, 0) and not any(tables)


@pytest.fixture
def table() -> Table:
    return Table()


# Subscriptions


def test_6_1_15_the_greatest_version_counts_whoever_sent_it(table: Table) -> None:
    table.beat("a", T=(10, "A"))
    table.beat("b", T=(20, "A || B"))
    assert table.wanted() == (20, "A || B"), "the older member's pulls are not newer than that"
    table.beat("a", T=(10, "A"))
    assert table.wanted() == (20, "A || B"), "an older heartbeat takes nothing back"


def test_6_1_15_a_member_with_an_older_version_joins_a_newer_one(table: Table) -> None:
    table.beat("a", T=(20, "B"))
    table.beat("b", T=(10, "A"))
    assert table.wanted() == (20, "B")


def test_when_the_newer_member_goes_the_older_ones_expression_counts_again(table: Table) -> None:
    table.beat("a", T=(10, "A"))
    table.beat("b", T=(20, "B"))
    table.clients.closed("b")
    assert table.wanted() == (10, "A")


def test_a_member_that_goes_back_to_an_older_version_lets_the_next_newest_count(table: Table) -> None:
    table.beat("a", T=(10, "A"))
    table.beat("b", T=(30, "B"))
    table.beat("b", T=(5, "C"))
    assert table.wanted() == (10, "A")


def test_topics_that_only_others_name_stay(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    assert table.beat("b", U=(2, "*")), "a member and a topic more"
    assert not table.beat("a", T=(1, "*")), "RocketMQ would remove U now, and tell everybody"
    assert table.wanted("T") == (1, "*") and table.wanted("U") == (2, "*")


def test_a_topic_goes_when_the_last_member_that_names_it_stops(table: Table) -> None:
    table.beat("a", T=(1, "*"), U=(1, "*"))
    table.beat("b", T=(1, "*"), U=(1, "*"))
    assert not table.beat("a", T=(1, "*")), "b names U still"
    assert table.wanted("U") == (1, "*")
    assert table.beat("b", T=(1, "*"))
    assert table.wanted("U") is None


def test_only_a_topic_more_or_less_is_told_of_and_no_other_expression(table: Table) -> None:
    assert table.beat("a", T=(1, "A"))
    assert not table.beat("a", T=(1, "A"))
    assert not table.beat("a", T=(2, "B"))
    assert table.beat("a", T=(2, "B"), U=(2, "*"))
    assert table.beat("a", T=(2, "B"))


def test_groups_do_not_touch_each_other(table: Table) -> None:
    table.beat("a", "G", T=(1, "A"))
    table.beat("a", "H", T=(9, "B"))
    assert table.wanted("T", "G") == (1, "A") and table.wanted("T", "H") == (9, "B")


def test_a_heartbeat_without_subscriptions_keeps_those_before(table: Table) -> None:
    table.beat("a", T=(1, "A"))
    table.now += 30
    assert not table.beat("a", keep=True)
    assert table.wanted() == (1, "A") and table.group.members["a"].last_seen == table.now


def test_6_1_16_what_is_filtered_follows_from_the_expression(table: Table) -> None:
    table.beat("a", T=(1, "A || B"))
    one = table.group.subscription("T")
    assert one is not None and one.filter is not None and not one.sql
    assert one.filter.admits({}, "A") and one.filter.admits({}, "B") and not one.filter.admits({}, "C")


def test_6_1_17_versions_may_be_nanoseconds(table: Table) -> None:
    table.beat("java", T=(1_795_335_853_253, "A"))
    table.beat("go", T=(1_795_336_175_824_266_955, "B"))
    assert table.wanted() == (1_795_336_175_824_266_955, "B")


def test_an_expression_that_does_not_compile_is_known_and_selects_nothing(table: Table) -> None:
    table.beat("a", sql=True, T=(1, "n >"))
    one = table.group.subscription("T")
    assert one is not None and one.sql and one.expression == "n >" and one.filter is None


def test_a_filter_is_compiled_once_for_as_long_as_its_subscription_is_the_same() -> None:
    compiled: list[str] = []

    def compile(kind: str, expression: str) -> object:
        compiled.append(expression)
        return object()

    table = Table()
    table.clients = RemotingClients(compile)  # type: ignore[arg-type]
    for version in (1, 1, 1, 2):
        table.beat("a", T=(version, "A"))
        one = table.group.subscription("T")
        assert one is not None and one.filter is one.filter
    assert compiled == ["A", "A"], "once for each version"


def test_the_message_model_is_that_of_the_last_heartbeat(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    assert not table.group.broadcasting and table.clients.owns_positions("G")
    table.beat("b", model="BROADCASTING", T=(1, "*"))
    assert table.group.broadcasting and not table.clients.owns_positions("G")
    table.beat("a", T=(1, "*"))
    assert not table.group.broadcasting


# Members


def test_6_1_31_each_live_id_is_listed_once(table: Table) -> None:
    table.beat("old", client="c", T=(1, "*"))
    table.beat("new", client="c", T=(1, "*"))
    table.beat("x", client="b", T=(1, "*"))
    assert table.group.client_ids() == ["b", "c"]
    assert table.clients.connections_of("c") == ["new", "old"]


def test_6_1_31_the_end_of_a_connection_is_told_to_the_rest(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    table.beat("b", T=(1, "*"))
    table.beat("a", "alone", T=(1, "*"))
    assert table.clients.closed("a") == ["G"], "of the other group nobody is left"
    assert table.group.client_ids() == ["id-b"] and table.clients.group("alone") is None
    assert table.clients.closed("a") == [] and table.clients.closed("stranger") == []


def test_6_1_32_silent_members_go_and_their_connections_are_closed(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    table.produce("p")
    table.now += SILENT_S / 2
    table.beat("b", T=(1, "*"))
    told, gone = table.clients.expire(100.0 + SILENT_S)
    assert (told, gone) == ([], []), "not before"
    told, gone = table.clients.expire(100.5 + SILENT_S)
    assert told == ["G"] and set(gone) == {"a", "p"}
    assert table.group.client_ids() == ["id-b"]
    told, gone = table.clients.expire(table.now + SILENT_S + 1)
    assert told == [] and gone == ["b"], "nobody is left to be told"
    assert table.empty()


def test_a_connection_that_lives_in_another_group_is_not_closed(table: Table) -> None:
    table.beat("a", "G", T=(1, "*"))
    table.now += SILENT_S
    table.beat("a", "H", T=(1, "*"))
    _, gone = table.clients.expire(table.now + 1)
    assert gone == [] and table.clients.group("G") is None and table.clients.group("H") is not None


def test_6_1_33_unregistering_from_no_group_does_nothing(table: Table) -> None:
    assert table.clients.leave("a", consumer="", producer="") is None
    assert table.empty()


def test_unregistering_takes_a_connection_out_of_the_groups_that_it_names(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    table.beat("b", T=(1, "*"))
    table.produce("a")
    assert table.clients.leave("a", producer="P") is None
    assert table.clients.producers_of("P") == []
    assert table.clients.leave("a", consumer="G") == "G"
    assert table.clients.leave("a", consumer="G") is None, "it has gone already"
    assert table.clients.leave("b", consumer="G") is None, "nobody is left"
    assert table.empty()


def test_a_client_that_changes_its_id_is_known_by_the_new_one(table: Table) -> None:
    table.beat("a", client="old", T=(1, "*"))
    table.produce("a", client="old")
    table.beat("a", client="new", T=(1, "*"))
    assert table.clients.connections_of("old") == ["a"], "the producer group knows it so"
    table.produce("a", client="new")
    assert table.clients.connections_of("old") == [] and table.clients.connections_of("new") == ["a"]
    table.clients.closed("a")
    assert table.empty()


def test_what_is_sent_of_the_ids_is_kept_until_members_are_others(table: Table) -> None:
    table.beat("a", T=(1, "*"))
    table.group.ids_text = b"kept"
    table.beat("a", T=(2, "*"))
    assert table.group.ids_text == b"kept"
    table.beat("a", client="other", T=(2, "*"))
    assert table.group.ids_text is None
    table.group.ids_text = b"kept"
    table.beat("b", T=(1, "*"))
    assert table.group.ids_text is None
    table.group.ids_text = b"kept"
    table.clients.closed("b")
    assert table.group.ids_text is None


def test_producers_are_listed_by_group(table: Table) -> None:
    table.produce("a", "P")
    table.produce("b", "P")
    table.produce("a", "O")
    found = {group: [one.peer for one in members] for group, members in table.clients.all_producers()}
    assert found == {"O": ["a"], "P": ["a", "b"]}
    assert table.clients.knows("a") and not table.clients.knows("c")


# Bounds


def test_members_are_bounded_and_those_that_are_there_go_on(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting_clients, "MEMBERS_MAX", 2)
    table.beat("a", T=(1, "*"))
    table.produce("a")
    with pytest.raises(Throttled, match="2 members"):
        table.beat("b", T=(1, "*"))
    with pytest.raises(Throttled):
        table.produce("b")
    assert table.clients.group("G") is not None and not table.clients.knows("b")
    assert not table.beat("a", T=(2, "*")) and table.wanted() == (2, "*")
    table.clients.closed("a")
    assert table.empty()


def test_the_groups_of_one_connection_are_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting_clients, "PEER_GROUPS_MAX", 2)
    table.beat("a", "G", T=(1, "*"))
    table.produce("a", "P")
    with pytest.raises(Throttled, match="2 groups"):
        table.beat("a", "H", T=(1, "*"))
    with pytest.raises(Throttled):
        table.produce("a", "Q")
    table.beat("b", "H", T=(1, "*"))
    table.beat("a", "G", T=(2, "*"))
    assert table.wanted() == (2, "*")


def test_subscriptions_of_all_members_are_bounded_by_number_and_length(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remoting_clients, "SUBSCRIPTIONS_MAX", 2)
    table.beat("a", T=(1, "*"), U=(1, "*"))
    with pytest.raises(Throttled, match="no room for 1"):
        table.beat("b", T=(1, "*"))
    assert not table.clients.knows("b")
    table.beat("a", T=(1, "*"))
    table.beat("b", T=(1, "*"))
    monkeypatch.setattr(remoting_clients, "TEXT_CHARS_MAX", 10)
    with pytest.raises(Throttled):
        table.beat("b", T=(2, "A" * 20))
    assert table.wanted() == (1, "*")
    for peer in ("a", "b"):
        table.clients.closed(peer)
    assert table.empty()


def test_a_refused_member_leaves_no_group_behind(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting_clients, "MEMBERS_MAX", 0)
    with pytest.raises(Throttled):
        table.beat("a", T=(1, "*"))
    with pytest.raises(Throttled):
        table.produce("a")
    assert table.empty()
