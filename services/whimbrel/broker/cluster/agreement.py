"""Settings that the members of a group are to have alike, and what it says where they have not.

A slave tells its master what it has as it introduces itself, and is told what the master has: both warn. Each
goes by its own all the same, since a difference may be meant; but what a group does should not depend on who
leads it today. For how long the log is kept the setting counts that keeps longer. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Final

from whimbrel.broker.options import BrokerOptions
from whimbrel.store.options import Retention

__all__ = [
    "ALIKE",
    "LOG_FILE_SIZE",
    "OWN",
    "SETTINGS_CHARS_MAX",
    "Settings",
    "differences",
    "parse_settings",
    "retention_of",
    "settings_text",
]

SETTINGS_CHARS_MAX = 4096  # of what a member tells
VALUE_CHARS_MAX = 64
LOG_FILE_SIZE: Final = (
    "log_file_size"  # what a store has: told as well, and no log follows one of another size
)
KEPT: Final = frozenset({"reserved_hours", "disk_used_ratio_max", "disk_clean_ratio"})

ALIKE: Final = KEPT | frozenset(
    {
        # who keeps the record of the group
        "coordinator",
        # what an answer promises
        "flush", "replication", "acks", "slave_fallbehind_max_bytes", "copies_min",
        # what a full disk does
        "full_disk", "disk_full_ratio",
        # what clients may do, and see
        "auto_create_topics", "auto_create_groups", "share_pulled_queues", "accept_replays", "remoting_admin",
        "slave_read_enable", "trace_topic_enable", "delay_max_hours", "priority_order_asc", "forward",
        "index_tags",
        "transaction_timeout_ms", "transaction_check_interval_ms", "transaction_check_max",
        # what records look like
        "append_property_crc",
    }
)  # fmt: skip

OWN: Final = frozenset(
    {
        # who it is, and where
        "name", "id", "role", "cluster", "store", "store_mode", "host", "port", "remoting_port", "vip_port",
        "advertise_host", "advertise_port", "nameservers", "expected_slaves", "tls_certificate", "tls_key",
        # whom it asks; the group's record counts for its voters
        "voters", "coordinator_ca", "coordinator_certificate", "coordinator_key",
        "coordinator_user", "coordinator_password_file", "coordinator_token_file", "remoting_accounts",
        # how it does its work
        "transport", "lane", "flush_interval_ms", "sync_flush_timeout_ms", "slave_timeout_ms",
        # sizes of files, which each store keeps
        "commitlog_file_size", "consumequeue_file_size", "index_slots", "index_entries", "lease_file_size",
        # what it tells of itself
        "trace_to", "trace_ratio", "metrics_port", "health_port", "ready_file", "log_level", "log_format",
    }
)  # fmt: skip

Settings = Mapping[str, str | int | float | bool]


def settings_text(options: BrokerOptions, log_file_size: int) -> str:
    """Return what a member tells of its settings, and of its log, as JSON."""
    found = {field.name: getattr(options, field.name) for field in fields(options) if field.name in ALIKE}
    found |= {"full_disk": options.when_full, LOG_FILE_SIZE: log_file_size}
    if options.coordinator == "nameserver":  # the first of its own list
        found["coordinator"] = f"nameserver:{options.nameservers[0]}"
    found["coordinator"] = str(found["coordinator"])[:VALUE_CHARS_MAX]
    return json.dumps(found, separators=(",", ":"), sort_keys=True)


def parse_settings(text: str) -> Settings:
    """Return what another member has told; what is none of it is left out, whoever has sent it."""
    if len(text) > SETTINGS_CHARS_MAX:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if name in ALIKE | {LOG_FILE_SIZE}
        and isinstance(value, str | int | float)
        and len(str(value)) <= VALUE_CHARS_MAX
    }


def differences(ours: Settings, theirs: Settings, who: str) -> str:
    """Return in one sentence what another member has set otherwise; "" where nothing is.

    Args:
        ours, theirs: settings by name; one that either lacks, as an earlier version does, is not compared.
        who: the other member.
    """
    found = sorted(name for name in ALIKE if name in ours and theirs.get(name, ours[name]) != ours[name])
    if not found:
        return ""
    each = ", ".join(f"{name} is {theirs[name]} there and {ours[name]} here" for name in found)
    kept = "the longer time holds for the log" if KEPT.issuperset(found) else "each goes by its own"
    return f"{who} has other settings: {each}; {kept}, so set them alike"


def retention_of(settings: Settings) -> Retention:
    """Return for how long another member keeps its log."""

    def number(name: str) -> float | None:
        value = settings.get(name)
        return float(value) if isinstance(value, int | float) and 0 <= value and isfinite(value) else None

    return Retention(
        *(number(name) for name in ("reserved_hours", "disk_used_ratio_max", "disk_clean_ratio"))
    )
