"""Values that RocketMQ's tools keep at name servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import BadRequest, Forbidden
from whimbrel.model.limits import ROUTE_QUEUES_MAX
from whimbrel.nameserver.kv_table import BYTES_MAX, ENTRIES_MAX, ORDER_NAMESPACE, BadKvTable, KvTable

# As RocketMQ 4.9.3 writes it.
FILE = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"},"NSX":{}}}'

names = st.text(max_size=6)


def test_what_was_put_is_there_until_it_is_deleted() -> None:
    table = KvTable().put("n", "a", "1").put("n", "b", "2").put("m", "a", "3").put("n", "a", "4")
    assert (table.get("n", "a"), table.get("n", "b"), table.get("m", "a")) == ("4", "2", "3")
    assert (table.get("n", "c"), table.get("x", "a")) == (None, None)
    table = table.delete("n", "a").delete("n", "never")
    assert table.namespaces == {"n": {"b": "2"}, "m": {"a": "3"}}
    assert table.delete("m", "a").delete("x", "y").namespaces == {"n": {"b": "2"}}


def test_a_change_leaves_the_table_before_as_it_was() -> None:
    before = KvTable().put("n", "a", "1")
    before.put("n", "a", "2")
    before.delete("n", "a")
    assert before.get("n", "a") == "1"


@pytest.mark.parametrize("order", ["", "broker-a:4", "a.b|c:0", "a:1;b:2;", f"a:{ROUTE_QUEUES_MAX}"])
def test_an_order_that_clients_can_read_is_taken(order: str) -> None:
    assert KvTable().put(ORDER_NAMESPACE, "T", order).get(ORDER_NAMESPACE, "T") == order


@pytest.mark.parametrize(
    "order",
    [
        "x",
        "a:",
        ":4",
        "a:-1",
        "a:4:5",
        "a:²",
        "a:4,b:4",
        ";a:4",
        "a:4;;b:4",
        " ",
        f"a:{ROUTE_QUEUES_MAX};b:1",
    ],
)
def test_an_order_that_would_break_clients_is_refused(order: str) -> None:
    with pytest.raises(BadRequest, match="the order of a topic"):
        KvTable().put(ORDER_NAMESPACE, "T", order)
    assert KvTable().put("elsewhere", "T", order).get("elsewhere", "T") == order


def test_count_and_bytes_are_bounded() -> None:
    full = KvTable({"n": {str(number): "" for number in range(ENTRIES_MAX)}})
    with pytest.raises(Forbidden, match="too many"):
        full.put("n", "one more", "")
    assert full.put("n", "0", "changed").get("n", "0") == "changed"
    with pytest.raises(Forbidden, match="bytes"):
        KvTable().put("n", "k", "é" * (BYTES_MAX // 2))
    assert KvTable().put("n", "k", "e" * (BYTES_MAX - 2)).get("n", "k")


@given(st.dictionaries(names, st.dictionaries(names, names, min_size=1, max_size=3), max_size=4))
def test_a_table_comes_back_from_its_file(namespaces: dict[str, dict[str, str]]) -> None:
    namespaces.pop(ORDER_NAMESPACE, None)
    table = KvTable(namespaces)
    assert KvTable.decode(table.encode()) == table


def test_a_file_of_rocketmq_is_read() -> None:
    assert KvTable.decode(FILE).namespaces == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}}
    assert KvTable.decode(b'{"configTable":{"n":{"a":null}}}').namespaces == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no configTable"),
        (b"{}", "no configTable"),
        (b'{"configTable":{"n":[]}}', "no configTable"),
        (b'{"configTable":{"n":{"a":1}}}', "no texts"),
        (b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"x"}}}', "order of a topic"),
        (b'{"configTable":{"n":{"a":"' + b"x" * BYTES_MAX + b'"}}}', "bytes"),
    ],
)
def test_a_file_that_is_damaged_is_told(text: bytes, why: str) -> None:
    with pytest.raises(BadKvTable, match=why):
        KvTable.decode(text)
