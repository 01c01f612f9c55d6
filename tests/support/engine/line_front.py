"""A third front: the engine's verbs over a line protocol. It decodes, makes one call, and encodes.

    SEND topic [name=value ...] [body]       OK queue offset id [handle]
    RECALL topic handle                      OK id
    END topic id commit|rollback             OK
    anything that is refused                 ERROR REASON sentence

Names are `id`, `tag`, `key` (again for each), `group`, `deliver` (epoch ms), `priority`, `transaction`,
`queue`; others are properties of the user. Each line is answered by one, in the order in which answers are
there, with the number of its line before it. An answer that waits does not hold up those behind it.
"""

import asyncio
from typing import Any, Final, cast

from whimbrel.broker.engine import send_checks as checks
from whimbrel.broker.engine.ends import Ends
from whimbrel.broker.engine.message import MessageExtras, NewMessage, born_host_of, compose
from whimbrel.broker.engine.recalls import Recalls
from whimbrel.broker.engine.send import Elsewhere, Send, SendRules, Sends, Sent
from whimbrel.broker.transactions.table import Resolution
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.topic import MessageType

__all__ = ["LineFront"]

RULES: Final = SendRules(
    checks=(
        checks.ADDRESSED, checks.MESSAGES, checks.KINDS, checks.HERE, checks.QUEUE, checks.DETOUR,
    ),
    each=(checks.follow_rules,), record_limits=False, permission=True, limited=True,
    group_topics=False, writable_first=False,
    no_topic="no topic {name}",
)  # fmt: skip
KINDS: Final = {  # by the name that makes a message more than a plain one
    "group": MessageType.FIFO, "deliver": MessageType.DELAY, "priority": MessageType.PRIORITY,
    "transaction": MessageType.TRANSACTION, "lite": MessageType.LITE,
}  # fmt: skip
STORED: Final = {"id": "UNIQ_KEY", "tag": "TAGS", "key": "KEYS"}


class LineFront(asyncio.Protocol):
    """One connection."""

    def __init__(self, sends: Sends, recalls: Recalls, ends: Ends) -> None:
        self.sends, self.recalls, self.ends = sends, recalls, ends
        self.partial, self.lines = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note who it is."""
        self.transport = cast(asyncio.Transport, transport)
        self.peer = "{}:{}".format(*transport.get_extra_info("peername")[:2])

    def data_received(self, data: bytes) -> None:
        """Take whole lines."""
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            self.lines += 1
            verb, _, rest = line.decode().partition(" ")
            try:
                answer = {"SEND": self.send, "RECALL": self.recall, "END": self.end}[verb](rest)
            except WhimbrelError as error:
                answer = error
            if isinstance(answer, Deferred):
                answer = answer.mapped(lambda found: found, lambda error: error)
                answer.waker = lambda at=self.lines, later=answer: self.write(at, later.result)
                if answer.done:
                    answer.waker()
            else:
                self.write(self.lines, answer)

    def write(self, at: int, answer: Any) -> None:
        """Answer a line."""
        error = answer.error if isinstance(answer, Sent) else answer
        if isinstance(error, WhimbrelError):
            text = f"ERROR {error.reason} {error}"
        elif isinstance(answer, Elsewhere):
            text = f"ELSEWHERE {answer.broker} {answer.queue_id}"
        elif isinstance(answer, Sent):
            handle = "" if answer.detour is None else f" {answer.detour.handle(answer.drafts[0])}"
            text = f"OK {answer.queue_id} {answer.places[0].queue_offset} {answer.drafts[0].keys[0]}{handle}"
        else:
            text = f"OK {answer or ''}".rstrip()
        self.transport.write(f"{at} {text}\n".encode())

    def send(self, rest: str) -> Any:
        """SEND topic [name=value ...] [body]."""
        topic, _, rest = rest.partition(" ")
        said: dict[str, str] = {}
        while "=" in (word := rest.partition(" ")[0]):
            name, _, value = word.partition("=")
            said[name] = f"{said[name]} {value}" if name == "key" and name in said else value
            rest = rest.partition(" ")[2]
        special = [name for name in KINDS if name in said]
        users = {name: said[name] for name in said if name not in {*KINDS, *STORED, "queue"}}
        stored = users | {STORED[name]: said[name] for name in STORED if name in said}
        extras = None
        if special:
            extras = MessageExtras(
                kind=KINDS[special[-1]], mixed=len(special) > 1, message_group=said.get("group", ""),
                delivery_ms=int(said.get("deliver", 0)),
                priority=int(said["priority"]) if "priority" in said else None,
            )  # fmt: skip
        stored = {"UNIQ_KEY": "", **stored}
        message = NewMessage(topic, rest.encode(), self.sends.clock(), stored, extras=extras)
        compose(message, self.sends.policy.cluster)
        message.users, message.keys = users, said.get("key", "").split(" ")
        host = born_host_of(self.peer)
        return self.sends.send(Send(RULES, topic, [message], host, queue=int(said.get("queue", -1))))

    def recall(self, rest: str) -> Any:
        """RECALL topic handle."""
        topic, _, handle = rest.partition(" ")
        return self.recalls.recall(topic, handle, born_host_of(self.peer))

    def end(self, rest: str) -> Any:
        """END topic id commit|rollback."""
        topic, id_, how = rest.split(" ")
        return self.ends.by_id(topic, id_, id_, Resolution(how), self.peer)
