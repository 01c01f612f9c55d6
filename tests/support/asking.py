"""Which commands ask before they act, and why the others that change something do not.

`tests/unit/cli/test_asking.py` compares the table with the command line.
"""

from typing import Final

__all__ = ["ASKS", "ASKS_NOT"]

# These throw work away, repeat it, or hide it: they say what they would do, with numbers, and have --yes.
ASKS: Final = frozenset((
    "dev purge", "dlq drop", "dlq replay", "group delete", "group reset-offsets", "replication cut replay",
    "replication failover", "replication reinit", "replication repair", "store moved", "store reinit",
    "store repair", "topic delete", "topic update",
))  # fmt: skip

# These change something as well, and ask nothing.
ASKS_NOT: Final[dict[str, str]] = {
    "drain": "--undo takes it back, and consumers go on",
    "forget": "refused while the broker is there; who registers again is back",
    "group create": "nothing was there",
    "group update": "the next one takes it back",
    "profile delete": "a name on this machine",
    "profile set": "a name on this machine",
    "profile use": "a name on this machine",
    "recall": "the handle names one message, and it is what is asked for",
    "receive": "--no-ack leaves the messages to others",
    "replication pause": "resume takes it back",
    "replication resume": "pause takes it back",
    "replication switchover": "nothing is lost, and another one takes it back",
    "replication voters": "refused where a majority of the old ones could not be asked",
    "restore": "into a directory that is empty, or not there",
    "send": "it is what is asked for",
    "spark compact": "the same rows in fewer files",
    "spark dlq": "brokers refuse --replay-to unless --accept-replays is set; each message once",
    "spark replay": "brokers refuse it unless --accept-replays is set; each message once",
    "store export": "refused for a store that a broker uses; --to leaves it as it is",
    "store recover": "a start of the broker does the same",
    "topic create": "nothing was there",
}
