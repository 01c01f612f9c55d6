"""The broker's side of the Session stream between a broker and a nameserver, in model terms."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from whimbrel.model.registration import BrokerFacts, Member
from whimbrel.model.wire import REGISTRY_SERVICE
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry

__all__ = ["SESSION_PATH", "SessionUpdate", "open_session", "read_update", "session_request"]

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
        displaced_by: address of another live broker that took this one's name and id; else empty.
    """

    lease_s: float
    renew_s: float
    members: tuple[Member, ...]
    settled: bool
    displaced_by: str = ""


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
    )


def session_request(
    facts: BrokerFacts, nameserver_host: str, reported: BrokerFacts | None
) -> registry.SessionRequest:
    """Return what changed since the facts that were `reported`; None for those means all."""
    request = registry.SessionRequest(
        version=registry.DataVersion(timestamp_ms=facts.version.timestamp, counter=facts.version.counter),
        log_begin=facts.log_begin,
        log_end=facts.log_end,
        writable=facts.writable,
    )
    registration = registration_of(facts, nameserver_host)
    if reported is None or registration != registration_of(reported, nameserver_host):
        request.registration.CopyFrom(registration)
    if reported is None or facts.version != reported.version:
        request.topics_included = True
        for topic in facts.topics:
            request.topics.add(
                topic=topic.name,
                read_queues=topic.read_queues,
                write_queues=topic.write_queues,
                permission=topic.permission,
                message_type=topic.message_type.value,
                system_flag=topic.system_flag,
            )
    return request


def read_update(response: registry.SessionResponse) -> SessionUpdate:
    """Return a response as a value."""
    return SessionUpdate(
        lease_s=response.lease.seconds + response.lease.nanos / 1e9,
        renew_s=response.renew_interval.seconds + response.renew_interval.nanos / 1e9,
        members=tuple(
            Member(
                broker_id=member.broker_id,
                address=member.address,
                ha_address=member.ha_address,
                log_begin=member.log_begin,
                log_end=member.log_end,
            )
            for member in response.members
        ),
        settled=response.settled,
        displaced_by=response.displaced_by,
    )


def open_session(channel: grpc.aio.Channel, requests: AsyncIterator[registry.SessionRequest]) -> Any:
    """Open the stream; the result is the call, whose `read` gives `SessionResponse`s."""
    return channel.stream_stream(
        SESSION_PATH,
        request_serializer=registry.SessionRequest.SerializeToString,
        response_deserializer=registry.SessionResponse.FromString,
    )(requests)
