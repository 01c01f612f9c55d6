"""Where the other members of a group are, and whether any of them leads: by the nameservers' news.

a nameserver answers           it is heard; what it said of who leads counts once it has settled
it has just started            it knows little yet: what it says of who leads does not count
it is lost                     what it said of who leads is forgotten; addresses stay
"""

from whimbrel.broker.elections.peers import Peers
from whimbrel.model.registration import Member

__all__ = ["Roster"]


class Roster:
    """The members of one group, as its nameservers know them.

    Attributes:
        members: by nameserver, what it has said last.
        unsettled: nameservers that have just started.
        addresses: of the other members, as heard of last.
    """

    def __init__(self, peers: Peers) -> None:
        """Take the channels: one to where a member was is let go."""
        self.peers = peers
        self.members: dict[str, tuple[Member, ...]] = {}
        self.unsettled: set[str] = set()
        self.addresses: dict[int, str] = {}

    @property
    def leaderless(self) -> bool:
        """Whether nameservers are heard, and none of them knows of a leader."""
        heard = [members for nameserver, members in self.members.items() if nameserver not in self.unsettled]
        return bool(heard) and not any(member.broker_id == 0 for members in heard for member in members)

    def take(self, nameserver: str, members: tuple[Member, ...], *, settled: bool) -> None:
        """Take a nameserver's answer."""
        self.members[nameserver] = members
        (self.unsettled.discard if settled else self.unsettled.add)(nameserver)
        known = set(self.addresses.values())
        self.addresses |= {member.member_id: member.address for member in members if member.member_id}
        for address in known.difference(self.addresses.values()):
            self.peers.forget(address)

    def lose(self, nameserver: str) -> None:
        """Forget what a nameserver said of who leads."""
        self.members.pop(nameserver, None)
        self.unsettled.discard(nameserver)
