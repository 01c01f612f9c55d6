"""The slaves that a master knows, and whose each connection on the replication port is.

    a nameserver names it, or it opens its lease stream    its broker's host is known
    it introduces its replicator                           and the address from which that is connected
    a slot of the page has that address                    the slot gets its id

So acknowledgements count by slave (`store/counted_slaves.py`), slots are kept for known slaves, and only they
can say that they hold more than this master (`leadership.py`). Where addresses are translated on the way, no
slot has the address that was told: such slaves count by host.

`STORE/whimbrel/slaves.json` keeps the hosts by id, the replicator's first: a master that comes back must
believe a slave whose broker is dead by then. Everybody can introduce slaves, so the file is written by the
beat, not by the calls.
"""

import ipaddress
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whimbrel.errors import BadRequest, StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.model.registration import Member
from whimbrel.store import jsonconfig
from whimbrel.store.counted_slaves import host_of
from whimbrel.store.page_cells import SLAVES_MAX
from whimbrel.store.page_slots import Counted, ReplicaSlots

__all__ = ["HOSTS_MAX", "KnownSlaves"]

logger = logging.getLogger(__name__)

HOSTS_MAX = 4  # of one slave: its replicator's, its broker's, and where these were before
ADDRESS_LENGTH_MAX = 56  # what a slot's peer has room for
ID_MAX = 63


class KnownSlaves:
    """A master's slaves; on the loop's thread.

    Attributes:
        hosts: by id, as addresses; the replicator's first, once it is known.
        replicas: by id, from where the slave's replicator is connected.
    """

    def __init__(self, page: ReplicaSlots, root: Path, files: Files = FILES) -> None:
        """Read the file; a damaged one counts as missing."""
        self.page, self.files = page, files
        self.path = root / "whimbrel" / "slaves.json"
        self.hosts: dict[int, tuple[str, ...]] = {}
        self.replicas: dict[int, str] = {}
        self.counted: Counted | None = None  # what slots were looked at last
        self.unsaved = False  # the file lacks what `hosts` has
        try:
            self.hosts = jsonconfig.open_own(self.path, decoded, files)[0] or {}
        except StoreError as error:
            logger.warning("which slaves there were is not known: %s", error)
        self.publish()

    def introduced(self, broker_id: int, replica_address: str, *, peer: str) -> None:
        """Take what a slave's broker says of its replicator.

        Args:
            broker_id: the slave's.
            replica_address: `host:port` of the replicator's end of its connection to ours.
            peer: from where the broker called, `host:port`.

        Raises:
            BadRequest: no slave has such an id, or this is no address.
        """
        host, port = host_of(replica_address), replica_address.rpartition(":")[2]
        if not 0 < broker_id <= ID_MAX:
            raise BadRequest(f"a slave's id is 1 to {ID_MAX}, not {broker_id}")
        if len(replica_address) > ADDRESS_LENGTH_MAX or not is_numeric(host) or not port.isdecimal():
            raise BadRequest("the replicator's address is not ADDRESS:PORT")
        for other in [one for one, address in self.replicas.items() if address == replica_address]:
            del self.replicas[other]  # it had this port before
        self.replicas[broker_id] = replica_address
        self.add(broker_id, host_of(peer))
        self.add(broker_id, host, first=True)
        self.name_connections()

    def seen(self, members: Iterable[Member]) -> None:
        """Take members of the group, as nameservers know them or as they say of themselves."""
        for member in members:
            if 0 < member.broker_id <= ID_MAX:
                self.add(member.broker_id, host_of(member.address))

    def add(self, broker_id: int, host: str, *, first: bool = False) -> None:
        """Note a host of a slave, as its first one, or behind that; names are of no use for comparing."""
        before = self.hosts.get(broker_id, ())
        known = before[:1] == (host,) if first else host in before
        if known or not is_numeric(host):
            return
        after = tuple(dict.fromkeys((host, *before) if first else (*before[:1], host, *before[1:])))[
            :HOSTS_MAX
        ]
        self.hosts.pop(broker_id, None)
        self.hosts[broker_id] = after
        while len(self.hosts) > SLAVES_MAX:
            del self.hosts[next(iter(self.hosts))]  # which changed longest ago
        self.publish()
        self.unsaved = True

    def knows(self, host: str) -> bool:
        """Tell whether a slave is known at a host."""
        return any(host in hosts for hosts in self.hosts.values())

    def acknowledges(self, slave: Member) -> bool:
        """Tell whether a slave's replicator is connected, and its log was found to be a part of ours."""
        host = host_of(slave.address)
        return any(
            one.broker_id == slave.broker_id if one.broker_id else one.host == host
            for one, _ in self.page.slave_acks()
        )

    def publish(self) -> None:
        """Have the replicator keep slots, one for each slave."""
        self.page.known_hosts = [hosts[0] for hosts in reversed(self.hosts.values())]

    def beat(self) -> None:
        """Name connections and write the file where there is news; to be called periodically."""
        self.slots_changed()
        self.save_news()

    def save_news(self) -> None:
        """Write the file if there is news; also to be called at the end."""
        if self.unsaved:
            self.save()

    def save(self) -> None:
        """Write the file; a disk that refuses is asked again with the next news."""
        self.unsaved = False
        bean = {str(broker_id): list(hosts) for broker_id, hosts in self.hosts.items()}
        try:
            jsonconfig.save(self.path, jsonconfig.dumps(bean), self.files)
        except (OSError, StoreFull) as error:
            logger.warning("which slaves there are can't be written: %s", error)

    def slots_changed(self) -> None:
        """Name the connections if there are others than last time; cheap when there are not."""
        if self.page.count_slaves() is not self.counted:
            self.name_connections()

    def name_connections(self) -> None:
        """Give each connection the id of the slave that is connected from there."""
        page = self.page
        ids = {same_form(address): broker_id for broker_id, address in self.replicas.items()}
        for slot, since in enumerate(page.connected_at_ms):
            broker_id = ids.get(same_form(page.peer(slot)), 0) if since else 0
            if since and page.slave_id(slot) != broker_id:
                page.set_slave_id(slot, broker_id)
        self.counted = page.count_slaves()


def is_numeric(host: str) -> bool:
    """Tell whether a host is an address, an IPv6 one in brackets."""
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def same_form(address: str) -> str:
    """Return an address in the form in which two are compared."""
    return f"{host_of(address)}:{address.rpartition(':')[2]}"


def decoded(content: Any) -> dict[int, tuple[str, ...]]:
    """Return the hosts that a parsed file holds.

    Raises:
        StoreError: it holds something else.
    """
    try:
        return {
            int(broker_id): tuple(str(host) for host in hosts[:HOSTS_MAX])
            for broker_id, hosts in content.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"it holds no hosts of slaves: {error!r}") from error
