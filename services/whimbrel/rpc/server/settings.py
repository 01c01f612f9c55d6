"""The server's half of the client API's settings; the same for nameserver and broker.

The response starts as a copy of what the client sent; the server decides these:

    producer  at most 3 attempts, exponential backoff (the only kind SDKs take there), body limit, type check
    consumer  the group's attempts and order, backoff, 32 messages a receive, polls of 20 s
    both      metrics off: an SDK with metrics on exports them to us every minute

A consumer's backoff depends on the SDK: Node reads exponential only (a customized one makes it retry at
once), Python customized only, in whole seconds. The other SDKs read both.
"""

from whimbrel.errors import BadRequest
from whimbrel.model.limits import BODY_BYTES_MAX, POLL_MS_MAX, RECEIVE_BATCH_MAX, RETRY_MAX_DEFAULT
from whimbrel.model.names import check_group, check_topic
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

__all__ = [
    "ATTEMPTS_DEFAULT",
    "BACKOFF_S",
    "POLL_S",
    "SETTINGS_BYTES_MAX",
    "group_of",
    "settings_for",
    "settings_response",
]

# RocketMQ's delay levels, which its consumers walk through.
BACKOFF_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
ATTEMPTS_DEFAULT = RETRY_MAX_DEFAULT + 1  # with the first delivery
PRODUCER_ATTEMPTS = 3
# SDKs write some hundred bytes, and some dozens for each topic.
SETTINGS_BYTES_MAX = 128 * 1024
POLL_S = POLL_MS_MAX // 1000  # whole seconds: Python reads `.seconds` alone


def group_of(settings: v2.Settings) -> str:
    """Return the consumer group that the settings name; empty for producers."""
    return settings.subscription.group.name if settings.HasField("subscription") else ""


def settings_for(client: v2.Settings, *, fifo: bool = False, attempts: int = ATTEMPTS_DEFAULT) -> v2.Settings:
    """Return the settings that the server responds with.

    Args:
        client: what the client sent.
        fifo: whether its group is ordered; what the client claims does not count.
        attempts: deliveries of a message in its group, the first included.

    Raises:
        BadRequest: there are neither settings of a producer nor of a consumer, or they are too long.
        IllegalTopic: a topic's name is not legal.
        IllegalGroup: the consumer group's name is not legal.
    """
    size = client.ByteSize()
    if size > SETTINGS_BYTES_MAX:
        raise BadRequest(f"settings of {size} bytes: at most {SETTINGS_BYTES_MAX} are allowed")
    response = v2.Settings()
    response.CopyFrom(client)
    response.metric.Clear()
    response.metric.on = False
    if client.HasField("publishing"):
        for name in {topic.name for topic in client.publishing.topics}:
            check_topic(name)
        fill_publishing(response)
    elif client.HasField("subscription"):
        check_group(client.subscription.group.name)
        for name in {entry.topic.name for entry in client.subscription.subscriptions}:
            check_topic(name)
        fill_subscription(response, fifo=fifo, attempts=attempts)
    else:
        raise BadRequest("the settings hold neither `publishing` nor `subscription`")
    return response


def settings_response(settings: v2.Settings) -> messaging.TelemetryCommand:
    """Return the command that carries the settings; Python applies them only under an OK status."""
    return messaging.TelemetryCommand(status=v2.Status(code=v2.OK, message="OK"), settings=settings)


def fill_publishing(response: v2.Settings) -> None:
    """Set what the server decides for a producer."""
    response.publishing.max_body_size = BODY_BYTES_MAX
    response.publishing.validate_message_type = True
    response.backoff_policy.Clear()
    response.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
    backoff = response.backoff_policy.exponential_backoff
    backoff.initial.nanos = 10_000_000
    backoff.max.seconds = 1
    backoff.multiplier = 2


def fill_subscription(response: v2.Settings, *, fifo: bool, attempts: int) -> None:
    """Set what the server decides for a consumer."""
    response.subscription.fifo = fifo
    response.subscription.receive_batch_size = RECEIVE_BATCH_MAX
    response.subscription.long_polling_timeout.Clear()
    response.subscription.long_polling_timeout.seconds = POLL_S
    response.backoff_policy.Clear()
    response.backoff_policy.max_attempts = attempts
    if response.user_agent.language == v2.NODE_JS:
        backoff = response.backoff_policy.exponential_backoff
        backoff.initial.seconds = BACKOFF_S[0]
        backoff.max.seconds = BACKOFF_S[-1]
        backoff.multiplier = 2
    else:
        for seconds in BACKOFF_S:
            response.backoff_policy.customized_backoff.next.add().seconds = seconds
