"""Requests about clients: heartbeats, who else is in a group, and what tools show of that.

    34   HEART_BEAT                      members, groups and their retry topics
    35   UNREGISTER_CLIENT               leaves groups
    38   GET_CONSUMER_LIST_BY_GROUP      ids of the group's members, by which clients share queues out
    46   CHECK_CLIENT_CONFIG             whether an SQL expression compiles
    203  GET_CONSUMER_CONNECTION_LIST    members and subscriptions of a consumer group
    204  GET_PRODUCER_CONNECTION_LIST    members of a producer group
    328  GET_ALL_PRODUCER_INFO           members of all producer groups
    40   NOTIFY_CONSUMER_IDS_CHANGED     sent by us: share queues out again

**When members are told (40).** When a member is new or has gone, and when a topic comes or goes; RocketMQ
says nothing of members that were silent for too long, and leaves it to the next rebalance after 20 s. A
joining member is told as well, but for a Java client that is alone: it shares queues out by itself when it
starts, and if told to do so once more gives its subscriptions a newer version, of which the broker may hear
half a minute later. All changes of a tick are told together, and at most each `TELL_S`, so that somebody who
comes and goes does not keep a large group busy.

A new group's members are told once nameservers route its retry topic: the Java client asks for the route when
it is told, and if there is none yet asks again after 20 s.

A slave has its own members, since consumers send heartbeats to all brokers of a group, and creates nothing.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from whimbrel.broker.consume.filters import TagFilter, compile_filter
from whimbrel.broker.remoting.heartbeats import (
    HEARTBEAT_BYTES_MAX,
    SQL,
    TAG,
    read_heartbeat,
    read_subscription,
)
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.remoting_clients import (
    Consumes,
    Identity,
    Member,
    RemotingClients,
    Subscription,
)
from whimbrel.errors import BadRequest, WhimbrelError
from whimbrel.model.names import check_group
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import dump_body, load_body
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply
from whimbrel.store.codec import java_hash

__all__ = ["TELL_S", "RemotingClientService", "subscription_data"]

TELL_S = 0.1  # between two rounds of 40
SWEEP_S = 10.0  # between two looks for silent members, as in RocketMQ
JAVA = "JAVA"
NOTIFY_FIELD = "notifyConsumerIdsChangedEnable"  # of a group's configuration

logger = logging.getLogger(__name__)


class RemotingClientService:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self,
        clients: RemotingClients,
        groups: GroupTable,
        creation: GroupCreation,
        *,
        clock: Callable[[], float],
        wall_ms: Callable[[float], int],
        later: Callable[[float, Callable[[], None]], object],
        once_routed: Callable[[Callable[[], None]], None],
    ) -> None:
        """Take the tables.

        Args:
            clients: the members.
            groups: says which groups are told of changes.
            creation: makes groups and retry topics.
            clock: monotonic, in seconds.
            wall_ms: turns a time of that clock into epoch milliseconds.
            later: calls back after some seconds, on this thread; not within the call.
            once_routed: calls back once nameservers know the topics as they are now, or nobody can be asked.
        """
        self.clients, self.groups, self.creation = clients, groups, creation
        self.clock, self.wall_ms = clock, wall_ms
        self.later, self.once_routed = later, once_routed
        self.to_tell: dict[str, None] = {}  # groups whose members have changed
        self.telling = False  # a round is due, or the time between two is not over
        self.sweep_at = 0.0  # when silent members are looked for again

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.list_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.list_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.list_all_producers,
        }

    # Members

    def heartbeat(self, peer: Peer, request: Command) -> Reply:
        """Take a heartbeat: a group that is refused does not keep the others out."""
        beat = read_heartbeat(request.body, self.subscribe)
        identity, now = Identity(beat.client_id, request.language, request.version), self.clock()
        refusal: WhimbrelError | None = None
        for said in beat.consumers:
            try:
                self.consumes(peer, identity, said, now)
            except WhimbrelError as error:
                refusal = refusal or error
        for group in beat.producers:
            try:
                check_group(group)
                self.clients.produces(peer, identity, group, now)
            except WhimbrelError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return Reply()

    def subscribe(self, topic: str, version: int, expression: str, sql: bool) -> Subscription:
        """Make one of a heartbeat's subscriptions."""
        return self.clients.subscription(topic, version, expression, sql=sql)

    def consumes(self, peer: Peer, identity: Identity, said: Consumes, now: float) -> None:
        """Take what a heartbeat says of one consumer group."""
        check_group(said.group)
        changed = self.clients.consumes(peer, identity, said, now)
        made = False
        try:
            group = self.creation.group(said.group)
            made = group is not None and self.creation.retry_topic(group)
        finally:
            if made:
                self.once_routed(partial(self.tell, said.group))
            elif changed and not self.is_alone(peer, identity, said.group):
                self.tell(said.group)

    def is_alone(self, peer: Peer, identity: Identity, name: str) -> bool:
        """Return whether a group has no other member than a Java client that has just told of itself."""
        group = self.clients.group(name)
        return identity.language == JAVA and group is not None and list(group.members) == [peer]

    def unregister(self, peer: Peer, request: Command) -> Reply:
        """Take a client out of the groups that it names; an empty name is none."""
        consumer, producer = request.fields.get("consumerGroup", ""), request.fields.get("producerGroup", "")
        told = self.clients.leave(peer, consumer=consumer, producer=producer)
        if told is not None:
            self.tell(told)
        return Reply()

    def closed(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        for group in self.clients.closed(peer):
            self.tell(group)

    def sweep(self) -> None:
        """Forget members that are silent, and end their connections, each `SWEEP_S`."""
        now = self.clock()
        if now < self.sweep_at:
            return
        self.sweep_at = now + SWEEP_S
        told, gone = self.clients.expire(now)
        for group in told:
            self.tell(group)
        for peer in gone:
            connection = cast(Peer, peer)
            logger.info("%s has sent no heartbeat for too long", connection.peer)
            connection.close()

    # What members are told

    def tell(self, group: str) -> None:
        """Tell a group's members soon that they are others."""
        config = self.groups.get(group)
        if config is not None and config.rest.get(NOTIFY_FIELD) is False:
            return
        self.to_tell[group] = None
        if not self.telling:
            self.telling = True
            self.later(0, self.tell_all)

    def tell_all(self) -> None:
        """Tell the members of all groups that have changed."""
        groups, self.to_tell = self.to_tell, {}
        self.telling = bool(groups)
        if groups:
            self.later(TELL_S, self.tell_all)
        for name in groups:
            group = self.clients.group(name)
            for peer in [] if group is None else list(group.members):
                cast(Peer, peer).push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})

    # What is shown

    def list_ids(self, peer: Peer, request: Command) -> Reply:
        """List the ids of a group's members."""
        name = request.text("consumerGroup")
        group = self.clients.group(name)
        if group is None:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no consumer of group {name} is here")
        if group.ids_text is None:
            group.ids_text = dump_body({"consumerIdList": group.client_ids()})
        return Reply(body=[group.ids_text])

    def check_config(self, peer: Peer, request: Command) -> Reply:
        """Tell whether an expression compiles; that of tags is not looked at, as in RocketMQ."""
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise BadRequest(f"the configuration has {len(request.body)} bytes")
        found = load_body(request.body, "the configuration").get("subscriptionData")
        if found is None:
            return Reply()
        if not isinstance(found, dict):
            raise BadRequest("subscriptionData of the configuration is no object")
        one = read_subscription(found, self.subscribe)
        if one.sql:
            compile_filter("sql", one.expression)  # raises IllegalFilter, which says what is wrong
        return Reply()

    def list_consumers(self, peer: Peer, request: Command) -> Reply:
        """Show the members of a consumer group, and what it subscribes to."""
        name = request.text("consumerGroup")
        group = self.clients.group(name)
        if group is None:
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"no consumer of group {name} is online")
        body = {
            "connectionSet": [connection_of(member) for member in group.members.values()],
            "consumeFromWhere": group.begin,
            "consumeType": group.kind,
            "messageModel": group.model,
            "subscriptionTable": {
                topic: subscription_data(one) for topic, one in group.subscriptions.items()
            },
        }
        return Reply(body=[dump_body(body)])

    def list_producers(self, peer: Peer, request: Command) -> Reply:
        """Show the members of a producer group."""
        name = request.text("producerGroup")
        members = self.clients.producers_of(name)
        if not members:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"no producer of group {name} is online")
        return Reply(body=[dump_body({"connectionSet": [connection_of(member) for member in members]})])

    def list_all_producers(self, peer: Peer, request: Command) -> Reply:
        """Show the members of all producer groups."""
        rows = {
            group: [
                {
                    "clientId": member.identity.client_id,
                    "language": member.identity.language,
                    "lastUpdateTimestamp": self.wall_ms(member.last_seen),
                    "remoteIP": f"/{address_of(member)}",  # as Java writes a socket's address
                    "version": member.identity.version,
                }
                for member in members
            ]
            for group, members in self.clients.all_producers()
        }
        return Reply(body=[dump_body({"data": rows})])


def address_of(member: Member) -> str:
    return cast(Peer, member.peer).peer


def connection_of(member: Member) -> Mapping[str, Any]:
    """Return a member as a `Connection`."""
    return {
        "clientAddr": address_of(member),
        "clientId": member.identity.client_id,
        "language": member.identity.language,
        "version": member.identity.version,
    }


def subscription_data(one: Subscription) -> Mapping[str, Any]:
    """Return a subscription as a `SubscriptionData`; tags and codes follow from the expression."""
    tags = sorted(one.filter.tags or ()) if isinstance(one.filter, TagFilter) else []
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": SQL if one.sql else TAG,
        "subString": one.expression,
        "subVersion": one.version,
        "tagsSet": tags,
        "topic": one.topic,
    }
