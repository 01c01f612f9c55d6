"""What each command of `whimbrel` asks, and whether its answer could leave somebody out.

`tests/unit/cli/test_unasked.py` compares the table with the command line; `tests/integration/test_unasked.py`
runs each line of `SEVERAL` while a broker group is away: exit code 1, and a sentence that names it.
"""

from typing import Final

__all__ = ["ASKED", "CHANGE", "ELSEWHERE", "GROUP", "NONE", "ONE", "SEVERAL", "TOPIC"]

TOPIC, GROUP = "shared", "readers"
CUT = "3-00000000000000001200-00000000000000004800"

# Commands whose answer comes from several brokers, by their words, with the rest of a command line.
SEVERAL: Final[dict[str, tuple[str, ...]]] = {
    "cluster": (),
    "dlq drop": (GROUP, "--all", "--yes"),
    "dlq list": (GROUP,),
    "dlq replay": (GROUP, "--all", "--yes"),
    "dlq show": (GROUP, "--id", "0102FC000000011F860B13710ACA6571FE"),
    "group describe": (GROUP,),
    "group list": (),
    "group reset-offsets": (GROUP, TOPIC, "--to", "earliest", "--yes"),
    "health": (),
    "pull": (TOPIC, "--queue", "0"),
    "receive": (TOPIC, "--group", GROUP, "--wait", "0.2"),
    "replication cut list": (),
    "replication cut replay": (CUT, "--yes"),
    "replication cut show": (CUT,),
    "replication status": (),
    "tail": (TOPIC, "--from", "earliest", "--until-end"),
    "topic describe": (TOPIC,),
    "topic list": (),
}

# The same, where another test has what it needs: a group that elects its leader, spans, a damaged store.
ELSEWHERE: Final[dict[str, str]] = {
    "replication adopt": "tests/integration/test_unasked.py",
    "replication failover": "tests/integration/test_election_commands.py",
    "replication history": "tests/unit/cli/test_unasked.py",
    "store dump": "tests/unit/cli/test_store.py",
    "trace": "tests/unit/cli/test_message_trace.py",
} | dict.fromkeys(
    (
        f"spark {job}"
        for job in (
            "archive", "audit", "compact", "dlq", "lag", "latency", "rebuild-index", "replay", "stats",
            "verify-index",
        )
    ),
    "docs/kinds.md",  # they read stores, archives and snapshots: section 8
)  # fmt: skip

# These change something on every master, and say who was away and has not made the change.
CHANGE: Final = (
    "group create", "group delete", "group update", "topic create", "topic delete", "topic update",
)  # fmt: skip

# One broker, queue, member or store: the answer is an error where it can't be asked.
ONE: Final = (
    "bench e2e", "bench receive", "bench send", "drain", "forget", "recall", "replication pause",
    "replication reinit", "replication repair", "replication resume", "replication switchover",
    "replication voters", "restore", "send", "store export", "store moved", "store recover", "store reinit",
    "store repair", "store verify",
)  # fmt: skip

# Nobody: files of one's own, or the processes themselves.
NONE: Final = (
    "broker", "config example", "config reference", "config show", "dev purge", "dev start", "dev status",
    "dev stop", "nameserver", "profile delete", "profile list", "profile set", "profile show", "profile use",
    "replicator",
)  # fmt: skip

ASKED: Final = (*SEVERAL, *ELSEWHERE, *CHANGE, *ONE, *NONE)
