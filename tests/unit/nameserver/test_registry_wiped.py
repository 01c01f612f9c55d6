"""The write bit of a broker name, taken out of routes by tools; ids as clients of RocketMQ 4 know them."""

from dataclasses import replace

from unit.nameserver.test_registry import MASTER, OLD, OTHER, SLAVE, broker, first, queues, registry, shown
from whimbrel.nameserver.registry import Registry, Update


def two_brokers() -> Registry:
    table = registry()
    table.update("m", first(MASTER, T=queues(), TBW102=queues(8, 7)), OLD)
    table.update("s", first(SLAVE, T=queues()), OLD)
    table.update("o", first(OTHER, T=queues(), TBW102=queues(8, 7)), OLD)
    return table


def test_a_wiped_broker_is_read_only_in_all_routes_until_it_is_restored() -> None:
    table = two_brokers()
    assert table.wipe_writes("a") == 2
    assert shown(table.route("T", OLD)) == [("a", 0, 4), ("b", 0, 6)]
    assert shown(table.route("new", OLD)) == [("a", 0, 4), ("b", 0, 6)]
    assert shown(table.known_route("TBW102")) == [("a", 0, 5), ("b", 0, 7)]
    assert table.restore_writes("a") == 2
    assert shown(table.route("T", OLD)) == [("a", 0, 6), ("b", 0, 6)]


def test_topics_that_come_later_are_read_only_as_well() -> None:
    table = two_brokers()
    table.wipe_writes("a")
    table.update("m", Update(topics={"U": queues(), "TBW102": queues(8, 7)}, version=(2, 0)), OLD)
    assert shown(table.route("U", OLD)) == [("a", 0, 4)]


def test_it_ends_with_the_session_of_the_master_and_not_with_that_of_a_slave() -> None:
    for session, end in (("s", False), ("m", True)):
        for leave in (True, False):
            table = two_brokers()
            table.wipe_writes("a")
            assert table.leave(session) if leave else table.lose(session, OLD)
            assert ("a" in table.wiped) is not end


def test_it_ends_with_the_group() -> None:
    table = registry()
    table.update("s", first(SLAVE, T=queues()), OLD)
    table.wipe_writes("a")
    table.leave("s")
    assert not table.wiped


def test_a_new_leader_within_the_same_sessions_changes_nothing() -> None:
    one = broker(id_=0, member_id=1, epoch=3, voters=3)
    two = broker(id_=2, peer="10.0.0.2", member_id=2, epoch=3, voters=3)
    three = broker(id_=3, peer="10.0.0.3", member_id=3, epoch=3, voters=3)
    table = registry()
    for name, member in (("1", one), ("2", two), ("3", three)):
        table.update(name, first(member, T=queues()), OLD)
    table.wipe_writes("a")
    table.update("1", first(replace(one, id=1, master=False, epoch=4), T=queues()), OLD)
    table.update("2", first(replace(two, id=0, master=True, epoch=4), T=queues()), OLD)
    assert shown(table.route("T", OLD)) == [("a", 0, 4)]


def test_a_name_that_nobody_has_is_not_remembered() -> None:
    table = two_brokers()
    assert (table.wipe_writes("nobody"), table.restore_writes("nobody")) == (0, 0)
    assert not table.wiped


def test_ids_of_a_group_with_a_master_are_its_own() -> None:
    table = two_brokers()
    (entry, _) = table.known_route("T")
    assert table.addresses(entry.broker) == {0: MASTER, 1: SLAVE}


def test_without_a_master_the_slave_that_acts_stands_under_id_0_alone() -> None:
    table = two_brokers()
    second = broker(id_=2, peer="10.0.0.4")
    table.update("s2", first(second, T=queues()), OLD)
    table.leave("m")
    (entry, _) = table.known_route("T")
    assert (entry.broker, entry.queues.permission) == (SLAVE, 4)
    assert table.addresses(entry.broker) == {0: SLAVE, 2: second}


def test_who_waits_for_topics_to_go_is_told_of_each() -> None:
    table = two_brokers()
    gone: list[str] = []
    table.on_dropped = gone.append
    table.update("m", Update(topics={"TBW102": queues(8, 7)}, version=(2, 0)), OLD)
    assert gone == ["T"]
    table.leave("o")
    assert sorted(gone) == ["T", "T", "TBW102"]
