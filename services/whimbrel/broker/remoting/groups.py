"""Requests about consumer groups: what tools of RocketMQ make, change, delete and show.

    200  UPDATE_AND_CREATE_SUBSCRIPTIONGROUP   makes a group, or changes what the body names
    207  DELETE_SUBSCRIPTIONGROUP              with its offsets and leases; one that is not there: 0
    201  GET_ALL_SUBSCRIPTIONGROUP_CONFIG      all of them, with the version
    401  SET_MESSAGE_REQUEST_MODE              PULL, which all groups have here: 0, POP: refused

The body of 200 is a `SubscriptionGroupConfig`. What it leaves out stays as it is, so that a tool of 4.9.3
takes nothing away of what one of 5.x has set. Its attributes are a map by `+name`, or by `-name`, which takes
one away; one that means nothing here is refused, since who sets it counts on it.

RocketMQ keeps the offsets of a deleted group unless it is told otherwise (`removeOffset`, `cleanOffset`).
Here they go with it, as with our own tools: a group that is made again under that name is another one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whimbrel.broker.engine.table_checks import (
    group_if_there,
    group_named,
    group_of_clients,
    ignored_at_slave,
)
from whimbrel.broker.engine.tables import Change, ChangeRules, TableChanges
from whimbrel.broker.remoting.topics import done
from whimbrel.deferred import rendered
from whimbrel.errors import BadRequest
from whimbrel.model.retry import policy_from_bean
from whimbrel.model.topic import ORDERED_ATTRIBUTE, PRIORITY_ATTRIBUTE, GroupConfig, OrderedBy
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import load_body
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["RemotingGroups"]

BODY_BYTES_MAX = 64 * 1024
ATTRIBUTES, RETRY_POLICY = "attributes", "groupRetryPolicy"
PULL, POP = "PULL", "POP"
KNOWN = frozenset(GroupConfig(name="").bean())  # fields of the body that are kept

PUTS = ChangeRules(checks=(group_named, ignored_at_slave, group_if_there))
DELETES = ChangeRules(checks=(group_named, ignored_at_slave, group_of_clients))


class RemotingGroups:
    """Handles these requests. On the loop's thread."""

    def __init__(self, changes: TableChanges) -> None:
        """Take the tables with what changes them."""
        self.changes, self.groups = changes, changes.groups

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.show_all,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def put(self, peer: Peer, request: Command) -> Outcome:
        """Make a group, or change it."""
        bean = body_of(request, "the group")
        name = bean.get("groupName")
        if not isinstance(name, str):
            raise BadRequest("the group has no groupName")
        change = Change(rules=PUTS, name=name, over=lambda group: changed(group, bean))
        return rendered(self.changes.put_group(change), done)

    def delete(self, peer: Peer, request: Command) -> Outcome:
        """Delete a group."""
        change = Change(rules=DELETES, name=request.text("groupName"))
        return rendered(self.changes.delete_group(change), done)

    def show_all(self, peer: Peer, request: Command) -> Reply:
        """Show the configuration of all groups."""
        return Reply(body=[self.groups.encode(pretty=False, more={"forbiddenTable": {}}).encode()])

    def set_mode(self, peer: Peer, request: Command) -> Reply:
        """Take it that a group is to pull a topic, as all do that come by the remoting protocol.

        Raises:
            BadRequest: it is to pop, or the body says neither.
        """
        mode = body_of(request, "the mode").get("mode")
        if mode == PULL:
            return Reply()
        if mode == POP:
            raise BadRequest("pop by the remoting protocol is not served: clients of 5 receive by gRPC here")
        raise BadRequest(f"the mode is {PULL} or {POP}")


def body_of(request: Command, what: str) -> dict[str, Any]:
    """Return a body that is an object; `what` names it in errors.

    Raises:
        BadRequest: it is none, or too long.
    """
    if len(request.body) > BODY_BYTES_MAX:
        raise BadRequest(f"{what} has {len(request.body)} bytes; {BODY_BYTES_MAX} are the most")
    return load_body(request.body, what)


def changed(group: GroupConfig, bean: Mapping[str, Any]) -> GroupConfig:
    """Return a group with what a body says of it.

    Raises:
        BadRequest: a value is none of its kind.
    """
    before = group.bean()
    given = {name: value for name, value in bean.items() if name in KNOWN and value is not None}
    for name, value in given.items():
        if name in before and type(value) is not type(before[name]):
            raise BadRequest(f"{name} of the group is no {type(before[name]).__name__}")
    attributes = given.pop(ATTRIBUTES, {})
    if RETRY_POLICY in given:
        given[RETRY_POLICY] = policy_from_bean(given[RETRY_POLICY]).bean()
    try:
        found = GroupConfig.from_bean(group.name, {**before, **given})
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the group can't be read: {error}") from error
    return with_attributes(found, attributes)


def with_attributes(group: GroupConfig, altered: Mapping[str, Any]) -> GroupConfig:
    """Return a group whose attributes are altered.

    Raises:
        BadRequest: one is not served, or not with that value.
    """
    if not altered:
        return group
    attributes = dict(group.rest.get(ATTRIBUTES) or {})
    for name, value in altered.items():
        plain = name.removeprefix("+").removeprefix("-")
        if not name.startswith("-") and value in (attributes.get(plain), attributes.get("+" + plain)):
            continue  # as it is: tools send back what they were shown
        attributes.pop(plain, None)
        attributes.pop("+" + plain, None)
        if name.startswith("-"):
            continue
        if not isinstance(value, str) or not is_served(plain, value):
            raise BadRequest(
                f"the attribute {plain[:80]!r} = {str(value)[:80]!r} is not served here, and nothing was"
                f" changed: there are {PRIORITY_ATTRIBUTE}, 0 to 100, and {ORDERED_ATTRIBUTE},"
                f" {' or '.join(OrderedBy)}"
            )
        attributes[plain] = value
    return replace(group, rest={**group.rest, ATTRIBUTES: attributes})


def is_served(attribute: str, value: str) -> bool:
    """Return whether an attribute means something here, with this value."""
    if attribute == PRIORITY_ATTRIBUTE:
        return value.isascii() and value.isdigit() and len(value) <= 3 and int(value) <= 100
    return attribute == ORDERED_ATTRIBUTE and value in list(OrderedBy)
