"""Which names, tags, keys and properties are legal."""

import pytest

from whimbrel.errors import (
    IllegalGroup,
    IllegalInvisibleTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalPropertyKey,
    IllegalTag,
    IllegalTopic,
)
from whimbrel.model import names


@pytest.mark.parametrize(
    "name", ["", "  ", "a b", "a.b", "é", "x" * 128, "TBW102", "rmq_sys_x", "SELF_TEST_TOPIC"]
)
def test_illegal_topics(name: str) -> None:
    with pytest.raises(IllegalTopic):
        names.check_topic(name)


@pytest.mark.parametrize("name", ["t", "x" * 127, "%DLQ%group", "a|b-c_D9"])
def test_legal_topics(name: str) -> None:
    names.check_topic(name)


def test_system_topics_pass_where_they_are_allowed() -> None:
    names.check_topic("TBW102", system_allowed=True)


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 256, "CID_RMQ_SYS_TRANS"])
def test_illegal_groups(name: str) -> None:
    with pytest.raises(IllegalGroup):
        names.check_group(name)


@pytest.mark.parametrize("invisible_ms", [-1, 0, 9_999, 12 * 3600 * 1000 + 1])
def test_illegal_invisible_times_of_a_receive(invisible_ms: int) -> None:
    with pytest.raises(IllegalInvisibleTime):
        names.check_invisible_ms(invisible_ms)


@pytest.mark.parametrize("invisible_ms", [-1, 12 * 3600 * 1000 + 1])
def test_illegal_changes_of_the_invisible_time(invisible_ms: int) -> None:
    with pytest.raises(IllegalInvisibleTime):
        names.check_invisible_ms(invisible_ms, changed=True)


def test_legal_invisible_times() -> None:
    for invisible_ms in (10_000, 12 * 3600 * 1000):
        names.check_invisible_ms(invisible_ms)
    for invisible_ms in (0, 1, 12 * 3600 * 1000):
        names.check_invisible_ms(invisible_ms, changed=True)


def test_longest_group_is_legal() -> None:
    names.check_group("x" * 255)


@pytest.mark.parametrize("tag", ["  ", "a|b", "a\x01", "\x85"])
def test_illegal_tags(tag: str) -> None:
    with pytest.raises(IllegalTag):
        names.check_tag(tag)


@pytest.mark.parametrize("key", ["  ", "a b", "a\x02"])
def test_illegal_keys(key: str) -> None:
    with pytest.raises(IllegalKey):
        names.check_key(key)


def test_empty_tag_and_key_mean_none() -> None:
    names.check_tag("")
    names.check_key("")


@pytest.mark.parametrize(
    ("key", "value"), [("KEYS", "v"), ("a", "x\x01"), ("a\x7f", "v"), ("", "v"), ("__CRC32#", "1")]
)
def test_illegal_properties(key: str, value: str) -> None:
    with pytest.raises(IllegalPropertyKey):
        names.check_property(key, value)


@pytest.mark.parametrize("message_id", ["", " ", "a\x01b"])
def test_illegal_message_ids(message_id: str) -> None:
    with pytest.raises(IllegalMessageId):
        names.check_message_id(message_id)


@pytest.mark.parametrize("group", ["  ", "g" * 64, "é" * 32, "a\n"])
def test_illegal_message_groups(group: str) -> None:
    with pytest.raises(IllegalMessageGroup):
        names.check_message_group(group)


def test_message_group_of_63_bytes_is_legal() -> None:
    names.check_message_group("g" * 63)
