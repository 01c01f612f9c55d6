"""RocketMQ's config text: golden files keep their bytes, and what fastjson tolerates is read."""

from pathlib import Path
from typing import Any

import pytest

from support.store.goldens import shared
from whimbrel.errors import StoreError
from whimbrel.store import jsonconfig


@pytest.mark.parametrize("name", ["v493-basic", "v533-basic", "v493-crash"])
def test_golden_files_keep_their_bytes_when_written_again(name: str) -> None:
    seen = 0
    for path in sorted((shared(name) / "config").glob("*.json*")):
        text = path.read_bytes().decode()
        if text.strip():
            assert jsonconfig.dumps(jsonconfig.loads(text)) == text, path
            seen += 1
    assert seen


def test_compact_metrics_file_keeps_its_bytes() -> None:
    text = (shared("v533-basic") / "config" / "transactionMetrics").read_bytes().decode()
    assert jsonconfig.dumps(jsonconfig.loads(text), pretty=False) == text


def test_integer_keys_are_told_from_quoted_ones() -> None:
    assert jsonconfig.loads('{"a":{0:1, -2 : 3},"b":{"0":1}}') == {"a": {0: 1, -2: 3}, "b": {"0": 1}}


def test_text_inside_strings_is_left_alone() -> None:
    value = {"a": 'x,} 1: {2:3,} "quoted" \\ \t', "b": "é漢"}
    assert jsonconfig.loads(jsonconfig.dumps(value)) == value


def test_trailing_commas_and_raw_control_characters_are_read() -> None:
    assert jsonconfig.loads('{"a":[1,2,],"b":"x\ty",}') == {"a": [1, 2], "b": "x\ty"}


def test_compact_and_pretty_forms() -> None:
    value = {"t": {"q@g": {0: 250, 1: 7}, "e": {}}, "on": True, "list": ["a", "b"]}
    assert (
        jsonconfig.dumps(value, pretty=False) == '{"t":{"q@g":{0:250,1:7},"e":{}},"on":true,"list":["a","b"]}'
    )
    assert jsonconfig.dumps(value) == (
        '{\n\t"t":{\n\t\t"q@g":{0:250,1:7\n\t\t},\n\t\t"e":{}\n\t},\n\t"on":true,\n\t"list":["a","b"]\n}'
    )


@pytest.mark.parametrize("text", ["", "{", '{"a"}', "[1 2]", '{"a":1}}'])
def test_broken_text_is_an_error(text: str) -> None:
    with pytest.raises(StoreError):
        jsonconfig.loads(text)


def test_saving_keeps_the_old_file_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    jsonconfig.save(path, '{"n":1}')
    jsonconfig.save(path, '{"n":2}')
    assert jsonconfig.load(path) == {"n": 2}
    assert path.with_name("topics.json.bak").read_text() == '{"n":1}'
    assert not path.with_name("topics.json.tmp").exists()


@pytest.mark.parametrize("damage", [None, "", "   ", '{"n":'])
def test_backup_counts_when_the_main_file_is_missing_empty_or_broken(
    tmp_path: Path, damage: str | None
) -> None:
    path = tmp_path / "topics.json"
    path.with_name("topics.json.bak").write_text('{"n":1}')
    if damage is not None:
        path.write_text(damage)
    assert jsonconfig.load(path) == {"n": 1}


def test_nothing_to_load_is_none(tmp_path: Path) -> None:
    assert jsonconfig.load(tmp_path / "topics.json") is None


def test_the_owner_sets_a_damaged_file_aside_and_keeps_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    jsonconfig.save(path, '{"n":1}')
    jsonconfig.save(path, '{"n":2}')
    assert jsonconfig.open_own(path, dict) == ({"n": 2}, True)
    path.write_text('{"n":')
    assert jsonconfig.open_own(path, dict) == ({"n": 1}, False)
    assert (tmp_path / "topics.json.damaged").read_text() == '{"n":'
    jsonconfig.save(path, '{"n":3}')  # the good backup did not give way to the damaged file
    path.write_text("")
    assert jsonconfig.open_own(path, dict) == ({"n": 1}, False)


def test_the_owner_does_not_begin_anew_over_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    assert jsonconfig.open_own(path, dict) == (None, False)
    path.write_bytes(b"\xff")
    with pytest.raises(StoreError, match=r"topics\.json is damaged .* put a good copy there"):
        jsonconfig.open_own(path, dict)
    assert path.read_bytes() == b"\xff"


def test_what_parses_and_makes_no_sense_is_damaged_as_well(tmp_path: Path) -> None:
    def decode(content: object) -> object:
        if content == []:
            raise StoreError("it holds no table")
        return content

    path = tmp_path / "topics.json"
    jsonconfig.save(path, "[]")
    with pytest.raises(StoreError, match="holds no table"):
        jsonconfig.open_own(path, decode)
    (tmp_path / "topics.json.bak").write_text('{"n":1}')
    assert jsonconfig.open_own(path, decode) == ({"n": 1}, False)


@pytest.mark.parametrize("pretty", [True, False])
@pytest.mark.parametrize("rows", [{}, {"a": {"x": 1, "y": {0: 2}}}, {"a": {}, 'b"\n': {"z": [1, "two"]}}])
def test_a_map_of_kept_entries_has_the_same_text(rows: dict[str, Any], pretty: bool) -> None:
    members = [jsonconfig.encoded_member(key, value, level=1, pretty=pretty) for key, value in rows.items()]
    kept = {"first": {"a": 1}, "table": jsonconfig.encoded_map(members, level=1, pretty=pretty)}
    assert jsonconfig.dumps(kept, pretty=pretty) == jsonconfig.dumps(
        {"first": {"a": 1}, "table": rows}, pretty=pretty
    )


@pytest.mark.parametrize("pretty", [True, False])
def test_text_around_a_value_is_that_of_the_whole_map(pretty: bool) -> None:
    value = {"m": {"x": "\x00", 3: 4}}
    before, behind = jsonconfig.split_at("k", {"z": 1, "a": "k\x00"}, pretty=pretty)
    whole = {"a": "k\x00", "k": jsonconfig.Encoded("VALUE"), "z": 1}
    assert f"{before}VALUE{behind}" == jsonconfig.dumps(whole, pretty=pretty)
    assert jsonconfig.loads(f"{before}{jsonconfig.dumps(value, pretty=False)}{behind}")["k"] == value
