"""The server's half of the client API's settings; the same for nameserver and broker.

The response starts as a copy of what the client sent; the server decides these:

    producer  at most 3 attempts, exponential backoff (the only kind SDKs take there), body limit, type check
    consumer  the group's attempts and order, backoff, 32 messages a receive, polls of 20 s
    both      metrics off: an SDK with metrics on exports them to us every minute

A consumer's backoff is its group's policy, in the kind and the unit that the SDK reads:

    Node     exponential only (a customized one makes it retry at once), in whole seconds
    Python   customized only, in whole seconds
    others   both, as the group has it

A list of waits becomes the exponential one that goes from its first wait to its longest in as many steps; an
exponential policy becomes the list of its waits up to the longest. Parts of a second are rounded up, so that
no wait becomes none.
"""

from typing import Any

from whimbrel.errors import BadRequest
from whimbrel.model.limits import BODY_BYTES_MAX, POLL_MS_MAX, RECEIVE_BATCH_MAX, RETRY_MAX_DEFAULT
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.retry import DEFAULT_POLICY, STEPS_MAX, Customized, Exponential, RetryPolicy
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging

__all__ = [
    "ATTEMPTS_DEFAULT",
    "POLL_S",
    "SETTINGS_BYTES_MAX",
    "group_of",
    "settings_for",
    "settings_response",
]

ATTEMPTS_DEFAULT = RETRY_MAX_DEFAULT + 1  # with the first delivery
PRODUCER_ATTEMPTS = 3
# SDKs write some hundred bytes, and some dozens for each topic.
SETTINGS_BYTES_MAX = 128 * 1024
POLL_S = POLL_MS_MAX // 1000  # whole seconds: Python reads `.seconds` alone


def group_of(settings: v2.Settings) -> str:
    """Return the consumer group that the settings name; empty for producers."""
    return settings.subscription.group.name if settings.HasField("subscription") else ""


def settings_for(
    client: v2.Settings,
    *,
    fifo: bool = False,
    attempts: int = ATTEMPTS_DEFAULT,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> v2.Settings:
    """Return the settings that the server responds with.

    Args:
        client: what the client sent.
        fifo: whether its group is ordered; what the client claims does not count.
        attempts: deliveries of a message in its group, the first included.
        policy: how long consumers of its group wait between them.

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
        fill_subscription(response, fifo=fifo, attempts=attempts, policy=policy)
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


def fill_subscription(response: v2.Settings, *, fifo: bool, attempts: int, policy: RetryPolicy) -> None:
    """Set what the server decides for a consumer."""
    response.subscription.fifo = fifo
    response.subscription.receive_batch_size = RECEIVE_BATCH_MAX
    response.subscription.long_polling_timeout.Clear()
    response.subscription.long_polling_timeout.seconds = POLL_S
    response.backoff_policy.Clear()
    response.backoff_policy.max_attempts = attempts
    language = response.user_agent.language
    seconds_only = language in (v2.NODE_JS, v2.PYTHON)
    if language == v2.NODE_JS or (isinstance(policy, Exponential) and language != v2.PYTHON):
        backoff = response.backoff_policy.exponential_backoff
        initial_ms, max_ms, backoff.multiplier = exponential_of(policy)
        set_duration(backoff.initial, initial_ms, whole=seconds_only)
        set_duration(backoff.max, max_ms, whole=seconds_only)
    else:
        steps = response.backoff_policy.customized_backoff.next
        for wait_ms in waits_of(policy):
            set_duration(steps.add(), wait_ms, whole=seconds_only)


def exponential_of(policy: RetryPolicy) -> tuple[int, int, float]:
    """Return the first and the longest wait in ms, and the factor from one to the next."""
    if isinstance(policy, Exponential):
        return policy.initial_ms, policy.max_ms, policy.multiplier
    waits = policy.waits_ms
    longest = max(waits)
    steps = max(waits.index(longest), 1)
    return waits[0], longest, (longest / waits[0]) ** (1 / steps)


def waits_of(policy: RetryPolicy) -> list[int]:
    """Return the wait after each attempt, in ms; the last one counts for all later attempts."""
    if isinstance(policy, Customized):
        return list(policy.waits_ms)
    waits = [policy.wait_ms(1)]
    while len(waits) < STEPS_MAX and (wait_ms := policy.wait_ms(len(waits) + 1)) > waits[-1]:
        waits.append(wait_ms)
    return waits


def set_duration(duration: Any, wait_ms: int, *, whole: bool) -> None:
    """Set a protobuf duration; where only its seconds are read, in `whole` ones."""
    if whole:
        duration.seconds = -(-wait_ms // 1000)
    else:
        duration.seconds, duration.nanos = wait_ms // 1000, wait_ms % 1000 * 1_000_000
