"""Several broker groups and official SDKs: one that is added under load, one that is killed, all kinds.

The cases of `test_sdk_kinds.py` run here as they are, on topics that two brokers have.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import test_sdk_kinds as kinds
from integration.test_broker_groups import places
from support.cluster.processes import Cluster, Process
from support.history.noting import Load
from support.history.sdk_notes import SdkLoad
from support.systems.sdk_programs import LANGUAGES, DevCluster, Program
from support.waiting import until
from whimbrel.client.sync import Admin

pytestmark = pytest.mark.process

ROUTE_S = 60.0  # the SDKs look at a route every 30 s
QUEUES = 2
# These go on with their first route for as long as they live (Node 1.0, Rust 5.0.0).
KEEP_THEIR_ROUTE = ("nodejs", "rust")
CONSUMERS_KEEP_THEIR_ROUTE = ("rust",)
JAVA_ENDS_S = 90.0  # a shutdown, when it waits for answers of a broker that is not there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Two broker groups without slaves."""
    with DevCluster(tmp_path_factory.mktemp("two") / "dev", "--brokers", "2", "--slaves", "0") as running:
        yield running


test_delayed_messages_of_two_brokers = kinds.test_delayed_message_comes_when_it_is_due
test_transactions_of_two_brokers = kinds.test_committed_messages_come_once_and_rolled_back_ones_never
test_producers_are_asked_by_two_brokers = kinds.test_producer_is_asked_about_a_transaction_that_it_left_open


@pytest.mark.slow
@kinds.languages("go", without=kinds.WITHOUT_RECALL)
def test_recalls_find_the_broker_of_the_message(language: str, cluster: DevCluster) -> None:
    """Slow: a consumer asks one broker after the other."""
    kinds.test_recalled_message_never_comes(language, cluster)


def start_second(growing: Cluster, topic: str) -> Process:
    """Add a broker, and the topic to it."""
    settings = growing.broker_settings | {"nameservers": [growing.endpoint]}
    added = Process(growing.root, "broker", "added", store=growing.root / "store-added", **settings)
    added.settings["name"] = "broker-b"
    added.start()
    with Admin(growing.endpoint) as admin:

        def made() -> bool:
            known = {broker.broker_name for broker in admin.cluster().brokers}
            if "broker-b" in known:
                admin.create_topic(topic, queues=QUEUES, brokers=["broker-b"])
            return "broker-b" in known

        until(made, timeout=30, what="the registration")
    return added


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Cluster]:
    """One broker, with a topic on it."""
    with Cluster(tmp_path, slaves=0) as running:
        running.wait_usable()
        with Admin(running.endpoint) as admin:
            admin.create_topic("orders", queues=QUEUES)
        yield running


def held_by(growing: Cluster, broker: str, topic: str = "orders") -> int:
    return places(growing.endpoint, topic)[broker]


@pytest.mark.timeout(240)
def test_a_broker_that_is_added_under_load_is_used_and_its_loss_costs_the_other_nothing(
    growing: Cluster, tmp_path: Path
) -> None:
    """The official Python SDK sends and receives all the while."""
    sending = SdkLoad("send", growing.endpoint, "orders", tmp_path, "1", "40")
    draining = SdkLoad("drain", growing.endpoint, "orders", tmp_path, "billing")
    try:
        sending.wait_for(20, "sends to one broker", 60)
        with start_second(growing, "orders") as added:
            until(lambda: held_by(growing, "broker-b") > 20, timeout=ROUTE_S, what="sends to the new broker")
            draining.wait_for_all(sending.sent(), ROUTE_S)
            before = held_by(growing, "broker-a")
            added.kill()
            sending.wait_for(60, "sends to the broker that is left", ROUTE_S)
            added.start()
            sending.end()
            assert held_by(growing, "broker-a") >= before + 30
            draining.wait_for_all(sending.sent(), ROUTE_S)
            assert sending.sent() <= draining.got()
    finally:
        sending.end()
        draining.end()


@pytest.mark.timeout(120)
def test_our_client_uses_a_broker_that_is_added(growing: Cluster) -> None:
    with Load(growing.endpoint, "orders", producers=1, pause_s=0.01) as load:
        load.wait_for(20, "sends to one broker")
        with start_second(growing, "orders"):
            until(lambda: held_by(growing, "broker-b") > 20, timeout=30, what="sends to the new broker")
            load.stop_sending()
            load.settle()
            assert load.missing() == set()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"], indirect=True)
def test_each_sdk_uses_a_broker_that_is_added_and_goes_on_when_it_is_lost(
    growing: Cluster, language: str
) -> None:
    with contextlib.ExitStack() as programs:

        def start(role: str, *words: object) -> Program:
            return programs.enter_context(
                Program(language, role, growing.endpoint, "orders", *words)
            ).wait_ready()

        consumers = [start("simple", "billing", "*")]
        producers = [start("produce", "m", 0, 40)]

        def wait_for_all() -> None:
            sent = {body for each in producers for body in each.bodies("sent")}
            until(
                lambda: sent <= {body for each in consumers for body in each.bodies("got")},
                timeout=ROUTE_S,
                what="all that was sent",
            )

        until(lambda: held_by(growing, "broker-a") > 20, timeout=30, what="sends to one broker")
        with start_second(growing, "orders") as added:
            if language in KEEP_THEIR_ROUTE:
                producers[0].end()
                producers.append(start("produce", "n", 0, 40))
            if language in CONSUMERS_KEEP_THEIR_ROUTE:
                consumers[0].end()
                consumers.append(start("simple", "billing", "*"))
            until(lambda: held_by(growing, "broker-b") > 20, timeout=ROUTE_S, what="sends to the new broker")
            wait_for_all()
            before = held_by(growing, "broker-a")
            added.kill()
            until(
                lambda: held_by(growing, "broker-a") > before + 30,
                timeout=ROUTE_S,
                what="sends to the broker that is left",
            )
            added.start()
            producers[-1].end(JAVA_ENDS_S)
            wait_for_all()
