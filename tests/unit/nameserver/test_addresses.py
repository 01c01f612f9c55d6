"""Which address a client is told, for every way of standing somewhere."""

from dataclasses import replace

import pytest

from whimbrel.nameserver.addresses import (
    CACHED_CHARS_MAX,
    HOSTS_MAX,
    Access,
    BrokerAddress,
    access_of,
    cached,
    dial_address,
    host_of,
    is_loopback,
    joined,
    scheme_of,
    unclear_names,
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
MOVED = replace(COMPOSE, peer_host="172.18.0.7")
TWO_HOSTS = replace(LAPTOP, host_name="host-b", nameserver_host="10.0.0.1", peer_host="10.0.0.2")
V6 = replace(LAPTOP, host_name="host-b", nameserver_host="2001:db8::1", peer_host="2001:db8::2")
BY_HAND = replace(COMPOSE, advertised_host="mq.example.com", advertised_explicitly=True)
ADVERTISED = replace(COMPOSE, advertised_host="master.internal")

LAPTOP_OWN = frozenset({"127.0.0.1", "192.168.1.5", "::1", "fe80::1"})
COMPOSE_OWN = frozenset({"127.0.0.1", "172.18.0.2"})
MOVED_OWN = frozenset({"127.0.0.1", "172.18.0.8"})
HOST_A_OWN = frozenset({"127.0.0.1", "10.0.0.1"})
V6_OWN = frozenset({"::1", "2001:db8::1"})


# Where clients come from: this machine, a client of our network, the gateway that a published port shows.
SELF, NEIGHBOUR, GATEWAY = "127.0.0.1", "172.18.0.9", "172.18.0.1"


@pytest.mark.parametrize(
    ("broker", "access", "peer", "means", "own", "host"),
    [
        # A laptop without containers: the client's own text, whatever it is.
        pytest.param(LAPTOP, "127.0.0.1", SELF, "", LAPTOP_OWN, "127.0.0.1", id="laptop-loopback"),
        pytest.param(LAPTOP, "localhost", SELF, "", LAPTOP_OWN, "localhost", id="laptop-localhost"),
        pytest.param(LAPTOP, "127.0.1.1", SELF, "", LAPTOP_OWN, "127.0.1.1", id="laptop-other-loopback"),
        pytest.param(LAPTOP, "::1", "::1", "", LAPTOP_OWN, "::1", id="laptop-v6-loopback"),
        pytest.param(LAPTOP, "[::1]", "::1", "", LAPTOP_OWN, "::1", id="laptop-v6-in-brackets"),
        pytest.param(LAPTOP, "192.168.1.5", SELF, "", LAPTOP_OWN, "192.168.1.5", id="laptop-by-address"),
        pytest.param(LAPTOP, "my-laptop", SELF, "127.0.1.1", LAPTOP_OWN, "my-laptop", id="laptop-by-name"),
        pytest.param(LAPTOP, "nas", "192.168.1.9", "192.168.1.5", LAPTOP_OWN, "nas", id="laptop-by-dns"),
        # From container to container: in kind.
        pytest.param(COMPOSE, "nameserver", NEIGHBOUR, "172.18.0.2", COMPOSE_OWN, "master", id="inside"),
        pytest.param(COMPOSE, "NameServer", NEIGHBOUR, "172.18.0.2", COMPOSE_OWN, "master", id="other-case"),
        pytest.param(COMPOSE, "ns.alias", NEIGHBOUR, "172.18.0.2", COMPOSE_OWN, "master", id="other-alias"),
        pytest.param(COMPOSE, "172.18.0.2", NEIGHBOUR, "", COMPOSE_OWN, "172.18.0.3", id="inside-by-address"),
        pytest.param(COMPOSE, "172.18.0.2", GATEWAY, "", COMPOSE_OWN, "172.18.0.3", id="host-by-bridge-ip"),
        pytest.param(COMPOSE, "localhost", SELF, "", COMPOSE_OWN, "172.18.0.3", id="inside-the-nameserver"),
        pytest.param(
            MOVED, "172.18.0.2", NEIGHBOUR, "", COMPOSE_OWN, "172.18.0.7", id="broker-with-a-new-address"
        ),
        pytest.param(
            COMPOSE, "172.18.0.2", NEIGHBOUR, "", MOVED_OWN, "172.18.0.2", id="nameserver-s-old-address"
        ),
        # Through published ports: what reaches the nameserver reaches the broker.
        pytest.param(COMPOSE, "localhost", GATEWAY, "", COMPOSE_OWN, "localhost", id="published-localhost"),
        pytest.param(COMPOSE, "127.0.0.1", GATEWAY, "", COMPOSE_OWN, "127.0.0.1", id="published-loopback"),
        pytest.param(COMPOSE, "::1", GATEWAY, "", COMPOSE_OWN, "::1", id="published-v6-loopback"),
        pytest.param(COMPOSE, "192.168.1.5", GATEWAY, "", COMPOSE_OWN, "192.168.1.5", id="published-address"),
        pytest.param(COMPOSE, "d.example", GATEWAY, "192.168.1.5", COMPOSE_OWN, "d.example", id="published"),
        pytest.param(COMPOSE, "d.example", GATEWAY, "", COMPOSE_OWN, "d.example", id="published-unknown"),
        # Brokers on other machines.
        pytest.param(TWO_HOSTS, "10.0.0.1", "10.0.0.9", "", HOST_A_OWN, "10.0.0.2", id="two-hosts-remote"),
        pytest.param(
            TWO_HOSTS, "host-a", "10.0.0.9", "10.0.0.1", HOST_A_OWN, "host-b", id="two-hosts-by-name"
        ),
        pytest.param(TWO_HOSTS, "localhost", SELF, "", HOST_A_OWN, "10.0.0.2", id="two-hosts-localhost"),
        pytest.param(
            TWO_HOSTS, "127.0.0.1", "10.0.0.1", "", HOST_A_OWN, "10.0.0.2", id="two-hosts-loopback-forwarded"
        ),
        pytest.param(
            replace(TWO_HOSTS, peer_host="10.0.0.1"), "10.0.0.1", "10.0.0.9", "", HOST_A_OWN, "10.0.0.1",
            id="two-hosts-local-broker",
        ),
        pytest.param(
            replace(TWO_HOSTS, peer_host="127.0.0.1"), "10.0.0.1", "10.0.0.9", "", HOST_A_OWN, "10.0.0.1",
            id="two-hosts-loopback-broker",
        ),
        pytest.param(V6, "2001:db8::1", "2001:db8::9", "", V6_OWN, "2001:db8::2", id="v6-two-hosts"),
        pytest.param(V6, "2001:0DB8:0:0::1", "2001:db8::9", "", V6_OWN, "2001:db8::2", id="v6-spelled-anew"),
        pytest.param(V6, "v6-a", "2001:db8::9", "2001:db8::1", V6_OWN, "host-b", id="v6-by-name"),
        pytest.param(
            LAPTOP, "::ffff:127.0.0.1", SELF, "", LAPTOP_OWN, "::ffff:127.0.0.1", id="v4-loopback-in-v6"
        ),
        # What an operator or a broker says of itself.
        pytest.param(BY_HAND, "localhost", GATEWAY, "", COMPOSE_OWN, "mq.example.com", id="by-hand-outside"),
        pytest.param(
            BY_HAND, "nameserver", NEIGHBOUR, "172.18.0.2", COMPOSE_OWN, "mq.example.com", id="by-hand-inside"
        ),
        pytest.param(
            ADVERTISED, "nameserver", NEIGHBOUR, "172.18.0.2", COMPOSE_OWN, "master.internal", id="advertised"
        ),
        pytest.param(
            ADVERTISED, "localhost", GATEWAY, "", COMPOSE_OWN, "localhost", id="advertised-but-published"
        ),
        pytest.param(COMPOSE, "", NEIGHBOUR, "", COMPOSE_OWN, "master", id="no-access-point"),
        pytest.param(
            replace(COMPOSE, host_name=""), "", NEIGHBOUR, "", COMPOSE_OWN, "172.18.0.3", id="only-the-peer"
        ),
    ],
)  # fmt: skip
def test_address_follows_from_how_the_client_came(
    broker: BrokerAddress, access: str, peer: str, means: str, own: frozenset[str], host: str
) -> None:
    meanings = {access: frozenset({means})} if means else {}
    came = access_of([access], peer=peer, own=own, meanings=meanings)
    assert dial_address(broker, came, own) == (host, 8091)


def test_question_put_to_a_broker_is_a_direct_client_s() -> None:
    brokers = frozenset({"172.18.0.3", "172.18.0.4"})
    for asked, meanings in (("172.18.0.4", {}), ("slave", {"slave": {"172.18.0.4"}})):
        came = access_of([asked], peer=GATEWAY, own=COMPOSE_OWN, meanings=meanings, brokers=brokers)
        assert dial_address(COMPOSE, came, COMPOSE_OWN)[0] == ("master" if meanings else "172.18.0.3")


def test_only_names_must_be_looked_up() -> None:
    assert unclear_names(["a.b", "localhost", "127.0.0.1", "[::1]", "::2", "", "LOCALHOST."]) == ["a.b"]


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
        (["10.0.0.9", "10.0.0.1"], Access("10.0.0.1", direct=True)),
        (["10.0.0.9", "host-a"], Access("host-a", direct=True)),
        (["10.0.0.9", "localhost"], Access("localhost", direct=False)),
        (["10.0.0.9", "10.0.0.8"], Access("10.0.0.9", direct=False)),
        (["127.0.0.1"], Access("127.0.0.1", direct=False)),
        (["127.0.0.1", "10.0.0.1"], Access("10.0.0.1", direct=True)),
        ([], Access("", direct=True)),
    ],
)
def test_of_several_addresses_ours_counts(hosts: list[str], chosen: Access) -> None:
    assert access_of(hosts, peer="10.0.0.7", own=HOST_A_OWN, meanings={"host-a": ["10.0.0.1"]}) == chosen


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


def test_what_is_remembered_of_hosts_is_bounded() -> None:
    cached.cache_clear()
    for number in range(2 * HOSTS_MAX):
        assert scheme_of(f"host-{number}") == "DOMAIN_NAME"
    assert cached.cache_info().currsize == HOSTS_MAX
    cached.cache_clear()
    assert scheme_of("x" * (CACHED_CHARS_MAX + 1)) == "DOMAIN_NAME"
    assert cached.cache_info().currsize == 0
    assert [scheme_of(host) for host in ("10.0.0.1", "::1", "10.0.0.1")] == ["IPv4", "IPv6", "IPv4"]
    assert cached.cache_info().hits == 1
