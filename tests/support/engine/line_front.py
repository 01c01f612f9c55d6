"""A third front, a line protocol: it decodes, makes one call of the engine, and encodes.

    SEND topic [name=value ...] [body]                          OK queue offset id [handle]
    PULL topic group queue offset [name=value ...] [filter]     OK next [offset:body ...]
    RECALL topic handle, END topic id commit|rollback           OK [id]
    anything that is refused                                    ERROR REASON sentence

SEND has `id`, `tag`, `key`, `group`, `deliver` (epoch ms), `priority`, `transaction`, `queue`, properties;
PULL has `wait` (ms), `batch`, `by` (`sql`). Answers come behind their lines' numbers, as they are there.
"""

import asyncio
from functools import partial
from typing import Any, Final

from whimbrel.broker.engine import consuming, read_checks, send_checks
from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.engine.message import MessageExtras, NewMessage, born_host_of, compose
from whimbrel.broker.engine.read import Read, ReadRules, Reads, Run, unchanged
from whimbrel.broker.engine.read_forms import decoded_messages
from whimbrel.broker.engine.recalls import Recalls
from whimbrel.broker.engine.send import Elsewhere, Send, SendRules, Sends, Sent
from whimbrel.broker.engine.waiting import POLLS
from whimbrel.broker.transactions.table import Resolution
from whimbrel.deferred import Deferred
from whimbrel.errors import QueueNotFound, WhimbrelError
from whimbrel.model.topic import MessageType

__all__ = ["LineFront"]

SENDS: Final = SendRules(
    checks=tuple(getattr(send_checks, name) for name in "ADDRESSED MESSAGES KINDS HERE QUEUE DETOUR".split()),
    each=(send_checks.follow_rules,), record_limits=False, permission=True, limited=True,
    group_topics=False, writable_first=False, no_topic="no topic {name}",
)  # fmt: skip
READS: Final = ReadRules(
    checks=(read_checks.queue_there, consuming.filter_given, consuming.group_reads), again=(),
    outside=read_checks.refused_outside, form=decoded_messages, kind=POLLS, entries_max=2048,
    bytes_max=1 << 20, no_topic="no topic {name}", not_readable="{name} is not to be read",
    no_queue=QueueNotFound, limited=True,
)  # fmt: skip
KINDS: Final = {  # by the name that makes a message more than a plain one
    "group": MessageType.FIFO, "deliver": MessageType.DELAY, "priority": MessageType.PRIORITY,
    "transaction": MessageType.TRANSACTION, "lite": MessageType.LITE,
}  # fmt: skip
STORED: Final = {"id": "UNIQ_KEY", "tag": "TAGS", "key": "KEYS"}


def words_of(rest: str) -> tuple[dict[str, str], str]:
    """Return the words `name=value` at the begin of a line, and what follows them."""
    said: dict[str, str] = {}
    while "=" in (word := rest.partition(" ")[0]):
        name, _, value = word.partition("=")
        said[name] = f"{said[name]} {value}" if name == "key" and name in said else value
        rest = rest.partition(" ")[2]
    return said, rest


class LineFront:
    """One connection."""

    def __init__(self, sends: Sends, reads: Reads, recalls: Recalls, ends: Ends) -> None:
        self.sends, self.reads, self.recalls, self.ends = sends, reads, recalls, ends

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take lines."""
        self.peer, number = "{}:{}".format(*writer.get_extra_info("peername")[:2]), 0
        async for line in reader:
            verb, _, rest = line.decode().rstrip("\n").partition(" ")
            number, tell = number + 1, partial(self.tell, writer, number + 1)
            try:
                answer = getattr(self, verb.lower())(rest)
            except WhimbrelError as error:
                answer = error
            _ = answer.mapped(tell, tell) if isinstance(answer, Deferred) else tell(answer)

    def tell(self, writer: asyncio.StreamWriter, number: int, answer: Any) -> None:
        """Answer a line."""
        error = answer.error if isinstance(answer, Sent) else answer
        words = ["OK", answer or ""]
        if isinstance(error, WhimbrelError):
            words = ["ERROR", error.reason, error]
        elif isinstance(answer, Elsewhere):
            words = ["ELSEWHERE", *answer]
        elif isinstance(answer, Sent):
            words = ["OK", answer.queue_id, answer.places[0].queue_offset, answer.drafts[0].keys[0]]
            words += [] if answer.detour is None else [answer.detour.handle(answer.drafts[0])]
        elif isinstance(answer, Run):
            words = ["OK", answer.next_offset, *(f"{m.queue_offset}:{m.body.decode()}" for m in answer.parts)]
        writer.write(f"{number} {' '.join(map(str, words)).rstrip()}\n".encode())

    def send(self, rest: str) -> Any:
        topic, _, rest = rest.partition(" ")
        said, body = words_of(rest)
        special, at = [name for name in KINDS if name in said], born_host_of(self.peer)
        users = {name: said[name] for name in said if name not in {*KINDS, *STORED, "queue"}}
        stored = {"UNIQ_KEY": ""} | users | {STORED[name]: said[name] for name in STORED if name in said}
        extras = None if not special else MessageExtras(
            kind=KINDS[special[-1]], mixed=len(special) > 1, message_group=said.get("group", ""),
            delivery_ms=int(said.get("deliver", 0)), priority=int(p) if (p := said.get("priority")) else None,
        )  # fmt: skip
        message = NewMessage(topic, body.encode(), self.sends.clock(), stored, extras=extras)
        compose(message, self.sends.policy.cluster)
        message.users, message.keys = users, said.get("key", "").split(" ")
        return self.sends.send(Send(SENDS, topic, [message], at, queue=int(said.get("queue", -1))))

    def pull(self, rest: str) -> Any:
        topic, group, queue, offset, *more = rest.split(" ", 4)
        said, text = words_of("".join(more))
        batch, wait, sql = int(said.get("batch", 32)), int(said.get("wait", 0)), said.get("by") == "sql"
        read = Read(READS, group, topic, text, sql, int(queue), int(offset), batch, 1 << 20, wait_ms=wait)
        return self.reads.read(read, unchanged)

    def recall(self, rest: str) -> Any:
        topic, _, handle = rest.partition(" ")
        return self.recalls.recall(topic, handle, born_host_of(self.peer))

    def end(self, rest: str) -> Any:
        topic, id_, how = rest.split(" ")
        return self.ends.by_id(topic, id_, id_, Resolution(how), self.peer)
