"""Which address a client is told, for every way of standing somewhere."""

from dataclasses import replace

import pytest

from whimbrel.nameserver.addresses import (
    BrokerAddress,
    access_host,
    dial_address,
    host_of,
    is_loopback,
    joined,
    scheme_of,
)

LAPTOP = BrokerAddress(
    advertised_host="",
    advertised_explicitly=False,
    port=8091,
    host_name="my-laptop",
    nameserver_host="127.0.0.1",
    peer_host="127.0.0.1",
)
COMPOSE = replace(LAPTOP, host_name="master", nameserver_host="nameserver", peer_host="172.18.0.3")
TWO_HOSTS = replace(LAPTOP, host_name="host-b", nameserver_host="10.0.0.1", peer_host="10.0.0.2")
V6 = replace(LAPTOP, host_name="host-b", nameserver_host="2001:db8::1", peer_host="2001:db8::2")
BY_HAND = replace(COMPOSE, advertised_host="mq.example.com", advertised_explicitly=True)
ADVERTISED = replace(COMPOSE, advertised_host="master.internal")

LAPTOP_OWN = frozenset({"127.0.0.1", "192.168.1.5", "::1", "fe80::1"})
COMPOSE_OWN = frozenset({"127.0.0.1", "172.18.0.2"})
HOST_A_OWN = frozenset({"127.0.0.1", "10.0.0.1"})
V6_OWN = frozenset({"::1", "2001:db8::1"})


@pytest.mark.parametrize(
    ("broker", "access", "own", "host"),
    [
        pytest.param(LAPTOP, "127.0.0.1", LAPTOP_OWN, "127.0.0.1", id="laptop-loopback"),
        pytest.param(LAPTOP, "localhost", LAPTOP_OWN, "localhost", id="laptop-localhost"),
        pytest.param(LAPTOP, "127.0.1.1", LAPTOP_OWN, "127.0.1.1", id="laptop-other-loopback"),
        pytest.param(LAPTOP, "::1", LAPTOP_OWN, "::1", id="laptop-v6-loopback"),
        pytest.param(LAPTOP, "[::1]", LAPTOP_OWN, "::1", id="laptop-v6-loopback-in-brackets"),
        pytest.param(LAPTOP, "192.168.1.5", LAPTOP_OWN, "192.168.1.5", id="laptop-over-its-network"),
        pytest.param(LAPTOP, "my-laptop", LAPTOP_OWN, "my-laptop", id="laptop-by-name"),
        pytest.param(COMPOSE, "nameserver", COMPOSE_OWN, "master", id="compose-inside"),
        pytest.param(COMPOSE, "NameServer", COMPOSE_OWN, "master", id="compose-inside-other-case"),
        pytest.param(COMPOSE, "172.18.0.2", COMPOSE_OWN, "172.18.0.3", id="compose-inside-by-address"),
        pytest.param(COMPOSE, "localhost", COMPOSE_OWN, "localhost", id="host-into-compose"),
        pytest.param(COMPOSE, "192.168.1.5", COMPOSE_OWN, "192.168.1.5", id="network-into-compose"),
        pytest.param(
            COMPOSE, "docker.example.com", COMPOSE_OWN, "docker.example.com", id="name-into-compose"
        ),
        pytest.param(TWO_HOSTS, "10.0.0.1", HOST_A_OWN, "10.0.0.2", id="two-hosts-remote-broker"),
        pytest.param(
            replace(TWO_HOSTS, peer_host="10.0.0.1"),
            "10.0.0.1",
            HOST_A_OWN,
            "10.0.0.1",
            id="two-hosts-local-broker",
        ),
        pytest.param(
            replace(TWO_HOSTS, peer_host="127.0.0.1"),
            "10.0.0.1",
            HOST_A_OWN,
            "10.0.0.1",
            id="two-hosts-loopback-broker",
        ),
        pytest.param(V6, "2001:db8::1", V6_OWN, "2001:db8::2", id="v6-two-hosts"),
        pytest.param(V6, "2001:0DB8:0:0::1", V6_OWN, "2001:db8::2", id="v6-two-hosts-spelled-otherwise"),
        pytest.param(V6, "::ffff:127.0.0.1", V6_OWN, "::ffff:127.0.0.1", id="v4-loopback-mapped-into-v6"),
        pytest.param(BY_HAND, "localhost", COMPOSE_OWN, "mq.example.com", id="by-hand-wins-over-loopback"),
        pytest.param(BY_HAND, "nameserver", COMPOSE_OWN, "mq.example.com", id="by-hand-wins-inside"),
        pytest.param(ADVERTISED, "nameserver", COMPOSE_OWN, "master.internal", id="advertised-inside"),
        pytest.param(ADVERTISED, "localhost", COMPOSE_OWN, "localhost", id="advertised-but-not-by-hand"),
        pytest.param(COMPOSE, "", COMPOSE_OWN, "master", id="no-access-point"),
        pytest.param(
            replace(COMPOSE, host_name=""), "", COMPOSE_OWN, "172.18.0.3", id="nothing-but-the-peer"
        ),
    ],
)
def test_address_follows_from_the_access_point(
    broker: BrokerAddress, access: str, own: frozenset[str], host: str
) -> None:
    assert dial_address(broker, access, own) == (host, 8091)


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("10.0.0.1", "IPv4"),
        ("::1", "IPv6"),
        ("[2001:db8::1]", "IPv6"),
        ("localhost", "DOMAIN_NAME"),
        ("a.b", "DOMAIN_NAME"),
    ],
)
def test_scheme_fits_the_host(host: str, scheme: str) -> None:
    assert scheme_of(host) == scheme


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        (["10.0.0.9", "10.0.0.1"], "10.0.0.1"),
        (["10.0.0.9", "localhost"], "localhost"),
        (["10.0.0.9", "10.0.0.8"], "10.0.0.9"),
        (["127.0.0.1"], "127.0.0.1"),
        ([], ""),
    ],
)
def test_of_several_addresses_ours_counts(hosts: list[str], chosen: str) -> None:
    assert access_host(hosts, HOST_A_OWN) == chosen


@pytest.mark.parametrize(
    ("peer", "host"),
    [("1.2.3.4:5", "1.2.3.4"), ("[::1]:5", "::1"), ("[::ffff:1.2.3.4]:5", "1.2.3.4"), ("name:5", "name")],
)
def test_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_loopback_is_what_only_this_machine_sees() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("", "localhost.example.com", "10.0.0.1", "::2")))


def test_joined_puts_v6_in_brackets() -> None:
    assert (joined("::1", 5), joined("a", 5)) == ("[::1]:5", "a:5")
