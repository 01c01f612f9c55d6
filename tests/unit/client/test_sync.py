"""The blocking faces, and the client beside the official SDK in one process."""

import os
import signal
import threading

import pytest

from support.systems.fake_cluster import running_in_thread
from whimbrel.client import Message, MessageType, ReceivedMessage
from whimbrel.client.sync import Admin, Consumer, Producer, PullConsumer
from whimbrel.errors import ClientError, TopicNotFound


def test_blocking_clients_do_what_the_others_do() -> None:
    with running_in_thread() as cluster:
        with Admin(cluster.address) as admin:
            admin.create_topic("t", message_type=MessageType.NORMAL, queues=1)
            admin.create_group("g")
            assert [topic.name for topic in admin.topics()] == ["t"]
            assert [group.name for group in admin.groups()] == ["g"]
            assert admin.cluster().settled
            assert len(admin.replication()) == 1
        with Producer(cluster.address) as producer:
            producer.send(Message(topic="t", body=b"1"))
            producer.send_batch([Message(topic="t", body=b"2")], queue=producer.queues("t")[0])
            producer.send_oneway(Message(topic="t", body=b"3"))
            producer.flush()
            with pytest.raises(TopicNotFound):
                producer.send(Message(topic="missing", body=b"x"))
        with Consumer(cluster.address, "g", ["t"]) as consumer:
            messages = consumer.receive(3, wait_s=0)
            assert [message.body for message in messages] == [b"1", b"2", b"3"]
            consumer.ack(messages[0])
            assert consumer.ack_all(messages[1:2]) == [None]
            assert consumer.change_invisible(messages[2], 0).message_id == messages[2].message_id
        with PullConsumer(cluster.address, "g") as reader:
            (queue,) = reader.queues("t")
            assert [message.body for message in reader.stream(queue, 0, until=3)] == [b"1", b"2", b"3"]
            assert reader.offset(queue, "latest") == 3
            reader.commit(queue, 2)
            assert reader.committed(queue) == 2


def test_closing_ends_a_loop_that_runs_in_another_thread() -> None:
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        handled = threading.Event()
        consumer = Consumer(cluster.address, "g", ["t"])
        consumer.start()
        thread = threading.Thread(target=consumer.run, args=(lambda _: handled.set(),))
        thread.start()
        with Producer(cluster.address) as producer:
            producer.send(Message(topic="t", body=b"x"))
        assert handled.wait(10)
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert len(cluster.acked) == 1


def test_a_handler_in_a_thread_can_stop_its_consumer_but_not_close_it() -> None:
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        with Producer(cluster.address) as producer:
            producer.send(Message(topic="t", body=b"x"))
        with Consumer(cluster.address, "g", ["t"]) as consumer:

            def handler(_: ReceivedMessage) -> None:
                with pytest.raises(ClientError, match="call stop"):
                    consumer.close()
                consumer.stop()

            consumer.run(handler)
        assert len(cluster.acked) == 1


def test_a_loop_that_has_only_just_begun_is_stopped_too() -> None:
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        with Consumer(cluster.address, "g", ["t"]) as consumer:
            running = consumer.begin(consumer.consumer.run(print))
            consumer.stop()
            running.result(10)


def test_an_interrupt_ends_a_loop_cleanly() -> None:
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        with Producer(cluster.address) as producer:
            producer.send(Message(topic="t", body=b"x"))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with Consumer(cluster.address, "g", ["t"]) as consumer:
                consumer.run(lambda _: os.kill(os.getpid(), signal.SIGINT))
        finally:
            signal.signal(signal.SIGINT, before)
        assert len(cluster.acked) == 1


def test_the_official_sdk_and_ours_live_in_one_process() -> None:
    rocketmq = pytest.importorskip("rocketmq")
    from rocketmq.grpc_protocol import definition_pb2 as theirs

    from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as ours

    their_message = theirs.Message(topic=theirs.Resource(name="t"), body=b"x")
    our_message = ours.Message(topic=ours.Resource(name="t"), body=b"x")
    assert their_message.SerializeToString() == our_message.SerializeToString()
    assert ours.Message.FromString(their_message.SerializeToString()) == our_message
    message = rocketmq.Message()
    message.topic, message.body = "t", b"x"
    assert type(their_message).DESCRIPTOR.full_name == type(our_message).DESCRIPTOR.full_name
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        with Producer(cluster.address) as producer:
            producer.send(Message(topic="t", body=message.body))
