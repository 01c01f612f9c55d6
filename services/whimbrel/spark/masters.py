"""The masters into which messages are replayed: which one for which source, its address, its queues.

A source queue must go to the same target queue in every run, since only that queue knows how far it came:

    broker    the one that `brokers` names for the source's broker; else the cluster's only broker; else the
              broker of the same name
    queue     the same id, or the id modulo the number of queues where the topic has fewer
"""

from collections.abc import Mapping, Sequence

from whimbrel.errors import TopicNotFound, WhimbrelError
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark import nameservers

__all__ = ["Masters", "NoTarget", "target_broker"]


class NoTarget(LookupError):
    """Messages have no queue to go to; the text says what to do."""


def target_broker(source: str, names: Sequence[str], brokers: Mapping[str, str]) -> str:
    """Return the broker into which the messages of a source's broker go.

    Raises:
        NoTarget: neither names nor `brokers` tell which.
    """
    wanted = brokers.get(source, "")
    if wanted:
        if wanted not in names:
            raise NoTarget(f"there is no broker {wanted}; there are {', '.join(sorted(names))}")
        return wanted
    if len(names) == 1:
        return names[0]
    if source in names:
        return source
    raise NoTarget(
        f"messages of {source} could go to {', '.join(sorted(names))}: say which, as in"
        f" --broker {source}={sorted(names)[0]} (option `brokers`)"
    )


class Masters:
    """Asks nameservers and masters; remembers addresses until `forget`."""

    def __init__(self, servers: Sequence[str], brokers: Mapping[str, str], timeout_s: float) -> None:
        self.servers, self.brokers, self.timeout_s = tuple(servers), dict(brokers), timeout_s
        self.addresses: dict[str, str] = {}
        self.names: tuple[str, ...] = ()

    def forget(self) -> None:
        """Ask for the masters' addresses again before the next call."""
        self.addresses = {}

    def refresh(self) -> None:
        """Ask a nameserver for the masters.

        Raises:
            WhimbrelError: none answers, or none knows a broker.
        """
        brokers = nameservers.describe_any(self.servers, self.timeout_s).brokers
        self.names = tuple(sorted({broker.broker_name for broker in brokers}))
        self.addresses = {broker.broker_name: broker.address for broker in brokers if broker.broker_id == 0}

    def broker_for(self, source: str) -> str:
        """Return the broker into which the messages of a source's broker go; errors as in `target_broker`."""
        if not self.addresses:
            self.refresh()
        return target_broker(source, self.names, self.brokers)

    def address(self, broker: str) -> str:
        """Return the address of a master.

        Raises:
            WhimbrelError: no nameserver knows it.
        """
        if broker not in self.addresses:
            self.refresh()
        if broker not in self.addresses:
            raise WhimbrelError(f"the master of {broker} is not registered with a nameserver")
        return self.addresses[broker]

    def queues(self, broker: str, topic: str) -> int:
        """Return how many writable queues a topic has on a broker; 0 without the topic."""
        with open_channel(self.address(broker)) as channel:
            try:
                question = admin_calls.describe_topic(topic, broker)
                return perform_blocking(channel, question, (), self.timeout_s).topic.write_queues
            except TopicNotFound:
                return 0
