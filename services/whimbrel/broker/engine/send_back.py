"""Messages that a consumer of RocketMQ 4 could not deal with: stored again for its group, later.

    record ──tries left──► SCHEDULE_TOPIC_XXXX, by the level that was asked for ──later──► %RETRY%group
       '──used up, or a negative level──► %DLQ%group

The new record has the body, flag and born data of the old one, one redelivery more, RETRY_TOPIC (the topic
that the message was sent to) and ORIGIN_MESSAGE_ID. A level of 0 leaves it to the broker: 3 and one more each
time, so 10 s, 30 s, 1 min and so on. The answer comes when the record is as durable as a send's, and, where
the leader is elected, once a majority knows of the topic, which may have been made.

RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from collections.abc import Callable
from random import randrange
from typing import Protocol

from whimbrel.broker.engine.records import RecordLog, read_at
from whimbrel.broker.engine.send import KNOWN_ALREADY, Majority
from whimbrel.broker.produce.internal_append import InternalAppender, onward_draft
from whimbrel.broker.produce.level_draft import levelled
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.timing.records import Onward
from whimbrel.deferred import Deferred
from whimbrel.errors import Forbidden, GroupNotFound, NotReady, WhimbrelError
from whimbrel.model.dead_letter import LEFT_OUT, known_origin
from whimbrel.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from whimbrel.model.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from whimbrel.model.topic import GroupConfig

__all__ = ["GivenBack", "SendBacks"]

FIRST_LEVEL = 3  # of a message that fails for the first time
TIMES_MAX = (1 << 31) - 1  # of redeliveries, a Java int


class GivenBack(Protocol):
    """A message that comes back; read as it is asked for, so that what is wrong is an error in its place."""

    @property
    def group(self) -> str:
        """Of the consumer."""

    @property
    def level(self) -> int:
        """The delay level that is wanted; 0 leaves it to the broker, a negative one makes a dead letter."""

    @property
    def place(self) -> int:
        """Of the message in the log."""

    @property
    def retries_max(self) -> int | None:
        """How often the message may be delivered again; None: as the group says."""


class SendBacks:
    """Decides about messages that come back, on the loop's thread of a master."""

    def __init__(
        self,
        creation: GroupCreation,
        log: RecordLog,
        internal: InternalAppender,
        *,
        levels: int,
        sent_back: Callable[[str, str], None] = lambda topic, group: None,
        majority: Majority | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take the tables, the store and what appends.

        Args:
            creation: makes topics of groups. log: what is read of the store. internal: appends.
            levels: how many delay levels there are.
            sent_back: counts messages, by topic and group.
            majority: that is to know of topics; None where roles are configured.
            not_serving: returns why groups are not known here yet, "" once they are.
        """
        self.creation, self.log, self.internal = creation, log, internal
        self.levels, self.sent_back = levels, sent_back
        self.majority, self.not_serving = majority, not_serving

    def take(self, back: GivenBack) -> Deferred[WhimbrelError | None] | None:
        """Store a message again for its group.

        Returns:
            None where the group wants nothing again (RocketMQ: the same). Else, later: None once the record
            is durable, or why it is not, or could not be appended.

        Raises:
            WhimbrelError: a rule is broken, and nothing is stored.
        """
        if why := self.not_serving():
            raise NotReady(why)
        try:
            answer = self.store(back)
        except KNOWN_ALREADY as error:
            if self.majority is None:
                raise
            held: Deferred[WhimbrelError | None] = self.majority.hold(error)
            return held
        if self.majority is None:
            return answer
        if answer is None:
            found: Deferred[WhimbrelError | None] | None = self.majority.hold(None)
            return found
        return self.majority.hold_later(answer) if self.majority.behind else answer

    def store(self, back: GivenBack) -> Deferred[WhimbrelError | None] | None:
        """Do the same, whatever a majority knows of topics."""
        group = self.creation.groups.rows.get(back.group)
        if group is None:
            raise GroupNotFound(f"no consumer group {back.group}")
        level = back.level
        if group.retry_queues <= 0:
            return None
        _, message = read_at(self.log, back.place)
        most = back.retries_max
        dead = level < 0 or message.reconsume_times >= (group.retry_max if most is None else most)
        known = known_origin(message.properties, message.topic)
        added = [
            (RETRY_TOPIC, known.get(RETRY_TOPIC) or message.topic),
            (ORIGIN_MESSAGE_ID, known.get(ORIGIN_MESSAGE_ID) or message.offset_message_id),
        ]
        topic = self.creation.group_topic(*topic_of(group, dead=dead), self.internal.appender.check_writable)
        if not dead:
            level = min(level or FIRST_LEVEL + message.reconsume_times, self.levels)
            added.append((DELAY, str(level)))
        if not topic.writable:
            raise Forbidden(f"topic {topic.name} can't be written")
        draft = onward_draft(
            message,
            Onward(
                topic.name,
                tuple(added),
                tuple(LEFT_OUT) if dead else (),
                min(message.reconsume_times + 1, TIMES_MAX),
            ),
            randrange(topic.write_queues),
            self.internal.store_host(),
        )
        self.sent_back(added[0][1], group.name)
        deferred: Deferred[WhimbrelError | None] = Deferred()

        def done(error: WhimbrelError | None) -> None:
            deferred.complete(error)

        self.internal.append(draft if dead else levelled(draft, self.levels, level), done)
        return deferred


def topic_of(group: GroupConfig, *, dead: bool) -> tuple[str, int]:
    """Return the name of the topic that a message of a group goes to, and how many queues it is made with."""
    if dead:
        return DEAD_LETTER_PREFIX + group.name, 1
    return RETRY_PREFIX + group.name, group.retry_queues
