"""`whimbrel store` over stores that RocketMQ wrote: rows as RocketMQ's own classes give them, exit codes,
nothing changed."""

import hashlib
import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.store import stores
from support.store.goldens import STORES, golden, rows, shared
from whimbrel.cli.main import main

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """Run `whimbrel store …` and return its lines of JSON."""
    assert main(["store", *map(str, arguments)]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def contents(root: Path) -> dict[str, str]:
    """Return a digest of each file of a store."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 20
    }


@pytest.mark.parametrize("name", STORES)
def test_dump_prints_the_records_that_rocketmq_reads(name: str, capsys: Capture) -> None:
    assert printed(capsys, "dump", shared(name)) == rows(name, "record")


def test_dump_prints_blanks_on_demand(capsys: Capture) -> None:
    found = printed(capsys, "dump", shared("v493-basic"), "--blanks")
    assert [row for row in found if row["type"] == "blank"] == rows("v493-basic", "blank")


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic", "v493-ipv6"])
def test_dump_prints_the_queues(name: str, capsys: Capture) -> None:
    def sorted_rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted((row for row in found if row["max"]), key=lambda row: (row["topic"], row["queueId"]))

    assert sorted_rows(printed(capsys, "dump", shared(name), "--queues")) == sorted_rows(rows(name, "queue"))


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic"])
def test_dump_prints_what_the_index_has_for_a_key(name: str, capsys: Capture) -> None:
    wanted: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for row in rows(name, "query"):
        if row["phyOffsets"]:
            wanted[row["key"]][row["topic"]] = row["phyOffsets"]
    for key in sorted(wanted)[:: max(1, len(wanted) // 20)]:
        found = printed(capsys, "dump", shared(name), "--index", key)
        assert {row["topic"]: row["phyOffsets"] for row in found} == wanted[key]


def test_dump_prints_the_config_files(capsys: Capture) -> None:
    found = {row["file"]: row["content"] for row in printed(capsys, "dump", shared("v493-basic"), "--config")}
    assert set(found) == {
        "consumerFilter.json",
        "consumerOffset.json",
        "delayOffset.json",
        "subscriptionGroup.json",
        "topics.json",
    }
    assert found["delayOffset.json"] == {"offsetTable": {"1": 7, "2": 1, "3": 1}}


def test_dump_says_which_config_file_it_leaves_out(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{}}')
    assert main(["store", "dump", str(tmp_path), "--config"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["file"] == "delayOffset.json"
    assert shown.err == "whimbrel: neither these files nor their .bak can be read: topics.json\n"


def test_dump_says_what_is_damaged_and_ends_with_1(tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "store"
    shutil.copytree(shared("v493-basic"), root)
    with next(iter(sorted((root / "commitlog").iterdir()))).open("r+b") as log:
        log.seek(rows("v493-basic", "record")[2]["phyOffset"])
        log.write(b"\xff" * 8)  # its size, and what says that it is one
    assert main(["store", "dump", str(root)]) == 1
    shown = capsys.readouterr()
    assert all(json.loads(line)["type"] == "record" for line in shown.out.splitlines())
    assert f"whimbrel: {root} is damaged at 1 places, and what stood there is left out" in shown.err


def test_dump_of_a_key_that_is_not_there_says_so(capsys: Capture) -> None:
    assert main(["store", "dump", str(shared("v493-basic")), "--index", "nobody"]) == 0
    assert capsys.readouterr().err == "the index has no 'nobody'\n"


def test_dump_takes_one_choice_only(capsys: Capture) -> None:
    assert main(["store", "dump", str(shared("v493-basic")), "--queues", "--config"]) == 2
    assert "choose one of" in capsys.readouterr().err


def test_tables_are_for_a_look(capsys: Capture) -> None:
    assert main(["store", "dump", str(shared("v493-basic")), "-o", "table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["phyOffset", "size", "topic"]
    assert len(lines) == 2 + len(rows("v493-basic", "record"))


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic", "v493-ipv6"])
def test_verify_finds_no_damage_in_a_clean_store(name: str, capsys: Capture) -> None:
    assert main(["store", "verify", str(shared(name))]) == 0
    assert capsys.readouterr().out.endswith("no damage\n")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("v493-torn-crc", "commitlog"),
        ("v493-torn-garbage", "commitlog"),
        ("v493-torn-no-queues", "consumequeue"),
        ("v493-torn-no-index", "index"),
        ("v493-torn-queue-ahead", "consumequeue"),
    ],
)
def test_verify_says_what_is_damaged_and_where(name: str, place: str, capsys: Capture) -> None:
    (found,) = printed_whole(capsys, "verify", shared(name), "-o", "json", code=1)
    assert found["ok"] is False
    places = {Path(damage["path"]).relative_to(shared(name)).parts[0] for damage in found["damages"]}
    assert place in places
    assert all(damage["what"] for damage in found["damages"])


def printed_whole(capsys: Capture, *arguments: str | Path, code: int = 0) -> list[Any]:
    """Run `whimbrel store …` and return the one JSON value it prints, in a list."""
    assert main(["store", *map(str, arguments)]) == code
    return [json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize("name", ["v493-basic", "v493-crash", "v493-torn-garbage", "v493-torn-no-queues"])
def test_dump_verify_and_a_dry_run_change_nothing(name: str, capsys: Capture) -> None:
    root = golden(name)
    before = contents(root)
    for command in (
        ["dump"],
        ["dump", "--queues"],
        ["dump", "--index", "k"],
        ["dump", "--config"],
        ["verify"],
        ["recover", "--dry-run"],
    ):
        assert main(["store", command[0], str(root), *command[1:]]) in (0, 1)
    assert contents(root) == before


@pytest.mark.parametrize("name", ["v493-basic", "v493-crash", "v493-torn-zero-tail", "v493-torn-queue-ahead"])
def test_recover_does_what_its_dry_run_said_and_the_log_ends_where_rocketmq_ended_it(
    name: str, capsys: Capture
) -> None:
    root = golden(name)
    (planned,) = printed(capsys, "recover", root, "--dry-run")
    (done,) = printed(capsys, "recover", root)
    assert planned == done
    loaded = rows(name, "loaded")[0]
    assert (done["minPhyOffset"], done["maxPhyOffset"]) == (loaded["minPhyOffset"], loaded["maxPhyOffset"])
    assert all(high for _, high in done["queues"].values())


def test_what_is_no_store_is_an_error_in_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert main(["store", "dump", str(tmp_path)]) == 1
    assert "is no store" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["dump", "verify", "recover"])
def test_what_is_no_store_is_told_apart_from_damage(command: str, tmp_path: Path, capsys: Capture) -> None:
    expected = 2 if command == "verify" else 1  # of `verify`, 1 means damage
    assert main(["store", command, str(tmp_path)]) == expected
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"whimbrel: {tmp_path} is no store: it has no commitlog directory\n"
    assert main(["store", command, str(tmp_path / "nowhere")]) == expected
    assert "nowhere is no store: there is no such directory" in capsys.readouterr().err


def store_with_slots(root: Path, slots: int) -> Path:
    """Make a store whose index files do not have RocketMQ's ratio of slots to entries."""
    options = replace(stores.OPTIONS, index_slots=slots, index_entries=slots * 3 + 1)
    store = stores.open_master(root, options)
    for number in range(20):
        store.append([stores.make_draft(number)])
    store.close()
    return root


def test_queues_are_dumped_whatever_the_index_looks_like(tmp_path: Path, capsys: Capture) -> None:
    root = store_with_slots(tmp_path / "store", 50)
    (queue,) = printed(capsys, "dump", root, "--queues")
    assert (queue["topic"], queue["min"], queue["max"]) == ("topic", 0, 20)
    (queue,) = printed(capsys, "dump", root, "--queues", "--index-slots", "50")
    assert queue["max"] == 20
    assert len(printed(capsys, "dump", root)) == 20
    assert printed(capsys, "dump", root, "--index", "key-3", "--index-slots", "50")[0]["phyOffsets"]


def test_slots_that_an_index_file_can_t_have_are_named(tmp_path: Path, capsys: Capture) -> None:
    root = store_with_slots(tmp_path / "store", 50)
    (found,) = printed_whole(capsys, "verify", root, "-o", "json", code=1)
    assert [Path(damage["path"]).name for damage in found["damages"]] == ["index"]
    assert "--index-slots" in found["damages"][0]["what"]
    assert printed_whole(capsys, "verify", root, "--index-slots", "50", "-o", "json")[0]["ok"]
    assert main(["store", "dump", str(root), "--index", "key-3", "--index-slots", "51"]) == 1
    assert "has no 51 slots" in capsys.readouterr().err


def test_recover_makes_a_new_index_with_the_slots_that_are_given(tmp_path: Path, capsys: Capture) -> None:
    root = store_with_slots(tmp_path / "store", 50)
    for file in (root / "index").iterdir():
        file.unlink()
    printed(capsys, "recover", root, "--index-slots", "70")
    (file,) = (root / "index").iterdir()
    assert file.stat().st_size == 40 + 4 * 70 + 20 * 280
    assert printed(capsys, "dump", root, "--index", "key-3")[0]["phyOffsets"]
