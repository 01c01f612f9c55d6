"""Messages of any shape pass through each loop over messages: of an answer, of a client, of the command line.

One record that a stranger has written, or that is damaged, must not take those with it that come beside it.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.api.message_codec import Inflation, delivered
from whimbrel.broker.api.response_bytes import message_frame
from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.cli.output import json_line
from whimbrel.cli.shown_messages import as_object, message_line, message_table
from whimbrel.model.dead_letter import cause_of, known_origin, origin_of
from whimbrel.model.delivered import HIDDEN
from whimbrel.model.names import GROUP_TOPIC_PREFIXES
from whimbrel.model.properties import RETRY_TOPIC
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.convert import received_message
from whimbrel.store.codec import (
    SEAL_START,
    RecordDraft,
    StoredMessage,
    decode_record,
    encode_record,
    pack_host,
)

HOST = pack_host("127.0.0.1", 1)
QUEUE = Queue(
    topic="t",
    broker_name="broker-a",
    broker_id=0,
    queue_id=0,
    readable=True,
    writable=True,
    endpoints=(Endpoint("127.0.0.1", 1),),
)
GROUP_TOPICS = ("%RETRY%", "%RETRY%g", "%RETRY%g_t", "%DLQ%g")  # also as no broker writes them
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.sampled_from(sorted(HIDDEN)).map(str.encode) | st.binary(max_size=8)
VALUES = st.binary(max_size=24) | LONGS.map(lambda number: b"%d" % number) | st.just("٣²".encode())
TEXTS = st.binary(max_size=64) | st.lists(st.tuples(NAMES, VALUES), max_size=8).map(
    lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)
)
WHOLE = TEXTS.filter(lambda text: SEAL_START not in text)  # no reader gets a record whose seal is not its own
RECORDS = st.builds(
    lambda draft, place, offset, stored_ms: decode_record(encode_record(draft, place, offset, stored_ms)),
    st.builds(
        RecordDraft,
        topic=st.text("t%RETRY-ü", min_size=1, max_size=12) | st.sampled_from(GROUP_TOPICS),
        queue_id=INTS,
        body=st.binary(max_size=64),
        properties=WHOLE,
        born_timestamp=LONGS,
        born_host=st.just(HOST),
        store_host=st.just(HOST),
        flag=INTS,
        sys_flag=INTS,
        reconsume_times=INTS,
        prepared_offset=LONGS,
    ),
    LONGS,
    LONGS,
    LONGS,
)


@given(RECORDS)
def test_any_record_is_delivered_and_shown(record: StoredMessage) -> None:
    shown = delivered(record, inflation=Inflation(1000)).SerializeToString()
    message = delivered(record)
    assert len(shown) > 0
    frame = message_frame(record)
    assert frame is None or messaging.ReceiveMessageResponse.FromString(frame).message == message
    received = received_message(message, QUEUE)
    json.loads(json_line(as_object(received)))
    for width in (None, 40, 200):
        message_line(received, width)
        message_table([received], width)


@given(RECORDS)
def test_any_record_becomes_a_dead_letter_that_knows_its_cause(record: StoredMessage) -> None:
    letter = dead_letter(GroupConfig(name="g"), record, 2, attempts=1)
    said = {name: value for name, value in record.properties.items() if name not in letter.removed}
    said |= dict(letter.added)
    assert cause_of(said) == record.offset_message_id
    known = known_origin(record.properties, record.topic)
    if not record.topic.startswith(GROUP_TOPIC_PREFIXES):
        assert origin_of(said, "g") == record.topic and not known
    elif known.get(RETRY_TOPIC):  # a redelivery, which says where it comes from
        assert origin_of(said, "g") == origin_of(known, "g")
    else:  # nobody wrote it down, unless the name of the topic does
        assert origin_of(said, "g") == origin_of({RETRY_TOPIC: record.topic}, "g")
