"""The record of a group kept by Kubernetes: in a Lease of its own, as an annotation.

    apiVersion: coordination.k8s.io/v1
    kind: Lease
    metadata:
      name: whimbrel-defaultcluster-broker-a-1b2c3d4e    of the names of cluster and group, and a hash
      annotations:
        whimbrel/group-record: {"v":1, ...}              the record
        whimbrel/revision: "7"                           counts its changes: resourceVersion has no order
    spec:
      holderIdentity: broker-a/2                         for `kubectl get leases`: who leads
      leaseTransitions: 7                                the epoch

Nothing expires: no duration is set, and nobody renews. A swap is an update that names the resourceVersion
that was read (409: somebody was first), or a create where there is no Lease. A swap without an answer is
settled by a read.

**A watch** reads every `POLL_S`, for `WATCH_S`, and ends with an update that is not done (`dryRun=All`), so
that `trouble` tells a missing permission before an election needs it.
"""

import asyncio
import copy
import hashlib
import re
from typing import Any, Final

from whimbrel.broker.elections.coordinator import WATCH_S
from whimbrel.broker.elections.known_record import KnownRecord
from whimbrel.broker.elections.kubernetes_api import Answer, KubernetesApi
from whimbrel.errors import ClientError, NotReady, PeerError, RemoteProtocolError, Unavailable
from whimbrel.model.group_record import GroupRecord

__all__ = ["KubernetesCoordinator", "lease_name"]

POLL_S: Final = 0.5
RECORD, REVISION = "whimbrel/group-record", "whimbrel/revision"
REVISION_DIGITS_MAX: Final = 18
SLUG_CHARS_MAX: Final = 40
API: Final = "apis/coordination.k8s.io/v1"


def lease_name(cluster: str, name: str) -> str:
    """Return the name of a group's Lease; Kubernetes allows fewer characters than we do."""
    slug = re.sub("[^a-z0-9]+", "-", f"{cluster}-{name}".lower())[:SLUG_CHARS_MAX].strip("-")
    digest = hashlib.sha256(f"{cluster}/{name}".encode()).hexdigest()[:8]
    return f"whimbrel-{slug}-{digest}" if slug else f"whimbrel-{digest}"


class KubernetesCoordinator:
    """The record is kept by Kubernetes.

    Attributes:
        trouble: see `Coordinator`.
        lease: the object as it was read last; None where there was none.
    """

    def __init__(self, api: KubernetesApi, *, namespace: str, cluster: str, name: str) -> None:
        """Take how Kubernetes is asked, and which group's record this is about."""
        self.api, self.namespace, self.name = api, namespace, name
        self.object = lease_name(cluster, name)
        self.leases = f"/{API}/namespaces/{namespace}/leases"
        self.known = KnownRecord(
            f"{cluster}/{name}", f"annotation {RECORD} of Lease {namespace}/{self.object}"
        )
        self.lease: dict[str, Any] | None = None
        self.read_once = False
        self.trouble = ""

    async def read(self) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        before = self.known.revision
        answer = await self.api.exchange("GET", f"{self.leases}/{self.object}")
        if answer.status == 404:
            found = self.known.take(None, 0, before)
            self.lease = None
        else:
            self.expect(answer, 200)
            found = self.take(answer.body, before)
        self.read_once = True
        return found

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        for _ in range(round(WATCH_S / POLL_S)):
            found, number = await self.read()
            if number != revision:
                return found, number
            await asyncio.sleep(POLL_S)
        record = found or GroupRecord(group="0" * 32, epoch=1, leader=0, voters=((1, "0" * 32),), acks=1)
        try:
            answer = await self.put(record, number, query="?dryRun=All")
            if answer.status != 409:
                self.expect(answer, 200, 201)
            self.trouble = ""
        except (ClientError, PeerError):
            raise
        except NotReady as error:
            self.trouble = str(error)
        return found, number

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """See `Coordinator`."""
        if revision != self.known.revision or not self.read_once:
            found, number = await self.read()
            if number != revision:
                return False, found, number
        self.known.check_swap(record)
        before = self.known.revision
        try:
            answer = await self.put(record, revision)
        except (ClientError, PeerError):
            found, number = await self.read()
            return found == record, found, number
        if answer.status == 409:
            found, number = await self.read()
            return found == record, found, number
        self.expect(answer, 200, 201)
        found, number = self.take(answer.body, before)
        return found == record, found, number

    async def put(self, record: GroupRecord, revision: int, query: str = "") -> Answer:
        """Ask to update the Lease that was read, or to create one."""
        lease = copy.deepcopy(self.lease) or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.object, "namespace": self.namespace},
        }
        annotations = lease["metadata"].setdefault("annotations", {})
        annotations |= {RECORD: record.encode().decode(), REVISION: str(revision + 1)}
        lease["spec"] = dict(lease.get("spec") or {}) | {
            "holderIdentity": f"{self.name}/{record.leader}",
            "leaseTransitions": record.epoch,
        }
        if self.lease is None:
            return await self.api.exchange("POST", self.leases + query, lease)
        return await self.api.exchange("PUT", f"{self.leases}/{self.object}{query}", lease)

    def take(self, lease: dict[str, Any], before: int) -> tuple[GroupRecord | None, int]:
        """Return the record that a Lease holds, and its revision.

        Raises:
            NotReady: it can't be the group's record.
            RemoteProtocolError: that is no Lease.
        """
        metadata = lease.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
            raise RemoteProtocolError("Kubernetes answers an object without a resourceVersion")
        annotations = metadata.get("annotations") or {}
        text, number = annotations.get(RECORD), annotations.get(REVISION)
        if text is None and number is None and not before:
            self.lease = lease  # made by somebody else, and not used yet
            return None, 0
        revision = revision_of(number)
        if not revision:
            raise NotReady(
                f"the annotation {REVISION} of Lease {self.namespace}/{self.object} is no number, so somebody"
                " else has written it: put the group's newest record back there, as docs/failover.md says"
            )
        value = text.encode() if isinstance(text, str) else b""
        found = self.known.take(value, revision, before)
        if revision >= self.known.revision:
            self.lease = lease
        return found

    def expect(self, answer: Answer, *statuses: int) -> None:
        """Refuse another answer than one of these.

        Raises:
            Unavailable: the server can't now.
            NotReady: it refuses.
        """
        status, said = answer.status, answer.message
        if status in statuses:
            return
        if status == 401:
            raise NotReady("Kubernetes does not know the token of this pod: see coordinator_token_file")
        if status == 403:
            raise NotReady(
                "Kubernetes denies the permission: grant get, create and update on leases of"
                f" coordination.k8s.io in namespace {self.namespace} to the pod's service account ({said})"
            )
        if status == 404:
            raise NotReady(f"Kubernetes has no namespace {self.namespace}, or no Leases ({said})")
        if status == 429 or status >= 500:
            raise Unavailable(f"Kubernetes can't answer now ({status}: {said})")
        raise NotReady(f"Kubernetes refuses the group's Lease ({status}: {said})")

    async def close(self) -> None:
        """See `Coordinator`; each exchange has closed its connection."""


def revision_of(text: Any) -> int:
    """Return the number in an annotation, 0 where there is none."""
    plain = isinstance(text, str) and text.isascii() and text.isdecimal()
    return int(text) if plain and len(text) <= REVISION_DIGITS_MAX else 0
