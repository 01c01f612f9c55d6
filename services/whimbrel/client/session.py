"""The base of every client: channels, headers, routes, Telemetry streams and heartbeats.

    access point (nameservers)   QueryRoute, QueryAssignment, DescribeCluster; after a failure the next one
    each broker in a route       everything else; one Telemetry stream and heartbeats, from its first use on

A broker's Telemetry stream is opened again for as long as the broker stands in a route. The settings are
written first on each new stream, so that a restarted broker learns them without asking.
"""

import asyncio
import logging
import platform
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TypeVar

import grpc.aio

import whimbrel
from whimbrel.client.addresses import Addresses
from whimbrel.client.ids import client_id
from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import FirstContact, decide
from whimbrel.client.routes import RouteCache
from whimbrel.errors import (
    BadRequest,
    ClientError,
    ConnectionClosed,
    IllegalAccessPoint,
    NoBroker,
    NotSupported,
    RequestError,
    RequestTimeout,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
)
from whimbrel.model.cluster import Cluster
from whimbrel.model.message import Filter, ReceivedMessage
from whimbrel.model.names import is_text, no_text
from whimbrel.model.route import Endpoint, Queue, Route, parse_endpoints
from whimbrel.model.wire import (
    CLIENT_ID_HEADER,
    DATE_TIME_HEADER,
    LANGUAGE_HEADER,
    NAMESPACE_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_V2,
    REGISTRY_SERVICE,
    REQUEST_ID_HEADER,
    VERSION_HEADER,
)
from whimbrel.rpc.api import admin_calls, calls, telemetry_stream
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.convert import ClientSettings, ServerSettings
from whimbrel.rpc.client.channel import open_aio_channel

__all__ = ["BaseClient", "Session", "parse_access_point"]

T = TypeVar("T")

REOPEN_S = 1.0  # pause before a broken Telemetry stream is opened again; the official SDKs take 1 to 5 s
TERMINATION_S = 1.0  # how long closing waits for a broker to take the notice
CLUSTER_TTL_S = 5.0  # how long a description of the cluster is used to find a slave's address

UNKNOWN_METHOD = "Method not found!"  # grpcio's text for an unknown path

logger = logging.getLogger(__name__)


def parse_access_point(text: str) -> tuple[Endpoint, ...]:
    """Return the nameservers' endpoints in `HOST:PORT` or `HOST:PORT;HOST:PORT`.

    Raises:
        IllegalAccessPoint: the text is no such list.
    """
    try:
        return parse_endpoints(text)
    except ValueError as error:
        raise IllegalAccessPoint(str(error)) from error


class Session:
    """One client's connections. Belongs to the event loop in which `start` was called.

    Public methods: start, close, call, ask, route, cluster, endpoint, broker_endpoint, announce.

    Attributes:
        access: endpoints of the nameservers.
        options: as given.
        client_id: how brokers tell clients apart.
        host_name: of this machine.
        server: the last settings that a server sent.
        routes: the cached routes.
    """

    def __init__(
        self, endpoint: str, options: ClientOptions, describe: Callable[["Session"], ClientSettings]
    ) -> None:
        """Prepare a session; nothing is sent before `start`.

        Args:
            endpoint: the access point.
            options: of the client.
            describe: makes the settings that are written on a new stream.
        """
        self.access = parse_access_point(endpoint)
        for text in (options.client_id, options.namespace):
            if not is_text(text):
                raise BadRequest(no_text(text))
        self.options = options
        self.host_name = socket.gethostname()
        self.client_id = options.client_id or client_id(self.host_name)
        self.server = ServerSettings()
        self.informed: dict[Endpoint, asyncio.Event] = {}  # by server: whether it has sent settings
        self.routes = RouteCache(options.route_ttl_s)
        self.addresses = Addresses()
        self.describe = describe
        self.channels: dict[Endpoint, grpc.aio.Channel] = {}
        self.streams: dict[Endpoint, asyncio.Task[None]] = {}
        self.fetches: dict[str, asyncio.Task[Route]] = {}
        self.heartbeat_task: asyncio.Task[None] | None = None
        self.contact = FirstContact(options.retry)
        self.on_asked: Callable[[Endpoint, ReceivedMessage], None] | None = None  # about a transaction
        self.open_streams: dict[Endpoint, telemetry_stream.TelemetryStream] = {}
        self.preferred = 0  # index of the last nameserver that responded
        self.known_cluster: tuple[float, Cluster] | None = None
        self.headers = (
            (CLIENT_ID_HEADER, self.client_id),
            (LANGUAGE_HEADER, "PYTHON"),
            (VERSION_HEADER, whimbrel.__version__),
            (PROTOCOL_HEADER, PROTOCOL_V2),
            (NAMESPACE_HEADER, options.namespace),
        )

    @property
    def started(self) -> bool:
        """Whether `start` was called and `close` was not."""
        return self.heartbeat_task is not None

    def start(self) -> None:
        """Start to send heartbeats; brokers are added as they are used."""
        if self.heartbeat_task is None:
            self.heartbeat_task = asyncio.create_task(self.send_heartbeats())

    async def close(self) -> None:
        """Report the end to the brokers, and close everything; calls under way fail."""
        if self.heartbeat_task is None:
            return
        tasks = [self.heartbeat_task, *self.streams.values(), *self.fetches.values()]
        self.heartbeat_task = None
        settings = self.describe(self)
        termination = calls.notify_termination(settings.group, self.options.namespace)
        await asyncio.gather(
            *(self.try_call(endpoint, termination, TERMINATION_S) for endpoint in self.streams)
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.streams.clear()
        channels = list(self.channels.values())
        self.channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    async def call(self, endpoint: Endpoint, call: Outbound[T], timeout_s: float | None = None) -> T:
        """Make one call, once.

        Raises:
            WhimbrelError: the call's error; `Unavailable` and `RequestTimeout` name the endpoint.
        """
        timeout = self.options.request_timeout_s if timeout_s is None else timeout_s
        headers = (
            *self.headers,
            (REQUEST_ID_HEADER, str(uuid.uuid4())),
            (DATE_TIME_HEADER, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")),
        )
        try:
            answer = await calls.perform(self.channel(endpoint), call, headers, timeout)
        except (Unavailable, ConnectionClosed) as error:
            self.addresses.failed(endpoint, time.monotonic())
            raise Unavailable(f"no answer from {endpoint}: {plain(str(error))}") from error
        except asyncio.CancelledError:
            # grpcio cancels the calls of a channel that is closed: its broker has left the route.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable(f"no answer from {endpoint}: the connection was closed") from None
        except RequestTimeout as error:
            self.addresses.failed(endpoint, time.monotonic())
            raise RequestTimeout(f"no answer from {endpoint} within {timeout:.3g} s") from error
        except NotSupported as error:
            if str(error) != UNKNOWN_METHOD:
                raise
            raise NotSupported(await self.not_served(endpoint, call.path.split("/")[1])) from error
        self.addresses.answered(endpoint)
        return answer

    async def not_served(self, endpoint: Endpoint, service: str) -> str:
        """Return why a server does not serve a call: one that serves what only brokers serve is a broker."""
        if service == REGISTRY_SERVICE:
            headers = (*self.headers, (REQUEST_ID_HEADER, str(uuid.uuid4())))
            describe = admin_calls.describe_replication()
            try:
                broker = await calls.perform(
                    self.channel(endpoint), describe, headers, self.options.request_timeout_s
                )
            except WhimbrelError as error:
                logger.debug("%s is no broker either: %s", endpoint, error)
            else:
                return (
                    f"{endpoint} is the address of the broker {broker.broker_name} ({broker.role}), not of a"
                    " nameserver: give the nameserver's"
                )
        return f"{endpoint} does not serve {service}"

    async def ask(self, call: Outbound[T]) -> T:
        """Ask the nameservers in turn, starting with the last one that responded.

        Raises:
            ClusterUnreachable: none has ever responded to this client, and trying on is of no use.
            WhimbrelError: the first one's, when none responds; an error of the request itself is final.
        """
        contact = self.contact
        began = time.monotonic()
        failures: list[WhimbrelError] = []
        for step in range(len(self.access)):
            index = (self.preferred + step) % len(self.access)
            timeout = self.options.request_timeout_s
            if not contact.reached:
                timeout = min(timeout, contact.timeout_s(time.monotonic(), len(self.access) - step))
            try:
                response = await self.call(self.access[index], call, timeout)
            except WhimbrelError as error:
                if not isinstance(error, ClientError):
                    contact.succeed()
                if isinstance(error, RequestError):
                    self.preferred = index
                    raise
                failures.append(error)
            else:
                contact.succeed()
                self.preferred = index
                return response
        if contact.reached or not self.started:
            raise failures[0]
        raise contact.fail(failures, began, time.monotonic())

    async def route(self, topic: str) -> Route:
        """Return a topic's route, from the cache when it is young enough.

        Raises:
            TopicNotFound: there is no such topic.
            WhimbrelError: no nameserver responds, and no route is known.
        """
        known = self.routes.get(topic, time.monotonic())
        if known is not None:
            return known
        fetch = self.fetches.get(topic)
        if fetch is None:
            fetch = asyncio.create_task(self.fetch(topic))
            self.fetches[topic] = fetch
            fetch.add_done_callback(lambda done: self.fetched(topic, done))
        return await asyncio.shield(fetch)

    def fetched(self, topic: str, fetch: asyncio.Task[Route]) -> None:
        self.fetches.pop(topic, None)
        if not fetch.cancelled():
            fetch.exception()  # retrieved, so that asyncio does not log it when nobody waits

    async def fetch(self, topic: str) -> Route:
        policy = self.options.retry
        attempt = 0
        while True:
            attempt += 1
            try:
                query = calls.query_route(topic, self.access, self.options.namespace)
                route = await self.ask(query)
            except TopicNotFound as error:
                self.routes.forget(topic)
                if await self.brokerless():
                    address = self.access[self.preferred]
                    raise NoBroker(f"no broker is registered with the nameserver at {address}") from error
                raise
            except WhimbrelError as error:
                stale = self.routes.stale(topic)
                if stale is not None:
                    logger.warning("kept the old route of %s: %s", topic, error)
                    self.routes.put(stale, time.monotonic() - self.options.route_ttl_s + REOPEN_S)
                    return stale
                decision = decide(error, attempt, policy, repeatable=True)
                if not decision.again:
                    raise
                await asyncio.sleep(decision.pause_s)
            else:
                self.routes.put(route, time.monotonic())
                return route

    async def brokerless(self) -> bool:
        """Return whether the nameserver says that it knows no broker at all, so that no topic can exist."""
        try:
            return not (await self.cluster()).brokers
        except WhimbrelError as error:
            logger.debug("can't learn whether there are brokers: %s", error)
            return False

    async def cluster(self, *, fresh: bool = True) -> Cluster:
        """Return the live brokers; with `fresh` False those of a few seconds ago will do."""
        now = time.monotonic()
        if not fresh and self.known_cluster is not None and now - self.known_cluster[0] < CLUSTER_TTL_S:
            return self.known_cluster[1]
        index = self.preferred % len(self.access)
        cluster = await self.ask(admin_calls.describe_cluster(self.access[index].host))
        self.known_cluster = (now, cluster)
        return cluster

    def endpoint(self, queue: Queue) -> Endpoint:
        """Return at which of its addresses to call a queue's broker now; it is noted as in use."""
        endpoints = queue.endpoints
        chosen = endpoints[0] if len(endpoints) == 1 else self.addresses.choose(endpoints, time.monotonic())
        self.use(chosen)
        return chosen

    async def broker_endpoint(self, queue: Queue, broker_id: int) -> Endpoint | None:
        """Return where the broker of this id in a queue's group is; None when it is not known to live."""
        if broker_id == queue.broker_id:
            return self.endpoint(queue)
        for other in (self.routes.stale(queue.topic) or Route(queue.topic, ())).queues:
            if other.broker_name == queue.broker_name and other.broker_id == broker_id:
                return self.endpoint(other)
        for broker in (await self.cluster(fresh=False)).brokers:
            if broker.broker_name == queue.broker_name and broker.broker_id == broker_id:
                return broker.endpoint()
        return None

    def use(self, endpoint: Endpoint) -> None:
        """Note that a broker is in use: open its Telemetry stream if it has none."""
        if self.heartbeat_task is not None and endpoint not in self.streams:
            self.streams[endpoint] = asyncio.create_task(self.keep_stream(endpoint))

    async def settings_of(self, endpoint: Endpoint) -> ServerSettings:
        """Return the settings, once a server that is in use has sent them.

        Raises:
            RequestTimeout: it has not, in a call's time.
        """
        self.use(endpoint)
        informed = self.informed.setdefault(endpoint, asyncio.Event())
        if not informed.is_set():
            timeout = self.options.request_timeout_s
            try:
                await asyncio.wait_for(informed.wait(), timeout)
            except TimeoutError:
                self.addresses.failed(endpoint, time.monotonic())
                raise RequestTimeout(f"no settings from {endpoint} within {timeout:.3g} s") from None
        return self.server

    def channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        channel = self.channels.get(endpoint)
        if channel is None:
            if self.heartbeat_task is None:
                raise ClientError("the client is not started, or closed already")
            channel = self.channels[endpoint] = open_aio_channel(
                str(endpoint), transport=self.options.transport
            )
        return channel

    async def try_call(self, endpoint: Endpoint, call: Outbound[None], timeout_s: float) -> None:
        try:
            await calls.perform(
                self.channels[endpoint],
                call,
                (*self.headers, (REQUEST_ID_HEADER, str(uuid.uuid4()))),
                timeout_s,
            )
        except (WhimbrelError, KeyError) as error:
            logger.debug("%s %s: %s", call.path, endpoint, error)

    async def send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_s)
            live = self.routes.endpoints()
            for endpoint in [endpoint for endpoint in self.streams if endpoint not in live]:
                await self.disconnect(endpoint)
            settings = self.describe(self)
            heartbeat = calls.heartbeat(settings.client_type, settings.group, self.options.namespace)
            await asyncio.gather(
                *(
                    self.try_call(endpoint, heartbeat, self.options.request_timeout_s)
                    for endpoint in self.streams
                )
            )

    async def disconnect(self, endpoint: Endpoint) -> None:
        self.streams.pop(endpoint).cancel()
        self.informed.pop(endpoint, None)
        channel = self.channels.get(endpoint)
        if channel is not None and endpoint not in self.access:
            del self.channels[endpoint]
            await channel.close(grace=self.options.request_timeout_s)

    async def keep_stream(self, endpoint: Endpoint) -> None:
        while True:
            stream = telemetry_stream.TelemetryStream(self.channel(endpoint), self.headers, endpoint)
            try:
                await stream.write_settings(self.describe(self))
                self.open_streams[endpoint] = stream
                await self.read_commands(stream)
            except WhimbrelError as error:
                logger.debug("telemetry stream to %s: %s", endpoint, error)
            finally:
                self.open_streams.pop(endpoint, None)
                stream.cancel()
            await asyncio.sleep(REOPEN_S)

    async def announce(self) -> None:
        """Write the settings, which have changed, on all open streams."""
        for endpoint, stream in list(self.open_streams.items()):
            try:
                await stream.write_settings(self.describe(self))
            except WhimbrelError as error:  # the next stream begins with them
                logger.debug("telemetry stream to %s: %s", endpoint, error)

    async def read_commands(self, stream: telemetry_stream.TelemetryStream) -> None:
        while (command := await stream.read()) is not None:
            match command:
                case telemetry_stream.Settings(settings):
                    self.server = settings
                    self.informed.setdefault(stream.endpoint, asyncio.Event()).set()
                case telemetry_stream.SettingsRefused(error):
                    logger.warning("the server refuses this client's settings: %s", error)
                case telemetry_stream.Reconnect():
                    return
                case telemetry_stream.StackTraceRequested(nonce):
                    await stream.send_stack_trace(nonce, stacks())
                case telemetry_stream.TransactionAsked(message):
                    if self.on_asked is not None:
                        self.on_asked(stream.endpoint, message)
                case telemetry_stream.VerificationRequested(nonce):
                    await stream.refuse_verification(nonce)


class BaseClient:
    """Base of producers and consumers: a session, started and closed with `async with` or by hand."""

    def __init__(self, endpoint: str, options: ClientOptions) -> None:
        """Prepare; nothing is sent before `start`."""
        self.session = Session(endpoint, options, lambda session: self.settings(session))

    def settings(self, session: Session) -> ClientSettings:
        raise NotImplementedError

    async def start(self) -> None:
        """Make the client usable; needs a running loop, and sends nothing yet.

        Raises:
            BadRequest: a name of the client's, of a topic or of a group is not UTF-8.
        """
        settings = self.settings(self.session)
        for text in settings.texts():
            if not is_text(text):
                raise BadRequest(no_text(text))
        self.session.start()

    async def close(self) -> None:
        """Report the end to the brokers, and close the connections."""
        await self.session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def common_settings(
        self,
        client_type: str,
        *,
        group: str = "",
        topics: tuple[str, ...] = (),
        subscriptions: tuple[tuple[str, Filter], ...] = (),
    ) -> ClientSettings:
        session = self.session
        return ClientSettings(
            client_type=client_type,
            access=session.access,
            version=whimbrel.__version__,
            platform=f"{platform.system()} {platform.machine()}",
            host_name=session.host_name,
            request_timeout_s=session.options.request_timeout_s,
            group=group,
            topics=topics,
            subscriptions=subscriptions,
            namespace=session.options.namespace,
        )


def plain(details: str) -> str:
    """Return the essential part of grpcio's text, `failed to connect to all addresses; last error: ...`."""
    lowered = details.lower()
    if "connection refused" in lowered:
        return "connection refused"
    if (
        "dns resolution failed" in lowered
        or "domain name not found" in lowered
        or "name or service" in lowered
    ):
        return "the host name can't be resolved"
    return details.rpartition("last error: ")[2]


def stacks() -> str:
    names = {frame_id: frame for frame_id, frame in sys._current_frames().items()}
    return "\n".join(
        f"thread {frame_id}\n{''.join(traceback.format_stack(frame))}" for frame_id, frame in names.items()
    )
