"""What a group's configuration says of order and retries, as protobuf messages and back, for both sides.

Values of servers are read leniently, as all of them (`convert.py`); values of requests are checked.
"""

from whimbrel.errors import BadRequest
from whimbrel.model.retry import Customized, Exponential, RetryPolicy, check_policy
from whimbrel.model.topic import OrderedBy
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

__all__ = ["ORDERS", "ORDER_NUMBERS", "order_of", "retry_policy_message", "retry_policy_of"]

ORDERS = {
    admin.ORDERED_BY_UNSPECIFIED: OrderedBy.QUEUE,
    admin.ORDERED_BY_QUEUE: OrderedBy.QUEUE,
    admin.ORDERED_BY_MESSAGE_GROUP: OrderedBy.MESSAGE_GROUP,
}
ORDER_NUMBERS = {order: number for number, order in ORDERS.items()}  # QUEUE has two; the last one counts


def order_of(number: admin.OrderedBy) -> OrderedBy:
    """Return what a request asks for.

    Raises:
        BadRequest: this version does not know it.
    """
    try:
        return ORDERS[number]
    except KeyError:
        raise BadRequest(f"order {number} is not known") from None


def retry_policy_of(message: admin.RetryPolicy) -> RetryPolicy:
    """Return a policy; values of 0, and an empty list, mean the default.

    Raises:
        BadRequest: it is of no known kind, or a value is not within bounds.
    """
    policy: RetryPolicy
    match message.WhichOneof("strategy"):
        case "customized":
            waits = tuple(message.customized.waits_ms)
            policy = Customized(waits) if waits else Customized()
        case "exponential":
            plain, wanted = Exponential(), message.exponential
            policy = Exponential(
                initial_ms=wanted.initial_ms or plain.initial_ms,
                max_ms=wanted.max_ms or plain.max_ms,
                multiplier=wanted.multiplier or plain.multiplier,
            )
        case _:
            raise BadRequest("the retry policy is of no known kind")
    try:
        check_policy(policy)
    except ValueError as error:
        raise BadRequest(f"retry policy: {error}") from None
    return policy


def retry_policy_message(policy: RetryPolicy) -> admin.RetryPolicy:
    """Return a policy in the form of a message."""
    if isinstance(policy, Customized):
        return admin.RetryPolicy(customized=admin.CustomizedRetries(waits_ms=policy.waits_ms))
    return admin.RetryPolicy(
        exponential=admin.ExponentialRetries(
            initial_ms=policy.initial_ms, max_ms=policy.max_ms, multiplier=policy.multiplier
        )
    )
