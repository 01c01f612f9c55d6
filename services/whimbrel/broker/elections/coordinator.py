"""Where the record of a group is kept, and how it is changed: by compare-and-set, and no other way.

    nameserver    one nameserver that was started with `--keeps-groups`
    etcd          an etcd cluster (`etcd_coordinator.py`)
    kubernetes    the API server of the Kubernetes around the broker (`kubernetes_coordinator.py`)

Elections wait while it is away, and nothing else does. Every call has a deadline. A swap that was not
answered is settled by a read.
"""

import os
from typing import TYPE_CHECKING, Protocol

from whimbrel.broker.elections.peers import CALL_S, Peers
from whimbrel.errors import ClientError, PeerError, WhimbrelError
from whimbrel.model.coordinators import parse_coordinator
from whimbrel.model.group_record import GroupRecord
from whimbrel.rpc.api.group_calls import read_record, swap_record

if TYPE_CHECKING:
    from whimbrel.broker.options import BrokerOptions

__all__ = ["WATCH_S", "Coordinator", "NameserverCoordinator", "open_coordinator", "trouble_of"]

WATCH_S = 4.0  # a read that waits for another record is answered by then


class Coordinator(Protocol):
    """Keeps the record of one group.

    Attributes:
        trouble: why it would refuse a swap now, though the record can be read; empty where it would not.
    """

    trouble: str

    async def read(self) -> tuple[GroupRecord | None, int]:
        """Return the record, and its revision; None and 0 where there is none.

        Raises:
            WhimbrelError: it is not to be had now.
        """

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """Return the record once it has another revision, or as it is after a while; errors as `read`."""

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """Put a record in the place of the one with that revision, 0 for none.

        Returns:
            Whether it stands; the record that does, and its revision.

        Raises:
            WhimbrelError: whether it was swapped is not known.
        """

    async def close(self) -> None:
        """Let go of what the coordinator alone has opened."""


def open_coordinator(options: "BrokerOptions", peers: Peers) -> Coordinator:
    """Return the coordinator that the settings name; nothing is asked yet."""
    place = parse_coordinator(options.coordinator)
    if place.kind == "etcd":
        # Not before: other brokers need none of it.
        from whimbrel.broker.elections.etcd_coordinator import EtcdCoordinator
        from whimbrel.rpc.api.etcd_client import EtcdAccess, EtcdClient

        access = EtcdAccess(
            ca=options.coordinator_ca,
            certificate=options.coordinator_certificate,
            key=options.coordinator_key,
            user=options.coordinator_user,
            password_file=options.coordinator_password_file,
        )
        client = EtcdClient(place.addresses, access)
        return EtcdCoordinator(client, cluster=options.cluster, name=options.name)
    if place.kind == "kubernetes":
        from whimbrel.broker.elections.kubernetes_api import KubernetesApi
        from whimbrel.broker.elections.kubernetes_coordinator import KubernetesCoordinator

        api = KubernetesApi(os.environ, ca=options.coordinator_ca, token_file=options.coordinator_token_file)
        return KubernetesCoordinator(
            api, namespace=place.namespace, cluster=options.cluster, name=options.name
        )
    address = place.addresses[0] if place.addresses else options.nameservers[0]
    return NameserverCoordinator(peers, address, cluster=options.cluster, name=options.name)


def trouble_of(error: WhimbrelError) -> str:
    """Return what an error of the coordinator means, as a sentence for operators."""
    if isinstance(error, ClientError | PeerError):
        return f"the coordinator does not answer: {error}"
    return f"the coordinator can't be used: {error}"


class NameserverCoordinator:
    """The record is kept by a nameserver."""

    trouble = ""  # one that can be read can be swapped, or is refused with its disk's error

    def __init__(self, peers: Peers, address: str, *, cluster: str, name: str) -> None:
        """Take where it is, `host:port`, and which group's record this is about."""
        self.peers, self.address = peers, address
        self.cluster, self.name = cluster, name

    async def read(self) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        return await self.peers.call(self.address, read_record(self.cluster, self.name))

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        wait_ms = int(WATCH_S * 1000)
        outbound = read_record(self.cluster, self.name, after_revision=revision, wait_ms=wait_ms)
        return await self.peers.call(self.address, outbound, WATCH_S + CALL_S)

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """See `Coordinator`."""
        outbound = swap_record(self.cluster, self.name, record, revision)
        try:
            return await self.peers.call(self.address, outbound)
        except WhimbrelError:
            found, number = await self.read()
            return found == record, found, number

    async def close(self) -> None:
        """See `Coordinator`; channels are closed by their owner."""
