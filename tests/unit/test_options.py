"""What the processes' settings refuse before anything is opened, and in which words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.broker.options import BrokerOptions
from whimbrel.config import ConfigError, Options, effective, help_text, load, settings_line
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


@pytest.mark.parametrize("options", [NameserverOptions, BrokerOptions, ReplicatorOptions])
@pytest.mark.parametrize("level", ["LOUD", "", "10", "INFOS"])
def test_a_level_that_the_log_does_not_have_is_refused(options: type[Options], level: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--log-level: .* is not one of DEBUG, INFO, WARNING, WARN, ERROR, CRITICAL, FATAL"
    ):
        load(options, [*([] if options is NameserverOptions else STORE), "--log-level", level], {})


@pytest.mark.parametrize("options", [NameserverOptions, BrokerOptions, ReplicatorOptions])
def test_a_level_is_taken_in_small_letters(options: type[Options]) -> None:
    store = [] if options is NameserverOptions else STORE
    found = load(options, [*store, "--log-level", "debug"], {})
    assert vars_of(found)["log_level"] == "DEBUG"


def vars_of(options: Options) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def test_all_settings_of_a_broker_that_are_wrong_are_told_at_once() -> None:
    words = ["--role", "slave", "--name", "x y", "--nameservers", "a,b:1", "--host", "h:1", "--tls-key", "k"]
    words += ["--consumequeue-file-size", "21", "--voters", "1", "--trace-to", "x", "--coordinator", "zoo"]
    with pytest.raises(ConfigError) as caught:
        load(BrokerOptions, words, {})
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "store",
        "consumequeue_file_size is not a multiple of 20",
        "coordinator",
        "name",
        "nameservers",
        "host",
        "tls_certificate and tls_key belong together",
        "trace_to",
        "voters",
    ]


def test_a_wrong_role_is_no_reason_to_find_fault_with_the_id() -> None:
    with pytest.raises(ConfigError) as caught:
        load(BrokerOptions, [*STORE, "--role", "boss", "--id", "3", "--name", "x y"], {})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["--role", "name"]


NO_GRPCIO = "the transport grpcio is gone, native is the only one: leave the setting out"


def given(
    options: type[Options], way: str, value: str, folder: Path
) -> tuple[list[str], dict[str, str], str]:
    """Return arguments and variables that set the transport, and what the setting is called there."""
    store = [] if options is NameserverOptions else STORE
    variable = f"WHIMBREL_{options.process.upper()}_TRANSPORT"
    file = folder / "it.toml"
    file.write_text(f'transport = "{value}"\n')
    return {
        "flag": ([*store, "--transport", value], {}, "--transport"),
        "variable": (store, {variable: value}, variable),
        "file": ([*store, "--config", str(file)], {}, f"{file}: transport"),
    }[way]


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
@pytest.mark.parametrize("options", [NameserverOptions, BrokerOptions])
def test_the_transport_that_is_gone_is_refused_and_the_one_that_is_left_is_taken_without_a_word(
    options: type[Options], way: str, tmp_path: Path
) -> None:
    for wrong in ("grpcio", "GRPCIO", "other"):
        arguments, environment, name = given(options, way, wrong, tmp_path)
        with pytest.raises(ConfigError) as caught:
            load(options, arguments, environment)
        assert caught.value.problems == (f"{name}: {NO_GRPCIO}",)
    plain = load(options, [] if options is NameserverOptions else STORE, {})
    for right in ("native", "NATIVE"):
        arguments, environment, _ = given(options, way, right, tmp_path)
        assert load(options, arguments, environment) == plain
        assert "transport" not in [each.setting.name for each in effective(options, arguments, environment)]
    assert "transport" not in help_text(options)
    assert "transport" not in settings_line(plain)


@pytest.mark.parametrize("options", [NameserverOptions, BrokerOptions])
def test_a_process_that_is_given_the_transport_that_is_gone_ends_with_2_and_one_sentence(
    options: type[Options],
) -> None:
    store = [] if options is NameserverOptions else STORE
    command = [sys.executable, "-m", f"whimbrel.{options.process}", *store, "--transport", "grpcio"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"whimbrel {options.process}: --transport: {NO_GRPCIO}\n"
