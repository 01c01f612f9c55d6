"""Real RocketMQ brokers at the other end of our replicators; afterwards both logs hold equal bytes."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.processes import Process
from support.store.master_log import MasterLog, log_files, same_log
from support.systems.real_broker import Remoting, Server, broker, name_server, need_kit
from support.waiting import until
from whimbrel.store.shared_page import SharedPage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a name server for all tests of this file; both versions of brokers take a 4.9.3 one."""
    need_kit()
    with name_server("4.9.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def held(store: Path) -> int:
    """Return the end of a log of ours."""
    page = SharedPage.open(store)
    try:
        return page.written if page.epoch else -1
    finally:
        page.close()


def fill(client: Remoting, chance: random.Random, count: int) -> int:
    """Send messages to a real broker and return the end of its log."""
    for number in range(count):
        client.send("interop", chance.randbytes(chance.randrange(1, 8000)), f"KEYS\x01k{number}\x02")
    return client.log_end()


def caught_up(client: Remoting, master: Server, slave: Path) -> None:
    """Wait until our slave holds all of the real master's log, and compare the bytes."""
    until(lambda: held(slave) == client.log_end(), timeout=30, what="our slave having the whole log")
    assert same_log(master.store, slave, client.log_end())


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_our_slave_follows_a_real_master(version: str, names: Server, tmp_path: Path) -> None:
    chance = random.Random(11)
    settings = {"mappedFileSizeCommitLog": MIB, "flushDiskType": "ASYNC_FLUSH"}
    master = broker(version, tmp_path / "master", "ASYNC_MASTER", names.address, **settings)
    slave = Process(
        tmp_path,
        "replicator",
        "slave",
        role="slave",
        store=tmp_path / "slave",
        master_ha=master.ha,
        commitlog_file_size=MIB,
    )
    with master, slave, Remoting(master.address) as client:
        caught_up(client, master, slave.store)  # from an empty disk, an empty log or nearly so
        fill(client, chance, 400)
        caught_up(client, master, slave.store)
        slave.kill()
        end = fill(client, chance, 400)
        assert end % MIB
        assert held(slave.store) % MIB  # both ends are in the middle of a file
        slave.start()
        caught_up(client, master, slave.store)
        assert slave.stop() == 0
        fill(client, chance, 100)
        slave.start()
        caught_up(client, master, slave.store)
        assert len(log_files(slave.store)) >= 3
        late = Process(
            tmp_path,
            "replicator",
            "late",
            role="slave",
            store=tmp_path / "late",
            master_ha=master.ha,
            commitlog_file_size=MIB,
        )
        with late:  # from an empty disk: a real master feeds it from its last file on
            caught_up(client, master, late.store)
            assert min(log_files(late.store)) == client.log_end() // MIB * MIB
        log = slave.log_tail()
    assert "ERROR" not in log


def test_a_real_slave_follows_our_master(names: Server, tmp_path: Path) -> None:
    size = 4 * MIB  # frames of a whole MiB go out
    with MasterLog(tmp_path / "master", file_size=size) as master:
        master.append(3000, body_bytes=5000)
        with Process(tmp_path, "replicator", "feeder", role="master", store=master.root) as feeder:
            slave = broker(
                "4.9.3",
                tmp_path / "slave",
                "SLAVE:1",
                names.address,
                mappedFileSizeCommitLog=size,
                haMasterAddress=feeder.ha,
            )
            with slave:
                acknowledged(master)  # from an empty disk, the first file on; its first report takes 5 s
                assert min(log_files(slave.store)) == 0
                assert same_log(master.root, slave.store, master.end)
                for _ in range(20):
                    master.append(50, body_bytes=700)
                acknowledged(master)
                slave.kill()
                master.append(1000, body_bytes=5000)
                slave.start()
                acknowledged(master)
                feeder.kill()
                master.append(100)
                feeder.start()
                acknowledged(master)
                with Remoting(slave.address) as client:
                    until(lambda: client.log_end() == master.end, what="the real slave showing the end")
                slave.stop()
        assert same_log(master.root, slave.store, master.end)
        assert (slave.store / "consumequeue" / "interop" / "0").is_dir()  # it could read the records


def acknowledged(master: MasterLog) -> None:
    """Wait until a slave has the whole log; a 4.9.3 one reconnects after 5 s and speaks up 5 s later."""
    until(lambda: master.page.acknowledged(1) == master.end, timeout=40, what="the real slave having it all")
