"""Where settings come from, and what is refused."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from whimbrel.cli.toml import effective_toml
from whimbrel.config import (
    ConfigError,
    build,
    check_rules,
    effective,
    load,
    load_or_exit,
    option,
    refusal,
    settings,
    settings_line,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Settings of a broker that does not exist."""

    process: ClassVar[str] = "broker"

    port: int = option(8091, help="port to listen on; 0 = any", minimum=0, maximum=65535)
    lease_s: float = option(8.0, help="lease", minimum=0.1)
    flush: Literal["sync", "async"] = option("async", help="when to flush")
    nameservers: tuple[str, ...] = option(("127.0.0.1:8081",), help="where to register")
    delete_when: tuple[int, ...] = (4,)
    auto_create_topics: bool = option(False, help="create topics on first send")
    token: str = option("", help="a secret", secret=True)
    limit: int = option(0, help="a limit")

    def __post_init__(self) -> None:
        check_rules(self)

    def wrong_port(self) -> Iterator[str]:
        if self.port == 1:
            yield "port 1 is not for us"

    def wrong_lease(self) -> Iterator[str]:
        if self.lease_s > 100 and not self.listens:
            yield "lease_s: too long for somebody who does not listen"

    def wrong_nameservers(self) -> Iterator[str]:
        for address in self.nameservers:
            yield from refusal(refuse_blank, address)

    @property
    def listens(self) -> bool:
        return self.port != 0


def refuse_blank(address: str) -> None:
    if " " in address:
        raise ValueError(f"nameservers: {address!r} has a blank")


def test_defaults() -> None:
    assert load(Sample, [], {}) == Sample()


def test_arguments_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('port = 1111\nlease_s = 3\nflush = "sync"\n')
    environment = {"WHIMBREL_BROKER_PORT": "2222", "WHIMBREL_BROKER_LEASE_S": "4", "HOME": "/x"}
    got = load(Sample, ["--config", str(file), "--port", "3333"], environment)
    assert got == Sample(port=3333, lease_s=4.0, flush="sync")


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('nameservers = ["a:1", "b:2"]\ndelete_when = [1, 2]\nauto_create_topics = true\n')
    got = load(Sample, [], {"WHIMBREL_BROKER_CONFIG": str(file)})
    assert got == Sample(nameservers=("a:1", "b:2"), delete_when=(1, 2), auto_create_topics=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port=5"], Sample(port=5)),
        (["--nameservers", "a:1,b:2;c:3"], Sample(nameservers=("a:1", "b:2", "c:3"))),
        (["--nameservers", "a:1", "--nameservers", "b:2"], Sample(nameservers=("a:1", "b:2"))),
        (["--auto-create-topics"], Sample(auto_create_topics=True)),
        (["--auto-create-topics", "--port", "5"], Sample(auto_create_topics=True, port=5)),
        (["--auto-create-topics", "true"], Sample(auto_create_topics=True)),
        (["--auto-create-topics", "false"], Sample()),
        (["--no-auto-create-topics"], Sample()),
        (["--port", "16KiB"], Sample(port=16384)),
        (["--flush", "SYNC"], Sample(flush="sync")),
        (["--token", "a=b"], Sample(token="a=b")),
        (["--token=a=b"], Sample(token="a=b")),
    ],
)
def test_spellings_of_arguments(arguments: list[str], expected: Sample) -> None:
    assert load(Sample, arguments, {}) == expected


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["--prot", "5"], {}, r"--prot: no such setting; did you mean --port\?"),
        (["--port"], {}, "--port: a value is missing"),
        (["--port", "x"], {}, "--port: 'x' is not a whole number"),
        (["--port", "70000"], {}, "--port: 70000 is above 65535"),
        (["--lease-s", "0"], {}, "--lease-s: 0.0 is below 0.1"),
        (["--flush", "never"], {}, "--flush: 'never' is not one of sync, async"),
        (["--auto-create-topics", "perhaps"], {}, "'perhaps' is not true or false"),
        (["port"], {}, "'port': what is this"),
        (["--port", "1"], {}, "port 1 is not for us"),
        (["--lease-s", "nan"], {}, "--lease-s: nan is not a number"),
        (["--lease-s", "inf"], {}, "--lease-s: inf is not a number"),
        (["--limit", "9" * 19], {}, "--limit: the number has too many digits"),
        ([], {"WHIMBREL_BROKER_PROT": "5"}, "did you mean WHIMBREL_BROKER_PORT"),
        ([], {"WHIMBREL_BROKR_PORT": "5"}, "WHIMBREL_BROKR_PORT: no such setting"),
        ([], {"WHIMBREL_BROKER_PORT": "five"}, "WHIMBREL_BROKER_PORT: 'five' is not a whole number"),
    ],
)
def test_mistakes_say_what_is_wrong_and_where(
    arguments: list[str], environment: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        load(Sample, arguments, environment)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("prot = 5", "prot: no such setting; did you mean port"),
        ("port = true", "port: True is not a whole number"),
        ("port = 1.5", "port: 1.5 is not a whole number"),
        ('auto_create_topics = "perhaps"', "is not true or false"),
        ("nameservers = 5", "5 is not a list"),
        ("port = ", "Invalid value"),
    ],
)
def test_mistakes_in_the_file_name_the_file(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"broker.toml: .*{text}"):
        load(Sample, ["--config", str(file)], {})


def problems(arguments: list[str], environment: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(Sample, arguments, environment)
    return caught.value.problems


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('prot = 5\nlease_s = "x"\ndelete_when = [4, "a", true]\n')
    arguments = [
        "--config",
        str(file),
        "--flsh",
        "sync",
        "--flush",
        "never",
        "word",
        "--delete-when",
        "b,5,c",
    ]
    assert [
        text.split(";")[0] for text in problems([*arguments, "--token"], {"WHIMBREL_BROKER_PORT": "x"})
    ] == [
        "--flsh: no such setting",
        "--flush: 'never' is not one of sync, async",
        "'word': what is this? Settings are given as --name value",
        "--delete-when: 'b' is not a whole number (KiB, MiB and GiB are understood)",
        "--delete-when: 'c' is not a whole number (KiB, MiB and GiB are understood)",
        "--token: a value is missing",
        "WHIMBREL_BROKER_PORT: 'x' is not a whole number (KiB, MiB and GiB are understood)",
        f"{file}: prot: no such setting",
        f"{file}: lease_s: 'x' is not a number",
        f"{file}: delete_when: 'a' is not a whole number (KiB, MiB and GiB are understood)",
        f"{file}: delete_when: True is not a whole number (KiB, MiB and GiB are understood)",
    ]


def test_all_rules_that_are_broken_are_told_at_once() -> None:
    assert problems(["--port", "1", "--nameservers", "a b,c,d e"], {}) == (
        "port 1 is not for us",
        "nameservers: 'a b' has a blank",
        "nameservers: 'd e' has a blank",
    )


def test_a_rule_over_a_value_that_can_not_be_read_says_nothing() -> None:
    flush = "--flush: 'x' is not one of sync, async"
    assert problems(["--flush", "x", "--port", "1"], {}) == (flush, "port 1 is not for us")
    port = "--port: 'x' is not a whole number (KiB, MiB and GiB are understood)"
    assert problems(["--port", "x", "--lease-s", "200"], {}) == (port,)
    assert problems(["--port", "0", "--lease-s", "200", "--flush", "x"], {})[1:] == (
        "lease_s: too long for somebody who does not listen",
    )


def test_a_file_that_can_not_be_read_hides_no_other_mistake() -> None:
    file = "/nowhere/broker.toml"
    missing = f"{file}: No such file or directory"
    assert problems(["--config", file, "--port", "1"], {}) == (missing, "port 1 is not for us")
    assert problems(["--config", file, "--lease-s", "200"], {}) == (missing,)  # it may say the port


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'port = 1\ntoken = "\xff"\n', "the file is not UTF-8 (line 2)"),
        (b"token = \xff\xfe", "the file is not UTF-8 (line 1)"),
        (b"x = " + b"[" * 100_000, ""),
        (b"port = " + b"9" * 5000, ""),
        (b'token = "a\\u0000b"', "token: 'a\\x00b' holds control characters"),
        (b"lease_s = nan", "lease_s: nan is not a number"),
        (b"lease_s = 1" + b"0" * 400, ""),
    ],
)
def test_a_file_with_any_bytes_is_refused_in_a_sentence(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    (problem,) = problems(["--config", str(file)], {})
    assert problem.startswith(f"{file}: {text}")
    assert "\n" not in problem


def test_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(Sample, ["--config", "/nowhere/broker.toml"], {})


def test_other_processes_and_the_client_may_share_the_environment() -> None:
    environment = {"WHIMBREL_NAMESERVER_PORT": "1", "WHIMBREL_ENDPOINT": "a:1", "WHIMBREL_TEST_SEED": "7"}
    environment["WHIMBREL_PROFILE"] = "prod"
    assert load(Sample, [], environment) == Sample()


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(Sample, ["--help"], {})
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--lease-s SECONDS\n      lease [8.0]" in text
    assert "--flush sync|async" in text
    assert "--nameservers TEXT,..." in text
    assert "WHIMBREL_BROKER_NAME" in text


def test_mistake_ends_the_process_with_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_or_exit(Sample, ["--prot", "1"], {})
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("whimbrel broker: --prot: no such setting")


def test_mistakes_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_or_exit(Sample, ["--port", "x", "--flush", "never"], {})
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("whimbrel broker: --port: ")
    assert second.startswith("whimbrel broker: --flush: ")


def test_settings_line_masks_secrets() -> None:
    line = settings_line(Sample(token="hush", nameservers=("a:1", "b:2")))
    assert "port=8091 lease_s=8.0 flush=async nameservers=a:1,b:2" in line
    assert "token=***" in line
    assert "hush" not in line


def test_each_value_tells_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("port = 1111\nlease_s = 3\n")
    environment = {"WHIMBREL_BROKER_CONFIG": str(file), "WHIMBREL_BROKER_LEASE_S": "4"}
    found = {item.setting.name: item for item in effective(Sample, ["--flush=sync"], environment)}
    assert {name: item.origin for name, item in found.items() if item.source != "default"} == {
        "port": f"file {file}",
        "lease_s": "variable WHIMBREL_BROKER_LEASE_S",
        "flush": "flag --flush",
    }
    assert found["lease_s"].value == 4.0
    assert found["token"].origin == "default"


def test_what_is_known_of_a_setting() -> None:
    known = {setting.name: setting for setting in settings(Sample)}
    assert list(known) == [field.name for field in dataclasses.fields(Sample)]
    assert (known["lease_s"].unit, known["lease_s"].allowed) == ("seconds", "0.1 or more")
    assert (known["port"].unit, known["port"].allowed) == ("", "0 to 65535")
    assert known["flush"].allowed == "sync or async"
    assert known["delete_when"].type_text == "list of whole numbers"
    assert (known["token"].flag, known["token"].variable) == ("--token", "WHIMBREL_BROKER_TOKEN")


def test_no_rule_of_several_settings_is_checked_before_they_are_built() -> None:
    found = effective(Sample, ["--port", "1"], {})
    with pytest.raises(ConfigError, match="port 1 is not for us"):
        build(Sample, found)


def test_a_secret_does_not_get_into_a_file() -> None:
    text = effective_toml("broker", effective(Sample, ["--token", "hush"], {}))
    assert "hush" not in text
    assert "\n# token = " in text
