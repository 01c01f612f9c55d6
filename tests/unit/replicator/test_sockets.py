"""Addresses as people write them."""

import socket

import pytest

from whimbrel.replicator.sockets import advertised_host, named, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:10912", ("localhost", 10912)),
        ("[::1]:1", ("::1", 1)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", ":10912", "host:", "host:0", "host:65536", "host:x", "host:-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(text)


def test_an_ipv6_host_is_written_in_brackets() -> None:
    assert named(("::1", 10912, 0, 0)) == "[::1]:10912"
    assert named(("127.0.0.1", 10912)) == "127.0.0.1:10912"


def test_slaves_are_told_the_name_of_a_machine_whose_replicator_listens_everywhere() -> None:
    assert advertised_host("", "0.0.0.0") == socket.gethostname()
    assert advertised_host("", "10.0.0.1") == "10.0.0.1"
    assert advertised_host("mq.example.com", "0.0.0.0") == "mq.example.com"
