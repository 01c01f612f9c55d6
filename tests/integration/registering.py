"""Stands in for a broker: keeps one registration up, until killed.

Arguments: nameserver, broker name, id, port.
"""

import asyncio
import sys

from whimbrel.broker.cluster.registration import Registration
from whimbrel.model.registration import BrokerFacts
from whimbrel.model.topic import DataVersion, TopicConfig

__all__ = ["facts_of"]


def facts_of(
    name: str, broker_id: int, port: int, *topics: str, counter: int = 1, log_end: int = 0
) -> BrokerFacts:
    """Return a broker that holds `topics`, four queues each."""
    return BrokerFacts(
        cluster="C",
        broker_name=name,
        broker_id=broker_id,
        role="slave" if broker_id else "master",
        port=port,
        version=DataVersion(timestamp=1, counter=counter),
        topics=[TopicConfig(name=topic, read_queues=4, write_queues=4) for topic in topics],
        ha_address="" if broker_id else "0.0.0.0:10912",
        host_name="test-host",
        log_end=log_end,
        writable=not broker_id,
    )


async def main() -> None:
    """Register and stay."""
    nameserver, name, broker_id, port = sys.argv[1:5]
    facts = facts_of(name, int(broker_id), int(port), "T")
    registration = Registration(
        [nameserver], facts=lambda: facts, on_members=lambda *_: None, on_lost=lambda _: None
    )
    registration.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
