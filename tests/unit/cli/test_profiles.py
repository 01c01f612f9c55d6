"""Profiles: clusters by name, which one a command means, and what is said when that can't be."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cluster.command_line import Shell
from support.systems.fake_cluster import FakeCluster, running_in_thread
from whimbrel.cli import endpoint as endpoints
from whimbrel.cli.profiles import Profile, Profiles, load, parse, profiles_file, render, save
from whimbrel.errors import ClientError

REFUSED = "127.0.0.1:1"  # nobody listens there


@pytest.fixture
def file() -> Path:
    return profiles_file(os.environ)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with running_in_thread() as running:
        yield running


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let a `whimbrel dev` seem to run, and give its endpoint."""
    content = {"endpoint": "127.0.0.1:9", "processes": [{"role": "nameserver", "pid": os.getpid()}]}
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    return "127.0.0.1:9"


def test_a_profile_from_its_making_to_its_end(shell: Shell, cluster: FakeCluster) -> None:
    cluster.topics["t"] = [[]]
    assert shell.json("profile", "set", "prod", "--endpoint", cluster.address)["name"] == "prod"
    assert "whimbrel profile use prod" in shell.error
    shell("profile", "set", "p2", "--endpoint", "a:1")
    shell("topic", "list", code=1)
    assert "no cluster to talk to" in shell.error
    assert [topic["name"] for topic in shell.json("topic", "list", "--profile", "prod")] == ["t"]
    assert len(shell.json("send", "t", "hello", "--profile", "prod")) == 1
    shell("topic", "list", code=1)  # --profile counts for its own command line
    assert shell.json("profile", "use", "prod") == {"current": "prod"}
    assert [topic["name"] for topic in shell.json("topic", "list")] == ["t"]
    assert [(row["name"], row["current"]) for row in shell.json("profile", "list")] == [
        ("dev", False), ("p2", False), ("prod", True)
    ]  # fmt: skip
    assert "prod" in shell("profile", "list")
    assert shell.json("profile", "show")["chosen_by"] == "profile prod"
    assert shell.json("profile", "show", "p2")["endpoint"] == "a:1"
    assert shell.json("profile", "delete", "prod") == {"deleted": "prod"}
    assert "was in use" in shell.error
    shell("topic", "list", code=1)
    assert "no cluster to talk to" in shell.error


def test_which_cluster_is_meant(shell: Shell, dev: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, endpoint in (("current", "c:1"), ("variable", "v:1"), ("flag", "f:1")):
        shell("profile", "set", name, "--endpoint", endpoint)
    assert endpoints.resolve("").endpoint == dev
    shell("profile", "use", "current")
    assert endpoints.resolve("").endpoint == "c:1"  # who chose one means it, though `dev` runs
    monkeypatch.setenv("WHIMBREL_PROFILE", "variable")
    assert endpoints.resolve("").endpoint == "v:1"
    monkeypatch.setenv("WHIMBREL_ENDPOINT", "e:1")
    assert endpoints.resolve("").endpoint == "e:1"
    assert endpoints.resolve("", profile="flag").endpoint == "f:1"  # flags win over variables
    assert endpoints.resolve("o:1").endpoint == "o:1"
    assert endpoints.resolve("", profile="dev").endpoint == dev
    monkeypatch.delenv("WHIMBREL_ENDPOINT")
    monkeypatch.setenv("WHIMBREL_PROFILE", "dev")
    assert endpoints.resolve("").endpoint == dev
    monkeypatch.delenv("WHIMBREL_PROFILE")
    shell("profile", "use", "dev")
    assert endpoints.resolve("").endpoint == dev
    with pytest.raises(ClientError, match="--endpoint and --profile exclude each other"):
        endpoints.resolve("o:1", profile="flag")


def test_only_the_dev_cluster_traces_without_being_asked(
    shell: Shell, dev: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoints.resolve("").cluster is not None
    shell("profile", "set", "prod", "--endpoint", dev)
    assert endpoints.resolve("", profile="prod").cluster is None


@pytest.mark.parametrize(
    ("environment", "words", "named"),
    [
        ({"WHIMBREL_ENDPOINT": REFUSED}, [], "127.0.0.1:1 (WHIMBREL_ENDPOINT): connection refused"),
        ({}, ["--profile", "prod"], "127.0.0.1:1 (profile prod): connection refused"),
        ({"WHIMBREL_PROFILE": "prod"}, [], "127.0.0.1:1 (profile prod): connection refused"),
        ({}, ["--endpoint", REFUSED], "127.0.0.1:1: connection refused"),
    ],
)
def test_an_error_says_what_named_the_endpoint(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    words: list[str],
    named: str,
) -> None:
    shell("profile", "set", "prod", "--endpoint", REFUSED)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shell("topic", "list", *words, code=1)
    assert named in shell.error
    assert shell.error.count("\n") == 1
    assert ("--endpoint" in shell.error) == ("--endpoint" in words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["profile", "use", "prd"], "there is no profile prd; did you mean prod?"),
        (["profile", "delete", "zzz"], "there is no profile zzz; `whimbrel profile list` shows them"),
        (["profile", "show", "prd"], "did you mean prod?"),
        (["topic", "list", "--profile", "prd"], "--profile: there is no profile prd; did you mean prod?"),
        (["profile", "set", "dev", "--endpoint", "a:1"], "choose another name"),
        (["profile", "set", "a b", "--endpoint", "a:1"], "'a b' can't be a profile's name"),
        (["profile", "set", "x", "--endpoint", "10.0.0.1"], "'10.0.0.1' is not of the form HOST:PORT"),
        (["profile", "set", "x", "--endpoint", "::1:8081"], "in brackets"),
        (["profile", "set", "x", "--endpoint", "a:1;b"], "'b' is not of the form HOST:PORT"),
        (
            ["topic", "list", "--endpoint", "127.0.0.1"],
            "--endpoint: '127.0.0.1' is not of the form HOST:PORT",
        ),
        (["topic", "list", "--profile", "dev"], "--profile: the profile dev is the running `whimbrel dev`"),
    ],
)
def test_a_mistake_is_one_sentence(shell: Shell, words: list[str], text: str, file: Path) -> None:
    shell("profile", "set", "prod", "--endpoint", "a:1")
    before = file.read_bytes()
    shell(*words, code=1)
    assert text in shell.error
    assert shell.error.count("\n") == 1
    assert file.read_bytes() == before


def test_an_endpoint_may_be_several_and_have_brackets(shell: Shell) -> None:
    shell("profile", "set", "prod", "--endpoint", " [::1]:8081, ns2:8081 ")
    assert endpoints.resolve("", profile="prod").endpoint == "[::1]:8081;ns2:8081"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("curent = 'x'", "curent: no such setting; did you mean current?"),
        (
            "[profiles.prod]\nendpiont = 'a:1'",
            "profiles.prod: endpiont: no such setting; did you mean endpoint?",
        ),
        ("[profiles.prod]\n", "profiles.prod: endpoint has to be a text"),
        ("[profiles.prod]\nendpoint = 1", "profiles.prod: endpoint has to be a text"),
        ("[profiles.prod]\nendpoint = 'a'", "profiles.prod: endpoint: 'a' is not of the form HOST:PORT"),
        ("profiles = 1", "profiles a table of tables"),
        ("[profiles]\nprod = 'a:1'", "profiles.prod has to be a table"),
        ("current = ", "Invalid value"),
        ("current = '\xff'", "can't decode"),
        ("#" * (1 << 20) + "#", "more than 1048576 bytes"),
    ],
)
def test_a_damaged_file_is_one_sentence(shell: Shell, file: Path, content: str, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content.encode("latin-1"))
    for words in (["topic", "list"], ["profile", "list"], ["profile", "set", "x", "--endpoint", "a:1"]):
        shell(*words, code=1)
        assert text in shell.error
        assert f"the profiles in {file} can't be understood: " in shell.error
        assert shell.error.count("\n") == 1
    assert file.read_bytes() == content.encode("latin-1")
    shell("topic", "list", "--endpoint", REFUSED, code=1)  # asks for no profile
    assert "connection refused" in shell.error


def test_a_profile_in_use_that_is_gone_is_an_error_and_not_the_dev_cluster(
    shell: Shell, dev: str, file: Path
) -> None:
    save(file, Profiles("prod", {}))
    shell("topic", "list", code=1)
    assert shell.error.startswith("whimbrel: the profile in use: there is no profile prod")


def test_the_file_is_its_owners_alone_and_replaced_as_a_whole(
    shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("profile", "set", "prod", "--endpoint", "a:1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    shell("profile", "set", "prod", "--endpoint", "b:1", code=1)
    assert "the profiles can't be written" in shell.error
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_link_stays_a_link(shell: Shell, file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "dotfiles.toml"
    elsewhere.write_text("")
    file.parent.mkdir(parents=True)
    file.symlink_to(elsewhere)
    shell("profile", "set", "prod", "--endpoint", "a:1")
    assert file.is_symlink()
    assert load(elsewhere).get("prod") == Profile("a:1")


def test_the_folder_is_the_xdg_one_or_below_home() -> None:
    assert profiles_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/whimbrel/profiles.toml")
    for environment in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert profiles_file(environment) == Path.home() / ".config/whimbrel/profiles.toml"


def test_names_of_profiles_are_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    shell("profile", "set", "prod", "--endpoint", "a:1")
    monkeypatch.setenv("_WHIMBREL_COMPLETE", "complete_bash")
    for line, offered in (
        ("whimbrel profile use ", "dev\nprod\n"),
        ("whimbrel profile delete p", "prod\n"),
        ("whimbrel topic list --profile p", "prod\n"),
    ):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        assert shell() == offered
    file.write_text("damaged")
    assert shell() == "\n"


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(st.dictionaries(NAMES, st.sampled_from(["a:1", "[::1]:8081", "ns1:8081;ns2:8082"]), max_size=5))
def test_what_is_written_is_read(entries: dict[str, str]) -> None:
    profiles = Profiles(next(iter(entries), ""), {name: Profile(text) for name, text in entries.items()})
    assert parse(render(profiles)) == profiles
