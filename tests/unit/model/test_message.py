"""Messages to be sent: a field of the wrong type is named, with what to pass."""

from typing import Any

import pytest

from whimbrel.model.message import Message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"body": "hi"}, "body is a str, not bytes: pass body='hi'.encode()"),
        ({"body": "long" * 100}, "body is a str, not bytes: pass body=text.encode()"),
        ({"body": bytearray(b"hi")}, "body is a bytearray, not bytes: pass body=bytes(body)"),
        ({"body": {"a": 1}}, "body is a dict, not bytes: pass the bytes of it"),
        ({"body": None}, "body is a NoneType, not bytes: pass the bytes of it"),
        ({"topic": b"t"}, "topic is a bytes, not a str: pass the topic's name"),
        ({"tag": 7}, "tag is a int, not a str: pass tag='7', or leave it out"),
        ({"keys": "4711"}, "keys is a str, not a tuple of them: pass keys=('4711',)"),
        ({"keys": {"a"}}, "keys is a set, not a tuple: pass keys=('a', 'b')"),
        ({"keys": (4711,)}, "keys holds 4711, which is a int, not a str: pass '4711'"),
        ({"properties": {"a": 1}}, "properties['a'] is a int, not a str: pass {'a': '1'}"),
        ({"properties": {1: "a"}}, "properties has the key 1, which is a int: pass '1'"),
        ({"properties": [("a", "b")]}, "properties is a list, not a dict: pass properties={'name': 'value'}"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_what_to_pass(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        Message(**{"topic": "t", "body": b"x"} | fields)
    assert str(caught.value).startswith(text)


def test_any_sequence_and_mapping_of_texts_will_do() -> None:
    given: Any = ["a", "b"]
    assert Message(topic="t", body=b"x", keys=given, properties={"a": "b"}).keys == given
