"""Commands for messages that are not plain ones, and for the groups that consume them."""

import pytest

from support.cluster.command_line import Shell
from support.systems.fake_cluster import FakeCluster
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin


def test_a_delayed_message_prints_its_handle_and_is_recalled(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    (receipt,) = shell.json("send", "t", "later", "--delay", "10m")
    shell("send", "t", "later", "--at", "2100-01-01")
    assert shell.json("recall", "t", receipt["recall_handle"]) == {"recalled": receipt["message_id"]}
    shell("recall", "t", "nonsense", code=1)
    assert "malformed" in shell.error
    sent = [
        request.messages[0].system_properties for name, _, request in cluster.calls if name == "SendMessage"
    ]
    assert all(one.message_type == v2.DELAY for one in sent)
    assert sent[1].delivery_timestamp.seconds == 4102444800


def test_the_table_of_a_delayed_message_has_its_handle(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    assert "handle-" in shell("send", "t", "later", "--delay", "1.5s")
    assert "recall handle" not in shell("send", "t", "now")


@pytest.mark.parametrize(
    ("end", "resolutions", "stored"),
    [("commit", [v2.COMMIT], 1), ("rollback", [v2.ROLLBACK], 0), ("leave", [], 0)],
)
def test_a_transaction_is_ended_as_it_says(
    end: str, resolutions: list[int], stored: int, cluster: FakeCluster, shell: Shell
) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "paid", "--transaction", end, "--message-group", "g")
    assert [resolution for _, resolution, _ in cluster.ended] == resolutions
    assert len(cluster.topics["t"][0]) == stored


def test_a_priority_is_sent(cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell("send", "t", "x", "--priority", "7")
    (message,) = shell.json("receive", "t", "--group", "g", "--wait", "0")
    assert message["priority"] == 7


@pytest.mark.parametrize("command", [["receive", "t", "-g", "g", "--wait", "0"], ["pull", "t", "-q", "0"]])
def test_sql_is_a_filter_of_its_own(command: list[str], cluster: FakeCluster, shell: Shell) -> None:
    cluster.topics["t"] = [[]]
    shell(*command, "--sql", "n > 5")
    (request, *_) = (one for name, _, one in cluster.calls if name in ("ReceiveMessage", "PullMessage"))
    assert (request.filter_expression.type, request.filter_expression.expression) == (v2.SQL, "n > 5")


def test_a_group_is_made_with_its_order_and_its_waits(cluster: FakeCluster, shell: Shell) -> None:
    shell("group", "create", "g", "--ordered-by", "message-group", "--backoff", "500ms,10s,1m")
    made = cluster.groups["g"]
    assert (made.fifo, made.ordered_by) == (True, admin.ORDERED_BY_MESSAGE_GROUP)
    assert list(made.retry_policy.customized.waits_ms) == [500, 10_000, 60_000]
    assert "by message-group" in shell("group", "describe", "g") + shell.error
    shell("group", "update", "g", "--ordered-by", "queue", "--backoff", "exponential:1s,1m,3")
    assert (made.fifo, made.ordered_by) == (True, admin.ORDERED_BY_QUEUE)
    waits = made.retry_policy.exponential
    assert (waits.initial_ms, waits.max_ms, waits.multiplier) == (1000, 60_000, 3)
    assert "exponential:1s,1m,3" in shell("group", "list")
    shell("group", "update", "g", "--no-fifo", "--backoff", "default")
    assert not made.fifo
    assert "default" in shell("group", "list")


def test_a_group_is_made_with_its_share_of_receives_by_priority(cluster: FakeCluster, shell: Shell) -> None:
    shell("group", "create", "g", "--priority-percent", "80")
    assert cluster.groups["g"].priority_percent == 80
    assert "80 of 100 receives by priority" in shell("group", "describe", "g") + shell.error
    shell("group", "update", "g", "--priority-percent", "0")
    assert cluster.groups["g"].priority_percent == 0
    shell("group", "update", "g", "--priority-percent", "101", code=2)
    shell("group", "create", "plain")
    assert not cluster.groups["plain"].HasField("priority_percent")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["send", "t", "x", "--delay", "10s", "--at", "2100-01-01"], "only one of --delay and --at"),
        (["send", "t", "x", "--delay", "10s", "--priority", "1"], "only one of --delay and --priority"),
        (["send", "t", "x", "--message-group", "g", "--delay", "1s"], "only one of --message-group and"),
        (["send", "t", "x", "--transaction", "commit", "--delay", "1s"], "only one of --delay and"),
        (["send", "t", "x", "--transaction", "commit", "--batch", "2"], "one by one"),
        (["send", "t", "x", "--delay", "soon"], "is not a duration"),
        (["send", "t", "x", "--delay", "0s"], "is not a duration"),
        (["send", "t", "x", "--at", "tomorrow"], "is not a time"),
        (["send", "t", "x", "--transaction", "maybe"], "maybe"),
        (["receive", "t", "-g", "g", "--sql", "a > 5", "--tag", "new"], "--tag or --sql"),
        (["group", "create", "g", "--backoff", "5"], "is not a duration"),
        (["group", "create", "g", "--backoff", "exponential:5s"], "initial wait"),
        (["group", "create", "g", "--backoff", "exponential:5s,2h,5000"], "between 1 and 1000"),
        (["group", "update", "g", "--no-fifo", "--ordered-by", "queue"], "without order"),
        (["recall", "t"], "HANDLE"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(arguments: list[str], words: str, shell: Shell) -> None:
    shell(*arguments, code=2)
    assert words in " ".join(shell.error.split()), shell.error


def test_a_broker_is_drained_and_says_when_it_is_empty(cluster: FakeCluster, shell: Shell) -> None:
    cluster.undelivered = 3
    found = shell.json("broker", "drain", "broker-a")
    assert (found["topics"], found["undelivered"]) == (1, 3)
    shell("broker", "drain", "broker-a", "--wait", "0.1", code=1)
    assert "is not empty after 0.1 s" in shell.error
    cluster.undelivered = 0
    assert "is empty" in shell("broker", "drain", "broker-a") + shell.error
    assert shell.json("broker", "drain", "broker-a", "--undo")["topics"] == 0
    shell("broker", "drain", "broker-x", code=1)
    assert "no master of broker-x is registered; there are broker-a" in shell.error


def test_delayed_messages_and_open_transactions_keep_a_broker_from_being_empty(
    cluster: FakeCluster, shell: Shell
) -> None:
    for attribute in ("delayed", "open_transactions"):
        setattr(cluster, attribute, 2)
        shell("broker", "drain", "broker-a", "--wait", "0.1", "--ignore-unread", code=1)
        assert shell.json("broker", "drain", "broker-a")[attribute] == 2
        setattr(cluster, attribute, 0)
    shell("broker", "drain", "broker-a", "--wait", "0.1")


def test_topics_that_nobody_reads_are_named_and_may_be_left(cluster: FakeCluster, shell: Shell) -> None:
    cluster.unread = {"audit": 7}
    shell("broker", "drain", "broker-a", "--wait", "0.1", code=1)
    assert "audit (7)" in shell.error and "is not empty" in shell.error
    shell("broker", "drain", "broker-a", "--wait", "0.1", "--ignore-unread")
    assert "audit (7)" in shell.error and "is empty" in shell.error


def test_a_broker_that_is_gone_is_let_go_of(cluster: FakeCluster, shell: Shell) -> None:
    cluster.gone["broker-x"] = ["orders"]
    assert shell.json("broker", "forget", "broker-x")["moved"] == {"broker-a": ["orders"]}
    assert "message groups have moved in: orders" in shell.error
    shell("broker", "forget", "broker-x")
    assert "no message group has moved" in shell.error
    shell("broker", "forget", "broker-y", code=1)
    assert "no broker knows broker-y; there are broker-a" in shell.error
    shell("broker", "forget", "broker-a", code=1)
    assert "broker-a is registered: stop its master and its slaves first" in shell.error
