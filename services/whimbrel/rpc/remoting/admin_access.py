"""Who may change a server's state by the remoting protocol: the decision of the setting `remoting_admin`.

    loopback    peers that come from 127.0.0.1 or ::1; a proxy here, or a forwarded port that ends here, makes
                its clients such peers, and who dials another address of this machine is none
    any         everybody who reaches the port
    none        nobody

Requests that an account has signed may as well, from anywhere but for `none` (`signatures.py`).

RocketMQ 4.9.3 lets anybody who reaches its ports delete topics and change settings. What only reads, sends
and consumes is not asked about here. Pure.
"""

import ipaddress
from collections.abc import Collection, Mapping
from typing import Literal

from whimbrel.errors import Forbidden
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer
from whimbrel.rpc.remoting.signatures import NO_ACCOUNTS, Accounts, signed_by

__all__ = ["AdminAccess", "check_admin", "guarded"]

AdminAccess = Literal["loopback", "any", "none"]


def check_admin(peer: str, access: AdminAccess) -> None:
    """Check that a peer may change the server's state.

    Args:
        peer: its address, `host:port`; IPv6 hosts in brackets.
        access: the setting.

    Raises:
        Forbidden: it may not; the text names the setting.
    """
    if access == "any" or (access == "loopback" and from_this_machine(peer)):
        return
    allowed = (
        "is only for peers that come over loopback, as to 127.0.0.1 on its machine (remoting_admin is"
        " loopback; any allows it to all, and remoting_accounts to those who sign)"
        if access == "loopback"
        else "is switched off (remoting_admin is none; loopback or any allows it)"
    )
    raise Forbidden(f"changing this server by the remoting protocol {allowed}; this peer is {peer}")


def from_this_machine(peer: str) -> bool:
    """Return whether a peer's address is a loopback one; IPv4 addresses may stand in IPv6's form."""
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def guarded(
    handles: Mapping[int, Handle],
    codes: Collection[int],
    access: AdminAccess,
    accounts: Accounts = NO_ACCOUNTS,
) -> dict[int, Handle]:
    """Return handlers of which those of certain codes refuse peers that may not change the server's state.

    Args:
        handles: by code.
        codes: that change the state; those of `handles` count.
        access: the setting.
        accounts: whose signatures are checked, where a request names one.
    """
    return {
        code: admin_only(handle, access, accounts) if code in codes else checking_signatures(handle, accounts)
        for code, handle in handles.items()
    }


def admin_only(handle: Handle, access: AdminAccess, accounts: Accounts) -> Handle:
    """Return a handler that checks who asks, and then does what `handle` does."""

    def checked(peer: Peer, request: Command) -> Outcome:
        if not signed_by(request, accounts) or access == "none":
            check_admin(peer.peer, access)
        return handle(peer, request)

    return checked


def checking_signatures(handle: Handle, accounts: Accounts) -> Handle:
    """Return a handler that refuses wrong signatures of accounts; the same one where there are none."""
    if not accounts:
        return handle

    def checked(peer: Peer, request: Command) -> Outcome:
        signed_by(request, accounts)
        return handle(peer, request)

    return checked
