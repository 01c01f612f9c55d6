"""Groups that elect their leader: whose is the master's place, and what routes tell while it is nobody's."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from whimbrel.errors import TopicNotFound
from whimbrel.model.topic import WRITE
from whimbrel.nameserver.addresses import BrokerAddress
from whimbrel.nameserver.registry import BrokerIdentity, QueueCounts, Registry, RouteEntry, Update

OLD = 1000.0  # long after the start at 0
LEASE_S = 8.0
QUEUES = QueueCounts(read_queues=4, write_queues=4, permission=6)
TEMPLATE = QueueCounts(read_queues=8, write_queues=8, permission=7)


def member(number: int, epoch: int, *, leads: bool = False, voters: int = 3, life: int = 1) -> BrokerIdentity:
    """Return a member's registration; `life` tells its processes apart."""
    return BrokerIdentity(
        cluster="C",
        name="a",
        id=0 if leads else number,
        master=leads,
        instance=f"{number}.{life}",
        epoch=epoch,
        member_id=number,
        voters=voters,
        address=BrokerAddress(
            advertised_host="",
            advertised_explicitly=False,
            port=8091,
            host_name=f"host-{number}",
            nameserver_host="ns",
            peer_host=f"10.0.0.{number}",
        ),
    )


def fixed(number: int, *, master: bool = False) -> BrokerIdentity:
    """Return the registration of a broker of a fixed pair."""
    return replace(member(number, 0, leads=master), member_id=0, voters=0)


def says(broker: BrokerIdentity, **topics: QueueCounts) -> Update:
    return Update(broker=broker, topics=topics or {"T": QUEUES}, version=(broker.epoch, 1))


def registry() -> Registry:
    return Registry(lease_s=LEASE_S, renew_s=2.0, started=0.0)


def group(leader: int = 1, epoch: int = 7) -> Registry:
    """Return a group of three with its leader; sessions have the numbers of the members."""
    table = registry()
    for number in (1, 2, 3):
        table.update(number, says(member(number, epoch, leads=number == leader)), OLD)
    return table


def leader(table: Registry) -> tuple[object, int] | None:
    """Return the session that holds the master's place, and its epoch."""
    session = table.groups["a"].holders.get(0) if "a" in table.groups else None
    return None if session is None else (session, table.live[session].broker.epoch)


def entry(table: Registry, topic: str = "T") -> RouteEntry:
    (only,) = table.route(topic, OLD + 100)
    return only


def test_a_higher_epoch_takes_the_place_from_a_leader_that_lives() -> None:
    table = group()
    assert table.update(2, says(member(2, 8, leads=True)), OLD + 1)
    assert leader(table) == (2, 8)
    # The one before is told who has the place, and keeps nothing by renewing or registering again.
    assert not table.update(1, Update(), OLD + 1)
    assert not table.take_free_place(1, OLD + 1)
    table.update(1, says(member(1, 7, leads=True, life=2)), OLD + 1)
    assert leader(table) == (2, 8)
    occupant = table.occupant(table.live[1].broker)
    assert occupant is not None and occupant.member_id == 2
    assert [other.broker.member_id for other in table.members(1)] == [2, 3]


def test_a_higher_epoch_takes_a_place_that_is_kept_for_another_one() -> None:
    table = group()
    table.lose(1, OLD + 1)
    table.update(2, says(member(2, 8, leads=True)), OLD + 1)
    assert leader(table) == (2, 8)
    table.update("back", says(member(1, 7, leads=True)), OLD + 1)
    assert leader(table) == (2, 8)


def test_a_lower_epoch_does_not_take_a_free_place() -> None:
    table = group()
    table.update(2, says(member(2, 9, leads=True)), OLD + 1)
    table.leave(2)
    for epoch in (0, 7, 8):
        table.update(1, says(member(1, epoch, leads=True, life=2)), OLD + 100)
        assert leader(table) is None
        occupant = table.occupant(table.live[1].broker)
        assert occupant is not None and (occupant.member_id, occupant.epoch) == (2, 9)
    table.update(3, says(member(3, 9, leads=True)), OLD + 100)
    assert leader(table) == (3, 9)


def test_a_fixed_master_does_not_take_the_place_of_an_elected_one() -> None:
    table = group()
    table.update("fixed", says(fixed(4, master=True)), OLD + 1)
    assert leader(table) == (1, 7)
    table.leave(1)
    assert not table.take_free_place("fixed", OLD + 100)


def test_the_highest_epoch_is_forgotten_with_the_last_session_of_the_group() -> None:
    table = group()
    table.update("old", says(member(4, 6, leads=True)), OLD)  # without a place, and a session all the same
    for number in (1, 2, 3):
        table.leave(number)
    assert "a" not in table.groups and not table.take_free_place("old", OLD)
    table.leave("old")
    assert not table.leaders
    table.update("new", says(member(4, 1, leads=True)), OLD)
    assert leader(table) == ("new", 1)


def test_a_place_that_is_kept_is_kept_from_lower_epochs_of_the_same_broker_as_well() -> None:
    table = registry()
    table.update(1, says(member(1, 7, leads=True)), OLD)
    table.lose(1, OLD)
    table.update("back", says(member(1, 6, leads=True, life=2)), OLD + 1)
    assert leader(table) is None
    table.expired(OLD + LEASE_S + 1)
    assert table.take_free_place("back", OLD + LEASE_S + 1)


def test_a_session_that_changes_its_name_leaves_no_epoch_behind() -> None:
    table = registry()
    table.update(1, says(member(1, 7, leads=True)), OLD)
    table.update(1, says(replace(member(1, 1, leads=True), name="b")), OLD)
    assert list(table.leaders) == ["b"] and table.leaders["b"].epoch == 1


def test_a_member_that_becomes_leader_changes_its_place_in_its_session() -> None:
    table = group()
    table.leave(1)
    assert table.update(2, Update(broker=member(2, 8, leads=True)), OLD + 1)
    assert sorted(table.groups["a"].holders) == [0, 3]
    assert table.update(3, Update(broker=member(3, 8)), OLD + 1)  # the others are told that it follows
    assert [live.broker.epoch for live in table.holders("a")] == [8, 8]
    assert table.update(2, Update(broker=member(2, 8)), OLD + 2)  # it resigns
    assert sorted(table.groups["a"].holders) == [2, 3] and leader(table) is None


def test_the_topics_of_a_new_leader_are_those_of_the_group() -> None:
    table = group()
    table.update(1, says(member(1, 7, leads=True), T=QUEUES, gone=QUEUES), OLD)
    table.update(1, Update(topics={"T": QUEUES, "gone": QUEUES}, version=(7, 2)), OLD)
    assert "gone" in table.topics
    table.update(2, says(member(2, 8, leads=True), T=QUEUES, new=QUEUES), OLD + 1)
    table.update(2, Update(topics={"T": QUEUES, "new": QUEUES}, version=(8, 2)), OLD + 1)
    assert sorted(table.topics) == ["T", "new"]
    table.update(1, Update(topics={"late": QUEUES}, version=(7, 3)), OLD + 1)  # of the one before
    assert sorted(table.topics) == ["T", "new"]


def test_of_equal_epochs_the_one_that_has_the_place_keeps_it() -> None:
    table = group()
    table.update("other", says(member(4, 7, leads=True)), OLD + 1)
    assert leader(table) == (1, 7)
    table.update("restarted", says(member(1, 7, leads=True, life=2)), OLD + 1)  # of the same address
    assert leader(table) == ("restarted", 7)


def test_routes_keep_the_write_bit_while_a_majority_is_there_to_elect() -> None:
    table = group()
    table.update(1, Update(topics={"T": QUEUES, "TBW102": TEMPLATE}, version=(7, 2)), OLD)
    table.lose(1, OLD)
    assert entry(table).queues.permission & WRITE
    assert entry(table, "never-seen").queues.permission == 6  # a send will make it
    table.lose(2, OLD)
    assert not entry(table).queues.permission & WRITE
    with pytest.raises(TopicNotFound):
        table.route("never-seen", OLD + 100)
    table.update(2, says(member(2, 7, life=2)), OLD)
    assert entry(table).queues.permission & WRITE


def test_a_member_counts_once_for_the_majority() -> None:
    table = registry()
    table.update("one", says(member(2, 7)), OLD)
    twice = replace(member(2, 7), id=5, address=replace(member(2, 7).address, port=9))
    table.update("two", says(twice), OLD)
    assert not entry(table).queues.permission & WRITE
    table.update("three", says(member(3, 7)), OLD)
    assert entry(table).queues.permission & WRITE


@pytest.mark.parametrize(
    ("voters", "present", "writable"), [(2, 1, False), (2, 2, True), (5, 2, False), (5, 3, True)]
)
def test_a_majority_is_more_than_half_of_as_many_as_vote(voters: int, present: int, writable: bool) -> None:
    table = registry()
    for number in range(1, present + 1):
        table.update(number, says(member(number, 7, voters=voters)), OLD)
    assert bool(entry(table).queues.permission & WRITE) == writable


def test_a_fixed_pair_without_its_master_is_read_only_as_ever() -> None:
    table = registry()
    for number in (1, 2):
        table.update(number, says(fixed(number)), OLD)
    assert not entry(table).queues.permission & WRITE
    assert entry(table).members == ()


def test_a_route_names_the_members_with_the_leader_first() -> None:
    table = group(leader=2)
    table.update("observer", says(replace(fixed(9), id=1000)), OLD)
    assert (entry(table).broker.member_id, entry(table).broker.id) == (2, 0)
    assert [each.member_id for each in entry(table).members] == [2, 1, 3]
    table.lose(2, OLD)
    assert [each.member_id for each in entry(table).members] == [1, 3]
    assert entry(table).broker.member_id == 1


def test_without_a_leader_a_broker_that_is_no_member_does_not_stand_for_the_group() -> None:
    table = group()
    table.update("observer", says(replace(fixed(9), id=1)), OLD)
    table.leave(1)
    assert [live.broker.id for live in table.holders("a")] == [1, 2, 3]
    assert entry(table).broker.member_id == 2


def test_with_a_fixed_master_members_are_not_named_in_its_place() -> None:
    table = registry()
    table.update("fixed", says(fixed(4, master=True)), OLD)
    table.update(2, says(member(2, 0)), OLD)
    assert entry(table).broker.member_id == 0 and entry(table).members == ()


class Epochs(RuleBasedStateMachine):
    """Members that lead, follow, leave and are lost in any order: the place goes by epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = registry()
        self.now = OLD
        self.sessions = 0
        self.highest = 0  # that has had the place since the group had no session

    @rule(number=st.integers(1, 4), epoch=st.integers(0, 6), leads=st.booleans())
    def register(self, number: int, epoch: int, leads: bool) -> None:
        self.sessions += 1
        self.table.update(
            self.sessions, says(member(number, epoch, leads=leads, life=self.sessions)), self.now
        )

    def session(self, data: st.DataObject) -> object:
        return data.draw(st.sampled_from(sorted(self.table.live, key=str)))

    @precondition(lambda self: self.table.live)
    @rule(data=st.data(), epoch=st.integers(0, 6), leads=st.booleans())
    def change(self, data: st.DataObject, epoch: int, leads: bool) -> None:
        session = self.session(data)
        broker = self.table.live[session].broker
        changed = replace(broker, epoch=epoch, id=0 if leads else broker.member_id, master=leads)
        self.table.update(session, Update(broker=changed), self.now)

    @precondition(lambda self: self.table.live)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        session = self.session(data)
        self.table.update(session, Update(), self.now)
        if self.table.holder(self.table.live[session].broker) is not self.table.live[session]:
            assert self.table.occupant(self.table.live[session].broker) is not None

    @precondition(lambda self: self.table.live)
    @rule(data=st.data(), said=st.booleans())
    def end(self, data: st.DataObject, said: bool) -> None:
        session = self.session(data)
        if said:
            self.table.leave(session)
        else:
            self.table.lose(session, self.now)
        if not self.table.live:
            self.highest = 0

    @rule(seconds=st.sampled_from((1.0, LEASE_S, 3 * LEASE_S)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for session in self.table.expired(self.now):
            self.table.leave(session)
        if not self.table.live:
            self.highest = 0

    @invariant()
    def the_holder_has_the_greatest_epoch(self) -> None:
        found = leader(self.table)
        if found is None:
            return
        masters = [live.broker.epoch for live in self.table.live.values() if live.broker.id == 0]
        assert found[1] == max(masters)
        assert found[1] >= self.highest, "a lower epoch took the place after a higher one"
        self.highest = found[1]

    @invariant()
    def a_lower_epoch_is_barred_and_told_by_whom(self) -> None:
        for live in self.table.live.values():
            if live.broker.id == 0 and live.broker.epoch < self.highest:
                assert self.table.newer_leader(live.broker) is not None
                assert self.table.occupant(live.broker) is not None

    @invariant()
    def nothing_is_remembered_of_groups_that_nobody_is_in(self) -> None:
        assert set(self.table.leaders) <= {live.broker.name for live in self.table.live.values()}


Epochs.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestEpochs = Epochs.TestCase
