"""Frames: both headers, cut at every byte, wrong ones; and recordings of real clients (`recorded.jsonl`).

A line of the recording is a frame of RocketMQ 4.9.3 or 5.3.3, a client of Java, Go or C++, or mqadmin: `d`
tells the direction (`>` to the server), `ext` the fields, `of` the scenario. One of each kind was kept.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.rpc.remoting.binary_header import encode_binary
from whimbrel.rpc.remoting.command import INT_MAX, INT_MIN, LANGUAGES, NO_FIELDS, Command
from whimbrel.rpc.remoting.errors import (
    FieldsError,
    FrameLengthError,
    HeaderError,
    HeaderLengthError,
    RemotingError,
    SerializationError,
)
from whimbrel.rpc.remoting.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameReader, encode_frame
from whimbrel.rpc.remoting.json_header import FIELDS_MAX, json_text

RECORDED = Path(__file__).parent / "recorded.jsonl"
LINES: list[dict[str, Any]] = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
ASKED = Command(105, 7, {"topic": "TopicTest"}, b"hi")
# Verified with RocketMQ 4.9.3's own classes.
AS_JSON = (
    b'\x00\x00\x00\x89\x00\x00\x00\x83{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA",'
    b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":399}hi'
)
AS_ROCKETMQ = bytes.fromhex(
    "0000002f01000029006900018f000000070000000000000000000000140005746f70696300000009546f706963546573746869"
)

texts = st.text(max_size=30)
ints = st.integers(INT_MIN, INT_MAX)
commands = st.builds(
    Command,
    st.integers(-(1 << 15), (1 << 15) - 1),
    ints,
    st.dictionaries(texts, texts, max_size=8).map(lambda found: found or NO_FIELDS),
    st.binary(max_size=200),
    ints,
    st.sampled_from(LANGUAGES),
    st.integers(0, 1000),
    st.none() | st.text(min_size=1, max_size=50),
)


def frame(header: bytes, body: bytes = b"", *, kind: int = 0, length: int | None = None) -> bytes:
    """Return a frame; `length`: of the header, where that is to be wrong."""
    word = kind << 24 | (len(header) if length is None else length)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def binary_frame(command: Command) -> bytes:
    return frame(encode_binary(command), command.body, kind=1)


def header(**changed: Any) -> bytes:
    """Return a header, with other values; ... leaves a key out."""
    known = {"code": 38, "language": "JAVA", "version": 399, "opaque": 7, "flag": 0, "extFields": {"g": "x"}}
    return json.dumps({key: value for key, value in (known | changed).items() if value is not ...}).encode()


def read(data: bytes) -> list[Command]:
    return list(FrameReader().feed(data))


def test_both_forms_are_as_rocketmqs_own_classes_write_them() -> None:
    assert encode_frame(ASKED) == AS_JSON
    assert binary_frame(ASKED) == AS_ROCKETMQ
    assert read(AS_JSON + AS_ROCKETMQ) == [ASKED, ASKED]


@given(commands)
def test_what_is_written_is_read(command: Command) -> None:
    assert read(encode_frame(command)) == [command]
    assert read(binary_frame(command)) == [command]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['of']} {line['d']}{line['code']}")
def test_recorded_commands_are_read_and_written(line: dict[str, Any]) -> None:
    fields = NO_FIELDS if line["ext"] is None else {name: value for name, value in line["ext"].items()}
    command = Command(
        line["code"],
        line["op"],
        fields,
        line.get("body", "").encode("latin-1"),
        line["flag"],
        line["lang"],
        line["ver"],
        line.get("remark"),
    )
    (found,) = (
        read(encode_frame(command)) if all(type(each) is str for each in fields.values()) else (command,)
    )
    assert found == command
    as_sent = json.dumps(
        {"code": command.code, "language": command.language, "version": command.version,
         "opaque": command.opaque, "flag": command.flag, "remark": command.remark,
         "extFields": line["ext"], "unknown": [1, {}]}
    )  # fmt: skip
    (found,) = read(frame(as_sent.encode() + b"\n", command.body))
    assert found.fields == {name: str(value) for name, value in fields.items()}
    assert (found.code, found.opaque, found.remark) == (command.code, command.opaque, command.remark)


def test_frames_may_be_cut_at_any_byte_and_come_together() -> None:
    wanted = [ASKED, Command(34, 8, body=b"x" * 50), Command(0, 9, {}, flag=1, remark="FOUND")] * 2
    data = b"".join(
        encode_frame(each) if index % 2 else binary_frame(each) for index, each in enumerate(wanted)
    )
    wanted = [
        Command(each.code, each.opaque, each.fields or NO_FIELDS if index % 2 == 0 else each.fields,
                each.body, each.flag, each.language, each.version, each.remark)
        for index, each in enumerate(wanted)
    ]  # fmt: skip
    for cut in range(len(data) + 1):
        reader = FrameReader()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == wanted
        assert reader.held == 0
    reader = FrameReader()
    assert [found for at in range(len(data)) for found in reader.feed(data[at : at + 1])] == wanted


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack(">II", FRAME_BYTES_MAX - 3, 10), FrameLengthError),
        (struct.pack(">iI", -5, 10), FrameLengthError),
        (struct.pack(">I", 3), FrameLengthError),
        (frame(header(), kind=2), SerializationError),
        (frame(header(), length=5000), HeaderLengthError),
        (frame(b" " * (HEADER_BYTES_MAX + 1)), HeaderLengthError),
        (frame(b""), HeaderError),
        (frame(b"{}"), HeaderError),
        (frame(b"[]"), HeaderError),
        (frame(b"hello"), HeaderError),
        (frame(b"\xef\xbb\xbf" + header()), HeaderError),
        (frame(header() + b"xyz"), HeaderError),
        (frame(b"{'code':38,'opaque':7}"), HeaderError),
        (frame(header(opaque=...)), HeaderError),
        (frame(header(opaque=None)), HeaderError),
        (frame(header(opaque=(1 << 31) + 5)), HeaderError),
        (frame(header(opaque=7.0)), HeaderError),
        (frame(header(opaque=True)), HeaderError),
        (frame(header(code="38")), HeaderError),
        (frame(b'{"code":' + b"9" * 5000), HeaderError),
        (frame(b'{"code":38,"opaque":7,"z":' + b"[" * 20000 + b"]" * 20000 + b"}"), HeaderError),
        (frame(header(extFields=["a"])), FieldsError),
        (frame(header(extFields={str(each): "" for each in range(FIELDS_MAX + 1)})), FieldsError),
        (frame(encode_binary(ASKED)[:-1], kind=1), HeaderError),
        (frame(encode_binary(ASKED) + b"x", kind=1), HeaderError),
        (frame(b"\x00" * 12, kind=1), HeaderError),
        (frame(encode_binary(ASKED)[:13] + b"\xff" * 30, kind=1), HeaderError),
        (binary_frame(Command(1, 1, {str(each): "" for each in range(FIELDS_MAX + 1)})), FieldsError),
    ],
)
def test_what_is_no_frame_is_named(data: bytes, error: type[RemotingError]) -> None:
    with pytest.raises(error) as raised:
        read(data + encode_frame(ASKED))
    assert type(raised.value) is error
    assert len(str(raised.value)) < 200


def test_a_frame_of_the_largest_length_is_waited_for_and_read() -> None:
    head = header()
    whole = frame(head, bytes(FRAME_BYTES_MAX - 8 - len(head)))
    reader = FrameReader()
    assert list(reader.feed(whole[:-1])) == []
    assert reader.held == FRAME_BYTES_MAX - 1
    assert [len(found.body) for found in reader.feed(whole[-1:])] == [FRAME_BYTES_MAX - 8 - len(head)]


def test_values_that_are_no_texts_are_taken_as_librocketmq_writes_them() -> None:
    (found,) = read(frame(header(extFields={"a": 4, "b": True, "c": None, "d": {"e": 1}}, language=1)))
    assert found.fields == {"a": "4", "b": "true", "d": '{"e":1}'}
    assert found.language == "CPP"
    (found,) = read(frame(header(language="PYTHON9", version=..., extFields=...)))
    assert (found.language, found.version, found.fields) == ("", 0, NO_FIELDS)


def test_texts_are_escaped_as_fastjson_does() -> None:
    assert (
        json_text('a\x01\x1f\x7f\x85\u2028é订"\\/\n')
        == '"a\\u0001\\u001F\\u007F\\u0085\\u2028é订\\"\\\\/\\n"'
    )
    (found,) = read(encode_frame(Command(1, 1, remark="half \ud800")))
    assert found.remark == "half ?"
