"""What the remoting protocol is held to, and which tests show each: docs/remoting-checklist.md.

    python tools/remoting_checklist.py   # prints the page
    make checklist                      # writes it, and docs/checklist.md

A test says what it shows by its name, `test_6_1_29_58_...`, or at the begin of its docstring, `6.1/46, 47 and
51:`. What RocketMQ's own tests and clients show is listed here, in `BY_CLIENTS`: they run by `make official`
and `make clients4`.
"""

import re
import sys

from checklist import TESTS, row, shown_by

__all__ = ["PAGE", "STATEMENTS", "page", "shown"]

PAGE = TESTS.parent / "docs" / "remoting-checklist.md"
IN_NAME = re.compile(r"test_6_1_((?:\d+_)+)")
IN_TEXT = re.compile(r"6\.1/((?:\d+(?:, | and )?)+):")

STATEMENTS = (
    "one port serves both protocols, plain and under TLS without ALPN",
    "Java 4.9.3 sends to a new topic: 4 queues, permission 6, in the next route",
    "105 of what is unknown: 17; unsettled: 1, TBW102 too; TBW102 is 17 without automatic creation",
    "105 lists all members; keys unquoted for version 399, quoted for 479",
    "a message of gRPC is found by its offset id",
    "10, 310 and 320 store equal properties; WAIT gone but in batches; CLUSTER added",
    "a final separator makes no difference to tag and keys",
    "320 of n: n ids, consecutive offsets",
    "a negative queue is chosen; one beyond all is refused",
    "replies to sends have five fields, all texts",
    "too few replicas: 14; a late flush or slave: 10 or 12, and the message is there",
    "oneway: no answer; all else is answered",
    "BenchmarkTest, broker-name and trace topics take sends; SCHEDULE_TOPIC_XXXX: 16",
    "a pull with bit 4 uses its own text; no member: 24; a newer one of SQL: 25",
    "a second member with a newer subscription: both pull",
    "librocketmq's `A || B` gets A and B only, whatever its codes say",
    "Go's codes as texts and versions in nanoseconds are served",
    "heartbeats with ordinals, or without consumers, are taken",
    "a held pull is answered by a matching message, and by nothing else before its time",
    "held pulls of two members of one queue are both answered",
    "a held pull dies with its connection; 10,000 take less than 5 MB",
    "offsets outside a queue: codes and corrections; four fields on 0, 19, 20 and 21",
    "at most 32 messages and 256 KiB, unless the first is larger; maxMsgBytes holds",
    "bodies of pulls are the log's bytes, on masters and slaves",
    "361 is 11",
    "a new group: 14 is 0 on a young topic, else 22",
    "15 beyond the end, or of nothing: 0; a member moves nothing back, a tool does",
    "commits by 15, by 11 and by gRPC are seen by each other",
    "offsets, groups and topics survive kill -9, and reach slaves",
    "the first heartbeat makes the group and %RETRY%, with a route, and 40 to all",
    "38 lists each live id once; nobody: 1; a closed connection leaves at once",
    "silent for 120 s: removed, closed",
    'group "" of 35: 0, and nothing is made',
    "a lock is its owner's for 60 s or until 42; the answer lists all that are held",
    "ordered consumers of two processes never share a queue",
    "36: again after its level; one more redelivery, RETRY_TOPIC, ORIGIN_MESSAGE_ID; at the end %DLQ%",
    "310 to %RETRY%g that is used up goes to %DLQ%g",
    "DELAY=1 comes after its second; 99 is the last level",
    "a half is seen once it is committed, by 8 only; wrong offsets: 1; 39 reaches PGROUP",
    "a reply (325) goes to who asked (326); who is gone: 1",
    "message traces of 4.9.3 are found by mqadmin",
    "46 refuses nonsense with 23; `n > 2` works on text",
    "broadcast: all members get all, and commit nothing",
    "the VIP port: sends, 21, tools",
    "Java with TLS and our own certificate",
    "mqadmin 4.9.3: each command without an exception",
    "mqadmin 5.3.3: the same",
    "clusterList shows version, rates and disk",
    "307 and 309 reach the client, and its answer the tool",
    "resetOffsetByTime: clients that live, and without any",
    "deleteTopic, wipeWritePerm, updateOrderConf show in routes",
    "25 with a key that is not listed: 1, and nothing changes",
    "frames split at every byte, and 1,000 in a segment",
    "odd frames end their connection, and no other suffers",
    "who does not read is bounded, and not read from",
    "signatures pass, one byte off does not; unknown keys say nothing",
    "one group by push and receive: nothing lost",
    "the master is killed: consumers go on at the slave",
    "unknown codes: 3; unknown fields change nothing",
    "what a send and a pull cost (docs/benchmarks.md)",
)
OFFICIAL = "official: "
BY_CLIENTS = {
    2: (OFFICIAL + "smoke.NormalMessageSendAndRecvIT",),
    8: (OFFICIAL + "client.producer.batch.BatchSendIT",),
    15: (OFFICIAL + "client.consumer.tag.TagMessageWithSameGroupConsumerIT",),
    35: (
        OFFICIAL + "client.producer.order.OrderMsgRebalanceIT",
        OFFICIAL + "client.producer.order.OrderMsgDynamicRebalanceIT",
    ),
    38: (OFFICIAL + "delay.NormalMsgDelayIT",),
    39: (OFFICIAL + "client.producer.transaction.TransactionalMsgIT",),
    42: (OFFICIAL + "client.consumer.filter.SqlFilterIT",),
    43: (OFFICIAL + "client.consumer.broadcast, nine classes",),
    45: (OFFICIAL + "tls.TLS_IT",),
    60: ("bench/beside.py: 4x, 4x-lane",),
}

HEAD = """# What the remoting protocol is held to

60 statements, and the tests that show each. Written by `make checklist` from the names of the tests;
`tests/unit/test_checklist.py` fails where a statement has no test, or this page is not what the tests say.
`official` are RocketMQ 4.9.3's own tests ([official.md](official.md)). Other paths are below `tests/`.

| | Statement | Shown by |
|---|---|---|
"""


def numbers_of(name: str, text: str) -> set[int]:
    """Return the numbers in the name of a test, or else in its docstring."""
    listed = IN_NAME.match(name) or IN_TEXT.match(text)
    return set() if listed is None else {int(number) for number in re.findall(r"\d+", listed[1])}


def shown() -> dict[int, list[str]]:
    """Return which tests show a statement, by its number."""
    found = shown_by(numbers_of)
    for number, names in BY_CLIENTS.items():
        found[number] += names
    return found


def page() -> str:
    """Return docs/remoting-checklist.md."""
    tests = shown()
    lines = [HEAD.rstrip("\n")]
    for number, statement in enumerate(STATEMENTS, 1):
        lines.append(row(number, statement, tests))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
