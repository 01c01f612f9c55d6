"""A whole cluster in one small server, for tests of the client: nameserver, master and slave by their calls.

Messages lie in lists, leases have no clock, and the next answers can be made to fail. It checks nothing that
the tests of the real services check.
"""

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from whimbrel.deferred import Deferred
from whimbrel.errors import AlreadyExists, GroupNotFound, TopicNotFound, WouldHide
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as service
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.limits import RunningServer
from whimbrel.rpc.server.serving import serve

__all__ = ["FakeCluster", "running", "running_in_thread"]

OK = v2.Status(code=v2.OK, message="OK")


class FakeStream:
    """A Telemetry stream: answers settings."""

    def __init__(self, cluster: "FakeCluster", outbox: Outbox) -> None:
        self.cluster, self.outbox = cluster, outbox

    def received(self, message: Any) -> None:
        self.cluster.commands.append(message)
        if message.HasField("settings"):
            answer = service.TelemetryCommand(status=OK, settings=message.settings)
            answer.settings.backoff_policy.customized_backoff.next.add(nanos=1_000_000)
            answer.settings.backoff_policy.max_attempts = self.cluster.attempts_max
            answer.settings.subscription.fifo = self.cluster.fifo
            self.outbox.send(answer)

    def ask(self, half: Any, transaction_id: str) -> None:
        """Ask what became of a transaction."""
        asked = service.RecoverOrphanedTransactionCommand(message=half, transaction_id=transaction_id)
        self.outbox.send(service.TelemetryCommand(recover_orphaned_transaction_command=asked))

    def half_closed(self) -> None:
        self.outbox.close()

    def closed(self) -> None:
        self.cluster.streams.remove(self)


class FakeCluster:
    """State and handlers. `topics` maps a name to its queues, each a list of stored messages."""

    def __init__(self) -> None:
        self.address = ""
        self.slave_address = ""
        self.topics: dict[str, list[list[Any]]] = {}
        self.groups: dict[str, Any] = {}
        self.position: dict[tuple[str, str, int], int] = defaultdict(int)
        self.attempts: dict[tuple[str, str, int, int], int] = defaultdict(int)
        self.leased: dict[str, tuple[str, str, int, int]] = {}
        self.back: deque[tuple[str, str, int, int]] = deque()
        self.acked: list[str] = []
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.calls: list[tuple[str, Call, Any]] = []
        self.commands: list[Any] = []
        self.streams: list[FakeStream] = []
        self.failures: dict[str, deque[Any]] = defaultdict(deque)  # by method: codes, or errors to raise
        self.fifo, self.attempts_max = False, 0  # what the settings say of every group
        self.halves: dict[str, Any] = {}  # by transaction id, messages whose transaction is open
        self.ended: list[tuple[str, Any, Any]] = []  # transaction id, resolution, source
        self.recallable: dict[str, Any] = {}  # by handle, messages that wait for their time
        self.dead: list[str] = []  # message ids that were forwarded
        self.drained, self.undelivered = False, 0
        self.unread: dict[str, int] = {}  # what topics hold that no group reads
        self.delayed = self.open_transactions = 0
        self.gone: dict[str, list[str]] = {}  # brokers that may be let go of, and their topics
        self.suggest: str | None = None
        self.writable = True
        self.master_registered = True
        self.unsettled = 0  # so many of the next answers say that the nameserver is not settled
        self.first_port = 0  # of an address that routes name before the broker's own; 0: none
        self.auto_create = False  # whether routes of unknown topics are those of topics to be made
        self.parked: list[Deferred[Any]] = []
        self.turn = 0

    def count(self, method: str) -> int:
        """Return how often a method was called."""
        return sum(name == method for name, _, _ in self.calls)

    def services(self, *, nameserver: bool = True) -> list[Service]:
        """Return everything to be served; without a nameserver's part it is a broker's address."""
        unary: dict[str, tuple[Any, Any]] = {
            "QueryRoute": (service.QueryRouteRequest, self.route),
            "QueryAssignment": (service.QueryAssignmentRequest, self.assignment),
            "Heartbeat": (service.HeartbeatRequest, lambda *_: service.HeartbeatResponse(status=OK)),
            "NotifyClientTermination": (
                service.NotifyClientTerminationRequest,
                lambda *_: service.NotifyClientTerminationResponse(status=OK),
            ),
            "SendMessage": (service.SendMessageRequest, self.send),
            "AckMessage": (service.AckMessageRequest, self.ack),
            "ChangeInvisibleDuration": (service.ChangeInvisibleDurationRequest, self.change),
            "EndTransaction": (service.EndTransactionRequest, self.end_transaction),
            "RecallMessage": (service.RecallMessageRequest, self.recall),
            "ForwardMessageToDeadLetterQueue": (
                service.ForwardMessageToDeadLetterQueueRequest,
                self.forward,
            ),
            "UpdateOffset": (service.UpdateOffsetRequest, self.update_offset),
            "GetOffset": (service.GetOffsetRequest, self.get_offset),
            "QueryOffset": (service.QueryOffsetRequest, self.query_offset),
        }
        streams: dict[str, tuple[Any, Any]] = {
            "ReceiveMessage": (service.ReceiveMessageRequest, self.receive),
            "PullMessage": (service.PullMessageRequest, self.pull),
        }
        admins: dict[str, tuple[Any, Any]] = {
            "CreateTopic": (admin.CreateTopicRequest, self.create_topic),
            "UpdateTopic": (admin.UpdateTopicRequest, self.update_topic),
            "DeleteTopic": (admin.DeleteTopicRequest, self.delete_topic),
            "ListTopics": (admin.ListTopicsRequest, self.list_topics),
            "DescribeTopic": (admin.DescribeTopicRequest, self.describe_topic),
            "CreateGroup": (admin.CreateGroupRequest, self.create_group),
            "UpdateGroup": (admin.UpdateGroupRequest, self.update_group),
            "DeleteGroup": (admin.DeleteGroupRequest, self.delete_group),
            "ListGroups": (admin.ListGroupsRequest, self.list_groups),
            "DescribeGroup": (admin.DescribeGroupRequest, self.describe_group),
            "ResetOffsets": (admin.ResetOffsetsRequest, self.reset_offsets),
            "DrainBroker": (admin.DrainBrokerRequest, self.drain),
            "ForgetBroker": (admin.ForgetBrokerRequest, self.forget),
            "DescribeReplication": (admin.DescribeReplicationRequest, self.describe_replication),
        }
        messaging: tuple[Any, ...] = (
            *(
                UnaryMethod(name, kind, self.noted(name, handle), self.failed(name))
                for name, (kind, handle) in unary.items()
            ),
            *(
                ServerStreamMethod(name, kind, self.noted(name, handle))
                for name, (kind, handle) in streams.items()
            ),
            BidiMethod("Telemetry", service.TelemetryCommand, self.open),
        )
        describe = UnaryMethod(
            "DescribeCluster", registry.DescribeClusterRequest, self.noted("DescribeCluster", self.cluster)
        )
        return [
            Service("apache.rocketmq.v2.MessagingService", messaging),
            Service(
                "whimbrel.admin.v1.AdminService",
                tuple(UnaryMethod(name, kind, self.noted(name, fn)) for name, (kind, fn) in admins.items()),
            ),
            *([Service("whimbrel.registry.v1.RegistryService", (describe,))] if nameserver else []),
        ]

    def noted(self, name: str, handle: Any) -> Any:
        """Return the handler that notes its calls, and fails where `failures` says so."""
        answers: dict[str, Any] = {
            "QueryRoute": service.QueryRouteResponse,
            "SendMessage": service.SendMessageResponse,
            "AckMessage": service.AckMessageResponse,
            "EndTransaction": service.EndTransactionResponse,
            "RecallMessage": service.RecallMessageResponse,
            "ForwardMessageToDeadLetterQueue": service.ForwardMessageToDeadLetterQueueResponse,
            "ChangeInvisibleDuration": service.ChangeInvisibleDurationResponse,
            "ReceiveMessage": lambda status: [service.ReceiveMessageResponse(status=status)],
            "PullMessage": lambda status: [service.PullMessageResponse(status=status)],
        }

        def handler(call: Call, request: Any) -> Any:
            self.calls.append((name, call, request))
            if self.failures[name]:
                failure = self.failures[name].popleft()
                if isinstance(failure, Exception):
                    raise failure
                return answers[name](status=v2.Status(code=failure, message="as told"))
            return handle(call, request)

        return handler

    def failed(self, name: str) -> Any:
        """Return the function that turns raised errors into responses: a body, as brokers do for sends."""
        if name != "SendMessage":
            return None
        return lambda call, error: service.SendMessageResponse(
            status=v2.Status(code=error.code, message=str(error))
        )

    def open(self, call: Call, outbox: Outbox) -> FakeStream:
        self.calls.append(("Telemetry", call, None))
        stream = FakeStream(self, outbox)
        self.streams.append(stream)
        return stream

    def queue(self, topic: str, queue_id: int) -> Any:
        host, _, port = self.address.rpartition(":")
        ports = [each for each in (self.first_port, int(port)) if each]
        return v2.MessageQueue(
            topic=v2.Resource(name=topic),
            id=queue_id,
            permission=v2.READ_WRITE if self.writable else v2.READ,
            broker=v2.Broker(
                name="broker-a",
                id=0,
                endpoints=v2.Endpoints(
                    scheme=v2.IPv4, addresses=[v2.Address(host=host, port=each) for each in ports]
                ),
            ),
            accept_message_types=[v2.NORMAL],
        )

    def route(self, call: Call, request: Any) -> Any:
        queues = self.topics.get(request.topic.name)
        if queues is None and self.auto_create:
            queues = [[]]
        if queues is None:
            status = v2.Status(code=v2.TOPIC_NOT_FOUND, message=f"no topic {request.topic.name}")
            return service.QueryRouteResponse(status=status)
        return service.QueryRouteResponse(
            status=OK, message_queues=[self.queue(request.topic.name, i) for i in range(len(queues))]
        )

    def assignment(self, call: Call, request: Any) -> Any:
        return service.QueryAssignmentResponse(
            status=OK,
            assignments=[v2.Assignment(message_queue=self.queue(request.topic.name, -1))],
        )

    def send(self, call: Call, request: Any) -> Any:
        topic = request.messages[0].topic.name
        queues = self.topics[topic]
        self.turn += 1
        queue_id = int(call.metadata.get("whimbrel-queue-id", self.turn % len(queues)))
        entries = []
        for message in request.messages:
            message.system_properties.queue_id = queue_id
            message.system_properties.queue_offset = len(queues[queue_id])
            message.system_properties.store_timestamp.seconds = 1_700_000_000
            message_id = message.system_properties.message_id
            entry = service.SendResultEntry(
                status=OK, message_id=message_id, offset=message.system_properties.queue_offset
            )
            if message.system_properties.message_type == v2.TRANSACTION:
                entry.transaction_id = message_id
                self.halves[message_id] = message
            elif message.system_properties.HasField("delivery_timestamp"):
                entry.recall_handle = f"handle-{message_id}"
                self.recallable[entry.recall_handle] = message
            else:
                queues[queue_id].append(message)
            entries.append(entry)
        for poll in self.parked:
            poll.complete([service.ReceiveMessageResponse(status=OK)])
        self.parked.clear()
        return service.SendMessageResponse(status=OK, entries=entries)

    def end_transaction(self, call: Call, request: Any) -> Any:
        self.ended.append((request.transaction_id, request.resolution, request.source))
        half = self.halves.pop(request.transaction_id, None)
        if half is None:
            status = v2.Status(code=v2.INVALID_TRANSACTION_ID, message="no such transaction")
            return service.EndTransactionResponse(status=status)
        if request.resolution == v2.COMMIT:
            self.topics[request.topic.name][half.system_properties.queue_id].append(half)
        return service.EndTransactionResponse(status=OK)

    def recall(self, call: Call, request: Any) -> Any:
        message = self.recallable.get(request.recall_handle)
        if message is None:
            status = v2.Status(code=v2.BAD_REQUEST, message="the recall handle is malformed")
            return service.RecallMessageResponse(status=status)
        return service.RecallMessageResponse(status=OK, message_id=message.system_properties.message_id)

    def forward(self, call: Call, request: Any) -> Any:
        self.leased.pop(request.receipt_handle, None)
        self.dead.append(request.message_id)
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def receive(self, call: Call, request: Any) -> Any:
        group, topic = request.group.name, request.message_queue.topic.name
        taken: list[tuple[str, str, int, int]] = []
        while self.back and len(taken) < request.batch_size:
            taken.append(self.back.popleft())
        for queue_id, queue in enumerate(self.topics.get(topic, ())):
            key = group, topic, queue_id
            while self.position[key] < len(queue) and len(taken) < request.batch_size:
                taken.append((*key, self.position[key]))
                self.position[key] += 1
        if not taken:
            if request.long_polling_timeout.seconds > 0:
                poll: Deferred[Any] = Deferred()
                self.parked.append(poll)
                return poll
            return [service.ReceiveMessageResponse(status=v2.Status(code=v2.MESSAGE_NOT_FOUND))]
        answers = [service.ReceiveMessageResponse(status=OK)]
        for place in taken:
            self.attempts[place] += 1
            handle = f"{place}#{self.attempts[place]}"
            self.leased[handle] = place
            message = v2.Message()
            message.CopyFrom(self.topics[topic][place[2]][place[3]])
            message.system_properties.receipt_handle = handle
            message.system_properties.delivery_attempt = self.attempts[place]
            answers.append(service.ReceiveMessageResponse(message=message))
        return answers

    def ack(self, call: Call, request: Any) -> Any:
        entries = []
        for entry in request.entries:
            known = self.leased.pop(entry.receipt_handle, None) is not None
            if known:
                self.acked.append(entry.message_id)
            code = v2.OK if known else v2.INVALID_RECEIPT_HANDLE
            entries.append(
                service.AckMessageResultEntry(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=v2.Status(code=code, message="" if known else "the lease has ended"),
                )
            )
        codes = {entry.status.code for entry in entries}
        top = codes.pop() if len(codes) == 1 else v2.MULTIPLE_RESULTS
        return service.AckMessageResponse(status=v2.Status(code=top), entries=entries)

    def change(self, call: Call, request: Any) -> Any:
        place = self.leased.pop(request.receipt_handle, None)
        if place is None:
            return service.ChangeInvisibleDurationResponse(
                status=v2.Status(code=v2.INVALID_RECEIPT_HANDLE, message="the lease has ended"),
                receipt_handle=request.receipt_handle,
            )
        self.back.append(place)
        for poll in self.parked:
            poll.complete([service.ReceiveMessageResponse(status=OK)])
        self.parked.clear()
        return service.ChangeInvisibleDurationResponse(status=OK, receipt_handle=f"{place}#new")

    def pull(self, call: Call, request: Any) -> Any:
        queue = self.topics[request.message_queue.topic.name][request.message_queue.id]
        if self.suggest is not None:
            call.trailers.append(("whimbrel-suggest-broker-id", self.suggest))
        if request.offset > len(queue):
            return [service.PullMessageResponse(status=v2.Status(code=v2.ILLEGAL_OFFSET, message="beyond"))]
        found = queue[request.offset : request.offset + request.batch_size]
        return [
            service.PullMessageResponse(status=OK),
            *(service.PullMessageResponse(message=message) for message in found),
            service.PullMessageResponse(next_offset=request.offset + len(found)),
        ]

    def place(self, request: Any) -> tuple[str, str, int]:
        return request.group.name, request.message_queue.topic.name, request.message_queue.id

    def update_offset(self, call: Call, request: Any) -> Any:
        self.offsets[self.place(request)] = request.offset
        return service.UpdateOffsetResponse(status=OK)

    def get_offset(self, call: Call, request: Any) -> Any:
        offset = self.offsets.get(self.place(request))
        if offset is None:
            return service.GetOffsetResponse(status=v2.Status(code=v2.OFFSET_NOT_FOUND))
        return service.GetOffsetResponse(status=OK, offset=offset)

    def query_offset(self, call: Call, request: Any) -> Any:
        queues = self.topics.get(request.message_queue.topic.name)
        if queues is None:
            return service.QueryOffsetResponse(status=v2.Status(code=v2.TOPIC_NOT_FOUND, message="no topic"))
        queue = queues[request.message_queue.id]
        end = request.query_offset_policy == service.END
        return service.QueryOffsetResponse(status=OK, offset=len(queue) if end else 0)

    def cluster(self, call: Call, request: Any) -> Any:
        master = registry.BrokerDescription(
            cluster="c", broker_name="broker-a", role=registry.BROKER_ROLE_MASTER, address=self.address,
            log_end=100, writable=self.writable, topic_count=len(self.topics),
        )  # fmt: skip
        brokers = [master] if self.master_registered else []
        if self.slave_address:
            brokers.append(
                registry.BrokerDescription(
                    cluster="c", broker_name="broker-a", broker_id=1, role=registry.BROKER_ROLE_SLAVE,
                    address=self.slave_address,
                )
            )  # fmt: skip
        self.unsettled -= 1
        return registry.DescribeClusterResponse(brokers=brokers, settled=self.unsettled < 0)

    def topic(self, name: str) -> Any:
        queues = self.topics.get(name)
        if queues is None:
            raise TopicNotFound(f"no topic {name}")
        return admin.Topic(
            name=name, read_queues=len(queues), write_queues=len(queues), permission=6,
            message_type=admin.MESSAGE_TYPE_NORMAL,
        )  # fmt: skip

    def create_topic(self, call: Call, request: Any) -> Any:
        if request.topic.name in self.topics:
            raise AlreadyExists(f"topic {request.topic.name} exists")
        self.topics[request.topic.name] = [[] for _ in range(request.topic.read_queues or 8)]
        return admin.CreateTopicResponse(topic=self.topic(request.topic.name))

    def update_topic(self, call: Call, request: Any) -> Any:
        self.topic(request.name)
        queues = self.topics[request.name]
        if request.HasField("read_queues") and request.read_queues < len(queues):
            held = sum(map(len, queues[request.read_queues :]))
            if held and not request.hide_messages:
                raise WouldHide(f"this would hide {held} messages")
            del queues[request.read_queues :]
        while len(queues) < request.read_queues:
            queues.append([])
        return admin.UpdateTopicResponse(topic=self.topic(request.name))

    def delete_topic(self, call: Call, request: Any) -> Any:
        self.topic(request.name)
        del self.topics[request.name]
        return admin.DeleteTopicResponse()

    def list_topics(self, call: Call, request: Any) -> Any:
        return admin.ListTopicsResponse(topics=[self.topic(name) for name in sorted(self.topics)])

    def describe_topic(self, call: Call, request: Any) -> Any:
        return admin.DescribeTopicResponse(
            topic=self.topic(request.name),
            queues=[
                admin.QueueState(queue_id=index, max_offset=len(queue), unfinished=len(queue))
                for index, queue in enumerate(self.topics[request.name])
            ],
            groups=sorted(self.groups),
        )

    def group(self, name: str) -> Any:
        if name not in self.groups:
            raise GroupNotFound(f"no group {name}")
        return self.groups[name]

    def create_group(self, call: Call, request: Any) -> Any:
        if request.group.name in self.groups:
            raise AlreadyExists(f"group {request.group.name} exists")
        self.groups[request.group.name] = request.group
        return admin.CreateGroupResponse(group=request.group)

    def update_group(self, call: Call, request: Any) -> Any:
        group = self.group(request.name)
        if request.HasField("consume_enabled"):
            group.consume_enabled = request.consume_enabled
        if request.HasField("max_attempts"):
            group.max_attempts = request.max_attempts
        if request.HasField("fifo"):
            group.fifo = request.fifo
        if request.HasField("ordered_by"):
            group.ordered_by = request.ordered_by
        if request.HasField("retry_policy"):
            group.retry_policy.CopyFrom(request.retry_policy)
        if request.HasField("priority_percent"):
            group.priority_percent = request.priority_percent
        return admin.UpdateGroupResponse(group=group)

    def delete_group(self, call: Call, request: Any) -> Any:
        self.group(request.name)
        del self.groups[request.name]
        return admin.DeleteGroupResponse()

    def list_groups(self, call: Call, request: Any) -> Any:
        return admin.ListGroupsResponse(groups=[self.groups[name] for name in sorted(self.groups)])

    def describe_group(self, call: Call, request: Any) -> Any:
        progress = admin.GroupProgress(topic="t", queue_id=1, committed_offset=3, max_offset=5, lag=2)
        client = admin.ClientDescription(client_id="c1", language="PYTHON", version="1")
        return admin.DescribeGroupResponse(
            group=self.group(request.name), progress=[progress], clients=[client]
        )

    def reset_offsets(self, call: Call, request: Any) -> Any:
        committed = request.offset if request.WhichOneof("target") == "offset" else 0
        progress = admin.GroupProgress(topic=request.topic, committed_offset=committed)
        return admin.ResetOffsetsResponse(progress=[progress])

    def drain(self, call: Call, request: Any) -> Any:
        if request.HasField("drain"):
            self.drained = request.drain
        return admin.DrainBrokerResponse(
            drained_topics=int(self.drained),
            undelivered=self.undelivered,
            delayed=self.delayed,
            open_transactions=self.open_transactions,
            unread=[admin.UnreadTopic(topic=name, messages=n) for name, n in self.unread.items()],
        )

    def forget(self, call: Call, request: Any) -> Any:
        topics = self.gone.get(request.broker_name)
        if topics is None:
            return admin.ForgetBrokerResponse()
        self.gone[request.broker_name] = []
        return admin.ForgetBrokerResponse(topics=topics, known=True)

    def describe_replication(self, call: Call, request: Any) -> Any:
        slave = admin.SlaveConnection(peer="10.0.0.2:5000", acknowledged_offset=90, lag_bytes=10)
        return admin.DescribeReplicationResponse(
            broker_name="broker-a", role="MASTER", log_end=100, replicator_alive=True, slaves=[slave],
            writable=self.writable, replication="SYNC", flush="ASYNC",
            advice="" if self.writable else "its slave holds more: stop it and copy the log",
        )  # fmt: skip


@asynccontextmanager
async def running(*, nameserver: bool = True) -> AsyncIterator[FakeCluster]:
    """Serve a fake cluster on the test's own loop; `nameserver` False: a broker alone."""
    cluster = FakeCluster()
    server: RunningServer = await serve(cluster.services(nameserver=nameserver), host="127.0.0.1", port=0)
    cluster.address = server.address
    try:
        yield cluster
    finally:
        for poll in cluster.parked:
            poll.complete([])
        await server.stop(grace=0)


@contextmanager
def running_in_thread(*, nameserver: bool = True) -> Iterator[FakeCluster]:
    """Serve a fake cluster on a loop of its own, for blocking clients."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = running(nameserver=nameserver)
    cluster = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
