"""Bodies as fastjson writes them: keys that are no texts, order, what is left out."""

import pytest

from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body, load_body


def test_maps_by_number_have_keys_without_quotes() -> None:
    assert dump_body({"brokerAddrs": {1: "b:1", 0: "a:1"}}) == b'{"brokerAddrs":{0:"a:1",1:"b:1"}}'


def test_maps_by_queue_have_objects_as_keys() -> None:
    table = {MessageQueue("broker-a", 2, "T"): 6, MessageQueue("broker-a", 0, "T"): 5}
    assert dump_body({"offsetTable": table}) == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"broker-a","queueId":2,"topic":"T"}:6}}'
    )


def test_fields_are_in_alphabetical_order_and_nulls_are_left_out() -> None:
    found = dump_body({"b": None, "topic": "T", "a": [True, None, 1.0, {"z": 1}]})
    assert found == b'{"a":[true,null,1.0,{"z":1}],"topic":"T"}'


def test_texts_are_escaped_as_fastjson_does() -> None:
    assert dump_body({"k": 'a\x01"é\x7f'}) == '{"k":"a\\u0001\\"é\\u007F"}'.encode()


def test_a_queue_is_an_object_of_its_own() -> None:
    assert dump_body([MessageQueue("b", 1, "T")]) == b'[{"brokerName":"b","queueId":1,"topic":"T"}]'


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b"{", b'{"a":NaN}', b"{'a':1}", b"[" * 100_000, b'{"a":1}x']
)
def test_what_is_no_object_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the heartbeat is no JSON"):
        load_body(body, "the heartbeat")


def test_white_space_around_an_object_is_taken() -> None:
    assert load_body(b' {"clientID":"c"}\n', "the heartbeat") == {"clientID": "c"}
