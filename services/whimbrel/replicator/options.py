"""Settings of a replicator."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from whimbrel.config import check_rules, option, refusal
from whimbrel.ha.frames import FRAME_BYTES_MAX
from whimbrel.model.route import check_address, check_host
from whimbrel.model.wire import HA_PORT
from whimbrel.telemetry import LogLevel, check_trace_target

if TYPE_CHECKING:
    from whimbrel.store.options import Retention

__all__ = ["ReplicatorOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorOptions:
    """Copies the commitlog between a master and its slaves."""

    process: ClassVar[str] = "replicator"

    role: Literal["master", "slave", "elected"] = option(
        "master", help="which end of the replication this is; elected: the broker beside says, and changes it"
    )
    id: int = option(0, minimum=0, maximum=63, help="elected: the member id of the broker beside")
    store: str = option(
        "", help="store directory, shared with the broker", example="/var/lib/whimbrel/broker-a"
    )
    store_mode: Literal["private", "group", "all"] = option(
        "private", help="who may read the files that it makes: its user, its group as well, or everybody"
    )
    host: str = option(
        "127.0.0.1", help="address to listen on: a master for slaves, both for metrics and health"
    )
    port: int = option(HA_PORT, minimum=0, maximum=65535, help="master: port for slaves, 0 = any free one")
    advertise_host: str = option(
        "", help="master: host that slaves are told; empty: host, or this machine's name for a wildcard"
    )
    master_ha: str = option(
        "", help="slave: host:port of the master's replicator; empty = the broker knows it"
    )
    frame_bytes_max: int = option(
        1 << 20, minimum=1, maximum=FRAME_BYTES_MAX, help="master: longest piece of log in one frame"
    )
    first_offset: Literal["log", "last-file"] = option(
        "log", help="master: an empty slave gets the whole log, or, as from RocketMQ, only its last file"
    )
    heartbeat_ms: int = option(
        5000, minimum=10, help="idle for longer: the master sends a heartbeat, the slave its end"
    )
    housekeeping_ms: int = option(
        20000, minimum=10, help="nothing received for longer: the connection is closed"
    )
    commitlog_file_size: int = option(
        0, minimum=0, help="slave with an empty store: size of the master's log files, 0 = 1 GiB"
    )
    compare_bytes: int = option(
        -1,
        minimum=-1,
        help="slave: what the master must show of our log's end before we go on, a whole record at least;"
        " 0 = nothing, as RocketMQ; -1 = 64 KiB of a master that the broker knows, nothing of one given by"
        " master_ha",
    )
    flush: Literal["sync", "async"] = option(
        "async", help="slave: acknowledge what is on disk, or what is in memory"
    )
    reserved_hours: float = option(
        -1.0,
        minimum=-1,
        help="log files older than this are removed; -1 = as the broker beside has it; of two that differ the"
        " one that keeps longer holds",
    )
    disk_used_ratio_max: float = option(
        -1.0, minimum=-1, maximum=1, help="above it old log files go at any hour; -1 = as the broker's"
    )
    disk_clean_ratio: float = option(
        -1.0, minimum=-1, maximum=1, help="above it log files go whatever their age; -1 = as the broker's"
    )
    cut_keep_bytes: int = option(
        1 << 30,
        minimum=0,
        help="elected: so much of what was cut off the log is kept for `whimbrel replication cut`; beyond it"
        " the oldest cuts go, never the newest",
    )
    trace_to: str = option("", help="spans go to file:PATH or to a collector, http://HOST:PORT; empty: none")
    # Off: OpenTelemetry costs 0.1 s of CPU time at the start, and 6 to 9 MB.
    metrics_port: int = option(
        -1,
        minimum=-1,
        maximum=65535,
        help="port for Prometheus on the same host; 0 takes a free one, -1 none",
    )
    # Needs no OpenTelemetry, and about 0.2 MB.
    health_port: int = option(
        -1,
        help="port for /healthz and /readyz on the same host; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    # What it does, and what Python does without it: docs/lane.md.
    lane: Literal["auto", "off", "required"] = option(
        "auto",
        help="the compiled lane: used if it is there, not used, or no start without it",
        shared="WHIMBREL_LANE",
    )
    ready_file: str = option("", help="written when the process is ready")
    log_level: LogLevel = option("INFO", help="least severe log lines to write")
    log_format: Literal["text", "json"] = option("text", help="log lines for people or for programs")

    @property
    def retention(self) -> "Retention":
        """What is given here of how long the log is kept."""
        from whimbrel.store.options import Retention

        return Retention(
            *(
                None if given < 0 else given
                for given in (self.reserved_hours, self.disk_used_ratio_max, self.disk_clean_ratio)
            )
        )

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        check_rules(self)

    def wrong_store(self) -> Iterator[str]:
        """Yield why the store can't be."""
        if not self.store:
            yield "store: the store directory must be given"

    def wrong_id(self) -> Iterator[str]:
        """Yield why the id does not fit the role."""
        if (self.role == "elected") != bool(self.id):
            yield "id: an elected member has one from 1 on, its broker's; no other replicator has"

    def wrong_addresses(self) -> Iterator[str]:
        """Yield what is wrong with hosts and addresses."""
        if self.master_ha:
            yield from refusal(check_address, "master_ha", self.master_ha)
        yield from refusal(check_host, "host", self.host)
        yield from refusal(check_host, "advertise_host", self.advertise_host)

    def wrong_trace(self) -> Iterator[str]:
        """Yield what is wrong with where spans go."""
        yield from refusal(check_trace_target, self.trace_to)

    def wrong_times(self) -> Iterator[str]:
        """Yield why connections would not last."""
        if self.housekeeping_ms <= self.heartbeat_ms:
            yield "housekeeping_ms must be longer than heartbeat_ms, or idle connections close"
