"""`whimbrel config`: what is in effect and why, sample files that are accepted, and a page that is whole."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

from support.cluster.command_line import Shell
from whimbrel.cli.processes import PROCESSES, options_of
from whimbrel.cli.settings_page import VARIABLES
from whimbrel.config import effective, load, settings
from whimbrel.lane import Lane

ROOT = Path(__file__).resolve().parents[3]
STORE = ["--store", "/data/a"]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("WHIMBREL_LANE", raising=False)
    for name in list(os.environ):
        if name.startswith(tuple(f"WHIMBREL_{process.upper()}_" for process in PROCESSES)):
            monkeypatch.delenv(name)
    return Shell(capsys, "config")


def test_every_setting_is_shown_with_where_it_comes_from(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('acks = 2\nflush = "sync"\nport = 1\n')
    monkeypatch.setenv("WHIMBREL_BROKER_PORT", "2")
    monkeypatch.setenv("WHIMBREL_BROKER_NAME", "b")
    words = ("show", "broker", "--config", str(file), "--name", "c", *STORE)
    rows = {row["name"]: row for row in json.loads(shell(*words, "-o", "json"))}
    assert list(rows) == [setting.name for setting in settings(options_of("broker"))]
    assert rows["acks"] == {
        "name": "acks", "value": 2, "unit": "", "source": "file", "where": str(file)
    }  # fmt: skip
    assert (rows["port"]["value"], rows["port"]["where"]) == (2, "WHIMBREL_BROKER_PORT")
    assert (rows["name"]["value"], rows["name"]["where"]) == ("c", "--name")
    assert rows["id"]["source"] == "default"
    assert rows["slave_timeout_ms"]["unit"] == "milliseconds"
    table = shell(*words)
    assert re.search(r"port +2 +variable WHIMBREL_BROKER_PORT", table)
    assert re.search(r"flush +sync +file ", table)


def test_the_lane_is_shown_as_it_would_be_here(shell: Shell) -> None:
    assert f"auto: {Lane().described()}" in " ".join(shell("show", "broker", *STORE).split())
    found = json.loads(shell("show", "replicator", "--lane", "off", *STORE, "-o", "json"))
    (lane,) = (item for item in found if item["name"] == "lane")
    assert (lane["value"], lane["here"]) == ("off", Lane("off").described())
    assert all("here" not in item for item in found if item["name"] != "lane")


def test_the_default_of_the_lane_is_that_of_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIMBREL_LANE", "off")
    for process in ("broker", "replicator"):
        for words, value, where in (
            ((), "off", "WHIMBREL_LANE"),
            (("--lane", "required"), "required", "--lane"),
        ):
            found = json.loads(shell("show", process, *words, *STORE, "-o", "json"))
            (lane,) = (item for item in found if item["name"] == "lane")
            assert (lane["value"], lane["where"]) == (value, where)


def test_what_is_shown_as_toml_is_what_the_process_would_take(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    words = ["--nameservers", "a:1,b:2", "--reserved-hours", "1", "--ready-file", 'q"\\é', *STORE]
    file.write_text(shell("show", "broker", *words, "-o", "toml"))
    cls = options_of("broker")
    assert load(cls, ["--config", str(file)], {}) == load(cls, words, {})


def test_settings_with_which_a_process_would_not_start_are_shown_and_refused(shell: Shell) -> None:
    assert "DefaultCluster" in shell("show", "broker", code=1)
    assert shell.error == (
        "whimbrel config: a broker would not start with these settings: store: name the store directory\n"
    )
    assert "nothing" not in shell("show", "replicator", "--heartbeat-ms", "90000", *STORE, code=1)
    assert "housekeeping_ms must be longer" in shell.error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("broker", "--acks", "x", *STORE), "--acks: 'x' is not a whole number"),
        (("broker", *STORE, "--config", "/nowhere.toml"), "/nowhere.toml: No such file"),
        (("nameserver", "--store", "/x"), "--store: no such setting"),
    ],
)
def test_a_bad_flag_is_one_sentence(shell: Shell, words: tuple[str, ...], text: str) -> None:
    for command in ("show", "example"):
        assert shell(command, *words, code=2) == ""
        assert shell.error.count("\n") == 1
        assert text in shell.error


@pytest.mark.parametrize("name", PROCESSES)
def test_what_is_shown_is_refused_as_the_process_does(shell: Shell, name: str, tmp_path: Path) -> None:
    file = tmp_path / "bytes.toml"
    file.write_bytes(b"\xff")
    words = ["--log-level", "LOUD", "--config", str(file), "--port", "-7"]
    assert shell("show", name, *words, code=2) == ""
    assert [line.removeprefix("whimbrel config: ") for line in shell.error.splitlines()] == [
        "--log-level: 'LOUD' is not one of DEBUG, INFO, WARNING, WARN, ERROR, CRITICAL, FATAL",
        "--port: -7 is below 0",
        f"{file}: the file is not UTF-8 (line 1)",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", f"whimbrel.{name}", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == shell.error.replace("whimbrel config: ", f"whimbrel {name}: ")


@pytest.mark.parametrize("name", PROCESSES)
def test_a_sample_file_is_accepted_as_it_is(shell: Shell, name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.toml"
    file.write_text(shell("example", name))
    cls = options_of(name)
    found = load(cls, ["--config", str(file)], {})
    wanted: dict[str, Any] = {} if name == "nameserver" else {"store": "/var/lib/whimbrel/broker-a"}
    assert found == cls(**wanted)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_sample_file_has_every_setting_with_its_default(shell: Shell, name: str) -> None:
    text = re.sub(r"^#(?=[a-z])", "", shell("example", name), flags=re.MULTILINE)
    table = tomllib.loads(text)
    cls = options_of(name)
    assert list(table) == [setting.name for setting in settings(cls)]
    for item in effective(cls, [], {}):
        value = table[item.setting.name]
        if item.setting.metadata["example"] is None:
            assert (tuple(value) if isinstance(value, list) else value) == item.value
        assert item.setting.metadata["help"] in text


def test_flags_are_set_in_a_sample_file(shell: Shell) -> None:
    text = shell("example", "broker", "--role", "slave", "--id", "1", "--nameservers", "a:1,b:2")
    assert '\nrole = "slave"\n' in text
    assert "\nid = 1\n" in text
    assert '\nnameservers = ["a:1", "b:2"]\n' in text
    assert "\n#acks = 1\n" in text


SLAVE = ["--store", "/var/lib/whimbrel/broker-a-1"]
MADE = {
    "docs/settings.md": ["reference"],
    "deploy/config/nameserver.toml": ["example", "nameserver"],
    "deploy/config/broker.toml": ["example", "broker"],
    "deploy/config/replicator.toml": ["example", "replicator"],
    "deploy/config/slave-broker.toml": ["example", "broker", "--role", "slave", "--id", "1", *SLAVE],
    "deploy/config/slave-replicator.toml": ["example", "replicator", "--role", "slave", *SLAVE],
}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """What is made from the settings now, by file, whatever the environment of this run."""
    code = (
        "import contextlib, io, json\nfrom whimbrel.cli.main import main\nmade = {}\n"
        f"for file, words in {MADE!r}.items():\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as text: assert main(['config', *words]) == 0\n"
        "    made[file] = text.getvalue()\n"
        "print(json.dumps(made))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHIMBREL_")}
    environment["PYTHONPATH"] = str(ROOT / "services")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    return cast("dict[str, str]", json.loads(done.stdout))


@pytest.mark.parametrize("file", MADE)
def test_what_is_made_from_the_settings_is_current(made: dict[str, str], file: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8") == made[file], "run `make docs-settings`"


def test_the_samples_of_the_repository_are_accepted() -> None:
    for file in (ROOT / "deploy" / "config").glob("*.toml"):
        name = file.stem.removeprefix("slave-")
        assert load(options_of(name), ["--config", str(file)], {}), file


def test_the_page_names_every_setting_of_every_process() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in PROCESSES:
        for setting in settings(options_of(name)):
            assert setting.metadata["help"], f"{name}: {setting.name} says nothing of itself"
            row = f"| `{setting.name}` | `{setting.flag}` | `{setting.variable}` |"
            assert row in page, f"{name}: {setting.name}"


def test_the_page_names_every_variable_that_the_code_reads() -> None:
    processes = "|".join(process.upper() for process in PROCESSES)
    found: set[str] = set()
    for file in (ROOT / "services" / "whimbrel").rglob("*.py"):
        found |= set(
            re.findall(rf'"(WHIMBREL_(?!{processes})[A-Z_]*[A-Z])"', file.read_text(encoding="utf-8"))
        )
    assert found == {name for name, _, _ in VARIABLES if name.startswith("WHIMBREL_")}
