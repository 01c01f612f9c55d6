"""A third front, a line protocol: it decodes, makes one call of the engine, and encodes.

    SEND topic [name=value ...] body [&& body ...]            OK queue offset id [handle] ...
    PULL topic group queue offset [name=value ...] [filter]   OK next [offset:body ...]
    RECEIVE topic group [name=value ...] [filter]             OK [queue/offset/attempt/handle/body?names ...]
    ACK topic group handle ..., FORWARD topic group handle    OK [number:REASON ...], of wrong handles
    CHANGE topic group handle ms [suspend]                    OK handle
    RECALL topic handle, END topic id commit|rollback         OK [id]
    anything that is refused                                  ERROR REASON sentence

SEND has `id`, `tag`, `key`, `group`, `deliver` (ms), `priority`, `transaction`, `queue`, properties; PULL and
RECEIVE have `batch`, `wait` (ms), `by` (`sql`); RECEIVE has `invisible` (ms; none: while its client lives),
`client`, `attempt`. Values are as in URLs. Answers come behind their lines' numbers, as they are there.
"""

import re
from asyncio import StreamReader, StreamWriter
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from whimbrel.broker.engine import consuming, read_checks, read_forms, send_checks, settle, take_checks
from whimbrel.broker.engine.message import MessageExtras, NewMessage, born_host_of
from whimbrel.broker.engine.read import Read, ReadRules, Run, unchanged
from whimbrel.broker.engine.send import Elsewhere, Send, SendRules, Sent
from whimbrel.broker.engine.take import Take, TakeRules
from whimbrel.broker.engine.waiting import POLLS
from whimbrel.broker.transactions.table import Resolution
from whimbrel.deferred import Deferred
from whimbrel.errors import QueueNotFound, WhimbrelError
from whimbrel.model.topic import MessageType

__all__ = ["serve_lines"]

SENDS: Final = SendRules(
    checks=tuple(getattr(send_checks, name) for name in "ADDRESSED MESSAGES KINDS HERE QUEUE DETOUR".split()),
    each=(send_checks.follow_rules,), record_limits=False, permission=True, limited=True,
    group_topics=False, writable_first=False, no_topic="no topic {name}",
)  # fmt: skip
CONSUMES: Any = {"kind": POLLS, "no_topic": "no topic {name}", "not_readable": "no queue", "limited": True}
READS: Final = ReadRules(
    checks=(read_checks.queue_there, consuming.filter_given, consuming.group_reads), again=(),
    outside=read_checks.refused_outside, form=read_forms.decoded_messages, entries_max=2048,
    bytes_max=1 << 20, no_queue=QueueNotFound, **CONSUMES,
)  # fmt: skip
TAKES: Final = TakeRules(
    checks=(consuming.topic_named, consuming.group_named, take_checks.invisible_time, consuming.filter_given,
            take_checks.topic_there, consuming.group_reads, take_checks.queues_selected),
    messages_max=32, **CONSUMES,
)  # fmt: skip
LINE: Any = re.compile(r"(\S+)((?: [^ =]+(?=\s))*)((?: [^ =]+=[^ =]\S*)*)(.*)\n")  # verb, words, names, text
STORED: Final = {"id": "UNIQ_KEY", "tag": "TAGS", "key": "KEYS"}
# The names that make a message more than a plain one.
KINDS = dict(group="FIFO", deliver="DELAY", priority="PRIORITY", lite="LITE", transaction="TRANSACTION")
TOLD: Final[dict[type, Any]] = {  # the words of an answer
    type(None): lambda _: ["OK"], str: lambda text: ["OK", text],
    settle.Changed: lambda changed: ["OK", changed.handle], Elsewhere: lambda where: ["ELSEWHERE", *where],
    list: lambda wrong: ["OK", *(f"{n}:{error.reason}" for n, error in enumerate(wrong) if error)],
    Sent: lambda sent: ["OK", *(
        f"{sent.queue_id} {at.queue_offset} {one.keys[0]} {sent.detour.handle(one) if sent.detour else ''}"
        for one, at in zip(sent.drafts, sent.places, strict=True))],
    Run: lambda run: ["OK", run.next_offset, *(f"{m.queue_offset}:{m.body.decode()}" for m in run.parts)],
    tuple: lambda found: ["OK", *(
        f"{m.queue_id}/{m.queue_offset}/{attempt}/{handle}/{m.body.decode()}?{urlencode(m.properties)}"
        for m, handle, attempt in found)],
}  # fmt: skip


def send(engine: Any, peer: str, topic: str, *body: str, queue: str = "-1", **said: str) -> Any:
    special, own = [name for name in KINDS if name in said], [said.get(name, "") for name in STORED]
    extras = MessageExtras(
        kind=MessageType(KINDS[special[-1]]), mixed=len(special) > 1 and special != ["group", "transaction"],
        message_group=said.get("group", ""), delivery_ms=int(said.get("deliver", 0)),
        priority=int(said["priority"]) if "priority" in said else None,
    ) if special else None  # fmt: skip
    users = {name: said[name] for name in said if name not in {*KINDS, *STORED}}
    pairs = *zip(STORED.values(), own, strict=True), ("CLUSTER", engine.sends.policy.cluster), *users.items()
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value)
    rest: Any = engine.sends.clock(), users, 0, text, *own, extras, own[2].split(" ")
    messages = [NewMessage(topic, one.encode(), *rest) for one in " ".join(body).split(" && ")]
    return engine.sends.send(Send(SENDS, topic, messages, born_host_of(peer), {}, int(queue), len(messages)))


VERBS: Final[dict[str, Any]] = {
    "SEND": send,
    "PULL": lambda engine, _, topic, group, queue, offset, *text, **said: engine.reads.read(Read(
        READS, group, topic, " ".join(text), said.get("by") == "sql", int(queue), int(offset),
        int(said.get("batch", 32)), 1 << 20, wait_ms=int(said.get("wait", 0))), unchanged),
    "RECEIVE": lambda engine, peer, topic, group, *text, **said: engine.takes.take(Take(
        TAKES, group, topic, " ".join(text), said.get("by") == "sql", int(said.get("batch", 32)),
        int(said["invisible"]) if "invisible" in said else None, said.get("client", peer),
        said.get("attempt", ""), int(said.get("wait", 0))), lambda _, found: tuple(found)),
    "ACK": lambda engine, _, topic, group, *handles: engine.settles.acknowledge(group, topic, handles),
    "CHANGE": lambda engine, _, topic, group, handle, ms, *suspend: engine.settles.change(
        group, topic, handle, int(ms), suspend=bool(suspend)),
    "FORWARD": lambda engine, _, topic, group, handle: engine.settles.forward(group, topic, handle),
    "RECALL": lambda engine, peer, topic, handle: engine.recalls.recall(topic, handle, born_host_of(peer)),
    "END": lambda engine, peer, topic, id_, how: engine.ends.by_id(topic, id_, id_, Resolution(how), peer),
}  # fmt: skip


async def serve_lines(engine: Any, reader: StreamReader, writer: StreamWriter) -> None:
    """Serve a connection; `engine()` has what decides now: sends, reads, takes, settles, recalls, ends."""
    peer, number = "{}:{}".format(*writer.get_extra_info("peername")[:2]), 0

    def tell(number: int, answer: Any) -> None:
        error = getattr(answer, "error", answer)
        refused = isinstance(error, WhimbrelError)
        words = ["ERROR", error.reason, error] if refused else TOLD[type(answer)](answer)
        writer.write(f"{number} {' '.join(' '.join(map(str, words)).split())}\n".encode())

    async for line in reader:
        verb, words, names, text = LINE.fullmatch(line.decode()).groups()
        number, told = number + 1, partial(tell, number + 1)
        try:
            said = dict(parse_qsl(names, separator=" "))
            answer = VERBS[verb](engine(), peer, *(words + text).split(), **said)
        except WhimbrelError as error:
            answer = error
        _ = answer.mapped(told, told) if isinstance(answer, Deferred) else told(answer)
