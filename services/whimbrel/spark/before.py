"""What can be known before Spark starts, which takes ten seconds and more: that a job can't run.

Sources, targets and folders are looked at as the job will do; errors are those that it would raise. Nothing
of Spark is imported. Under Spark Connect nothing is checked: the server may see other files and brokers.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from whimbrel.errors import TopicNotFound
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.api.replay_calls import SourceQueue, describe_replay
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.archive_backend import ArchiveBackend
from whimbrel.spark.backend import Backend
from whimbrel.spark.broker_backend import BrokerBackend
from whimbrel.spark.brokers import away_text
from whimbrel.spark.masters import Masters
from whimbrel.spark.options import Place, parse
from whimbrel.spark.reporting import JobError
from whimbrel.spark.store_backend import StoreBackend
from whimbrel.store.view import check_store

__all__ = ["BACKENDS", "NOBODY", "check_path", "check_source", "check_target"]

BACKENDS: Mapping[Place, type[Backend]] = {
    "servers": BrokerBackend,
    "store": StoreBackend,
    "archive": ArchiveBackend,
}
logger = logging.getLogger(__name__)

CALL_S = 10.0  # of a small call to a broker
GLOB = "*?[{"
NOBODY = SourceQueue("nobody", "nothing", 0)  # a source to ask about: whether a broker accepts replays at all


def check_source(given: Mapping[str, str], *, streaming: bool = False, whole: bool = True) -> None:
    """Raise what reading would raise: an option is wrong, nobody answers, or what is named is not there.

    Args:
        given: options of `format("whimbrel")`.
        streaming: a stream reads it.
        whole: it ends, so that nothing may be left out.
    """
    options = parse(given, streaming=streaming)
    if options.place == "store" and options.subscription is None:
        check_store(Path(options.store))  # its end is looked for when it is read, which can take a while
        return
    away = BACKENDS[options.place].describe(options, first_contact=True, whole=whole).away
    if away:
        logger.warning("not all there is can be asked for: %s", away_text(away))


def check_target(servers: Sequence[str], topic: str) -> None:
    """Raise what replaying into a topic would raise, as far as that is known without the source's brokers.

    Raises:
        WhimbrelError: no nameserver answers, or the only broker accepts no replays, or not into this topic.
    """
    masters = Masters(servers, {}, CALL_S)
    masters.refresh()
    for address in list(masters.addresses.values()) if topic and len(masters.addresses) == 1 else ():
        with open_channel(address) as channel, suppress(TopicNotFound):
            perform_blocking(channel, describe_replay(topic, 0, NOBODY), (), CALL_S)


def check_path(path: str, hint: str = "") -> None:
    """Raise JobError if a path of this machine is not there; patterns and URLs are Spark's to resolve."""
    if "://" in path or any(character in path for character in GLOB):
        return
    if not Path(path).exists():
        raise JobError(f"{path}: there is no such file or folder{hint}")
