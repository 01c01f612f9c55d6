"""What changes of tables wait for where the leader is elected: majorities with its tables, and its leases.

For each call that changes a table, by both protocols: for which majorities an answer waits, in their order,
where both kinds of state are behind: a good one, one that says what is there already or gone already, and one
of any other error.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.remoting.tables import Broker, command
from whimbrel.broker.api.admin import AdminService
from whimbrel.broker.cluster import state_quorum
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.engine.tables import Change, TableChanges
from whimbrel.broker.remoting.groups import RemotingGroups
from whimbrel.broker.remoting.topics import RemotingTopics
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    AlreadyExists,
    BadRequest,
    GroupNotFound,
    NotReady,
    NotStored,
    NotWritable,
    StoreFull,
    Throttled,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.registration import SharedTopics
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.remoting.codes import RequestCode as R
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.rpc.server.handlers import Call, UnaryMethod

WHY = "too few members have handed their leases over"
BOTH = "metadata leases"
SHAPE = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
REQUESTS: dict[str | R, Any] = {
    "CreateTopic": admin.CreateTopicRequest(topic=admin.Topic(name="new")),
    "UpdateTopic": admin.UpdateTopicRequest(name="T", read_queues=9),
    "DeleteTopic": admin.DeleteTopicRequest(name="T"),
    "CreateGroup": admin.CreateGroupRequest(group=admin.Group(name="new")),
    "UpdateGroup": admin.UpdateGroupRequest(name="G", fifo=True),
    "DeleteGroup": admin.DeleteGroupRequest(name="G"),
    "DrainBroker": admin.DrainBrokerRequest(drain=True),
    "ForgetBroker": admin.ForgetBrokerRequest(broker_name="b"),
    R.UPDATE_AND_CREATE_TOPIC: command(17, topic="new", **SHAPE),
    R.DELETE_TOPIC_IN_BROKER: command(215, topic="T"),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: command(200, {"groupName": "new"}),
    R.DELETE_SUBSCRIPTIONGROUP: command(207, groupName="G"),
}
# Waits of a good answer, and of one that says what is known already.
HELD: dict[str | R, tuple[str, str]] = {
    "CreateTopic": ("metadata", "metadata"),
    "UpdateTopic": ("metadata", "metadata"),
    "DeleteTopic": (BOTH, "metadata"),
    "CreateGroup": ("metadata", "metadata"),
    "UpdateGroup": ("metadata", "metadata"),
    "DeleteGroup": (BOTH, "metadata"),
    "DrainBroker": ("metadata", "metadata"),
    "ForgetBroker": ("metadata", "metadata"),
    R.UPDATE_AND_CREATE_TOPIC: ("metadata", "metadata"),
    R.DELETE_TOPIC_IN_BROKER: (BOTH, "metadata"),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("metadata", "metadata"),
    R.DELETE_SUBSCRIPTIONGROUP: (BOTH, "metadata"),
}
ALREADY = (AlreadyExists, GroupNotFound, TopicNotFound)
OTHERS = (BadRequest, NotWritable, StoreFull)

each = pytest.mark.parametrize("what", HELD, ids=str)


class Rig(Broker):
    """A leader of three, with a topic and a group; nobody has stored anything yet.

    Attributes:
        why: why this leader does not serve yet. quorums: the majorities, by kind.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.why = ""
        self.topic()
        self.group()
        self.quorums = {
            kind: StateQuorum(
                kind, others=(2, 3), copies=2, newest=lambda: 1, own=lambda: 1, clock=lambda: 0.0,
                timeout_s=3.0,
            )
            for kind in ("metadata", "leases")
        }  # fmt: skip
        sharing = TopicSharing(self.topics, "broker-a", root)
        sharing.told("n", SharedTopics(queues={}, masters={}))
        self.changes = TableChanges(
            self.topics, self.groups, self.consumption, self.store, master=True, sharing=sharing,
            majority=self.quorums["metadata"], leases=self.quorums["leases"], not_serving=lambda: self.why,
        )  # fmt: skip
        service = AdminService(
            self.changes, cast(Clients, None), replication=cast(Any, None), wall_ms=lambda at: 0
        ).service()
        self.methods = {one.name: one.handle for one in service.methods if isinstance(one, UnaryMethod)}
        topics = RemotingTopics(
            self.changes, self.clients, self.consumption.positions, self.traffic, broker_name="broker-a"
        )
        self.handles = {**topics.handles(), **RemotingGroups(self.changes).handles()}

    def ask(self, what: str | R, request: Any = None) -> Any:
        """Make a call; with its own request where none is given."""
        request = REQUESTS[what] if request is None else request
        if isinstance(what, R):
            return self.handles[what](self.peer, request)
        return self.methods[what](cast(Call, None), request)

    def reach(self, kind: str) -> None:
        """Have a majority store all changes of a kind so far."""
        self.quorums[kind].stored(2, 1)

    def waits(self, what: str | R) -> tuple[str, Any]:
        """Return which majorities must have stored what they lack for an answer to leave, and the answer."""
        try:
            found = self.ask(what)
        except WhimbrelError as error:
            found = error
        waits = []
        while isinstance(found, Deferred) and not found.done:
            (kind,) = [kind for kind, quorum in self.quorums.items() if quorum.waiting]
            waits.append(kind)
            self.reach(kind)
        return " ".join(waits), (found.error or found.result) if isinstance(found, Deferred) else found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[WhimbrelError], None]:
    """What has each change fail."""

    def begin(error: WhimbrelError) -> None:
        def check(*_: Any) -> bool:
            raise error

        monkeypatch.setattr(Change, "check", check)
        monkeypatch.setattr(TableChanges, "check_master", check)

    return begin


@each
def test_a_good_answer_waits(rig: Rig, what: str | R) -> None:
    before = rig.topics.version, rig.groups.version
    waits, answer = rig.waits(what)
    assert waits == HELD[what][0]
    assert not isinstance(answer, Exception) and (not isinstance(answer, Reply) or answer.code == 0)
    if what != "ForgetBroker":
        assert (rig.topics.version, rig.groups.version) != before


@each
@pytest.mark.parametrize("error", ALREADY)
def test_what_is_known_already_waits(
    rig: Rig, what: str | R, error: type[WhimbrelError], fail: Callable[[WhimbrelError], None]
) -> None:
    known = error("known")
    fail(known)
    assert rig.waits(what) == (HELD[what][1], known)


@each
@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_do_not_wait(
    rig: Rig, what: str | R, error: type[WhimbrelError], fail: Callable[[WhimbrelError], None]
) -> None:
    refused = error("refused")
    fail(refused)
    assert rig.waits(what) == ("", refused)


@each
@pytest.mark.parametrize("behind", ["metadata", "leases"])
@pytest.mark.parametrize("error", [None, *ALREADY])
def test_where_one_kind_is_behind_an_answer_waits_for_that(
    rig: Rig,
    what: str | R,
    behind: str,
    error: type[WhimbrelError] | None,
    fail: Callable[[WhimbrelError], None],
) -> None:
    """Also what is gone already, though it waits for one kind only where both are behind."""
    rig.reach("leases" if behind == "metadata" else "metadata")
    if error is not None:
        fail(error("known"))
    waits, answer = rig.waits(what)
    assert waits == (behind if behind in HELD[what][0] else "")
    assert isinstance(answer, error or object)


@each
def test_before_the_leader_serves_nothing_is_changed(
    rig: Rig, what: str | R, fail: Callable[[WhimbrelError], None]
) -> None:
    fail(BadRequest("nothing is looked at"))
    rig.why = WHY
    with pytest.raises(NotReady, match=WHY):
        rig.ask(what)


@pytest.mark.parametrize(
    ("what", "request_", "error"),
    [
        ("CreateTopic", admin.CreateTopicRequest(topic=admin.Topic(name="T")), AlreadyExists),
        ("UpdateTopic", admin.UpdateTopicRequest(name="none"), TopicNotFound),
        ("DeleteTopic", admin.DeleteTopicRequest(name="none"), TopicNotFound),
        ("CreateGroup", admin.CreateGroupRequest(group=admin.Group(name="G")), AlreadyExists),
        ("UpdateGroup", admin.UpdateGroupRequest(name="none"), GroupNotFound),
        ("DeleteGroup", admin.DeleteGroupRequest(name="none"), GroupNotFound),
    ],
)
def test_what_exists_is_told_once_a_majority_has_it(
    rig: Rig, what: str, request_: Any, error: type[WhimbrelError]
) -> None:
    held = rig.ask(what, request_)
    assert not held.done
    rig.reach("metadata")
    assert isinstance(held.error, error)


@pytest.mark.parametrize(
    ("what", "request_"),
    [
        (R.DELETE_TOPIC_IN_BROKER, command(215, topic="none")),
        (R.DELETE_SUBSCRIPTIONGROUP, command(207, groupName="none")),
        (R.UPDATE_AND_CREATE_TOPIC, command(17, topic="T", **SHAPE)),
    ],
)
def test_what_repeats_a_change_silently_waits_as_one_that_changes_something(
    rig: Rig, what: R, request_: Command
) -> None:
    held = rig.ask(what, request_)
    assert not held.done
    rig.reach("metadata")
    assert held.done == (what is R.UPDATE_AND_CREATE_TOPIC)
    rig.reach("leases")
    assert held.result.code == 0 and held.result.remark is None


@each
def test_who_waits_for_a_majority_that_does_not_come_is_told_that_nobody_knows(
    rig: Rig, what: str | R
) -> None:
    held = rig.ask(what)
    for quorum in rig.quorums.values():
        quorum.close("the leader stops")
    assert isinstance(held.error, NotStored)


def test_no_more_wait_than_may(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_quorum, "WAITING_MAX", 0)
    with pytest.raises(Throttled):
        rig.ask("CreateTopic")


def test_a_setting_of_this_broker_waits_for_nobody(rig: Rig) -> None:
    """25 drains the broker, too."""
    rig.why = WHY
    rig.changes.set_drained(drained=True)
    assert rig.topics.drained
