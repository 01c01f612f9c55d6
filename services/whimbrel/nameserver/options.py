"""Settings of a nameserver."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from whimbrel.config import check_rules, gone, option, refusal
from whimbrel.model.limits import LEASE_S_DEFAULT, RENEW_S_DEFAULT
from whimbrel.model.route import check_host
from whimbrel.model.wire import NAMESERVER_PORT
from whimbrel.telemetry import LogLevel

__all__ = ["NameserverOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserverOptions:
    """A nameserver: where clients ask for routes, and brokers register."""

    process: ClassVar[str] = "nameserver"

    # Loopback, so that nothing is open by accident.
    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(
        NAMESERVER_PORT, help="port to listen on; 0 takes a free one", minimum=0, maximum=65535
    )
    transport: Literal["native"] = gone(
        "native", "the transport grpcio is gone, native is the only one: leave the setting out"
    )
    tls_certificate: str = option("", help="PEM file for TLS; empty: self-signed, a new one at each start")
    tls_key: str = option("", help="PEM file of the certificate's key")
    lease_s: float = option(LEASE_S_DEFAULT, help="how long a broker lives without a renewal", minimum=0.1)
    renew_s: float = option(RENEW_S_DEFAULT, help="how often brokers are asked to renew", minimum=0.05)
    # Unknown: a nameserver waits for one renewal period then, in which every living broker registers.
    expected_brokers: int = option(
        0,
        help="answers for certain once so many are registered, after renew_s at the latest; 0: not known",
        minimum=0,
    )
    # One nameserver of a cluster does. It is needed for elections only: who is elected goes on without it.
    keeps_groups: str = option(
        "",
        help="file for the records of groups that elect their leaders; empty: another nameserver keeps them",
    )
    # Clients and tools of RocketMQ 4 are configured with its name server's port, mostly 9876.
    remoting_port: int = option(
        -1,
        help="one more port to listen on, for RocketMQ's clients; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    # RocketMQ's tools say who they are at no time. What reads is served to everybody.
    remoting_admin: Literal["loopback", "any", "none"] = option(
        "loopback",
        help="who may change something by RocketMQ's protocol: peers over loopback, any, or none",
    )
    remoting_accounts: str = option(
        "",
        help="file with an access key and a secret on each line: who signs by one, as RocketMQ's clients do,"
        " may change something from anywhere; empty: signatures are not looked at",
    )
    kv_config: str = option(
        "",
        help="file for values that RocketMQ's tools put here, as orders of topics; empty: in memory",
    )
    # SDKs ask for routes every 30 s, and go to the next address of an endpoint at once.
    route_members: bool = option(
        True,
        help="routes name all members of a group that elects its leader, if their hosts are IP addresses",
    )
    # Off: OpenTelemetry costs 0.1 s of CPU time at the start, and 6 to 9 MB.
    metrics_port: int = option(
        -1,
        help="port for Prometheus on the same host; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    # Needs no OpenTelemetry, and about 0.2 MB.
    health_port: int = option(
        -1,
        help="port for /healthz and /readyz on the same host; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    ready_file: str = option("", help="written once the nameserver serves")
    log_level: LogLevel = option("INFO", help="least severe log lines to write")
    log_format: Literal["text", "json"] = option("text", help="how log lines look")

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        check_rules(self)

    def wrong_host(self) -> Iterator[str]:
        """Yield what is wrong with the address to listen on."""
        yield from refusal(check_host, "host", self.host)

    def wrong_tls(self) -> Iterator[str]:
        """Yield what is wrong with TLS."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            yield "tls_certificate and tls_key belong together: name both files, or none"

    def wrong_remoting_port(self) -> Iterator[str]:
        """Yield why the further port can't be."""
        if self.remoting_port == self.port != 0:
            yield "remoting_port: RocketMQ's protocol is served on port anyway, name another one"

    def wrong_lease(self) -> Iterator[str]:
        """Yield why brokers could not keep their leases."""
        if self.renew_s >= self.lease_s:
            yield "renew_s must be below lease_s: a broker would be removed between two renewals"
