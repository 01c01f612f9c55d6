"""The setting `coordinator`: who keeps the record of a group that elects its leader. Pure.

    none                            nobody: roles are as configured
    nameserver                      the first of the broker's nameservers
    nameserver:HOST:PORT            that nameserver
    etcd:HOST:PORT,HOST:PORT,...    an etcd cluster, by up to `ETCD_MAX` of its members
    kubernetes:NAMESPACE            the Kubernetes that the broker runs in, by a Lease in that namespace

Nothing is asked here; `broker/elections/coordinator.py open_coordinator` makes what asks.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from whimbrel.model.route import check_address

__all__ = ["ETCD_MAX", "RESTORED", "CoordinatorSetting", "parse_coordinator"]

ETCD_MAX: Final = 7  # members of one etcd cluster
RESTORED: Final = (  # said by whatever finds a coordinator that goes back
    "if it was restored from a backup, see that the record in it is the group's newest (docs/failover.md),"
    " then restart the brokers one after the other"
)
KNOWN: Final = "none, nameserver, nameserver:HOST:PORT, etcd:HOST:PORT,HOST:PORT,... or kubernetes:NAMESPACE"
NAMESPACE: Final = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123's label, as Kubernetes has it

Kind = Literal["none", "nameserver", "etcd", "kubernetes"]


@dataclass(frozen=True, slots=True)
class CoordinatorSetting:
    """The setting, taken apart.

    Attributes:
        kind: what keeps the record.
        addresses: where, `HOST:PORT`; empty where the broker's nameservers say it, or nobody keeps one.
        namespace: of Kubernetes.
    """

    kind: Kind
    addresses: tuple[str, ...] = ()
    namespace: str = ""


def parse_coordinator(text: str) -> CoordinatorSetting:
    """Take the setting apart.

    Raises:
        ValueError: it names no coordinator; the text begins with the setting.
    """
    kind, colon, rest = text.partition(":")
    if kind == "none" and not colon:
        return CoordinatorSetting("none")
    if kind == "nameserver":
        if rest or colon:
            check_address("coordinator", rest)
        return CoordinatorSetting("nameserver", (rest,) if rest else ())
    if kind == "etcd":
        addresses = tuple(each.strip() for each in rest.split(",") if each.strip())
        if not addresses:
            raise ValueError(f"coordinator: {text!r} names no member of etcd: etcd:HOST:PORT,HOST:PORT,...")
        for address in addresses:
            if "//" in address:
                raise ValueError(
                    f"coordinator: {address!r} is a URL: write HOST:PORT; for TLS set coordinator_ca"
                )
            check_address("coordinator", address)
        if len(set(addresses)) < len(addresses):
            raise ValueError("coordinator: a member of etcd is named twice")
        if len(addresses) > ETCD_MAX:
            raise ValueError(f"coordinator: {len(addresses)} members of etcd; {ETCD_MAX} are enough")
        return CoordinatorSetting("etcd", addresses)
    if kind == "kubernetes":
        if not NAMESPACE.fullmatch(rest):
            raise ValueError(f"coordinator: {rest!r} is no namespace of Kubernetes: kubernetes:NAMESPACE")
        return CoordinatorSetting("kubernetes", namespace=rest)
    raise ValueError(f"coordinator: {text!r} is none: {KNOWN}")
