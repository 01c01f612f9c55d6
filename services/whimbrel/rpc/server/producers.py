"""Which clients produce to which topic: those that are asked about a transaction which nobody has ended.

A client counts as a topic's producer since it named the topic: in its settings, in a message of a
transaction, or when it ended one. Whether it is still there, its Telemetry stream tells. Pure, and bounded:
`TOPICS_MAX` topics, those that were named last, with `CLIENTS_MAX` clients each, likewise.
"""

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["CLIENTS_MAX", "TOPICS_MAX", "TRIES_MAX", "Producers"]

TOPICS_MAX = 4096
CLIENTS_MAX = 64
TRIES_MAX = 3  # RocketMQ's


class Producers:
    """Clients by topic."""

    def __init__(self) -> None:
        """Begin without any."""
        self.by_topic: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def name(self, topic: str, client_id: str) -> None:
        """Note that a client produces to a topic."""
        clients = self.by_topic.get(topic)
        if clients is None:
            clients = self.by_topic[topic] = OrderedDict()
            if len(self.by_topic) > TOPICS_MAX:
                self.by_topic.popitem(last=False)
        else:
            self.by_topic.move_to_end(topic)
        if client_id not in clients:
            clients[client_id] = None
            if len(clients) > CLIENTS_MAX:
                clients.popitem(last=False)

    def ask_one(self, topic: str, ask: Callable[[str], bool | None]) -> bool | None:
        """Ask one of the topic's clients, another one each time.

        Args:
            topic: see above.
            ask: returns whether a client took it, None for one that is not there. It is called until
                `TRIES_MAX` that are there did not take it.

        Returns:
            Whether one took the question; None: none of them is there.
        """
        clients = self.by_topic.get(topic)
        if clients is None:
            return None
        tries = 0
        for client_id in list(clients):
            took = ask(client_id)
            if took:
                clients.move_to_end(client_id)
                return True
            tries += took is not None
            if tries >= TRIES_MAX:
                break
        return False if tries else None
