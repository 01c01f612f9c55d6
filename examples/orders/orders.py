"""A shop of two parts that talk by messages: `Shop` takes orders, `Billing` answers each with an invoice."""

import json
from types import TracebackType
from typing import Self

from whimbrel.client import Message
from whimbrel.client.sync import Consumer, Producer

__all__ = ["Billing", "Shop"]

PRICES = {"tea": 400, "cup": 1250}  # in cents


class Shop:
    """Takes orders; a context manager."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.topic = topic
        self.producer = Producer(endpoint)

    def __enter__(self) -> Self:
        self.producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close()

    def order(self, number: int, **items: int) -> str:
        """Send an order for so many of each item, and return the message's id."""
        body = json.dumps({"order": number, "items": items}).encode()
        return self.producer.send(Message(topic=self.topic, body=body, keys=(str(number),))).message_id


class Billing:
    """Reads orders and writes invoices; a context manager."""

    def __init__(self, endpoint: str, orders: str, invoices: str, group: str) -> None:
        self.invoices = invoices
        self.consumer = Consumer(endpoint, group, [orders])
        self.producer = Producer(endpoint)

    def __enter__(self) -> Self:
        self.consumer.start()
        self.producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close()
        self.consumer.close()

    def work(self, wait_s: float = 5.0) -> int:
        """Bill the orders that are there, waiting for the first one; return how many."""
        messages = self.consumer.receive(wait_s=wait_s)
        for message in messages:
            order = json.loads(message.body)
            total = sum(PRICES[item] * count for item, count in order["items"].items())
            invoice = json.dumps({"order": order["order"], "cents": total}).encode()
            self.producer.send(Message(topic=self.invoices, body=invoice))
            self.consumer.ack(message)  # not before: an order without an invoice is received again
        return len(messages)
