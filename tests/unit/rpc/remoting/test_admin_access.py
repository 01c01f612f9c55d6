"""Who may change a server's state by the remoting protocol."""

import pytest

from whimbrel.errors import Forbidden
from whimbrel.rpc.remoting.admin_access import AdminAccess, check_admin, guarded
from whimbrel.rpc.remoting.codes import ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Outcome, Peer, Reply

HERE = ("127.0.0.1:9", "127.8.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9")
ELSEWHERE = (
    "10.0.0.9:9",
    "[2001:db8::1]:9",
    "[::ffff:10.0.0.9]:9",
    "[fe80::1%eth0]:9",
    "0.0.0.0:9",
    "",
    "x:9",
)


def allowed(peer: str, access: AdminAccess) -> bool:
    """Return whether a peer may change the state."""
    try:
        check_admin(peer, access)
    except Forbidden as error:
        assert error.remoting == ResponseCode.NO_PERMISSION
        assert "remoting_admin" in str(error)
        assert peer in str(error)
        return False
    return True


@pytest.mark.parametrize("peer", HERE)
def test_a_peer_on_this_machine_may_unless_nobody_may(peer: str) -> None:
    assert [allowed(peer, access) for access in ("loopback", "any", "none")] == [True, True, False]


@pytest.mark.parametrize("peer", ELSEWHERE)
def test_a_peer_elsewhere_may_only_where_everybody_may(peer: str) -> None:
    assert [allowed(peer, access) for access in ("loopback", "any", "none")] == [False, True, False]


class Stranger:
    """A peer of another machine."""

    peer = "10.0.0.9:9"


def test_only_the_codes_that_change_something_are_guarded() -> None:
    asked: list[int] = []

    def handle(peer: Peer, request: Command) -> Outcome:
        asked.append(request.code)
        return Reply()

    handles = guarded({17: handle, 105: handle}, {17, 215}, "loopback")
    assert set(handles) == {17, 105}
    handles[105](Stranger(), Command(105, 1))  # type: ignore[arg-type]
    with pytest.raises(Forbidden, match="only for peers that come over loopback"):
        handles[17](Stranger(), Command(17, 2))  # type: ignore[arg-type]
    assert asked == [105]
