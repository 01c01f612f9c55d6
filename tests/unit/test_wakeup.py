"""The doorbell: rings arrive, lost ones are harmless, long paths work."""

import select
from pathlib import Path

from whimbrel.wakeup import Doorbell


def readable(bell: Doorbell) -> bool:
    poll = select.poll()  # takes descriptors above 1023, which `select` does not
    poll.register(bell, select.POLLIN)
    return bool(poll.poll(0))


def test_a_ring_makes_the_other_bell_readable(tmp_path: Path) -> None:
    broker, replicator = Doorbell(tmp_path, "broker"), Doorbell(tmp_path, "replicator")
    broker.ring("replicator")
    assert readable(replicator)
    assert not readable(broker)
    assert replicator.take()
    assert not readable(replicator)


def test_ringing_nobody_is_harmless(tmp_path: Path) -> None:
    broker = Doorbell(tmp_path, "broker")
    broker.ring("replicator")
    replicator = Doorbell(tmp_path, "replicator")
    replicator.close()
    broker.ring("replicator")


def test_ringing_a_process_that_does_not_look_never_blocks(tmp_path: Path) -> None:
    broker, replicator = Doorbell(tmp_path, "broker"), Doorbell(tmp_path, "replicator")
    for _ in range(2000):
        broker.ring("replicator")
    while replicator.take():
        pass
    assert not readable(replicator)


def test_a_restarted_process_takes_the_bell_of_its_killed_predecessor(tmp_path: Path) -> None:
    broker, killed = Doorbell(tmp_path, "broker"), Doorbell(tmp_path, "replicator")
    successor = Doorbell(tmp_path, "replicator")
    broker.ring("replicator")
    assert readable(successor)
    assert not readable(killed)


def test_a_ring_reaches_the_successor_of_one_that_was_rung_before(tmp_path: Path) -> None:
    broker, first = Doorbell(tmp_path, "broker"), Doorbell(tmp_path, "replicator")
    broker.ring("replicator")
    first.close()
    broker.ring("replicator")  # nobody is there
    successor = Doorbell(tmp_path, "replicator")
    broker.ring("replicator")
    assert readable(successor)
    successor.close()
    third = Doorbell(tmp_path, "replicator")
    broker.ring("replicator")  # this one finds out
    assert readable(third)


def test_a_store_path_longer_than_a_socket_path_works(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 120) / ("y" * 120)
    broker, replicator = Doorbell(root, "broker"), Doorbell(root, "replicator")
    broker.ring("replicator")
    assert readable(replicator)
