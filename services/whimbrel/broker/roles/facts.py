"""What nameservers are told of a broker: who and where it is, what it serves, how far its log goes."""

import socket

from whimbrel.broker.addresses import advertised_host
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.roles.context import BrokerContext
from whimbrel.model.registration import BrokerFacts, BrokerRole
from whimbrel.store.store import MessageStore

__all__ = ["facts_of"]


def facts_of(
    context: BrokerContext,
    options: BrokerOptions,
    store: MessageStore,
    *,
    role: BrokerRole,
    writable: bool,
    ha_address: str,
) -> BrokerFacts:
    """Return what nameservers are to know of a broker in a role, whose options these are."""
    topics, elector = context.topics, context.elector
    return BrokerFacts(
        cluster=options.cluster,
        broker_name=options.name,
        broker_id=options.place,
        role=role,
        port=options.advertise_port or context.port,
        version=topics.version,
        topics=topics.rows.values(),
        change_since=topics.change_since,
        advertised_host=advertised_host(options),
        advertised_explicitly=bool(options.advertise_host),
        ha_address=ha_address,
        host_name=socket.gethostname(),
        log_begin=store.min_offset,
        log_end=store.written,
        writable=writable,
        instance=context.instance,
        epoch=0 if elector is None else elector.epoch,
        member_id=0 if elector is None else options.id,
        voters=0 if elector is None else elector.voters,
    )
