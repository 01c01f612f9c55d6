"""Settings of one broker process, with the reason of every default."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BrokerOptions"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """What a broker is told.

    Attributes:
        name: shared by a master and its slaves. id: 0 for the master, above 0 for slaves, each its own. role:
        master or slave. cluster: cluster name; also the name of a built-in topic and a property of every
        message. store: store directory, shared with the replicator beside this broker. host: address to
        listen on; loopback unless told otherwise, so that nothing is open by accident. port: port to listen
        on; 0 takes a free one. advertise_host: host that clients are told; empty: this machine's name, or
        loopback when it listens there. advertise_port: port that clients are told; 0: the bound one.
        nameservers: all of them; they share nothing, so the broker registers with each. flush: `sync` answers
        a send after its record is on disk, `async` at once. replication: `sync` answers a send after `acks`
        slaves hold its record. acks: how many slaves must confirm. expected_slaves: a master counts as
        settled at once when so many are registered. auto_create_topics: whether a send creates its topic.
        auto_create_groups: whether a receive creates its group. slave_read_enable: whether `PullMessage`
        sends slow readers to a slave. slave_fallbehind_max_bytes: a slave that lacks more does not count for
        synchronous replication. sync_flush_timeout_ms: how long a send waits for the disk (RocketMQ:
        syncFlushTimeout). slave_timeout_ms: how long a send waits for slaves (RocketMQ: slaveTimeout).
        commitlog_file_size: bytes; that of existing files wins. consumequeue_file_size: bytes, a multiple of
        20. index_slots: slots of an index file. index_entries: entries of an index file. flush_interval_ms:
        asynchronous flush: time between two. reserved_hours: log files older than this go.
        disk_used_ratio_max: above it old files go at any hour. disk_clean_ratio: above it files go without
        looking at their age. disk_full_ratio: above it writes are refused. ready_file: written once the
        broker serves. log_level: a level of the logging module. log_format: `text` or `json`.
    """

    name: str = "broker-a"
    id: int = 0
    role: Literal["master", "slave"] = "master"
    cluster: str = "DefaultCluster"
    store: str = ""
    host: str = "127.0.0.1"
    port: int = 8091
    advertise_host: str = ""
    advertise_port: int = 0
    nameservers: list[str] = field(default_factory=lambda: ["127.0.0.1:8081"])
    flush: Literal["sync", "async"] = "async"
    replication: Literal["sync", "async"] = "async"
    acks: int = 1
    expected_slaves: int = 0
    auto_create_topics: bool = False
    auto_create_groups: bool = False
    slave_read_enable: bool = False
    slave_fallbehind_max_bytes: int = 256 * _MIB
    sync_flush_timeout_ms: int = 5000
    slave_timeout_ms: int = 3000
    commitlog_file_size: int = 1 << 30
    consumequeue_file_size: int = 6_000_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    flush_interval_ms: int = 500
    reserved_hours: float = 72.0
    disk_used_ratio_max: float = 0.75
    disk_clean_ratio: float = 0.85
    disk_full_ratio: float = 0.90
    ready_file: str = ""
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"
