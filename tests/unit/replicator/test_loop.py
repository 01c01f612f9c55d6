"""The replicator's loop: which callbacks a turn makes."""

import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from whimbrel.replicator.loop import Loop

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.close()


def turn(loop: Loop) -> None:
    loop.turn(0.0, lambda: True)


def test_a_socket_is_called_back_for_what_it_is_watched_for(loop: Loop) -> None:
    near, far = socket.socketpair()
    masks: list[int] = []
    with near, far:
        loop.watch(near, READ, masks.append)
        turn(loop)
        assert masks == []
        far.send(b"x")
        turn(loop)
        loop.watch(near, WRITE, masks.append)
        turn(loop)
        loop.watch(near, READ | WRITE, masks.append)
        turn(loop)
        loop.watch(near, 0, masks.append)
        turn(loop)
        assert masks == [READ, WRITE, READ | WRITE]


def test_the_end_of_a_connection_is_told_to_who_writes_only(loop: Loop) -> None:
    near, far = socket.socketpair()
    masks: list[int] = []
    with near:
        loop.watch(near, WRITE, masks.append)
        far.close()
        turn(loop)
        assert masks == [WRITE]
        loop.watch(near, 0, masks.append)


def test_a_socket_closed_by_an_earlier_callback_is_not_called_nor_its_successor(loop: Loop) -> None:
    one, one_far = socket.socketpair()
    two, two_far = socket.socketpair()
    called: list[str] = []
    pairs = {"one": one, "two": two}
    successor: list[socket.socket] = []

    def ready(name: str, other: str) -> None:
        called.append(name)
        number = pairs[other].fileno()
        loop.watch(pairs[other], 0, print)
        pairs[other].close()
        ours, theirs = socket.socketpair()
        assert number in (ours.fileno(), theirs.fileno())
        successor.extend((ours, theirs))
        for sock in successor:
            loop.watch(sock, READ, lambda _: called.append("successor"))

    loop.watch(one, READ, lambda _: ready("one", "two"))
    loop.watch(two, READ, lambda _: ready("two", "one"))
    one_far.send(b"x")
    two_far.send(b"x")
    turn(loop)
    assert len(called) == 1
    for sock in (one, one_far, two, two_far, *successor):
        if sock.fileno() >= 0:
            loop.watch(sock, 0, print)
            sock.close()
