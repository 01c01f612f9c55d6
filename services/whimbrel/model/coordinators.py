"""The setting `coordinator`: who keeps the record of a group that elects its leader. Pure.

none                            nobody: roles are as configured
nameserver                      the first of the broker's nameservers
nameserver:HOST:PORT            that nameserver
etcd:HOST:PORT,HOST:PORT,...    an etcd cluster, by up to `ETCD_MAX` of its members
"""

from dataclasses import dataclass
from typing import Final, Literal

from whimbrel.model.route import check_address

__all__ = ["ETCD_MAX", "CoordinatorSetting", "parse_coordinator"]

ETCD_MAX: Final = 7  # members of one etcd cluster
KNOWN: Final = "none, nameserver, nameserver:HOST:PORT or etcd:HOST:PORT,HOST:PORT,..."

Kind = Literal["none", "nameserver", "etcd"]


@dataclass(frozen=True, slots=True)
class CoordinatorSetting:
    """The setting, taken apart.

    Attributes:
        kind: what keeps the record.
        addresses: where, `HOST:PORT`; empty where the broker's nameservers say it, or nobody keeps one.
    """

    kind: Kind
    addresses: tuple[str, ...] = ()


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
    raise ValueError(f"coordinator: {text!r} is none: {KNOWN}")
