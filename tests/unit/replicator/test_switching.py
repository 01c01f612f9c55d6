"""A replicator changes its role while it runs: master to slave and back, with a stand-in for the broker.

Two stores, a replicator each, and real connections between them. Time is the test's: no turn waits.
"""

import itertools
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from support.replication.replica_shell import play
from support.store.master_log import MasterLog, log_files, same_log
from whimbrel.errors import StoreError
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, SlaveRole
from whimbrel.store.locking import is_locked
from whimbrel.store.shared_page import SharedPage

FILE = 65536
TURNS_MAX = 5000


class EagerLoop(Loop):
    """A loop that never waits."""

    def turn(self, timeout: float, idle: Callable[[], bool]) -> None:
        super().turn(0, idle)


@dataclass
class Times:
    """A clock that each turn moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A store with its replicator, and a broker in so far as it writes the log."""

    def __init__(self, root: Path, clock: Times, **settings: object) -> None:
        self.root, self.clock = root, clock
        self.loop = EagerLoop(root)
        play(self.loop, clock)
        self.page: SharedPage = self.loop.page
        self.options = ReplicatorOptions(
            store=str(root),
            port=0,
            commitlog_file_size=FILE,
            **settings,  # type: ignore[arg-type]
        )
        self.replicator = Replicator(self.loop, self.options, clock=clock)
        self.broker: MasterLog | None = None

    @property
    def address(self) -> str:
        """Where the replicator listens, "" when it does not."""
        return f"127.0.0.1:{self.page.ha_port}" if self.page.ha_port else ""

    def master(self) -> MasterRole:
        return MasterRole(self.loop, replace(self.options, role="master"), clock=self.clock)

    def slave(self) -> SlaveRole:
        return SlaveRole(self.loop, replace(self.options, role="slave"), clock=self.clock)

    def take_log(self) -> MasterLog:
        """Let the broker recover the log and write it."""
        self.broker = MasterLog(self.root, file_size=FILE)
        return self.broker

    def release_log(self) -> None:
        """Let the broker close the log."""
        assert self.broker is not None
        self.broker.log.close(clean=True)
        self.broker.bell.close()
        self.broker.page.close()
        self.broker = None

    def close(self) -> None:
        with self.replicator:
            pass
        if self.broker is not None:
            self.release_log()
        self.loop.close()


@dataclass
class World:
    """All sites, run turn by turn."""

    clock: Times = field(default_factory=Times)
    sites: list[Site] = field(default_factory=list)

    def site(self, root: Path, **settings: object) -> Site:
        self.sites.append(Site(root, self.clock, **settings))
        return self.sites[-1]

    def until(self, done: Callable[[], object], what: str) -> None:
        """Run all replicators until something is so."""
        for _ in range(TURNS_MAX):
            if done():
                return
            for site in self.sites:
                site.replicator.turn()
            self.clock.now += 0.02
        raise AssertionError(f"{what}: never")

    def turns(self, count: int) -> None:
        """Run all replicators for a while in which nothing is expected."""
        turns = itertools.count()
        self.until(lambda: next(turns) >= count, "some turns")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for site in reversed(made.sites):
        site.close()


def in_step(world: World, master: Site, slave: Site) -> None:
    """Wait until the slave has acknowledged the whole log, and compare the bytes."""
    assert master.broker is not None
    end = master.broker.end
    world.until(lambda: end in master.page.acks and slave.page.written == end, f"an acknowledgement of {end}")
    assert same_log(master.root, slave.root, end)


def pair(world: World, tmp_path: Path) -> tuple[Site, Site]:
    """Return a master and its slave with some log."""
    one, two = world.site(tmp_path / "one"), world.site(tmp_path / "two")
    one.take_log().append(300)
    one.replicator.start(one.master())
    two.page.master_ha = one.address
    two.replicator.start(two.slave())
    in_step(world, one, two)
    return one, two


def test_two_replicators_change_places_and_change_back(world: World, tmp_path: Path) -> None:
    one, two = pair(world, tmp_path)
    for old, new in ((one, two), (two, one)):
        old_epoch, new_epoch = old.page.epoch, new.page.epoch
        end = old.page.written

        # Master to slave: the broker closes the log first. Slaves are disconnected, the port is closed.
        old.release_log()
        old.replicator.switch(old.slave())
        world.until(lambda old=old: isinstance(old.replicator.role, SlaveRole), "the role")  # type: ignore[misc]
        assert is_locked(old.root)
        assert old.page.epoch == old_epoch + 1
        assert (old.page.live_acks(), old.page.peers[0], old.page.ha_port) == ([], "", 0)
        world.until(lambda new=new: not new.page.connected, "the slave being disconnected")  # type: ignore[misc]
        assert old.page.written == end

        # Slave to master: the log is closed cleanly, and the epoch stays until the broker has recovered it.
        new.replicator.switch(new.master())
        world.until(lambda new=new: new.address, "the listener")  # type: ignore[misc]
        assert not is_locked(new.root)
        assert not (new.root / "abort").exists()
        assert new.page.epoch == new_epoch
        broker = new.take_log()
        assert broker.log.was_clean
        assert (broker.end, new.page.epoch) == (end, new_epoch + 1)

        old.page.master_ha = new.address
        in_step(world, new, old)
        broker.append(300)
        in_step(world, new, old)
        assert old.page.trouble == new.page.trouble == ""
    assert len(log_files(one.root)) > 5


def test_a_replicator_waits_to_write_the_log_until_the_broker_has_released_it(
    world: World, tmp_path: Path
) -> None:
    one, two = pair(world, tmp_path)
    epoch = one.page.epoch
    one.replicator.switch(one.slave())
    world.until(lambda: not two.page.connected, "the slave being disconnected")
    beat = one.page.replica_beat_ns
    world.turns(50)
    assert one.replicator.role is None
    assert one.page.epoch == epoch
    assert one.page.replica_beat_ns > beat  # the broker sees that somebody is there
    assert one.broker is not None
    one.broker.append(10)  # what is written meanwhile is a part of the log
    end = one.broker.end
    one.release_log()
    world.until(lambda: one.replicator.role is not None, "the role")
    assert (one.page.epoch, one.page.written) == (epoch + 1, end)


def test_slaves_are_let_in_only_when_the_broker_has_recovered_the_log(world: World, tmp_path: Path) -> None:
    one, two = pair(world, tmp_path)
    end = two.page.written
    two.replicator.switch(two.master())
    world.until(lambda: two.address, "the listener")
    one.release_log()
    one.replicator.switch(one.slave())
    one.page.master_ha = two.address
    world.until(lambda: one.page.connected, "the connection")  # the kernel's: nobody has accepted it
    world.turns(20)
    assert two.page.peers[0] == ""
    broker = two.take_log()
    assert broker.end == end
    world.until(lambda: two.page.live_acks() == [end], "the slave being let in")
    assert two.page.epoch == broker.page.epoch


def test_a_switch_that_was_asked_for_twice_ends_with_the_last_role(world: World, tmp_path: Path) -> None:
    one, two = pair(world, tmp_path)
    two.replicator.switch(two.master())
    two.replicator.switch(two.slave())
    assert one.broker is not None
    one.broker.append(10)
    in_step(world, one, two)
    assert isinstance(two.replicator.role, SlaveRole)


def test_a_switch_that_fails_ends_the_replicator(world: World, tmp_path: Path) -> None:
    one, two = pair(world, tmp_path)
    taken = replace(two.options, role="master", port=one.page.ha_port)
    two.replicator.switch(MasterRole(two.loop, taken, clock=world.clock))
    with pytest.raises(StoreError, match="can't listen"):
        world.turns(10)
    assert not is_locked(two.root)


def families(site: Site) -> set[str]:
    """Return the names of the families that are served, as `name role`."""
    with urllib.request.urlopen(f"http://{site.replicator.metrics.address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.partition("{")[0] + " " + line.partition('role="')[2].partition('"')[0]
        for line in lines
        if line.startswith("whimbrel_")
    }


def test_metrics_follow_the_role_at_the_same_port(world: World, tmp_path: Path) -> None:
    site = world.site(tmp_path / "one", metrics_port=0)
    site.take_log().append(10)
    site.replicator.start(site.master())
    address = site.replicator.metrics.address
    world.turns(1)
    assert "whimbrel_replication_slaves master" in families(site)
    site.replicator.switch(site.slave())
    world.turns(1)
    assert families(site) == {"whimbrel_build_info slave"}  # it waits for the log
    site.release_log()
    world.until(lambda: site.replicator.role is not None, "the role")
    assert site.replicator.metrics.address == address
    found = families(site)
    assert "whimbrel_replication_connected slave" in found
    assert not any("slaves" in name or "master" in name for name in found)
    site.replicator.switch(site.master())
    world.turns(1)
    assert "whimbrel_replication_slaves master" in families(site)
    assert site.replicator.metrics.address == address
