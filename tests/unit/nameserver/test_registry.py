"""The rules of registration; times are plain numbers."""

from dataclasses import replace

import pytest

from whimbrel.errors import BadRequest, Forbidden, NotReady, TopicNotFound
from whimbrel.model.limits import ROUTE_QUEUES_MAX, TOPICS_MAX
from whimbrel.nameserver.absences import ABSENCE_S_MAX, AbsentGroup
from whimbrel.nameserver.addresses import BrokerAddress
from whimbrel.nameserver.registry import (
    KEPT_PLACES_MAX,
    BrokerIdentity,
    QueueCounts,
    Registry,
    Route,
    TopicsChange,
    Update,
)

OLD = 1000.0  # long after the start at 0


def broker(
    name: str = "a",
    id_: int = 0,
    *,
    peer: str = "10.0.0.1",
    port: int = 8091,
    cluster: str = "C",
    instance: str = "",
    epoch: int = 0,
    member_id: int = 0,
    voters: int = 0,
) -> BrokerIdentity:
    return BrokerIdentity(
        cluster=cluster,
        name=name,
        id=id_,
        master=id_ == 0,
        instance=instance,
        epoch=epoch,
        member_id=member_id,
        voters=voters,
        address=BrokerAddress(
            advertised_host="",
            advertised_explicitly=False,
            port=port,
            host_name=f"host-{peer}",
            nameserver_host="ns",
            peer_host=peer,
        ),
    )


MASTER = broker()
SLAVE = broker(id_=1, peer="10.0.0.2")
OTHER = broker("b", peer="10.0.0.3")


def queues(count: int = 4, permission: int = 6, kind: str = "NORMAL") -> QueueCounts:
    return QueueCounts(read_queues=count, write_queues=count, permission=permission, message_type=kind)


def first(who: BrokerIdentity, version: int = 1, **topics: QueueCounts) -> Update:
    return Update(broker=who, topics=topics, version=(version, 0))


def changing(base: int, version: int, *deleted: str, **topics: QueueCounts) -> Update:
    change = TopicsChange(base=(base, 0), topics=topics, deleted=frozenset(deleted))
    return Update(change=change, version=(version, 0))


def registry(*, expected_brokers: int = 0, **kwargs: float) -> Registry:
    settings = {"lease_s": 8.0, "renew_s": 2.0, "started": 0.0} | kwargs
    return Registry(**settings, expected_brokers=expected_brokers)


def shown(route: Route) -> list[tuple[str, int, int]]:
    return [(entry.broker.name, entry.broker.id, entry.queues.permission) for entry in route]


def test_route_lists_the_master_with_its_queues() -> None:
    table = registry()
    assert table.update("m", first(MASTER, T=queues()), OLD)
    (entry,) = table.route("T", OLD)
    assert (entry.broker, entry.queues) == (MASTER, queues())


def test_unknown_topic_is_not_found() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    with pytest.raises(TopicNotFound, match="no topic U"):
        table.route("U", OLD)


def test_where_no_topic_can_be_it_is_said_that_brokers_are_missing() -> None:
    table = registry()
    with pytest.raises(TopicNotFound, match="no topic U, and no broker is registered"):
        table.route("U", OLD)
    table.update("s", first(SLAVE, T=queues()), OLD)
    with pytest.raises(TopicNotFound, match="no topic U, and no master is registered"):
        table.route("U", OLD)
    table.update("m", first(MASTER, T=queues()), OLD)
    with pytest.raises(TopicNotFound, match=r"no topic U$"):
        table.route("U", OLD)


def test_unknown_topic_is_not_ready_until_brokers_had_one_renewal_period() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(), TBW102=queues(8, 7)), 1.0)
    with pytest.raises(NotReady):
        table.route("U", 1.9)
    assert shown(table.route("T", 1.9)) == [("a", 0, 6)]
    assert shown(table.route("U", 2.0)) == [("a", 0, 6)]


def test_settled_as_soon_as_all_expected_brokers_hold_a_place() -> None:
    table = registry(expected_brokers=2)
    table.update("m", first(MASTER, TBW102=queues(8, 7)), 0.5)
    assert not table.settled(0.5)
    table.update("s", first(SLAVE), 0.6)
    assert table.settled(0.6)
    assert shown(table.route("U", 0.6)) == [("a", 0, 6)]


def test_settled_stays_so_when_a_broker_leaves() -> None:
    table = registry(expected_brokers=1)
    table.update("m", first(MASTER), 0.5)
    table.leave("m")
    assert table.settled(0.6)


def test_a_broker_that_never_comes_is_waited_for_one_renewal_period() -> None:
    table = registry(expected_brokers=3)
    table.update("m", first(MASTER), 0.5)
    table.update("s", first(SLAVE), 0.6)
    assert not table.settled(1.9)
    assert table.settled(2.0)


def test_two_sessions_for_one_place_are_one_broker() -> None:
    table = registry(expected_brokers=2)
    table.update("m", first(MASTER), 0.5)
    table.update("impostor", first(replace(MASTER, address=broker(peer="10.0.0.9").address)), 0.6)
    assert not table.settled(0.6)


def test_a_slave_that_comes_back_as_master_is_one_broker() -> None:
    table = registry(expected_brokers=2)
    table.update("s", first(SLAVE), 0.5)
    table.update("m", first(broker(id_=0, peer="10.0.0.2")), 0.6)
    assert not table.settled(0.6)


def test_how_many_brokers_there_are_is_unknown_by_default() -> None:
    table = registry()
    table.update("m", first(MASTER), 0.5)
    assert not table.settled(1.9)


def test_routes_are_sorted_by_broker_name() -> None:
    table = registry()
    table.update("o", first(OTHER, T=queues(2)), OLD)
    table.update("m", first(MASTER, T=queues(4)), OLD)
    assert [(entry.broker.name, entry.queues.read_queues) for entry in table.route("T", OLD)] == [
        ("a", 4),
        ("b", 2),
    ]


def test_slave_adds_itself_and_none_of_its_topics_while_a_master_is_there() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    table.update("s", first(SLAVE, T=queues(9), U=queues()), OLD)
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]
    with pytest.raises(TopicNotFound):
        table.route("U", OLD)
    assert [live.session for live in table.holders("a")] == ["m", "s"]


def test_master_gone_leaves_the_slave_in_its_place_for_reading() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(), NEWER=queues()), OLD)
    table.update("s", first(SLAVE, T=queues(9), OLDER=queues()), OLD)
    assert table.leave("m")
    (entry,) = table.route("T", OLD)
    assert (entry.broker.id, entry.queues.permission, entry.queues.read_queues) == (1, 4, 4)
    assert shown(table.route("NEWER", OLD)) == [("a", 1, 4)]
    assert shown(table.route("OLDER", OLD)) == [("a", 1, 4)]


def test_lowest_slave_stands_in() -> None:
    table = registry()
    table.update("s2", first(broker(id_=2, peer="10.0.0.4"), T=queues()), OLD)
    table.update("s1", first(SLAVE, T=queues()), OLD)
    assert shown(table.route("T", OLD)) == [("a", 1, 4)]


def test_slave_alone_after_a_restart_of_the_nameserver_is_read_only() -> None:
    table = registry()
    table.update("s", first(SLAVE, T=queues(), TBW102=queues(8, 7)), OLD)
    assert shown(table.route("T", OLD)) == [("a", 1, 4)]
    with pytest.raises(TopicNotFound):
        table.route("U", OLD)  # nobody there could create it


def test_master_that_comes_back_replaces_what_the_slave_told() -> None:
    table = registry()
    table.update("s", first(SLAVE, T=queues(), DELETED=queues()), OLD)
    table.update("m", first(MASTER, T=queues(2)), OLD)
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]
    with pytest.raises(TopicNotFound):
        table.route("DELETED", OLD)


def test_same_version_with_other_topics_changes_nothing() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(4)), OLD)
    table.update("m", Update(topics={"T": queues(9)}, version=(1, 0)), OLD)
    assert table.route("T", OLD)[0].queues.read_queues == 4
    table.update("m", Update(topics={"T": queues(9)}, version=(1, 1)), OLD)
    assert table.route("T", OLD)[0].queues.read_queues == 9


def test_new_version_of_the_master_s_table_removes_what_it_no_longer_lists() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(), U=queues()), OLD)
    table.update("m", Update(topics={"T": queues()}, version=(2, 0)), OLD)
    with pytest.raises(TopicNotFound):
        table.route("U", OLD)
    assert table.topics.keys() == {"T"}


def test_renewal_without_topics_keeps_them() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    assert not table.update("m", Update(log_end=77, version=(1, 0)), OLD + 2)
    assert table.live["m"].log_end == 77
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]


def test_late_end_of_an_old_session_removes_nothing() -> None:
    table = registry()
    table.update("old", first(MASTER, T=queues()), OLD)
    table.update("new", first(MASTER, T=queues()), OLD)
    assert not table.leave("old")
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]
    assert [live.session for live in table.holders("a")] == ["new"]


TWIN = broker(peer="10.0.0.9")


def holder(table: Registry) -> object:
    live = table.holder(MASTER)
    return None if live is None else live.session


def test_who_holds_a_place_keeps_it_and_the_other_gets_it_by_renewing_once_it_is_free() -> None:
    table = registry()
    table.update("one", first(MASTER, T=queues()), OLD)
    assert not table.update("two", first(TWIN, T=queues(2)), OLD)
    assert table.route("T", OLD)[0].broker == MASTER
    assert table.occupant(TWIN) == MASTER
    assert not table.update("two", Update(version=(1, 0)), OLD + 1)
    table.leave("one")
    assert table.update("two", Update(version=(1, 0)), OLD + 2)
    assert table.route("T", OLD)[0].broker == TWIN
    assert table.route("T", OLD)[0].queues.read_queues == 2


def test_of_two_masters_that_reconnect_in_turn_the_first_one_keeps_the_place() -> None:
    table = registry()
    table.update("A1", first(MASTER), 1.0)
    table.update("B1", first(TWIN), 2.0)
    assert holder(table) == "A1"
    table.lose("A1", 3.0)
    assert not table.update("B1", Update(version=(1, 0)), 4.0)
    assert table.update("A2", first(MASTER), 5.0)
    table.lose("B1", 6.0)
    assert not table.update("B2", first(TWIN), 7.0)
    assert holder(table) == "A2"


def test_a_broker_that_is_lost_is_out_of_the_routes_at_once_and_its_place_is_kept_for_the_lease() -> None:
    table = registry()
    table.update("one", first(MASTER, T=queues()), OLD)
    table.update("two", first(TWIN, T=queues(2)), OLD)
    assert table.lose("one", OLD + 1)
    with pytest.raises(TopicNotFound):
        table.route("T", OLD + 1)
    assert table.occupant(TWIN) == MASTER
    assert not table.update("two", Update(version=(1, 0)), OLD + 8)
    assert not table.update("three", first(broker(peer="10.0.0.7"), T=queues()), OLD + 8)
    assert table.update("two", Update(version=(1, 0)), OLD + 8.1)
    assert table.occupant(TWIN) == TWIN


def test_the_same_process_and_the_same_address_take_their_place_at_once() -> None:
    moved = broker(peer="10.0.0.5", instance="i1")
    restarted = broker(peer="10.0.0.5", instance="i2")
    table = registry()
    table.update("one", first(broker(instance="i1")), OLD)
    assert table.update("two", first(moved), OLD + 1)  # its network changed, the old stream hangs
    assert table.update("three", first(restarted), OLD + 2)  # nothing else can listen there
    assert not table.update("two", Update(version=(1, 0)), OLD + 3)  # a superseded stream takes nothing back
    table.lose("three", OLD + 4)
    assert table.update("four", first(restarted), OLD + 5)


def test_an_instance_is_only_compared_where_both_have_one() -> None:
    table = registry()
    table.update("one", first(MASTER), OLD)
    assert not table.update("two", first(TWIN), OLD)
    assert holder(table) == "one"


def test_after_a_restart_of_the_nameserver_who_held_the_place_has_it_again() -> None:
    table = registry()
    table.update("two", first(TWIN), 0.5)
    assert table.update("one", replace(first(MASTER), held_place=True), 0.6)
    assert holder(table) == "one"
    assert not table.update("two", replace(first(TWIN), held_place=True), 0.7)
    table.update("other", first(OTHER), 2.5)
    twin = broker("b", peer="10.0.0.9")
    assert not table.update("late", replace(first(twin), held_place=True), 2.6), "it is settled by then"


def test_kept_places_are_bounded() -> None:
    table = registry()
    for number in range(KEPT_PLACES_MAX + 1):
        table.update(number, first(broker(f"b{number}", peer="10.0.0.3")), OLD)
        table.lose(number, OLD)
    assert len(table.kept) == KEPT_PLACES_MAX
    table.expired(OLD + 9)
    assert not table.kept


def test_slave_that_comes_back_as_master_is_listed_once() -> None:
    table = registry()
    table.update("as-slave", first(SLAVE, T=queues()), OLD)
    table.update("as-master", first(replace(SLAVE, id=0, master=True), T=queues()), OLD)
    assert [(live.session, live.broker.id) for live in table.holders("a")] == [("as-master", 0)]


def test_changed_role_within_a_session_moves_it() -> None:
    table = registry()
    table.update("x", first(SLAVE, T=queues()), OLD)
    assert table.update("x", Update(broker=replace(SLAVE, id=0, master=True), version=(1, 0)), OLD)
    assert [live.broker.id for live in table.holders("a")] == [0]
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]


def test_changed_ha_address_is_news_for_the_group() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    assert table.update("m", Update(broker=replace(MASTER, ha_address="h:1"), version=(1, 0)), OLD)
    assert table.live["m"].broker.ha_address == "h:1"
    assert shown(table.route("T", OLD)) == [("a", 0, 6)]


def test_last_of_a_group_takes_its_topics_and_its_cluster_along() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(), U=queues()), OLD)
    table.update("o", first(OTHER, T=queues()), OLD)
    assert table.leave("m")
    assert shown(table.route("T", OLD)) == [("b", 0, 6)]
    assert table.topics.keys() == {"T"}
    table.leave("o")
    assert (table.topics, table.groups, table.clusters, table.live) == ({}, {}, {}, {})


def test_leaving_twice_is_harmless() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    assert table.leave("m")
    assert not table.leave("m")


def test_lease_ends_after_its_time_without_a_renewal() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), 100.0)
    table.update("m", Update(version=(1, 0)), 102.0)
    assert table.expired(110.0) == []
    assert table.expired(110.1) == ["m"]


def test_nameserver_that_hung_prolongs_all_leases() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), 100.0)
    table.prolong_leases(60.0)
    assert table.expired(160.0) == []


def test_members_are_the_others_of_the_group() -> None:
    table = registry()
    table.update("m", first(MASTER), OLD)
    table.update("s", first(SLAVE), OLD)
    table.update("o", first(OTHER), OLD)
    assert [live.session for live in table.members("m")] == ["s"]
    assert [live.session for live in table.members("s")] == ["m"]
    assert table.members("o") == []


def test_first_request_must_say_who() -> None:
    table = registry()
    with pytest.raises(BadRequest):
        table.update("x", Update(), OLD)
    assert table.live == {}


@pytest.mark.parametrize(("template", "count"), [(8, 4), (3, 3)])
def test_unknown_topic_is_routed_to_where_it_may_be_created(template: int, count: int) -> None:
    table = registry()
    table.update("m", first(MASTER, TBW102=queues(template, 7)), OLD)
    table.update("o", first(OTHER, TBW102=queues(8, 6)), OLD)
    (entry,) = table.route("new", OLD)
    assert entry.broker == MASTER
    assert entry.queues == queues(count, kind="MIXED")


def test_brokers_come_by_cluster_name_and_id() -> None:
    table = registry()
    for session, who in (("o", OTHER), ("s", SLAVE), ("m", MASTER), ("z", broker("z", cluster="B"))):
        table.update(session, first(who), OLD)
    assert [live.session for live in table.brokers()] == ["z", "m", "s", "o"]


def test_a_group_whose_master_leaves_is_counted_until_it_is_back_or_all_are_gone() -> None:
    table = registry()
    for session, who in (("m", MASTER), ("s", SLAVE), ("o", OTHER)):
        table.update(session, first(who), OLD)
    assert table.groups_without_master() == 0
    table.leave("m")
    assert table.groups_without_master() == 1
    table.update("m2", first(MASTER), OLD)
    assert table.groups_without_master() == 0
    table.leave("m2")
    table.leave("s")
    assert table.groups_without_master() == 0


def test_a_route_with_more_queues_than_it_may_list_is_refused_with_what_to_do() -> None:
    table = registry()
    half = queues(ROUTE_QUEUES_MAX // 2)
    table.update("m", first(MASTER, T=half, U=half), OLD)
    table.update("o", first(OTHER, T=half), OLD)
    assert len(table.route("T", OLD)) == 2
    table.update("third", first(broker("c", peer="10.0.0.4"), T=queues(1)), OLD)
    with pytest.raises(Forbidden, match="topic T has 16385 queues on 3 brokers, and a route lists"):
        table.route("T", OLD)
    assert len(table.route("U", OLD)) == 1


def test_a_change_adds_replaces_and_removes_topics_of_the_master() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(4), U=queues(), V=queues()), OLD)
    assert not table.update("m", changing(1, 2, "U", T=queues(9), W=queues(2)), OLD)
    assert {topic: brokers["a"].read_queues for topic, brokers in table.topics.items()} == {
        "T": 9,
        "V": 4,
        "W": 2,
    }
    assert table.live["m"].topics.keys() == {"T", "V", "W"}
    assert (table.live["m"].version, table.live["m"].topics_wanted) == ((2, 0), False)


def test_a_change_about_a_version_that_is_not_here_asks_for_the_whole_table() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(4)), OLD)
    table.update("m", changing(2, 3, "T", U=queues()), OLD)
    table.update("m", changing(3, 4, W=queues()), OLD)  # sent before the answer came
    assert table.live["m"].topics_wanted and table.topics.keys() == {"T"}
    table.update("m", Update(version=(4, 0)), OLD)
    assert table.live["m"].topics_wanted
    table.update("m", Update(topics={"U": queues(), "W": queues()}, version=(4, 0)), OLD)
    assert not table.live["m"].topics_wanted and table.topics.keys() == {"U", "W"}
    table.update("m", changing(4, 5, "U"), OLD)
    assert not table.live["m"].topics_wanted and table.topics.keys() == {"W"}


def test_a_change_of_one_broker_leaves_the_topics_of_others() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(4), U=queues()), OLD)
    table.update("o", first(OTHER, T=queues(2)), OLD)
    table.update("m", changing(1, 2, "T", "U"), OLD)
    assert shown(table.route("T", OLD)) == [("b", 0, 6)]
    assert table.topics.keys() == {"T"}


def test_a_slave_s_change_counts_only_without_a_master_and_adds_only() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues()), OLD)
    table.update("s", first(SLAVE, T=queues()), OLD)
    table.update("s", changing(1, 2, "T", U=queues()), OLD)
    assert table.topics.keys() == {"T"} and table.live["s"].topics.keys() == {"U"}
    table.leave("m")
    assert table.topics.keys() == {"T", "U"}
    table.update("s", changing(2, 3, "U", V=queues()), OLD)
    assert table.topics.keys() == {"T", "U", "V"}


def test_a_change_of_a_session_without_a_place_counts_once_it_has_one() -> None:
    table = registry()
    table.update("one", first(MASTER, T=queues()), OLD)
    other = replace(MASTER, address=replace(MASTER.address, peer_host="10.0.0.9"), instance="i2")
    table.update("two", first(other, T=queues()), OLD)
    table.update("two", changing(1, 2, U=queues()), OLD)
    assert table.topics.keys() == {"T"}
    table.leave("one")
    table.update("two", changing(2, 3, "T"), OLD)
    assert table.topics.keys() == {"U"}


def test_changes_make_no_more_topics_than_a_broker_may_have() -> None:
    table = registry()
    many = {f"t{number}": queues() for number in range(TOPICS_MAX)}
    table.update("m", Update(broker=MASTER, topics=many, version=(1, 0)), OLD)
    with pytest.raises(BadRequest, match="delete some"):
        table.update("m", changing(1, 2, "none", more=queues()), OLD)
    table.update("m", changing(1, 2, "t0", more=queues()), OLD)
    assert len(table.topics) == TOPICS_MAX


def test_only_changes_of_what_several_brokers_have_may_change_what_they_share() -> None:
    table = registry()
    table.update("m", first(MASTER, T=queues(kind="FIFO"), U=queues()), OLD)
    table.update("o", first(OTHER, T=queues(kind="FIFO"), V=queues()), OLD)
    before = table.sharing_changes
    table.update("m", changing(1, 2, "U", W=queues(kind="FIFO")), OLD)
    assert table.sharing_changes == before
    for number, change in enumerate(
        (
            changing(2, 3, V=queues()),  # another one has it
            changing(3, 4, "V"),
            changing(4, 5, T=queues(9, kind="FIFO")),
            changing(5, 6, "T"),
            Update(topics={}, version=(7, 0)),
        )
    ):
        before = table.sharing_changes
        table.update("m", change, OLD)
        assert table.sharing_changes > before, number
    before = table.sharing_changes
    table.leave("o")
    assert table.sharing_changes > before


def gone(name: str, *topics: str) -> Registry:
    """Return a registry in which a group has been, with topics."""
    found = registry()
    found.update("s", Update(broker=broker(name), topics=dict.fromkeys(topics, queues())), OLD)
    found.lose("s", OLD + 1)
    return found


def test_a_group_whose_last_member_is_gone_is_remembered_with_its_topics_until_it_is_back() -> None:
    found = gone("b", "x", "y")
    assert found.known_route("x") == ()
    assert found.absences.groups["b"] == AbsentGroup(
        cluster="C", name="b", renewed_at=OLD, topics=frozenset(("x", "y"))
    )
    found.update("t", Update(broker=broker("b"), topics={}), OLD + 2)
    assert not found.absences.groups


def test_a_group_without_topics_and_one_of_which_a_slave_is_left_are_not_absent() -> None:
    assert not gone("b").absences.groups
    found = registry()
    found.update("m", Update(broker=MASTER, topics={"x": queues()}), OLD)
    found.update("s", Update(broker=SLAVE, topics={"x": queues()}), OLD)
    found.leave("m")
    assert not found.absences.groups
    found.leave("s")
    assert list(found.absences.groups) == ["a"]


def test_an_absent_group_is_let_go_of_by_hand_or_after_its_time() -> None:
    found = gone("b", "x")
    assert found.let_go("b") == (0, True)
    assert found.let_go("b") == (0, True) and list(found.absences.forgotten) == ["b"]
    assert found.let_go("x") == (0, False) and list(found.absences.forgotten) == ["b", "x"]
    found.update("t", Update(broker=broker("b"), topics={}), OLD + 2)
    assert list(found.absences.forgotten) == ["x"]
    found = gone("b", "x")
    found.expired(OLD + ABSENCE_S_MAX - 1)
    assert found.absences.groups
    found.expired(OLD + ABSENCE_S_MAX)
    assert not found.absences.groups
    found.update("m", Update(broker=MASTER, topics={}), OLD)
    with pytest.raises(BadRequest, match="a is registered"):
        found.let_go("a")


def test_absent_groups_and_their_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whimbrel.nameserver.absences.GROUPS_MAX", 2)
    monkeypatch.setattr("whimbrel.nameserver.absences.TOPICS_MAX", 3)
    found = registry()
    for name in "bcd":
        found.update(name, Update(broker=broker(name), topics={"x": queues(), "y": queues()}), OLD)
        found.leave(name)
    assert {name: group.topics for name, group in found.absences.groups.items()} == {
        "c": None,
        "d": {"x", "y"},
    }
    monkeypatch.setattr("whimbrel.nameserver.absences.FORGOTTEN_MAX", 2)
    for name in "xyz":
        found.let_go(name)
    assert list(found.absences.forgotten) == ["y", "z"]
