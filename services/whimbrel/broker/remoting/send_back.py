"""Messages that a consumer could not deal with (36): stored again for its group, later.

    record ──tries left──► SCHEDULE_TOPIC_XXXX, by the level that was asked for ──later──► %RETRY%group
       '──used up, or a negative level──► %DLQ%group

The new record has the body, flag and born data of the old one, one redelivery more, RETRY_TOPIC (the topic
that the message was sent to) and ORIGIN_MESSAGE_ID. A level of 0 leaves it to the broker: 3 and one more each
time, so 10 s, 30 s, 1 min and so on. The reply comes when the record is as durable as a send's.

RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from collections.abc import Callable
from dataclasses import replace
from random import randrange

from whimbrel.broker.produce.internal_append import InternalAppender, onward_draft
from whimbrel.broker.produce.level_draft import levelled
from whimbrel.broker.remoting.records import RecordLog, read_at
from whimbrel.broker.remoting.sends import VERSION_WITH_MAXIMUM
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import Onward
from whimbrel.deferred import Deferred
from whimbrel.errors import Forbidden, GroupNotFound, WhimbrelError
from whimbrel.model.dead_letter import LEFT_OUT, known_origin
from whimbrel.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from whimbrel.model.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from whimbrel.model.topic import TopicConfig
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import INT_MAX, Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error

__all__ = ["SendBack"]

FIRST_LEVEL = 3  # of a message that fails for the first time


class SendBack:
    """Handles messages that are sent back, on the loop's thread of a master."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        log: RecordLog,
        internal: InternalAppender,
        *,
        levels: int,
        sent_back: Callable[[str, str], None] = lambda topic, group: None,
    ) -> None:
        """Take the tables, the store and what appends.

        Args:
            topics, groups: the tables. log: what is read of the store. internal: appends.
            levels: how many delay levels there are.
            sent_back: counts messages, by topic and group.
        """
        self.topics, self.groups, self.log, self.internal = topics, groups, log, internal
        self.levels, self.sent_back = levels, sent_back

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, peer: Peer, request: Command) -> Outcome:
        """Store a message again for the group."""
        name = request.text("group")
        group = self.groups.rows.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name}")
        level = request.int32("delayLevel")
        if group.retry_queues <= 0:
            return Reply()  # the group wants nothing again (RocketMQ: the same)
        _, message = read_at(self.log, request.int64("offset"))
        most = group.retry_max
        if request.version >= VERSION_WITH_MAXIMUM:
            most = request.int32("maxReconsumeTimes", most)
        known = known_origin(message.properties, message.topic)
        added = [
            (RETRY_TOPIC, known.get(RETRY_TOPIC) or message.topic),
            (ORIGIN_MESSAGE_ID, known.get(ORIGIN_MESSAGE_ID) or message.offset_message_id),
        ]
        dead = level < 0 or message.reconsume_times >= most
        if dead:
            topic = self.own_topic(DEAD_LETTER_PREFIX + name, 1)
        else:
            topic = self.own_topic(RETRY_PREFIX + name, group.retry_queues)
            level = min(level or FIRST_LEVEL + message.reconsume_times, self.levels)
            added.append((DELAY, str(level)))
        if not topic.writable:
            raise Forbidden(f"topic {topic.name} can't be written")
        times = min(message.reconsume_times + 1, INT_MAX)
        draft = onward_draft(
            message,
            Onward(topic.name, tuple(added), tuple(LEFT_OUT) if dead else (), times),
            randrange(topic.write_queues),
            self.internal.store_host(),
        )
        self.sent_back(added[0][1], name)
        deferred: Deferred[Reply] = Deferred()

        def done(error: WhimbrelError | None) -> None:
            deferred.complete(Reply() if error is None else replace(reply_to_error(error), code=1))

        self.internal.append(draft if dead else levelled(draft, self.levels, level), done)
        return deferred

    def own_topic(self, name: str, queues: int) -> TopicConfig:
        """Return a topic of the group's own, which is made where there is none."""
        found = self.topics.rows.get(name)
        if found is None:
            self.internal.appender.check_writable()
            self.topics.check_room()
            found = TopicConfig(name=name, read_queues=queues, write_queues=queues)
            self.topics.put(found)
        return found
