"""Brokers and replicators that change their role while they run, two sites of them, with clients connected.

Both run in this process, in threads: a switch has no command yet. Everything between them and to the clients
is real: sockets, the shared page, the bell, the stores.
"""

import asyncio
import logging
import queue
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import grpc
import pytest

from support.cluster.broker_api import Api, duration, message
from support.cluster.broker_api import queue as queue_of
from support.waiting import until
from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Appender
from whimbrel.broker.roles.master import MasterRole as BrokerMasterRole
from whimbrel.broker.roles.slave import SlaveRole as BrokerSlaveRole
from whimbrel.errors import NotReady, StoreError
from whimbrel.model.registration import BrokerRole
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.store.locking import is_locked

pytestmark = [pytest.mark.process, pytest.mark.transport]

TOPIC, GROUP = "switched", "switched-g"
SIZES: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "consumequeue_file_size": 20_000,
    "index_slots": 1000,
    "index_entries": 4000,
}
SWITCH_S = 20.0  # a bound, no measure


class Site:
    """A store with its broker and its replicator, each in a thread of its own."""

    def __init__(self, root: Path, role: BrokerRole, broker_id: int, **settings: Any) -> None:
        fixed: dict[str, Any] = {"port": 0, "nameservers": (), **SIZES, **settings}
        self.options = BrokerOptions(
            store=str(root),
            role=role,
            id=broker_id,
            auto_create_topics=True,
            auto_create_groups=True,
            **fixed,
        )
        self.root = root
        root.mkdir(parents=True)
        self.loop = Loop(root)
        self.replica_options = ReplicatorOptions(
            store=str(root), port=0, role=role, commitlog_file_size=SIZES["commitlog_file_size"]
        )
        self.replicator = Replicator(self.loop, self.replica_options)
        self.paused = threading.Event()
        self.running = threading.Event()
        self.running.set()
        self.events = asyncio.new_event_loop()
        self.threads = [
            threading.Thread(target=self.events.run_forever, daemon=True),
            threading.Thread(target=self.replicate, daemon=True),
        ]

    def __enter__(self) -> Self:
        role: Literal["master", "slave"] = "master" if self.options.role == "master" else "slave"
        self.replicator.start(self.replica_role(role))
        for thread in self.threads:
            thread.start()
        self.broker: Broker = self.run(self.made())
        self.channel = grpc.insecure_channel(self.broker.server.address)
        self.api = Api(self.channel)
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.run(self.broker.stop())
        self.events.call_soon_threadsafe(self.events.stop)
        self.running.set()
        self.loop.stop()
        self.loop.wake()
        for thread in self.threads:
            thread.join(SWITCH_S)
        self.events.close()
        with self.replicator:
            pass
        self.loop.close()

    async def made(self) -> Broker:
        broker = Broker(self.options)
        await broker.start()
        return broker

    def replicate(self) -> None:
        """Run the replicator, except while it is to hang."""
        while not self.loop.stopping:
            self.paused.clear()
            self.replicator.turn()
            self.paused.set()
            self.running.wait()

    def hang_replicator(self) -> None:
        """Let the replicator do nothing, as a stopped process does; its connections stay."""
        self.running.clear()
        self.loop.wake()
        assert self.paused.wait(SWITCH_S)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.events).result(SWITCH_S)

    def inspect(self, look: Callable[[], Any]) -> Any:
        """Call a function on the broker's loop."""

        async def call() -> Any:
            return look()

        return self.run(call())

    def replica_role(self, name: BrokerRole) -> MasterRole | SlaveRole:
        options = replace(self.replica_options, role=name)
        return MasterRole(self.loop, options) if name == "master" else SlaveRole(self.loop, options)

    def dial(self, master: "Site") -> None:
        """Have the replicator of this slave follow a master; nameservers would tell its broker."""
        port = until(lambda: master.loop.page.ha_port, what="the HA port")
        self.loop.page.master_ha = f"127.0.0.1:{port}"

    def to_slave(self, broker_id: int) -> None:
        """Make this site a slave: the broker gives the log back, the replicator takes it."""
        epoch = self.epoch
        self.replicator.switch(self.replica_role("slave"))  # waits for the lock by itself
        self.run(self.broker.switch("slave", broker_id))
        until(lambda: self.epoch > epoch and is_locked(self.root), what="the log in the replicator's hands")
        role = self.broker.role
        assert isinstance(role, BrokerSlaveRole)
        until(lambda: role.store.epoch == self.epoch, what="a broker that has seen the new epoch")

    def to_master(self) -> None:
        """Make this site the master: the replicator gives the log back, the broker takes it."""
        self.replicator.switch(self.replica_role("master"))
        until(lambda: not is_locked(self.root), what="the released log")
        self.run(self.broker.switch("master", 0))
        until(lambda: self.api.administer("DescribeReplication").writable, what="a writable master")

    @property
    def epoch(self) -> int:
        return self.loop.page.epoch

    def state(self) -> tuple[bytes, list[bytes], dict[Any, Any], dict[Any, tuple[int, int]]]:
        """Return the log, the lease state, the committed offsets, and the ranges of the queues."""

        def look() -> Any:
            role = self.broker.role
            assert role is not None
            store = role.store
            log = store.read_log(store.min_offset, store.written - store.min_offset)
            leases = sorted(role.consumption.lease_store.snapshot())
            ranges = {key: store.queue_range(*key) for key in store.queues.by_key}
            return bytes(log), leases, role.consumption.positions.committed_offsets(), ranges

        found: tuple[bytes, list[bytes], dict[Any, Any], dict[Any, tuple[int, int]]] = self.inspect(look)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "a", "master", 0) as running:
        yield running


def filled(site: Site) -> set[int]:
    """Send 40 messages and receive 20, of which 7 are acknowledged; return the numbers of all 20."""
    for number in range(40):
        assert site.api.send(TOPIC, b"%d" % number, message_id=f"id-{number}").status.code == v2.OK
    got = site.api.receive(TOPIC, GROUP, batch=20, invisible_s=600)
    assert site.api.ack(TOPIC, GROUP, *got.handles[:7]).status.code == v2.OK
    return set(map(int, got.bodies))


def test_roles_are_switched_both_ways_on_one_store(site: Site) -> None:
    taken = filled(site)
    before, port, epoch = site.state(), site.broker.server.port, site.epoch
    site.to_slave(1)
    assert site.epoch == epoch + 1
    assert site.state() == before
    view = site.api.administer("DescribeReplication")
    assert (view.role, view.writable, view.broker_id) == ("SLAVE", False, 1)
    assert "takes no writes" in site.api.send(TOPIC, b"refused").status.message
    assert site.state() == before
    site.to_master()
    assert site.epoch == epoch + 2
    assert site.state() == before
    assert site.broker.server.port == port
    view = site.api.administer("DescribeReplication")
    assert (view.role, view.writable, view.broker_id) == ("MASTER", True, 0)
    assert site.api.send(TOPIC, b"40", message_id="id-40").status.code == v2.OK
    rest = site.api.receive(TOPIC, GROUP, batch=32)
    assert sorted(map(int, rest.bodies)) == sorted({*range(41)} - taken)


def test_metrics_follow_the_role_at_the_same_address(tmp_path: Path) -> None:
    def scraped() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            return str(response.read(), "utf-8")

    with Site(tmp_path / "a", "master", 0, metrics_port=0) as site:
        assert site.broker.context is not None and site.broker.context.exposition is not None
        address = site.broker.context.exposition.address
        assert site.api.send(TOPIC, b"counted").status.code == v2.OK
        assert 'role="master"' in scraped() and "whimbrel_append_records_total" in scraped()
        site.to_slave(1)
        text = scraped()
        assert 'role="slave"' in text and 'role="master"' not in text
        assert "whimbrel_dispatch_lag_seconds" in text and "whimbrel_append_records_total" not in text


def test_log_that_is_not_released_is_not_taken(site: Site) -> None:
    filled(site)
    before = site.state()
    site.to_slave(1)
    with pytest.raises(StoreError, match="open in this process already"):
        site.run(site.broker.switch("master", 0))
    assert site.broker.role is None
    refused = site.api.send(TOPIC, b"no role").status
    assert "changes its role" in refused.message
    assert site.api.route(TOPIC).status.code == v2.OK  # needs no role
    site.to_master()
    assert site.state() == before


def held_up(site: Site, patch: pytest.MonkeyPatch) -> tuple[asyncio.Event, Future[None]]:
    """Begin a switch, whose new role waits for the event before it opens its store."""
    gate, opens = asyncio.Event(), threading.Event()
    original = BrokerSlaveRole.open_store

    async def open_store(role: BrokerSlaveRole) -> Any:
        opens.set()
        await gate.wait()
        return await original(role)

    patch.setattr(BrokerSlaveRole, "open_store", open_store)
    site.replicator.switch(site.replica_role("slave"))
    switching = asyncio.run_coroutine_threadsafe(site.broker.switch("slave", 1), site.events)
    assert opens.wait(SWITCH_S)
    until(lambda: is_locked(site.root), what="a replicator that has the log")
    return gate, switching


def test_client_that_leaves_during_a_switch_is_let_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    gate, switching = held_up(site, monkeypatch)
    left = site.api("NotifyClientTermination", group=v2.Resource(name=GROUP))
    assert left.status.code == v2.OK
    site.inspect(gate.set)
    switching.result(SWITCH_S)
    assert site.api.administer("DescribeReplication").role == "SLAVE"


def test_stop_ends_a_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Site(tmp_path / "a", "master", 0) as site:
        filled(site)
        gate, switching = held_up(site, monkeypatch)
        site.run(site.broker.stop())
        with pytest.raises(NotReady, match="stopping"):
            switching.result(SWITCH_S)
        with pytest.raises(NotReady, match="stopping"):
            site.run(site.broker.switch("slave", 1))
        site.inspect(gate.set)
        site.options = replace(site.options, role="slave", id=1)
        again = site.run(site.made())  # nothing of the first one holds the store
        site.run(again.stop())


def test_role_and_id_must_go_together(site: Site) -> None:
    with pytest.raises(ValueError, match="slave can't have id 0"):
        site.run(site.broker.switch("slave", 0))
    assert site.api.send(TOPIC, b"still a master").status.code == v2.OK


def test_calls_that_wait_are_answered_and_sessions_stay(tmp_path: Path) -> None:
    settings = {"replication": "sync", "slave_timeout_ms": 60_000}
    with Site(tmp_path / "a", "master", 0, **settings) as a, Site(tmp_path / "b", "slave", 1) as b:
        b.dial(a)
        until(lambda: a.api.send(TOPIC, b"1").status.code == v2.OK, what="a slave that acknowledges")
        assert a.api.receive(TOPIC, GROUP).bodies == [b"1"]
        commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        telemetry = a.api.telemetry(iter(commands.get, None))
        commands.put(producer_settings())
        assert next(telemetry).HasField("settings")

        b.hang_replicator()  # it stays connected, and acknowledges nothing any more
        sending = a.api.start("SendMessage", timeout=SWITCH_S, messages=[message(TOPIC, b"2")])
        receiving = a.api.start(
            "ReceiveMessage",
            timeout=SWITCH_S,
            group=v2.Resource(name=GROUP),
            message_queue=queue_of(TOPIC, -1),
            batch_size=1,
            invisible_duration=duration(30),
            long_polling_timeout=duration(15),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="none"),
        )
        role = a.broker.role
        assert role is not None
        assert isinstance(role.appender, Appender)
        appender = role.appender
        until(lambda: a.inspect(lambda: (appender.waiting_count, role.polls.parked)) == (1, 1))
        end = role.store.written
        a.to_slave(2)
        assert sending.result().status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        frames = list(receiving)
        assert [frame.WhichOneof("content") for frame in frames] == ["status", "delivery_timestamp"]
        assert frames[0].status.code == v2.MESSAGE_NOT_FOUND
        assert a.broker.role is not None and a.broker.role.store.written == end  # it is stored all the same
        commands.put(producer_settings())
        assert next(telemetry).HasField("settings")
        commands.put(None)
        b.running.set()


def test_master_and_slave_change_places(tmp_path: Path) -> None:
    with Site(tmp_path / "a", "master", 0) as a, Site(tmp_path / "b", "slave", 1) as b:
        b.dial(a)
        filled(a)
        log = a.state()[0]
        until(lambda: b.state()[0] == log, what="the whole log on the slave")
        a.to_slave(1)
        b.to_master()
        a.dial(b)
        assert b.api.send(TOPIC, b"by the other").status.code == v2.OK
        log, _, _, ranges = b.state()
        until(lambda: a.state()[0] == log, what="the whole log on the former master")
        until(lambda: a.state()[3] == ranges, what="its queues")


def test_slaves_that_are_connected_are_let_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Site(tmp_path / "a", "master", 0) as a, Site(tmp_path / "b", "slave", 1) as b:
        b.dial(a)
        leader, follower = a.broker.role, b.broker.role
        assert isinstance(leader, BrokerMasterRole) and isinstance(follower, BrokerSlaveRole)
        follower.master_address.grpc = a.broker.server.address  # nameservers would say so
        streams = leader.watches.open, leader.lease_streams.open
        until(lambda: a.inspect(lambda: all(streams)), what="both streams of the slave's broker")
        filled(a)
        leases = a.state()[1]
        until(lambda: b.state()[1] == leases, what="the master's leases on the slave")
        before = a.state()
        a.to_slave(2)
        assert not any(streams)
        assert a.state() == before
        # The stream's own end, and whether the slave's broker dials again, are no errors.
        assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]


def producer_settings() -> Any:
    """Return what a producer writes on its Telemetry stream."""
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.append(v2.Resource(name=TOPIC))
    return messaging.TelemetryCommand(settings=settings)
