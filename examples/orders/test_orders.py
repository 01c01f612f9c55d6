"""The shop's tests. The fixtures come with whimbrel: nothing is imported or configured for them."""

import json
from collections.abc import Iterator

import pytest
from orders import Billing, Shop

from whimbrel.client.sync import Consumer
from whimbrel.testing import Cluster


@pytest.fixture
def invoices(whimbrel_cluster: Cluster) -> str:
    return whimbrel_cluster.new_topic("invoices")


@pytest.fixture
def shop(whimbrel_cluster: Cluster, whimbrel_topic: str) -> Iterator[Shop]:
    with Shop(whimbrel_cluster.endpoint, whimbrel_topic) as made:
        yield made


@pytest.fixture
def billing(whimbrel_cluster: Cluster, whimbrel_topic: str, invoices: str) -> Iterator[Billing]:
    group = f"billing-{whimbrel_topic}"
    whimbrel_cluster.create_group(group)
    with Billing(whimbrel_cluster.endpoint, whimbrel_topic, invoices, group) as made:
        yield made


def read(cluster: Cluster, topic: str, count: int) -> list[dict[str, int]]:
    """Return the messages of a topic, as soon as there are so many."""
    group = f"reader-{topic}"
    cluster.create_group(group)
    found: list[dict[str, int]] = []
    with Consumer(cluster.endpoint, group, [topic]) as consumer:
        while len(found) < count and (messages := consumer.receive(wait_s=5.0)):
            found += [json.loads(message.body) for message in messages]
            consumer.ack_all(messages)
    return found


def test_an_order_is_billed(whimbrel_cluster: Cluster, shop: Shop, billing: Billing, invoices: str) -> None:
    shop.order(1, tea=2, cup=1)
    assert billing.work() == 1
    assert read(whimbrel_cluster, invoices, 1) == [{"order": 1, "cents": 2050}]


def test_an_order_survives_the_loss_of_the_broker(
    whimbrel_cluster: Cluster, shop: Shop, billing: Billing, invoices: str
) -> None:
    shop.order(2, cup=1)
    whimbrel_cluster.kill("master")
    whimbrel_cluster.restart("master")
    assert any(billing.work() for _ in range(3))
    assert read(whimbrel_cluster, invoices, 1) == [{"order": 2, "cents": 1250}]
