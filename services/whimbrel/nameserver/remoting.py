"""What a nameserver answers by RocketMQ's remoting protocol: as a RocketMQ name server does, over our tables.

    105            where a topic's queues are (`TopicRouteData`)
    106            all brokers (`ClusterInfo`)
    206 224 304    topics: all, of a cluster, of brokers' own; 311 312 313 those with unit flags
    216            a topic that is to be gone: brokers delete it, and the reply waits for their word
    205 327        the write bit of a broker, out of routes and back (`registry.py`)
    100 101 102    values of tools (`kv_table.py`); 219 all of a namespace
    319            settings; 318 changes none of them
    103 104 322    RocketMQ's brokers register by these: refused, since they don't speak gRPC to our clients

Differences to RocketMQ 4.9.3, on purpose:

- 105 names an unknown topic as such (17), never the queues that a send would make: clients of RocketMQ 4 ask
  for `TBW102` themselves. That one is answered with brokers that let topics be made (the inherit bit). Before
  this nameserver is settled, an unknown topic gets SYSTEM_ERROR, and so does TBW102 whatever is known of it:
  clients fall back to it after any failure, and would send a topic that exists to the wrong queues.
- A route has the order of a topic (`orderTopicConf`) where one was put. RocketMQ wants `orderMessageEnable`.
- Brokers decide which topics there are, so 216 removes nothing: it waits until no broker has the topic, for
  `DELETE_WAIT_S` at most, and fails with their names. Tools delete it at brokers first (215).
- Whoever changes something must be allowed to (`admin_access.py`).
- Nothing is left without a reply; RocketMQ 4.9.3 has none for codes that it does not know.

The protocol does not say which host a client dialled. So it is told brokers as an access point would be whose
host is the address at which it came in (`addresses.py`): 127.0.0.1 to 127.0.0.1, an address of the network to
the others. Behind a published port that address means nothing outside: brokers need `advertise_host` there.

Bounds: `DELETES_MAX` replies wait; a peer that leaves its replies unread gets no more of them.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotSupported, StoreError, Throttled, WhimbrelError
from whimbrel.model.limits import TOPIC_CHARS_MAX
from whimbrel.model.names import TEMPLATE_TOPIC
from whimbrel.model.topic import INHERIT
from whimbrel.nameserver.addresses import access_of, dial_address, host_of
from whimbrel.nameserver.kv_file import KvStore
from whimbrel.nameserver.kv_table import ORDER_NAMESPACE, KvTable
from whimbrel.nameserver.registry import BrokerIdentity, Registry
from whimbrel.nameserver.route_bodies import (
    STANDARD_VERSION,
    BrokerGroup,
    address_text,
    cluster_info,
    key_values,
    topic_list,
    topic_route,
)
from whimbrel.rpc.remoting.admin_access import AdminAccess, guarded
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply
from whimbrel.rpc.remoting.signatures import NO_ACCOUNTS, Accounts
from whimbrel.rpc.server.handlers import RemotingService

__all__ = ["ADMIN_CODES", "DELETES_MAX", "DELETE_WAIT_S", "NameRequests"]

# What changes something; the setting `remoting_admin` says who may.
ADMIN_CODES: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
DELETE_WAIT_S: Final = 1.0  # a broker tells at once that it has deleted a topic; tools wait for 5 s
DELETES_MAX: Final = 64  # that wait at a time
UNIT, UNIT_SUB = 1, 2  # bits of a topic's system flag (RocketMQ: TopicSysFlag)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingDelete:
    """A reply that waits until brokers have deleted a topic; `cluster`: of this one alone, empty for all."""

    topic: str
    cluster: str
    reply: Deferred[Reply]


class NameRequests:
    """The handlers; `service` is what to serve.

    Args:
        registry: the tables. Its `on_dropped` is this one's.
        kv: the values of tools.
        own: gives the addresses of this machine's interfaces.
        now: gives the registry's time.
        later: calls something after so many seconds.
        admin: who may change something.
        shown: settings that 319 shows; they may be added to.
        accounts: whose signatures are checked.
    """

    def __init__(
        self,
        registry: Registry,
        kv: KvStore,
        *,
        own: Callable[[], Collection[str]],
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        admin: AdminAccess,
        shown: dict[str, str],
        accounts: Accounts = NO_ACCOUNTS,
    ) -> None:
        self.registry, self.kv, self.own, self.now, self.later = registry, kv, own, now, later
        self.shown = shown
        self.deletes: dict[WaitingDelete, None] = {}
        # Lists of topics as bodies, and as of which count of changes they are: to make one takes long.
        self.lists: dict[int | str, bytes] = {}
        self.lists_of = -1
        registry.on_dropped = self.dropped
        reads: dict[int, Handle] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_sub_ununit_topics,
            RequestCode.GET_KV_CONFIG: self.get_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.namespace,
            RequestCode.GET_NAMESRV_CONFIG: self.settings,
        }
        others: dict[int, Handle] = {
            RequestCode.PUT_KV_CONFIG: self.put_value,
            RequestCode.DELETE_KV_CONFIG: self.delete_value,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_writes,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.restore_writes,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.change_settings,
            RequestCode.REGISTER_BROKER: refuse_broker,
            RequestCode.UNREGISTER_BROKER: refuse_broker,
            RequestCode.QUERY_DATA_VERSION: refuse_broker,
        }
        bounded = {code: unless_unread(handle) for code, handle in reads.items()}
        self.service = RemotingService(guarded(bounded | others, ADMIN_CODES, admin, accounts))

    # Routes

    def route(self, peer: Peer, request: Command) -> Reply:
        """Return where a topic's queues are (105)."""
        topic = request.text("topic")
        entries = self.registry.known_route(topic)
        settled = self.registry.settled(self.now())
        if topic == TEMPLATE_TOPIC:
            entries = tuple(entry for entry in entries if settled and entry.queues.permission & INHERIT)
        if not entries and not settled:
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                remark="this name server has just started, and does not know all brokers yet",
            )
        if not entries:
            lack = self.registry.lack()
            return Reply(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic[:TOPIC_CHARS_MAX]}{lack}",
            )
        dial = self.dialler(peer, request)
        rows = [
            (self.group(entry.broker.name, self.registry.addresses(entry.broker), dial), entry.queues)
            for entry in entries
        ]
        standard = request.version >= STANDARD_VERSION or request.boolean("acceptStandardJsonOnly")
        order = self.kv.table.get(ORDER_NAMESPACE, topic) or None
        return Reply(body=[topic_route(rows, order=order, standard=standard)])

    def cluster(self, peer: Peer, request: Command) -> Reply:
        """Return all brokers, each under its own id (106)."""
        dial = self.dialler(peer, request)
        groups = [
            self.group(name, {live.broker.id: live.broker for live in self.registry.holders(name)}, dial)
            for name in sorted(self.registry.groups)
        ]
        return Reply(body=[cluster_info(groups)])

    def group(
        self, name: str, members: Mapping[int, BrokerIdentity], dial: Callable[[BrokerIdentity], str]
    ) -> BrokerGroup:
        """Return a group with addresses that a client can dial."""
        cluster = self.registry.groups[name].cluster
        return BrokerGroup(cluster, name, {id_: dial(broker) for id_, broker in members.items()})

    def dialler(self, peer: Peer, request: Command) -> Callable[[BrokerIdentity], str]:
        """Return what gives the address under which a peer dials a broker."""
        own = self.own()
        access = access_of([host_of(peer.local)], peer=host_of(peer.peer), own=own, meanings={})

        def dial(broker: BrokerIdentity) -> str:
            return address_text(*dial_address(broker.address, access, own), request.language)

        return dial

    # Topics

    def listed(self, key: int | str, find: Callable[[], Collection[str]]) -> Reply:
        """Return a list of topics, which is made anew only when one of them may have changed.

        Args:
            key: names the list: the request's code, or a cluster that is known.
            find: gives the names.
        """
        if self.lists_of != self.registry.topic_changes:
            self.lists.clear()
            self.lists_of = self.registry.topic_changes
        body = self.lists.get(key)
        if body is None:
            body = self.lists[key] = topic_list(find())
        return Reply(body=[body])

    def all_topics(self, peer: Peer, request: Command) -> Reply:
        """Return the names of all topics (206)."""
        return self.listed(request.code, lambda: self.registry.topics)

    def cluster_topics(self, peer: Peer, request: Command) -> Reply:
        """Return those that a broker of a cluster has (224); none for an unknown cluster."""
        cluster = request.text("cluster")
        names = self.registry.clusters.get(cluster)
        if names is None:
            return Reply(body=[topic_list(())])
        topics = self.registry.topics
        return self.listed(cluster, lambda: [name for name in topics if not names.isdisjoint(topics[name])])

    def system_topics(self, peer: Peer, request: Command) -> Reply:
        """Return names of clusters and brokers, which are topics as well, and a broker's address (304)."""
        names = [*sorted(self.registry.groups), *sorted(self.registry.clusters)]
        first = next(self.registry.brokers(), None)
        address = None if first is None else self.dialler(peer, request)(first.broker)
        return Reply(body=[topic_list(names, address)])

    def unit_topics(self, peer: Peer, request: Command) -> Reply:
        """Return those of a unit (311)."""
        return self.listed(request.code, lambda: self.flagged(UNIT, UNIT))

    def unit_sub_topics(self, peer: Peer, request: Command) -> Reply:
        """Return those with a unit's subscription (312)."""
        return self.listed(request.code, lambda: self.flagged(UNIT_SUB, UNIT_SUB))

    def unit_sub_ununit_topics(self, peer: Peer, request: Command) -> Reply:
        """Return those with a unit's subscription that are none of a unit (313)."""
        return self.listed(request.code, lambda: self.flagged(UNIT | UNIT_SUB, UNIT_SUB))

    def flagged(self, mask: int, wanted: int) -> list[str]:
        """Return the topics whose flags, at the first of their brokers, are the wanted ones within a mask."""
        return [
            topic
            for topic, brokers in self.registry.topics.items()
            if next(iter(brokers.values())).system_flag & mask == wanted
        ]

    def delete_topic(self, peer: Peer, request: Command) -> Outcome:
        """Reply once no broker has a topic any more (216).

        Raises:
            Throttled: too many wait.
        """
        waiting = WaitingDelete(request.text("topic"), request.fields.get("clusterName", ""), Deferred())
        if not self.brokers_with(waiting):
            return Reply()
        if len(self.deletes) >= DELETES_MAX:
            raise Throttled(f"{DELETES_MAX} topics are waited for already")
        self.deletes[waiting] = None
        self.later(DELETE_WAIT_S, lambda: self.not_dropped(waiting))
        return waiting.reply

    def brokers_with(self, waiting: WaitingDelete) -> list[str]:
        """Return the brokers that still have a topic, of the cluster that is meant."""
        registry = self.registry
        return [
            name
            for name in sorted(registry.topics.get(waiting.topic, {}))
            if waiting.cluster in ("", registry.groups[name].cluster)
        ]

    def dropped(self, topic: str) -> None:
        """Reply to those who wait for a topic that a broker has lost, if it was the last one."""
        for waiting in [each for each in self.deletes if each.topic == topic]:
            if not self.brokers_with(waiting):
                del self.deletes[waiting]
                waiting.reply.complete(Reply())

    def not_dropped(self, waiting: WaitingDelete) -> None:
        """Fail a deletion whose time is over."""
        if waiting in self.deletes:
            del self.deletes[waiting]
            names = ", ".join(self.brokers_with(waiting))
            waiting.reply.fail(
                BadRequest(
                    f"topic {waiting.topic} stays, since brokers have it: {names}. Delete it there, as"
                    " mqadmin deleteTopic does"
                )
            )

    # Permissions

    def wipe_writes(self, peer: Peer, request: Command) -> Reply:
        """Take a broker's write bit out of routes (205)."""
        name = request.text("brokerName")
        count = self.registry.wipe_writes(name)
        if name in self.registry.wiped:
            logger.warning("%s has taken the write bit of %s out of routes", peer.peer, name)
        return Reply(fields={"wipeTopicCount": str(count)})

    def restore_writes(self, peer: Peer, request: Command) -> Reply:
        """Put it back (327)."""
        name = request.text("brokerName")
        if name in self.registry.wiped:
            logger.info("%s has put the write bit of %s back into routes", peer.peer, name)
        return Reply(fields={"addTopicCount": str(self.registry.restore_writes(name))})

    # Values

    def get_value(self, peer: Peer, request: Command) -> Reply:
        """Return a value (101)."""
        namespace, key = request.text("namespace"), request.text("key")
        value = self.kv.table.get(namespace, key)
        if value is None:
            return not_found(f"No config item, Namespace: {shortened(namespace)} Key: {shortened(key)}")
        return Reply(fields={"value": value})

    def namespace(self, peer: Peer, request: Command) -> Reply:
        """Return all values of a namespace (219)."""
        namespace = request.text("namespace")
        found = self.kv.table.namespaces.get(namespace)
        if found is None:
            return not_found(f"No config item, Namespace: {shortened(namespace)}")
        return Reply(body=[key_values(found)])

    def put_value(self, peer: Peer, request: Command) -> Reply:
        """Keep a value (100)."""
        namespace, key, value = request.text("namespace"), request.text("key"), request.text("value")
        self.change_values(self.kv.table.put(namespace, key, value))
        logger.info("%s has put %s of %s", peer.peer, shortened(key), shortened(namespace))
        return Reply()

    def delete_value(self, peer: Peer, request: Command) -> Reply:
        """Forget a value (102); one that is not there is no error, and costs no write."""
        namespace, key = request.text("namespace"), request.text("key")
        if self.kv.table.get(namespace, key) is not None:
            self.change_values(self.kv.table.delete(namespace, key))
            logger.info("%s has deleted %s of %s", peer.peer, shortened(key), shortened(namespace))
        return Reply()

    def change_values(self, after: KvTable) -> None:
        """Replace the values; which path the disk refuses is for the log alone.

        Raises:
            WhimbrelError: the disk refuses.
        """
        try:
            self.kv.change(after)
        except StoreError as error:
            logger.error("%s", error)
            raise WhimbrelError(
                "the disk of this name server refuses the file of these values; its log says more"
            ) from error

    # Settings

    def settings(self, peer: Peer, request: Command) -> Reply:
        """Return settings as properties (319)."""
        return Reply(
            body=["".join(f"{name}={value}\n" for name, value in sorted(self.shown.items())).encode()]
        )

    def change_settings(self, peer: Peer, request: Command) -> NoReturn:
        """Refuse (318): RocketMQ wrote files anywhere by this one."""
        raise NotSupported(
            "no setting of this name server changes while it runs: change it in its file or environment, and"
            " start it again"
        )


def unless_unread(handle: Handle) -> Handle:
    """Return a handler that refuses peers that leave too much unread: replies are longer than requests."""

    def checked(peer: Peer, request: Command) -> Outcome:
        if peer.overloaded:
            raise Throttled("this client does not read its replies")
        return handle(peer, request)

    return checked


def refuse_broker(peer: Peer, request: Command) -> NoReturn:
    """Refuse a broker of RocketMQ (103, 104, 322)."""
    raise NotSupported(
        "brokers of RocketMQ can't register here, only whimbrel's can: leave them with a name server of"
        " RocketMQ, or let a whimbrel broker serve their store"
    )


def not_found(remark: str) -> Reply:
    """Return the reply about a value that is not there."""
    return Reply(ResponseCode.QUERY_NOT_FOUND, fields={}, remark=remark)


def shortened(text: str) -> str:
    """Return the begin of a text that a stranger has chosen."""
    return text if len(text) <= TOPIC_CHARS_MAX else f"{text[:TOPIC_CHARS_MAX]}..."
