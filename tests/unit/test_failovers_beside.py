"""What `chaos/beside.py` makes of what it sees."""

import random
import socket
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.beside import Stage, over
from chaos.beside_page import page, pair
from chaos.forwarders import Forwarders
from chaos.rows import BOUND_S, Row
from chaos.sdks import Clients, longest_pause


def test_the_longest_pause_begins_with_the_fault_and_may_last_to_its_end() -> None:
    moments = [1.0, 2.0, 2.5, 7.0, 8.0]
    assert longest_pause(moments, 2.2, 8.5) == (4.5, False)
    assert longest_pause(moments, 2.2, 20.0) == (12.0, True)
    assert longest_pause([], 2.0, 5.0) == (3.0, True)


def test_a_pause_that_the_bound_ended_is_none() -> None:
    assert over([1.0, 9.0], 2.0, 2.0 + BOUND_S) is None
    assert over([1.0, 9.0], 2.0, 2.0 + BOUND_S - 1) == pytest.approx(BOUND_S - 8.0)
    steady = [second * 1.0 for second in range(200)]
    assert over(steady, 2.5, 2.5 + BOUND_S) == 1.0


def test_median_and_worst_and_what_never_came() -> None:
    assert pair([1.0, 3.0, 2.0]) == "2.00 / 3.00"
    assert pair([None, None]) == "none within 90"
    assert pair([20.0, None]) == "20.0; none within 90 (1 of 2)"
    assert pair([]) == "-"


def stage(lines: Iterable[tuple[float, str, str]], stored: list[tuple[int, int, str]]) -> Stage:
    """Return a stage of two rounds, at 10 and at 20 s, of one producer that has said these lines."""
    told = list(lines)
    producer = SimpleNamespace(lines=[line for _, *line in told], times=[at for at, *_ in told])
    clients = SimpleNamespace(
        producers={"go": producer}, topics={"go": "t"}, stop_sending=lambda: None, languages=("go",)
    )
    system = SimpleNamespace(read_back=lambda topic: stored if topic == "t" else [])
    rows = [Row(system="whimbrel", fault="hang"), Row(system="whimbrel", fault="kill -9")]
    return Stage(cast(Any, system), cast(Clients, clients), random.Random(1), rows, [10.0, 20.0])


def test_what_is_lost_and_what_is_there_twice_belongs_to_the_fault_before_it() -> None:
    lines = [
        (5.0, "sent", "a"),
        (12.0, "sent", "b"),
        (13.0, "failed", "c"),
        (21.0, "sent", "d"),
        (22.0, "failed", "e"),
    ]
    found = stage(lines, [(0, 0, "a"), (0, 1, "c"), (1, 0, "c"), (1, 1, "d"), (2, 0, "d")])
    found.finish()
    first, second = found.rows
    assert (first.acknowledged, first.given_up, first.lost, first.duplicates) == (2, 1, 1, 1)
    assert (second.acknowledged, second.given_up, second.lost, second.duplicates) == (1, 1, 0, 1)


def test_the_page_names_who_missed_an_aim() -> None:
    rows = [
        Row(
            system="whimbrel", fault="kill -9", route=0.1, newcomer=0.5, sends={"java": 0.5, "go": late},
            receives={"java": 0.6, "go": 0.7}, connected=["java"], after={"java": 0.1, "go": 0.1},
        )
        for late in (1.0, 2.5)
    ]  # fmt: skip
    rows.append(
        Row(
            system="RocketMQ",
            fault="kill -9",
            sends={"java": None},
            receives={"java": None},
            after={"java": 1.0},
        )
    )
    text = page(rows)
    assert "- kill -9, 2 s: missed by Go 1 of 2." in text
    assert "| kill -9 | *0.50*, *0.50* | 1.00, 2.50 |" in text
    assert "| kill -9 | RocketMQ 5.3.3 | 1 | none within 90 | none within 90 | none within 90 | - |" in text


def test_a_forwarder_replaces_what_it_is_told_to() -> None:
    forwarders = Forwarders()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way = forwarders.add("127.0.0.1")
        way.target = listener.getsockname()
        way.requests, way.answers = (b"40001", b"40002"), (b"50001", b"50002")
        with socket.create_connection(way.address) as client, listener.accept()[0] as server:
            client.sendall(b"at 40001, 50001")
            assert server.recv(100) == b"at 40002, 50001"
            server.sendall(b"at 40001, 50001")
            assert client.recv(100) == b"at 40001, 50002"
    forwarders.close()
