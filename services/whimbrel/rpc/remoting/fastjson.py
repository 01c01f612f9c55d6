"""Bodies as JSON: written as fastjson 1.2.76 writes them, read as strict JSON.

    {0:"10.0.0.1:10911",1:"10.0.0.2:10911"}                          maps by number: keys without quotes
    {{"brokerName":"broker-a","queueId":0,"topic":"T"}:{...},...}    maps by queue: objects as keys

The second form is what RocketMQ's clients read and nobody else: client-go splits exactly this text. Fields of
an object stand in alphabetical order, those that are None are left out, and floats have a point. A repeated
object is written again: fastjson's own `$ref` is nothing that clients of other languages read.

What arrives is a stranger's, hence an object whose depth the reader bounds, or a BadRequest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.json_header import json_text

__all__ = ["MessageQueue", "dump_body", "load_body"]


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker (RocketMQ: `MessageQueue`), and a key of maps."""

    broker_name: str
    queue_id: int
    topic: str

    def text(self) -> str:
        """Return it as an object."""
        return (
            f'{{"brokerName":{json_text(self.broker_name)},"queueId":{self.queue_id}'
            f',"topic":{json_text(self.topic)}}}'
        )


NUMBERS: Final = {int}


def dump_body(value: Any) -> bytes:
    """Return a body: mappings, sequences, texts, numbers, booleans and queues; None is left out."""
    # Half a surrogate pair is a question mark in Java as well.
    return written(value).encode("utf-8", "replace")


def written(value: Any) -> str:
    if isinstance(value, str):
        return json_text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, MessageQueue):
        return value.text()
    if isinstance(value, Mapping):
        if (
            set(map(type, value)) == NUMBERS == set(map(type, value.values()))
        ):  # offsets, of which there are many
            return "{" + ",".join([f"{key}:{each}" for key, each in sorted(value.items())]) + "}"
        rows = sorted((item for item in value.items() if item[1] is not None), key=lambda item: item[0])
        return "{" + ",".join(f"{key_of(key)}:{written(each)}" for key, each in rows) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(written, value)) + "]"
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def key_of(key: str | int | MessageQueue) -> str:
    if isinstance(key, str):
        return json_text(key)
    return key.text() if isinstance(key, MessageQueue) else str(key)


def no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


read: Final = json.JSONDecoder(parse_constant=no_number).decode


def load_body(body: bytes, what: str) -> dict[str, Any]:
    """Return a body that is an object.

    Args:
        what: names it in errors.

    Raises:
        BadRequest: it is none.
    """
    try:
        found = read(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{what} is no JSON: {error}") from error
    if type(found) is not dict:
        raise BadRequest(f"{what} is no JSON object")
    return found
