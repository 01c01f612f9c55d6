"""The masters of a cluster into which messages are put back: who they are, where, with how many queues.

Where a source queue goes must be the same at every run, since how far it came is asked of that queue alone:

    broker    the one that `brokers` names for the source's; else the only group there is; else the one of
              the same name
    queue     the same id, or the id modulo the number of queues where the topic has fewer
"""

import re
from collections.abc import Mapping, Sequence

from whimbrel.errors import TopicNotFound, WhimbrelError
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel

__all__ = ["Masters", "NoTarget", "target_broker"]


class NoTarget(LookupError):
    """Messages can't be put where they should go; the text says what to do."""


def target_broker(source: str, names: Sequence[str], brokers: Mapping[str, str]) -> str:
    """Return the broker into which the messages of a source's broker go.

    Raises:
        NoTarget: nothing says which.
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
        """Look masters up anew at the next question."""
        self.addresses = {}

    def look(self) -> None:
        """Ask a nameserver who lives.

        Raises:
            WhimbrelError: none answers, or none knows a broker.
        """
        failure: WhimbrelError = WhimbrelError("no nameserver is named")
        for server in self.servers:
            host = re.sub(r":\d+$", "", server).strip("[]")
            try:
                with open_channel(server) as channel:
                    question = admin_calls.describe_cluster(host)
                    cluster = perform_blocking(channel, question, (), self.timeout_s)
            except WhimbrelError as error:
                failure = error
                continue
            self.names = tuple(sorted({broker.broker_name for broker in cluster.brokers}))
            self.addresses = {
                broker.broker_name: broker.address for broker in cluster.brokers if broker.broker_id == 0
            }
            if self.names:
                return
            failure = WhimbrelError("the nameserver knows no broker yet")
        raise failure

    def broker_for(self, source: str) -> str:
        """Return the broker into which the messages of a source's broker go; errors as in `target_broker`."""
        if not self.addresses:
            self.look()
        return target_broker(source, self.names, self.brokers)

    def address(self, broker: str) -> str:
        """Return where a master is.

        Raises:
            WhimbrelError: nobody knows it.
        """
        if broker not in self.addresses:
            self.look()
        if broker not in self.addresses:
            raise WhimbrelError(f"the master of {broker} is not registered with a nameserver")
        return self.addresses[broker]

    def queues(self, broker: str, topic: str) -> int:
        """Return how many queues of a topic may be written at a broker; 0 without the topic."""
        with open_channel(self.address(broker)) as channel:
            try:
                question = admin_calls.describe_topic(topic, broker)
                return perform_blocking(channel, question, (), self.timeout_s).topic.write_queues
            except TopicNotFound:
                return 0
