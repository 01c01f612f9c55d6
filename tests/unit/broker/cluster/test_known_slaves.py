"""Whose a connection on the replication port is, and which slaves a master knows."""

from pathlib import Path

import pytest

from whimbrel.broker.cluster.known_slaves import HOSTS_MAX, KnownSlaves
from whimbrel.errors import BadRequest
from whimbrel.model.registration import Member
from whimbrel.store.page_cells import SLAVES_MAX
from whimbrel.store.shared_page import SharedPage


@pytest.fixture
def page(tmp_path: Path) -> SharedPage:
    return SharedPage.open(tmp_path)


@pytest.fixture
def slaves(page: SharedPage, tmp_path: Path) -> KnownSlaves:
    return KnownSlaves(page, tmp_path)


def member(broker_id: int, address: str) -> Member:
    return Member(broker_id=broker_id, address=address, ha_address="", log_begin=0, log_end=0)


def connect(page: SharedPage, slot: int, peer: str, at_ms: int, ack: int = 100) -> None:
    page.set_slave(slot, peer, at_ms)
    page.set_ack(slot, ack)
    page.set_proven(slot)


def test_slaves_of_one_host_count_each_once_they_are_introduced(
    page: SharedPage, slaves: KnownSlaves
) -> None:
    connect(page, 0, "10.0.0.1:1000", 10)
    connect(page, 1, "10.0.0.1:1001", 11)
    assert page.acknowledged(2) == -1
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    assert page.acknowledged(2) == -1  # the other one may be the same slave
    slaves.introduced(2, "10.0.0.1:1001", peer="10.0.0.1:5001")
    assert page.acknowledged(2) == 100
    assert [page.slave_id(slot) for slot in (0, 1)] == [1, 2]


def test_a_slave_that_comes_back_does_not_count_twice(page: SharedPage, slaves: KnownSlaves) -> None:
    connect(page, 0, "10.0.0.1:1000", 10)
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    connect(page, 1, "10.0.0.1:1001", 20, ack=200)  # the first connection is half open
    assert page.live_acks() == [100]
    slaves.introduced(1, "10.0.0.1:1001", peer="10.0.0.1:5000")
    assert page.live_acks() == [200] and page.acknowledged(2) == -1


def test_a_connection_that_is_made_after_the_introduction_is_named_when_slots_are_looked_at(
    page: SharedPage, slaves: KnownSlaves
) -> None:
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    connect(page, 0, "[::ffff:10.0.0.1]:1000", 10)  # as a listener for both families shows it
    assert page.slave_id(0) == 0
    slaves.slots_changed()
    assert page.slave_id(0) == 1
    counted = page.count_slaves()
    slaves.slots_changed()
    assert page.count_slaves() is counted


def test_a_port_that_another_slave_has_now_is_that_ones(page: SharedPage, slaves: KnownSlaves) -> None:
    connect(page, 0, "10.0.0.1:1000", 10)
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    connect(page, 0, "10.0.0.1:1000", 20)
    slaves.introduced(2, "10.0.0.1:1000", peer="10.0.0.1:5001")
    assert page.slave_id(0) == 2
    slaves.name_connections()
    assert page.slave_id(0) == 2


def test_slaves_behind_translated_addresses_count_by_host(page: SharedPage, slaves: KnownSlaves) -> None:
    connect(page, 0, "192.0.2.1:31000", 10)
    connect(page, 1, "192.0.2.2:31000", 11)
    slaves.introduced(1, "10.0.0.1:1000", peer="192.0.2.1:5000")
    assert page.acknowledged(2) == 100
    assert slaves.knows("192.0.2.1") and slaves.knows("10.0.0.1") and not slaves.knows("192.0.2.2")


def test_slots_are_kept_for_the_replicators_hosts_first(page: SharedPage, slaves: KnownSlaves) -> None:
    slaves.seen([member(0, "10.0.0.9:8091"), member(1, "10.0.0.1:8091"), member(2, "slave-2:8091")])
    assert page.known_hosts == ["10.0.0.1"]
    slaves.introduced(1, "10.0.1.1:1000", peer="10.0.0.1:5000")
    slaves.introduced(2, "10.0.1.2:1000", peer="10.0.0.2:5000")
    assert sorted(page.known_hosts) == ["10.0.1.1", "10.0.1.2"]
    assert slaves.hosts[1] == ("10.0.1.1", "10.0.0.1")
    assert slaves.knows("10.0.0.2") and not slaves.knows("10.0.0.9")


def test_what_is_known_outlives_the_process_and_the_boot(slaves: KnownSlaves, tmp_path: Path) -> None:
    slaves.introduced(1, "10.0.1.1:1000", peer="10.0.0.1:5000")
    slaves.beat()
    (tmp_path / "whimbrel" / "watermark").unlink()
    page = SharedPage.open(tmp_path)
    again = KnownSlaves(page, tmp_path)
    assert again.knows("10.0.0.1") and again.knows("10.0.1.1") and page.known_hosts == ["10.0.1.1"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"1": 5}', '{"x": []}'])
def test_a_damaged_file_counts_as_missing(text: str, page: SharedPage, tmp_path: Path) -> None:
    (tmp_path / "whimbrel" / "slaves.json").write_text(text)
    slaves = KnownSlaves(page, tmp_path)
    assert slaves.hosts == {}
    slaves.introduced(1, "10.0.1.1:1000", peer="10.0.0.1:5000")
    slaves.beat()
    assert KnownSlaves(page, tmp_path).knows("10.0.1.1")


def test_the_file_is_written_only_when_there_is_news(slaves: KnownSlaves, tmp_path: Path) -> None:
    slaves.introduced(1, "10.0.1.1:1000", peer="10.0.0.1:5000")
    slaves.beat()
    (tmp_path / "whimbrel" / "slaves.json").unlink()
    slaves.introduced(1, "10.0.1.1:1001", peer="10.0.0.1:5001")
    slaves.seen([member(1, "10.0.0.1:8091"), member(1, "slave-1:8091")])
    slaves.beat()
    assert not (tmp_path / "whimbrel" / "slaves.json").exists()


def test_introductions_by_the_thousand_write_one_file(slaves: KnownSlaves, tmp_path: Path) -> None:
    for number in range(1000):
        slaves.introduced(1, f"10.0.{number // 250}.{number % 250}:1000", peer="10.9.9.9:5000")
    assert not (tmp_path / "whimbrel" / "slaves.json").exists()
    slaves.beat()
    assert (tmp_path / "whimbrel" / "slaves.json").exists()


def test_what_is_known_has_bounds(slaves: KnownSlaves) -> None:
    for broker_id in range(1, 64):
        for number in range(10):
            slaves.seen([member(broker_id, f"10.0.{broker_id}.{number}:1")])
    assert len(slaves.hosts) == SLAVES_MAX
    assert all(len(hosts) == HOSTS_MAX for hosts in slaves.hosts.values())


@pytest.mark.parametrize("broker_id", [0, -1, 64, 1 << 62])
def test_an_id_that_no_slave_has_is_refused(broker_id: int, slaves: KnownSlaves) -> None:
    with pytest.raises(BadRequest, match="a slave's id"):
        slaves.introduced(broker_id, "10.0.0.1:1000", peer="10.0.0.1:5000")


@pytest.mark.parametrize(
    "address", ["", "host", "host:1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1 x:5", "1:2\n"]
)
def test_what_is_no_address_is_refused(address: str, slaves: KnownSlaves) -> None:
    with pytest.raises(BadRequest, match="ADDRESS:PORT"):
        slaves.introduced(1, address, peer="10.0.0.1:5000")
    assert slaves.hosts == {}


def test_a_slave_shares_our_log_once_its_replicator_acknowledges_some_of_it(
    page: SharedPage, slaves: KnownSlaves
) -> None:
    ours, other = member(1, "10.0.0.1:5000"), member(2, "10.0.0.2:5000")
    assert not slaves.acknowledges(ours)
    page.set_slave(0, "10.0.0.1:1000", 10)
    page.set_ack(0, 1)  # it says where it is to be fed from: nothing was compared
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    assert not slaves.acknowledges(ours)
    page.set_proven(0)
    assert slaves.acknowledges(ours) and not slaves.acknowledges(other)


def test_a_slave_whose_replicator_is_not_named_is_told_by_its_host(
    page: SharedPage, slaves: KnownSlaves
) -> None:
    connect(page, 0, "10.0.0.1:1000", 10)
    assert slaves.acknowledges(member(1, "10.0.0.1:5000"))
    assert not slaves.acknowledges(member(1, "10.0.0.2:5000"))


def test_slaves_of_a_master_that_stops_before_its_next_beat_are_known_to_the_next(
    page: SharedPage, slaves: KnownSlaves, tmp_path: Path
) -> None:
    slaves.introduced(1, "10.0.0.1:1000", peer="10.0.0.1:5000")
    slaves.save_news()
    assert KnownSlaves(page, tmp_path).knows("10.0.0.1")
