"""What nameservers are told of a broker: who and where it is, what it serves, how far its log goes."""

import socket
from typing import TYPE_CHECKING

from whimbrel.broker.addresses import advertised_host
from whimbrel.model.registration import BrokerFacts

if TYPE_CHECKING:
    from whimbrel.broker.roles.role import Role

__all__ = ["facts_of"]


def facts_of(role: "Role") -> BrokerFacts:
    """Return what nameservers are to know; called before each renewal."""
    options, topics, store = role.options, role.context.topics, role.store
    elector = role.context.elector
    return BrokerFacts(
        cluster=options.cluster,
        broker_name=options.name,
        broker_id=options.place,
        role=role.NAME,
        port=options.advertise_port or role.context.port,
        version=topics.version,
        topics=topics.rows.values(),
        change_since=topics.change_since,
        advertised_host=advertised_host(options),
        advertised_explicitly=bool(options.advertise_host),
        ha_address=role.ha_address,
        host_name=socket.gethostname(),
        log_begin=store.min_offset,
        log_end=store.written,
        writable=role.writable,
        instance=role.context.instance,
        epoch=0 if elector is None else elector.epoch,
        member_id=0 if elector is None else options.id,
        voters=0 if elector is None else elector.voters,
    )
