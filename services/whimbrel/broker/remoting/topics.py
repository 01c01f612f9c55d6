"""Requests about topics: what tools of RocketMQ make, change, delete and show.

    17   UPDATE_AND_CREATE_TOPIC             makes a topic, or changes one as a whole
    215  DELETE_TOPIC_IN_BROKER              with its queues and the groups' offsets; one that is not there: 0
    202  GET_TOPIC_STATS_INFO                first offset, end and newest time of each queue; 17 for no topic
    351  GET_TOPIC_CONFIG (5.x)              its configuration; 17
    21   GET_ALL_TOPIC_CONFIG                all of them, with the version
    300  QUERY_TOPIC_CONSUME_BY_WHO          groups with members that subscribe to it, or with an offset on it
    305  GET_SYSTEM_TOPIC_LIST_FROM_BROKER   the broker's own topics
    321  QUERY_CONSUME_QUEUE                 entries of a queue, and whether a group wants them by their tags

**17.** Attributes are 5.x's: `+name=value` sets one, `-name` takes it away, joined by commas. `message.type`
is kept; others name what is not here (`queue.type=BatchCQ`, which the OpenMessaging benchmark wants of every
topic) and change nothing, as in 4.9.3, which knows no attributes.

**A slave** answers 17 and 215 with 0 and changes nothing: that benchmark makes its topics on each broker of a
group, 5.3.3's deleteSubGroup deletes them on each, and a real slave does it and forgets it with the next copy
of its master's table.
"""

from typing import Any

from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.engine.table_checks import fields_asked, ignored_at_slave, topic_if_there, topic_named
from whimbrel.broker.engine.tables import Asked, Change, ChangeRules, TableChanges
from whimbrel.broker.remoting.clients import subscription_data
from whimbrel.broker.remoting.traffic import PUT, Traffic
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.deferred import rendered
from whimbrel.errors import BadRequest, TopicNotFound
from whimbrel.model.topic import DataVersion, MessageType, TopicConfig
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["RemotingTopics", "altered_type", "done"]

TYPE_ATTRIBUTE = "message.type"
# Of attributes of RocketMQ's whose other values are not served: batch queues, and compaction.
ONLY_VALUES = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
TYPES = tuple(kind for kind in MessageType if kind is not MessageType.LITE)
# Of static topics (5.x), of which there are none.
NO_MAPPINGS = {
    "mappingDataVersion": DataVersion(timestamp=0, counter=0).bean(),
    "topicQueueMappingDetailMap": {},
    "topicQueueMappingInfoMap": {},
}
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
ATTRIBUTES_CHARS_MAX = 4096
ENTRIES_MAX = 1024  # of a queue, in a reply
ON_SLAVE = "this is a slave, whose tables are its master's: nothing was changed here"

PUTS = ChangeRules(checks=(fields_asked, topic_named, ignored_at_slave, topic_if_there), undrained=True)
# Of a topic that is not there, too: deleteSubGroup deletes topics of the group that may never have been made.
DELETES = ChangeRules(checks=(topic_named, ignored_at_slave, topic_if_there))


class RemotingTopics:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self,
        changes: TableChanges,
        clients: RemotingClients,
        positions: Positions,
        traffic: Traffic,
        *,
        broker_name: str,
    ) -> None:
        """Take the tables with what changes them, who consumes, and rates."""
        self.changes, self.topics, self.store = changes, changes.topics, changes.store
        self.clients, self.positions, self.traffic = clients, positions, traffic
        self.broker_name = broker_name

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.GET_TOPIC_CONFIG: self.show,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.show_all,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.list_system,
            RequestCode.QUERY_CONSUME_QUEUE: self.show_entries,
        }

    def put(self, peer: Peer, request: Command) -> Outcome:
        """Make a topic, or change it."""
        kind = request.fields.get("topicFilterType", FILTER_TYPES[0])
        if kind not in FILTER_TYPES:
            raise BadRequest(f"topicFilterType is none of {', '.join(FILTER_TYPES)}: {kind[:40]!r}")

        def with_attributes(topic: TopicConfig) -> TopicConfig:
            altered = altered_type(request.fields.get("attributes", ""))
            return topic if altered is None else topic.with_type(altered)

        change = Change(
            rules=PUTS, name=request.text("topic"), asked=topic_fields(request, kind), over=with_attributes
        )
        return rendered(self.changes.put_topic(change), done)

    def delete(self, peer: Peer, request: Command) -> Outcome:
        """Delete a topic."""
        change = Change(rules=DELETES, name=request.text("topic"))
        return rendered(self.changes.delete_topic(change), done)

    def find(self, request: Command) -> TopicConfig:
        """Return the topic that a request names; raises TopicNotFound."""
        name = request.text("topic")
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name}")
        return topic

    def stats(self, peer: Peer, request: Command) -> Reply:
        """Show how far the queues of a topic go."""
        topic = self.find(request)
        table = {}
        for queue_id in self.store.queue_ids(topic.name, max(topic.read_queues, topic.write_queues)):
            low, high = self.store.queue_range(topic.name, queue_id)
            newest = self.store.queue_units(topic.name, queue_id, high - 1, 1) if high > low else []
            table[MessageQueue(self.broker_name, queue_id, topic.name)] = {
                "lastUpdateTimestamp": self.store.store_time_of(newest[0][0]) if newest else 0,
                "maxOffset": high,
                "minOffset": low,
            }
        spans = self.traffic.spans.get((PUT, topic.name))
        rate = 0.0 if spans is None else spans.last_minute().tps
        return Reply(body=[dump_body({"offsetTable": table, "topicPutTps": rate})])

    def show(self, peer: Peer, request: Command) -> Reply:
        """Show a topic's configuration."""
        return Reply(body=[dump_body(self.find(request).bean())])

    def show_all(self, peer: Peer, request: Command) -> Reply:
        """Show the configuration of all topics."""
        return Reply(body=[self.topics.encode(pretty=False, more=NO_MAPPINGS).encode()])

    def groups_of(self, peer: Peer, request: Command) -> Reply:
        """List the groups that consume a topic, or have."""
        topic = request.text("topic")
        found = {name for name, group in self.clients.groups.items() if topic in group.subscriptions}
        found |= {group for named, group in self.positions.committed_offsets() if named == topic}
        return Reply(body=[dump_body({"groupList": sorted(found)})])

    def list_system(self, peer: Peer, request: Command) -> Reply:
        """List the broker's own topics."""
        own = [name for name in self.topics.rows if self.topics.is_system(name)]
        return Reply(body=[dump_body({"topicList": sorted(own)})])

    def show_entries(self, peer: Peer, request: Command) -> Reply:
        """Show entries of a queue from an index on."""
        topic, queue_id = self.find(request).name, request.int32("queueId")
        index, count = request.int64("index"), min(request.int32("count"), ENTRIES_MAX)
        low, high = self.store.queue_range(topic, queue_id)
        members = self.clients.group(request.fields.get("consumerGroup", ""))
        wanted = None if members is None else members.subscription(topic)
        selected = None if wanted is None else wanted.filter
        units = self.store.queue_units(topic, queue_id, index, count) if low <= index and count > 0 else []
        body = {
            "filterData": None if wanted is None else wanted.expression,
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": [
                {
                    "eval": selected is None or selected.admits_code(code),
                    "physicOffset": place,
                    "physicSize": size,
                    "tagsCode": code,
                }
                for place, size, code in units
            ],
            "subscriptionData": None if wanted is None else subscription_data(wanted),
        }
        return Reply(body=[dump_body(body)])


def topic_fields(request: Command, filter_type: str) -> Asked:
    """Yield what a request says of a topic besides its attributes."""
    yield "read_queues", request.int32("readQueueNums")
    yield "write_queues", request.int32("writeQueueNums")
    yield "permission", request.int32("perm")
    yield "filter_type", filter_type
    yield "system_flag", request.int32("topicSysFlag", 0)
    yield "order", request.boolean("order")


def done(change: Change[Any]) -> Reply:
    """Return the reply to a change that was made, or that a slave has ignored."""
    return Reply(remark=ON_SLAVE if change.ignored else None)


def altered_type(attributes: str) -> MessageType | None:
    """Return the type of messages that attributes of a request set; None where they leave it.

    Raises:
        BadRequest: they can't be read, or ask for what is not done here: a topic that is said to be made so,
            and is not, would be found out much later.
    """
    if len(attributes) > ATTRIBUTES_CHARS_MAX:
        raise BadRequest(f"the attributes have more than {ATTRIBUTES_CHARS_MAX} characters")
    kind = None
    for one in filter(None, attributes.split(",")):
        name, equals, value = one.partition("=")
        sign, name = name[:1], name[1:].strip()
        if sign not in ("+", "-") or not name or bool(equals) != (sign == "+"):
            raise BadRequest(f"attribute {one[:40]!r} is neither +name=value nor -name")
        if name == TYPE_ATTRIBUTE:
            value = value.strip() if sign == "+" else MessageType.NORMAL
            if value not in TYPES:
                raise BadRequest(f"{TYPE_ATTRIBUTE} is none of {', '.join(TYPES)}: {value[:40]!r}")
            kind = MessageType(value)
        elif sign == "+" and ONLY_VALUES.get(name) != value.strip():
            only = ", ".join(f"{known}={text}" for known, text in ONLY_VALUES.items())
            raise BadRequest(
                f"the attribute {one[:80]!r} is not served here, and nothing was changed: besides"
                f" {TYPE_ATTRIBUTE} there are {only}"
            )
    return kind
