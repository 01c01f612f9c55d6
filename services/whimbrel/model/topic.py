"""Topics, consumer groups and the version of their tables, as frozen values.

Each knows its *bean*: the JSON object that RocketMQ keeps for it in `config/*.json`, with 5.3.3's fields.
4.9.3 ignores the fields that are new to it; fields of a newer RocketMQ are kept in `rest` and written back.

Permission bits: 8 priority, 4 read, 2 write, 1 inherit. A topic whose inherit bit is set lends its
configuration to topics that are created by a send.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntFlag, StrEnum
from typing import Any, Generic, TypeVar

from whimbrel.model.answers import COMMITTED, answer_text, copies_of
from whimbrel.model.limits import RETRY_MAX_DEFAULT
from whimbrel.model.retry import RetryPolicy, policy_from_bean

__all__ = [
    "INHERIT",
    "ORDERED_ATTRIBUTE",
    "PRIORITY_ATTRIBUTE",
    "READ",
    "WRITE",
    "DataVersion",
    "GroupConfig",
    "MessageType",
    "OrderedBy",
    "Permission",
    "TableChange",
    "TopicConfig",
]

# What a bean may hold, whoever wrote it: the fields are Java's int and long. Queues cost memory by their
# count wherever a topic is shown, so a count beyond what anybody uses is damage.
QUEUES_READ_MAX = 65_536
INT_MAX = (1 << 31) - 2  # one is added where a count of redeliveries becomes one of attempts
LONG_MAX = (1 << 63) - 1

# The name in 5.3.3's topics.json; its tools write it with a plus sign when they set it.
TYPE_ATTRIBUTE = "message.type"
ANSWER_ATTRIBUTE = "whimbrel.answer"  # ours: `model/answers.py`
DRAINED_ATTRIBUTE = "whimbrel.drained"  # ours: the topic has lost its write bit by a drain, and gets it back


def whole(value: Any, lowest: int, highest: int) -> int:
    """Return a whole number of a bean, brought within bounds.

    Raises:
        ValueError, TypeError: it is no whole number.
    """
    try:
        return min(max(int(value), lowest), highest)
    except OverflowError:
        raise ValueError(f"{value} is not a whole number") from None


class Permission(IntFlag):
    """The permission bits of a topic's queues on one broker."""

    NONE = 0
    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class MessageType(StrEnum):
    """The kind of messages that a topic takes; NORMAL where a topic names none."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    LITE = "LITE"
    PRIORITY = "PRIORITY"


class OrderedBy(StrEnum):
    """What a message of an ordered group waits for: those held in its queue, or of its message group."""

    QUEUE = "queue"
    MESSAGE_GROUP = "message-group"


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange(Generic[Row]):
    """What leads from one version of a table to a later one.

    Attributes:
        before, after: the versions.
        rows: those that were added or replaced, as they are in the later version.
        removed: names of rows that are gone.
    """

    before: "DataVersion"
    after: "DataVersion"
    rows: tuple[Row, ...] = ()
    removed: tuple[str, ...] = ()


TYPES = {kind.value: kind for kind in MessageType}

# The bits as plain numbers: an operation on an IntFlag makes an object, and every send would.
INHERIT, READ, WRITE = Permission.INHERIT.value, Permission.READ.value, Permission.WRITE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """Version of a table.

    Two are equal only when all fields are; every change moves both time and counter.
    """

    timestamp: int  # ms since the epoch
    counter: int
    state: int = 0  # 5.3.3 only: the controller's epoch

    def after(self, now_ms: int) -> "DataVersion":
        """Return the version that follows a change made now."""
        return replace(self, timestamp=now_ms, counter=self.counter + 1)

    def bean(self) -> dict[str, Any]:
        """Return it in RocketMQ's form."""
        return {"counter": self.counter, "stateVersion": self.state, "timestamp": self.timestamp}

    @classmethod
    def from_bean(cls, bean: Mapping[str, Any]) -> "DataVersion":
        """Read the form of either version of RocketMQ."""
        return cls(
            timestamp=whole(bean.get("timestamp", 0), 0, LONG_MAX),
            counter=whole(bean.get("counter", 0), 0, LONG_MAX - 1),  # the next change adds one
            state=whole(bean.get("stateVersion", 0), 0, LONG_MAX),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic on one broker.

    Attributes:
        attributes: 5.3.3's; `message.type` among them.
        rest: fields of the bean that we do not use.
    """

    name: str
    read_queues: int = 16
    write_queues: int = 16
    permission: int = 6
    filter_type: str = "SINGLE_TAG"
    system_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message_type(self) -> MessageType:
        """The kind of messages it takes; an unknown or missing type counts as NORMAL, as in RocketMQ."""
        attributes = self.attributes
        if not attributes:
            return MessageType.NORMAL
        text = attributes.get(TYPE_ATTRIBUTE) or attributes.get("+" + TYPE_ATTRIBUTE)
        return TYPES.get(text or "", MessageType.NORMAL)

    @property
    def readable(self) -> bool:
        """Whether some queue may be read."""
        return bool(self.permission & READ) and self.read_queues > 0

    @property
    def writable(self) -> bool:
        """Whether some queue may be written."""
        return bool(self.permission & WRITE) and self.write_queues > 0

    @property
    def onward_queues(self) -> int:
        """Among how many queues the broker puts what it stores later: those written and read; 1 at least."""
        return max(min(self.read_queues, self.write_queues) or max(self.read_queues, self.write_queues), 1)

    def with_type(self, message_type: MessageType) -> "TopicConfig":
        """Return the topic with another type."""
        kept = {key: text for key, text in self.attributes.items() if key.lstrip("+") != TYPE_ATTRIBUTE}
        return replace(self, attributes={**kept, TYPE_ATTRIBUTE: message_type.value})

    @property
    def answer_copies(self) -> int | None:
        """How many members besides the leader must hold a message before its send is answered.

        None: it must be committed, as it must where the attribute's text is not known.
        """
        attributes = self.attributes
        if not attributes:
            return COMMITTED
        return copies_of(attributes.get(ANSWER_ATTRIBUTE) or attributes.get("+" + ANSWER_ATTRIBUTE) or "")

    def with_answer(self, copies: int | None) -> "TopicConfig":
        """Return the topic with another time of answers; see `answer_copies`."""
        kept = {key: text for key, text in self.attributes.items() if key.lstrip("+") != ANSWER_ATTRIBUTE}
        return replace(
            self,
            attributes=kept if copies is COMMITTED else {**kept, ANSWER_ATTRIBUTE: answer_text(copies)},
        )

    @property
    def drained(self) -> bool:
        """Whether its broker is drained, so that it takes no messages."""
        return DRAINED_ATTRIBUTE in self.attributes

    def with_drained(self, drained: bool) -> "TopicConfig":
        """Return the topic without its write bit, or with it again; unchanged where that is so already."""
        if drained == self.drained or (drained and not self.permission & WRITE):
            return self
        attributes = dict(self.attributes)
        if drained:
            attributes[DRAINED_ATTRIBUTE] = "true"
            return replace(self, attributes=attributes, permission=self.permission & ~WRITE)
        del attributes[DRAINED_ATTRIBUTE]
        return replace(self, attributes=attributes, permission=self.permission | WRITE)

    def bean(self) -> dict[str, Any]:
        """Return it in 5.3.3's form."""
        fields = {
            **self.rest,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.permission,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.system_flag,
            "writeQueueNums": self.write_queues,
        }
        return dict(sorted(fields.items()))

    @classmethod
    def from_bean(cls, name: str, bean: Mapping[str, Any]) -> "TopicConfig":
        """Read the form of either version of RocketMQ; `name` is the key under which it stands."""
        known = {
            "attributes",
            "order",
            "perm",
            "readQueueNums",
            "topicFilterType",
            "topicName",
            "topicSysFlag",
        }
        return cls(
            name=name,
            read_queues=whole(bean.get("readQueueNums", 16), 0, QUEUES_READ_MAX),
            write_queues=whole(bean.get("writeQueueNums", 16), 0, QUEUES_READ_MAX),
            permission=whole(bean.get("perm", 6), 0, 15),
            filter_type=str(bean.get("topicFilterType", "SINGLE_TAG")),
            system_flag=whole(bean.get("topicSysFlag", 0), 0, INT_MAX),
            order=bool(bean.get("order", False)),
            attributes=dict(bean.get("attributes") or {}),
            rest={key: value for key, value in bean.items() if key not in known and key != "writeQueueNums"},
        )


ORDERED_ATTRIBUTE = "whimbrel.ordered.by"  # ours; RocketMQ keeps attributes that it does not know
PRIORITY_ATTRIBUTE = "priority.factor"  # RocketMQ 5.4's; its tools write it with a plus sign
RETRY_POLICY = "groupRetryPolicy"

# Fields of a group's bean that we do not use, as a new group has them.
GROUP_REST: Mapping[str, Any] = {
    "attributes": {},
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeTimeoutMinute": 15,
    RETRY_POLICY: {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One consumer group on one broker.

    Attributes:
        fifo: whether its consumers get messages in order.
        retry_max: redeliveries before a message counts as dead; the first delivery is not among them.
        slow_broker_id: where `PullMessage` sends a reader that lags behind what fits in memory.
        rest: fields of the bean that we do not use.
    """

    name: str
    consume_enabled: bool = True
    fifo: bool = False
    retry_max: int = RETRY_MAX_DEFAULT
    retry_queues: int = 1
    broker_id: int = 0
    slow_broker_id: int = 1
    rest: Mapping[str, Any] = field(default_factory=lambda: GROUP_REST)

    @property
    def max_attempts(self) -> int:
        """Deliveries before a message counts as dead, the first included."""
        return self.retry_max + 1

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long consumers wait before a message comes again."""
        return policy_from_bean(self.rest.get(RETRY_POLICY))

    def with_retry_policy(self, policy: RetryPolicy) -> "GroupConfig":
        """Return the group with another retry policy."""
        return replace(self, rest={**self.rest, RETRY_POLICY: policy.bean()})

    @property
    def ordered_by(self) -> OrderedBy:
        """What an ordered group waits for (`fifo`); RocketMQ knows queues only."""
        attributes = self.rest.get("attributes")
        named = attributes.get(ORDERED_ATTRIBUTE) if isinstance(attributes, Mapping) else None
        return OrderedBy.MESSAGE_GROUP if named == OrderedBy.MESSAGE_GROUP.value else OrderedBy.QUEUE

    @property
    def priority_percent(self) -> int:
        """How many of a hundred receives on a topic of priorities begin with the greatest ones.

        RocketMQ's attribute `priority.factor`, 100 where it is missing or no number.
        """
        attributes = self.rest.get("attributes")
        if not isinstance(attributes, Mapping):
            return 100
        text = str(attributes.get(PRIORITY_ATTRIBUTE, attributes.get("+" + PRIORITY_ATTRIBUTE, "")))
        return min(int(text), 100) if text.isdecimal() and len(text) <= 3 else 100

    def with_ordered_by(self, ordered_by: OrderedBy) -> "GroupConfig":
        """Return the group with another kind of order; it counts for groups with `fifo` only."""
        return self.with_attribute(
            ORDERED_ATTRIBUTE, "" if ordered_by is OrderedBy.QUEUE else ordered_by.value
        )

    def with_priority_percent(self, percent: int) -> "GroupConfig":
        """Return the group with another share of receives that go by priority, 0 to 100."""
        plain = self.with_attribute("+" + PRIORITY_ATTRIBUTE, "")
        return plain.with_attribute(PRIORITY_ATTRIBUTE, "" if percent == 100 else str(percent))

    def with_attribute(self, name: str, value: str) -> "GroupConfig":
        """Return the group with another value of an attribute; an empty one takes it away."""
        attributes = dict(self.rest.get("attributes") or {})
        attributes.pop(name, None)
        if value:
            attributes[name] = value
        return replace(self, rest={**self.rest, "attributes": attributes})

    def bean(self) -> dict[str, Any]:
        """Return it in 5.3.3's form."""
        fields = {
            **self.rest,
            "brokerId": self.broker_id,
            "consumeEnable": self.consume_enabled,
            "consumeMessageOrderly": self.fifo,
            "groupName": self.name,
            "retryMaxTimes": self.retry_max,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.slow_broker_id,
        }
        return dict(sorted(fields.items()))

    @classmethod
    def from_bean(cls, name: str, bean: Mapping[str, Any]) -> "GroupConfig":
        """Read the form of either version of RocketMQ; `name` is the key under which it stands."""
        known = {
            "brokerId",
            "consumeEnable",
            "consumeMessageOrderly",
            "groupName",
            "retryMaxTimes",
            "retryQueueNums",
            "whichBrokerWhenConsumeSlowly",
        }
        return cls(
            name=name,
            consume_enabled=bool(bean.get("consumeEnable", True)),
            fifo=bool(bean.get("consumeMessageOrderly", False)),
            retry_max=whole(bean.get("retryMaxTimes", RETRY_MAX_DEFAULT), -1, INT_MAX),
            retry_queues=whole(bean.get("retryQueueNums", 1), 0, QUEUES_READ_MAX),
            broker_id=whole(bean.get("brokerId", 0), 0, LONG_MAX),
            slow_broker_id=whole(bean.get("whichBrokerWhenConsumeSlowly", 1), 0, LONG_MAX),
            rest={**GROUP_REST, **{key: value for key, value in bean.items() if key not in known}},
        )
