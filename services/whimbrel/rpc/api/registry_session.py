"""The broker's side of the Session stream between a broker and a nameserver, in model terms."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from whimbrel.errors import BadRequest
from whimbrel.model.names import check_broker_name
from whimbrel.model.registration import (
    BrokerFacts,
    Member,
    SharedTopics,
    check_member,
    check_queue_counts,
    check_topic_name,
)
from whimbrel.model.route import Endpoint
from whimbrel.model.topic import DataVersion, TableChange, TopicConfig
from whimbrel.model.wire import REGISTRY_SERVICE
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry

__all__ = ["SESSION_PATH", "SessionUpdate", "open_session", "read_update", "session_request"]

logger = logging.getLogger(__name__)

SESSION_PATH = f"/{REGISTRY_SERVICE}/Session"

ROLES = {"master": registry.BROKER_ROLE_MASTER, "slave": registry.BROKER_ROLE_SLAVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdate:
    """A nameserver's response to a registration or renewal, or a change of the group that it reports.

    Attributes:
        lease_s: how long the registration lasts without a renewal.
        renew_s: when the next renewal should be sent.
        members: the other brokers of the group.
        settled: the nameserver has been up for long enough to know all of them.
        displaced_by: address of another broker that has the place of this one's name and id; else empty.
        shared: topics that other brokers have, too; None when nothing is said of them.
        takes_changes: the nameserver takes changes of the topic table in place of the whole.
        topics_wanted: it has not what a change was about, and asks for the whole table.
    """

    lease_s: float
    renew_s: float
    members: tuple[Member, ...]
    settled: bool
    displaced_by: str = ""
    shared: SharedTopics | None = None
    takes_changes: bool = False
    topics_wanted: bool = False


def registration_of(facts: BrokerFacts, nameserver_host: str) -> registry.Registration:
    """Return the broker's registration."""
    return registry.Registration(
        cluster=facts.cluster,
        broker_name=facts.broker_name,
        broker_id=facts.broker_id,
        role=ROLES[facts.role],
        advertised_host=facts.advertised_host,
        advertised_explicitly=facts.advertised_explicitly,
        port=facts.port,
        ha_address=facts.ha_address,
        nameserver_host=nameserver_host,
        host_name=facts.host_name,
        instance_id=facts.instance,
        epoch=facts.epoch,
        member_id=facts.member_id,
        voters=facts.voters,
    )


def session_request(
    facts: BrokerFacts,
    nameserver_host: str,
    reported: BrokerFacts | None,
    *,
    held_place: bool = False,
    takes_changes: bool = False,
    topics_wanted: bool = False,
) -> registry.SessionRequest:
    """Return what changed since the facts that were `reported`.

    Args:
        facts: the broker's state now.
        nameserver_host: the host under which it dials the nameserver.
        reported: the facts of the request before; None on the first one of a session, which tells all.
        held_place: on the first request: whether the broker had its place when the session before broke.
        takes_changes: whether the nameserver takes what changed in the topic table, too.
        topics_wanted: whether it asks for the whole table.
    """
    request = registry.SessionRequest(
        version=version_message(facts.version),
        log_begin=facts.log_begin,
        log_end=facts.log_end,
        writable=facts.writable,
        held_place=reported is None and held_place,
    )
    registration = registration_of(facts, nameserver_host)
    if reported is None or registration != registration_of(reported, nameserver_host):
        request.registration.CopyFrom(registration)
    if reported is not None and not topics_wanted and facts.version == reported.version:
        return request
    change = None
    if reported is not None and takes_changes and not topics_wanted:
        change = facts.change_since(reported.version)
    if change is None:
        request.topics_included = True
        request.topics.extend(map(topic_message, filter(may_register, facts.topics)))
    else:
        add_change(request, change)
    return request


def add_change(request: registry.SessionRequest, change: TableChange[TopicConfig]) -> None:
    """Add what changed in the topic table; a topic that is left out from now on is gone."""
    request.change_base.CopyFrom(version_message(change.before))
    request.deleted_topics.extend(change.removed)
    for topic in change.rows:
        if may_register(topic):
            request.changed_topics.append(topic_message(topic))
        else:
            request.deleted_topics.append(topic.name)


def version_message(version: DataVersion) -> registry.DataVersion:
    return registry.DataVersion(timestamp_ms=version.timestamp, counter=version.counter)


def topic_message(topic: TopicConfig) -> registry.TopicQueues:
    return registry.TopicQueues(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        message_type=topic.message_type.value,
        system_flag=topic.system_flag,
    )


def may_register(topic: TopicConfig) -> bool:
    """Return whether nameservers take a topic; one of another broker's making that they refuse is left out.

    The others are registered all the same.
    """
    try:
        check_topic_name(topic.name)
        check_queue_counts(topic.read_queues, topic.write_queues, topic.permission)
    except BadRequest as error:
        logger.warning("topic %s is left out of the registration: %s", topic.name, error)
        return False
    return True


def read_update(response: registry.SessionResponse) -> SessionUpdate:
    """Return a response as a value; a member that can't be dialled is left out."""
    return SessionUpdate(
        lease_s=response.lease.seconds + response.lease.nanos / 1e9,
        renew_s=response.renew_interval.seconds + response.renew_interval.nanos / 1e9,
        members=tuple(members_of(response)),
        settled=response.settled,
        displaced_by=response.displaced_by,
        shared=shared_of(response.shared) if response.HasField("shared") else None,
        takes_changes=response.takes_changes,
        topics_wanted=response.topics_wanted,
    )


def shared_of(shared: registry.SharedTopics) -> SharedTopics:
    """Return a report as a value; what no broker or topic can be is left out."""
    queues: dict[str, dict[str, int]] = {}
    masters: dict[str, str] = {}
    for topic in shared.topics:
        for one in topic.brokers:
            with contextlib.suppress(BadRequest):
                check_topic_name(topic.topic)
                check_queue_counts(0, one.write_queues, 0)
                queues.setdefault(topic.topic, {})[one.broker_name] = one.write_queues
    for master in shared.masters:
        with contextlib.suppress(ValueError):
            check_broker_name("broker_name", master.broker_name)
            if master.address:
                Endpoint.parse(master.address)
            masters[master.broker_name] = master.address
    for brokers in queues.values():
        for name in brokers.keys() - masters.keys():
            del brokers[name]
    return SharedTopics(
        queues={name: brokers for name, brokers in queues.items() if brokers}, masters=masters
    )


def members_of(response: registry.SessionResponse) -> Iterator[Member]:
    """Yield the members that a nameserver reports, as far as they pass the checks."""
    for reported in response.members:
        member = Member(
            broker_id=reported.broker_id,
            address=reported.address,
            ha_address=reported.ha_address,
            log_begin=reported.log_begin,
            log_end=reported.log_end,
            epoch=reported.epoch,
            member_id=reported.member_id,
        )
        with contextlib.suppress(BadRequest):
            check_member(member)
            yield member


def open_session(channel: grpc.aio.Channel, requests: AsyncIterator[registry.SessionRequest]) -> Any:
    """Open the stream; the result is the call, whose `read` gives `SessionResponse`s."""
    return channel.stream_stream(
        SESSION_PATH,
        request_serializer=registry.SessionRequest.SerializeToString,
        response_deserializer=registry.SessionResponse.FromString,
    )(requests)
