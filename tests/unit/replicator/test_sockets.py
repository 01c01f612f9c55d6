"""Addresses as people write them."""

import socket

from whimbrel.replicator.sockets import advertised_host, named


def test_an_ipv6_host_is_written_in_brackets() -> None:
    assert named(("::1", 10912, 0, 0)) == "[::1]:10912"
    assert named(("127.0.0.1", 10912)) == "127.0.0.1:10912"


def test_slaves_are_told_the_name_of_a_machine_whose_replicator_listens_everywhere() -> None:
    assert advertised_host("", "0.0.0.0") == socket.gethostname()
    assert advertised_host("", "10.0.0.1") == "10.0.0.1"
    assert advertised_host("mq.example.com", "0.0.0.0") == "mq.example.com"
