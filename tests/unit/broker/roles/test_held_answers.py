"""Which calls of an elected leader wait, and for what."""

from pathlib import Path

import pytest

from support.broker.held import HeldRig
from whimbrel.broker.roles.held_answers import READING, REMOTING_METADATA
from whimbrel.broker.roles.remoting_parts import CHANGING
from whimbrel.errors import NotReady
from whimbrel.rpc.remoting.codes import RequestCode as R


@pytest.mark.parametrize("name", ["Heartbeat", "QueryRoute", "PullMessage"])
def test_what_changes_nothing_does_not_wait(tmp_path: Path, name: str) -> None:
    assert HeldRig(tmp_path).waits_for(name) == set()


def test_who_asks_before_the_leader_serves_is_held(tmp_path: Path) -> None:
    rig = HeldRig(tmp_path)
    rig.why = "too few members"
    with pytest.raises(NotReady, match="too few members"):
        rig.ask("PullMessage")
    for name in ("SendMessage", "AckMessage", "ForwardMessageToDeadLetterQueue", "UpdateOffset", "GetOffset"):
        rig.ask(name)  # what these wait for, the engine knows: test_send_majority.py and others beside it


# What a broker's remoting port does and knows without leases and tables, or waits for otherwise.
LOG = {
    R.QUERY_MESSAGE, R.SEARCH_OFFSET_BY_TIMESTAMP, R.GET_MAX_OFFSET, R.GET_MIN_OFFSET, R.VIEW_MESSAGE_BY_ID,
    R.GET_EARLIEST_MSG_STORETIME, R.GET_ALL_DELAY_OFFSET, R.GET_TOPIC_STATS_INFO, R.QUERY_CONSUME_QUEUE,
    R.CLEAN_EXPIRED_CONSUMEQUEUE, R.DELETE_EXPIRED_COMMITLOG, R.CLEAN_UNUSED_TOPIC,
}  # fmt: skip
SENDS = {  # the engine knows: test_send_majority.py
    R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.CONSUMER_SEND_MSG_BACK,
}  # fmt: skip
POSITIONS = {  # likewise: test_position_majority.py
    R.QUERY_CONSUMER_OFFSET, R.UPDATE_CONSUMER_OFFSET, R.INVOKE_BROKER_TO_RESET_OFFSET, R.CLONE_GROUP_OFFSET,
}  # fmt: skip
TABLES = {  # likewise: test_table_majority.py
    R.UPDATE_AND_CREATE_TOPIC, R.DELETE_TOPIC_IN_BROKER, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    R.DELETE_SUBSCRIPTIONGROUP,
}  # fmt: skip
COMMIT = {R.END_TRANSACTION, R.RESUME_CHECK_HALF_MESSAGE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2}
CLIENTS = {
    R.UNREGISTER_CLIENT, R.GET_CONSUMER_LIST_BY_GROUP, R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ,
    R.CHECK_CLIENT_CONFIG, R.SET_MESSAGE_REQUEST_MODE,
    R.GET_CONSUMER_CONNECTION_LIST, R.GET_PRODUCER_CONNECTION_LIST, R.GET_ALL_PRODUCER_INFO,
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, R.GET_CONSUMER_RUNNING_INFO, R.CONSUME_MESSAGE_DIRECTLY,
    R.QUERY_TOPIC_CONSUME_BY_WHO,
}  # fmt: skip
SHOWING = {  # tables, as this member has them
    R.GET_ALL_TOPIC_CONFIG, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, R.GET_TOPIC_CONFIG,
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
}  # fmt: skip
ITSELF = {R.UPDATE_BROKER_CONFIG, R.GET_BROKER_CONFIG, R.GET_BROKER_RUNTIME_INFO, R.VIEW_BROKER_STATS_DATA,
    R.GET_BROKER_HA_STATUS}  # fmt: skip
FROM_BROKERS = {R.CHECK_TRANSACTION_STATE, R.NOTIFY_CONSUMER_IDS_CHANGED, R.RESET_CONSUMER_CLIENT_OFFSET,
    R.GET_CONSUMER_STATUS_FROM_CLIENT, R.PUSH_REPLY_MESSAGE_TO_CLIENT}  # fmt: skip
OF_NAMESERVERS = {
    R.PUT_KV_CONFIG, R.GET_KV_CONFIG, R.DELETE_KV_CONFIG, R.REGISTER_BROKER, R.UNREGISTER_BROKER,
    R.GET_ROUTEINFO_BY_TOPIC, R.GET_BROKER_CLUSTER_INFO, R.WIPE_WRITE_PERM_OF_BROKER,
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, R.DELETE_TOPIC_IN_NAMESRV, R.GET_KVLIST_BY_NAMESPACE,
    R.GET_TOPICS_BY_CLUSTER, R.GET_SYSTEM_TOPIC_LIST_FROM_NS, R.GET_UNIT_TOPIC_LIST,
    R.GET_HAS_UNIT_SUB_TOPIC_LIST,
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, R.UPDATE_NAMESRV_CONFIG, R.GET_NAMESRV_CONFIG, R.QUERY_DATA_VERSION,
    R.ADD_WRITE_PERM_OF_BROKER,
}  # fmt: skip


def test_each_code_of_the_remoting_protocol_waits_or_has_nothing_to_wait_for() -> None:
    """Kind 4: 314 and 14 were answered before the majority, or before the leader knew (docs/kinds.md)."""
    waiting = REMOTING_METADATA | READING
    others = (LOG, SENDS, POSITIONS, TABLES, COMMIT, CLIENTS, SHOWING, ITSELF, FROM_BROKERS, OF_NAMESERVERS)
    assert set(R) == waiting.union(*others)
    assert sum(map(len, others)) + len(waiting) == len(set(R)), "each in one table"
    assert CHANGING - {R.UPDATE_BROKER_CONFIG} <= REMOTING_METADATA | POSITIONS | TABLES
