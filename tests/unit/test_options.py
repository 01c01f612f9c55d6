"""What the processes' settings refuse before anything is opened, and in which words."""

import os
import subprocess
import sys

import pytest

from whimbrel.broker.options import BrokerOptions
from whimbrel.config import ConfigError, Options, load
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.replicator.options import ReplicatorOptions

STORE = ["--store", "/s"]
NO_PORT = "is not of the form HOST:PORT, as in 127.0.0.1:8081"
NO_HOST = "is not a host: write a name or an address, without a port"


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        (BrokerOptions, ["--nameservers", "127.0.0.1"], f"nameservers: '127.0.0.1' {NO_PORT}"),
        (BrokerOptions, ["--nameservers", "a:1,b"], f"nameservers: 'b' {NO_PORT}"),
        (BrokerOptions, ["--nameservers", "http://a:1"], "nameservers: 'http://a:1' is not HOST:PORT"),
        (BrokerOptions, ["--nameservers", "a:0"], "nameservers: 'a:0': the port must be a number"),
        (BrokerOptions, ["--nameservers", "::1"], "nameservers: '::1': put the IPv6 address in brackets"),
        (BrokerOptions, ["--advertise-host", "a:1"], f"advertise_host: 'a:1' {NO_HOST}"),
        (BrokerOptions, ["--host", "http://a"], f"host: 'http://a' {NO_HOST}"),
        (
            BrokerOptions,
            ["--name", "x y"],
            "name: 'x y' has characters other than % | a-z A-Z 0-9 _ - and the dot",
        ),
        (BrokerOptions, ["--name", "a/b"], "name: 'a/b' has characters other than"),
        (BrokerOptions, ["--name", ""], "name must not be empty"),
        (BrokerOptions, ["--name", "n" * 128], "name: 128 characters are too many; 127 are allowed"),
        (BrokerOptions, ["--cluster", "c\u00e4"], "cluster: 'c\u00e4' has characters other than"),
        (ReplicatorOptions, ["--role", "slave", "--master-ha", "a"], f"master_ha: 'a' {NO_PORT}"),
        (ReplicatorOptions, ["--advertise-host", "a:1"], f"advertise_host: 'a:1' {NO_HOST}"),
        (NameserverOptions, ["--host", "127.0.0.1:8081"], f"host: '127.0.0.1:8081' {NO_HOST}"),
    ],
)
def test_a_bad_address_or_name_is_refused_with_the_setting_and_the_form(
    options: type[Options], arguments: list[str], words: str
) -> None:
    store = [] if options is NameserverOptions else STORE
    with pytest.raises(ConfigError) as caught:
        load(options, [*store, *arguments], {})
    assert words in str(caught.value)


def test_addresses_and_names_as_they_are_in_life_are_taken() -> None:
    made = load(
        BrokerOptions,
        [*STORE, "--nameservers", "ns1:8081,[::1]:8081", "--name", "node-1.example.com", "--host", "::"],
        {},
    )
    assert made.nameservers == ("ns1:8081", "[::1]:8081")
    assert load(ReplicatorOptions, [*STORE, "--master-ha", "[::1]:10912"], {}).master_ha == "[::1]:10912"


def test_a_nameserver_without_a_port_ends_the_process_with_2_and_one_sentence() -> None:
    command = [sys.executable, "-m", "whimbrel.broker", *STORE, "--nameservers", "127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"whimbrel broker: nameservers: '127.0.0.1' {NO_PORT}\n"
