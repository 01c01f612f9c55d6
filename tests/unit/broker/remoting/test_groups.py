"""Groups as tools of RocketMQ make, change, delete and show them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.tables import Broker
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.remoting.groups import RemotingGroups
from whimbrel.model.topic import GroupConfig, OrderedBy

# As mqadmin 4.9.3 sends it.
OLD = {
    "brokerId": 0,
    "consumeBroadcastEnable": False,
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "groupName": "G",
    "notifyConsumerIdsChangedEnable": False,
    "retryMaxTimes": 3,
    "retryQueueNums": 2,
    "whichBrokerWhenConsumeSlowly": 1,
}


class Rig(Broker):
    def __init__(self, root: Path, *, master: bool = True) -> None:
        super().__init__(root, master=master)
        changes = TableChanges(self.topics, self.groups, self.consumption, self.store, master=master)
        self.handles = RemotingGroups(changes).handles()

    def found(self) -> GroupConfig:
        group = self.groups.get("G")
        assert group is not None
        return group


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_a_tool_of_4_9_3_makes_a_group(rig: Rig) -> None:
    assert rig(200, OLD).code == 0
    bean = rig.found().bean()
    assert {name: bean[name] for name in OLD} == OLD
    assert bean["consumeMessageOrderly"] is False and bean["consumeTimeoutMinute"] == 15


def test_it_takes_nothing_away_of_what_one_of_5_x_has_set(rig: Rig) -> None:
    new = {
        "consumeMessageOrderly": True,
        "consumeTimeoutMinute": 20,
        "groupSysFlag": 1,
        "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}},
        "attributes": {"+priority.factor": "50"},
        "subscriptionDataSet": None,
    }
    assert rig(200, OLD | new).code == 0
    assert rig(200, OLD | {"retryMaxTimes": 5}).code == 0
    group = rig.found()
    assert group.retry_max == 5 and group.fifo and group.priority_percent == 50
    assert group.rest["consumeTimeoutMinute"] == 20 and group.rest["groupSysFlag"] == 1
    assert group.retry_policy.wait_ms(1) == 5000


def test_attributes_are_set_and_taken_away(rig: Rig) -> None:
    rig(200, OLD | {"attributes": {"+priority.factor": "10", "+whimbrel.ordered.by": "message-group"}})
    assert rig.found().ordered_by is OrderedBy.MESSAGE_GROUP
    rig(200, OLD | {"attributes": {"-whimbrel.ordered.by": "", "+priority.factor": "30"}})
    assert rig.found().rest["attributes"] == {"priority.factor": "30"}


def test_attributes_that_a_store_has_may_be_sent_back(rig: Rig) -> None:
    """As the Dashboard does with all that it was shown."""
    rig(200, OLD)
    rig.groups.put(rig.found().with_attribute("lite.bind.topic", "T"))
    assert rig(200, OLD | {"attributes": {"lite.bind.topic": "T"}}).code == 0
    assert rig.found().rest["attributes"] == {"lite.bind.topic": "T"}
    assert rig(200, OLD | {"attributes": {"+lite.bind.topic": "U"}}).code == 1
    assert rig(200, OLD | {"attributes": {"-lite.bind.topic": ""}}).code == 0
    assert rig.found().rest["attributes"] == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("lite.bind.topic", "T"), ("a", "1"), ("priority.factor", "101"), ("priority.factor", "x"),
     ("whimbrel.ordered.by", "nothing")],
)  # fmt: skip
def test_an_attribute_that_means_nothing_here_is_refused(rig: Rig, name: str, value: str) -> None:
    refused = rig(200, OLD | {"attributes": {f"+{name}": value}})
    assert refused.code == 1 and name in str(refused.remark) and "priority.factor" in str(refused.remark)
    assert rig.groups.get("G") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        {},
        {"groupName": 7},
        {"groupName": "a b"},
        {"groupName": ""},
        OLD | {"retryMaxTimes": "3"},
        OLD | {"retryMaxTimes": 1.5},
        OLD | {"consumeEnable": 1},
        OLD | {"attributes": {"+a": 1}},
        OLD | {"attributes": {"+" + "a" * 300: "1"}},
        OLD | {"attributes": {f"+{number}": "1" for number in range(33)}},
        OLD | {"attributes": []},
        b" " * (64 * 1024 + 1),
    ],
)
def test_what_no_group_can_be_is_refused(rig: Rig, body: Any) -> None:
    before = dict(rig.groups.rows)
    assert rig(200, body).code == 1
    assert rig.groups.rows == before


def test_fields_that_nobody_knows_are_not_kept(rig: Rig) -> None:
    assert rig(200, OLD | {"x" * 1000: "y"}).code == 0
    assert rig.found().bean().keys() == GroupConfig(name="G").bean().keys()


def test_a_group_is_deleted_with_its_positions(rig: Rig) -> None:
    rig.topic()
    rig.group()
    rig.put(3)
    rig.positions.commit("G", "T", 0, 2, owned=True)
    assert rig(207, groupName="G", removeOffset="false").code == 0
    assert rig.groups.get("G") is None and rig.positions.get("G", "T", 0) is None
    assert rig(207, groupName="G").code == 0
    assert rig(207, groupName="TOOLS_CONSUMER").code == 1
    assert rig(207, groupName="a b").code == 1


def test_a_slave_changes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, master=False)
    rig.group("H")
    reply = rig(200, OLD)
    assert reply.code == 0 and "slave" in (reply.remark or "") and rig.groups.get("G") is None
    reply = rig(207, groupName="H")
    assert reply.code == 0 and "slave" in (reply.remark or "") and rig.groups.get("H") is not None
    rig.close()


def test_all_configurations(rig: Rig) -> None:
    rig.group()
    found = rig.json(201)
    assert found["subscriptionGroupTable"].keys() == rig.groups.rows.keys()
    assert found["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 16
    assert found["dataVersion"]["counter"] == rig.groups.version.counter


@pytest.mark.parametrize("master", [True, False])
def test_groups_pull_and_can_not_be_told_to_pop(tmp_path: Path, master: bool) -> None:
    rig = Rig(tmp_path, master=master)
    mode = {"topic": "T", "consumerGroup": "G", "mode": "PULL", "popShareQueueNum": 0}
    assert rig(401, mode).code == 0
    refused = rig(401, mode | {"mode": "POP"})
    assert refused.code == 1 and "gRPC" in (refused.remark or "")
    assert rig(401, {"topic": "T"}).code == 1
    rig.close()
