"""The kernel's tables of local addresses."""

from whimbrel.nameserver.interfaces import own_addresses, parse_fib_trie, parse_if_inet6

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     |-- 192.168.1.5
        /32 host LOCAL
"""


def test_local_leaves_are_our_addresses() -> None:
    assert parse_fib_trie(TRIE) == {"127.0.0.1", "192.168.1.5"}


def test_v6_table() -> None:
    text = (
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "20010db8000000000000000000000005 02 40 00 80     eth0\n"
    )
    assert parse_if_inet6(text) == {"::1", "2001:db8::5"}


def test_this_machine_has_loopback() -> None:
    assert "127.0.0.1" in own_addresses()
