"""The broker's topics, groups and offset files on disk."""

from pathlib import Path

import pytest

from goldens import golden
from whimbrel.broker.tables.groups import BUILT_IN_GROUPS, GroupTable
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import AlreadyExists, StoreError
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.store import jsonconfig


def topics_of(config: Path, *, auto_create: bool = False, now: int = 1_000) -> TopicTable:
    return TopicTable(
        config, cluster="DefaultCluster", broker_name="broker-a", auto_create=auto_create, clock=lambda: now
    )


def test_fresh_broker_owns_rocketmqs_topics(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    shapes = {row.name: (row.read_queues, row.write_queues, row.permission) for row in topics.rows.values()}
    assert shapes == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "TRANS_CHECK_MAX_TIME_TOPIC": (1, 1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
    }
    assert all(topics.is_system(name) for name in shapes)


def test_template_topic_is_there_with_auto_creation_only(tmp_path: Path) -> None:
    template = topics_of(tmp_path, auto_create=True).get("TBW102")
    assert template is not None and (template.write_queues, template.permission) == (8, 7)
    left_over = topics_of(tmp_path, auto_create=False).get("TBW102")
    assert left_over is not None and left_over.permission == 6


def test_send_creates_a_normal_topic_of_four_queues(tmp_path: Path) -> None:
    topics = topics_of(tmp_path, auto_create=True)
    made = topics.create_by_send("new")
    assert made is not None
    assert (made.read_queues, made.write_queues, made.permission, made.message_type) == (
        4,
        4,
        6,
        MessageType.NORMAL,
    )
    assert topics_of(tmp_path, auto_create=True).get("new") == made


def test_send_creates_nothing_without_auto_creation(tmp_path: Path) -> None:
    assert topics_of(tmp_path).create_by_send("new") is None


def test_change_moves_the_version_and_is_notified_after_the_swap(tmp_path: Path) -> None:
    topics = topics_of(tmp_path, now=7)
    before = topics.version
    seen: list[bool] = []
    topics.on_change.append(lambda: seen.append(topics.get("t") is not None))
    topics.add(TopicConfig(name="t"))
    topics.put(TopicConfig(name="t"))  # nothing new
    assert topics.version == before.after(7)
    assert seen == [True]
    with pytest.raises(AlreadyExists):
        topics.add(TopicConfig(name="t"))


def test_table_survives_a_restart(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    topics.add(TopicConfig(name="t", read_queues=3).with_type(MessageType.FIFO))
    topics.add(TopicConfig(name="gone"))
    topics.remove("gone")
    again = topics_of(tmp_path)
    assert again.rows == topics.rows and again.version == topics.version


def test_slave_takes_over_the_whole_table_with_its_version(tmp_path: Path) -> None:
    master = topics_of(tmp_path / "m", now=5)
    master.add(TopicConfig(name="t"))
    slave = topics_of(tmp_path / "s", now=9)
    slave.add(TopicConfig(name="own"))
    assert slave.replace_all(master.encode(pretty=False))
    assert slave.rows == master.rows and slave.version == master.version
    assert not slave.replace_all(master.encode(pretty=False))
    assert topics_of(tmp_path / "s").get("own") is None


def test_rocketmqs_files_are_read_and_gain_only_what_is_new(tmp_path: Path) -> None:
    config = golden("v533-basic", tmp_path / "store") / "config"
    before = jsonconfig.load(config / "topics.json")["topicConfigTable"]
    topics = TopicTable(
        config, cluster="DefaultCluster", broker_name="broker-five", auto_create=True, clock=lambda: 1
    )
    assert {name: topics.rows[name].bean() for name in before} == before
    groups = GroupTable(config, auto_create=False, clock=lambda: 1)
    assert groups.rows["five-odd"].slow_broker_id == 3


def test_groups_are_created_on_demand_only_where_that_is_allowed(tmp_path: Path) -> None:
    closed = GroupTable(tmp_path, auto_create=False, clock=lambda: 1)
    assert BUILT_IN_GROUPS <= closed.rows.keys()
    assert closed.find("g", create=True) is None
    opened = GroupTable(tmp_path, auto_create=True, clock=lambda: 1)
    assert opened.find("g", create=False) is None
    assert opened.find("g", create=True) == GroupConfig(name="g")


def test_offsets_are_written_as_rocketmq_reads_them(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path)
    offsets = {("T", "g"): {1: 5, 0: 250}, ("%RETRY%g", "g"): {0: 0}}
    file.save(offsets, 77)
    content = jsonconfig.load(tmp_path / "consumerOffset.json")
    assert content["offsetTable"] == {"T@g": {0: 250, 1: 5}, "%RETRY%g@g": {0: 0}}
    assert content["dataVersion"]["counter"] == 1
    assert OffsetFile(tmp_path).load() == offsets


def test_offsets_of_what_can_not_be_are_left_out(tmp_path: Path) -> None:
    long = "g" * 256
    (tmp_path / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"T@g":{{0:-1,1:5,-1:3,2147483648:4}},"T@{long}":{{0:1}},"{long}@g":{{0:1}}}}}}'
    )
    assert OffsetFile(tmp_path).load() == {("T", "g"): {1: 5}}


def test_numbers_beyond_all_bounds_are_brought_within_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "topics.json").write_text(
        '{"dataVersion":{"counter":99999999999999999999},"topicConfigTable":{"T":{"perm":6,'
        '"readQueueNums":1000000000000,"writeQueueNums":-1},"U":{"readQueueNums":5000}}}'
    )
    (tmp_path / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"g":{"retryMaxTimes":99999999999}}}'
    )
    topics = topics_of(tmp_path)
    made, usual = topics.get("T"), topics.get("U")
    assert made is not None and (made.read_queues, made.write_queues) == (65_536, 0)
    assert usual is not None and usual.read_queues == 5000
    assert topics.version.counter < 1 << 63
    assert "topics.json: readQueueNums of T is 65536, and not 1000000000000" in caplog.text
    group = GroupTable(tmp_path, auto_create=False, clock=lambda: 1).get("g")
    assert group is not None and group.max_attempts < 1 << 31


def test_infinite_numbers_are_damage(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:1e999}}}')
    with pytest.raises(StoreError, match="is damaged"):
        OffsetFile(tmp_path).load()
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"T":{"readQueueNums":1e999}}}')
    with pytest.raises(StoreError, match="is damaged"):
        topics_of(tmp_path)


def test_unmoved_offsets_are_not_written_again(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path)
    file.save({("T", "g"): {0: 1}}, 1)
    (tmp_path / "consumerOffset.json").unlink()
    file.save({("T", "g"): {0: 1}}, 2)
    assert not (tmp_path / "consumerOffset.json").exists()


def test_delay_offsets_are_passed_on_as_they_are(tmp_path: Path) -> None:
    text = '{\n\t"offsetTable":{1:7,2:1\n\t}\n}'
    offsets = DelayOffsets(tmp_path)
    assert offsets.replace(text) and not offsets.replace(text)
    assert not offsets.replace("{broken")
    assert DelayOffsets(tmp_path).text == text


def test_damaged_offsets_are_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    for text in (
        '{"offsetTable":{"T@g":{0:25',
        "",
        '{"offsetTable":{"T@g":{"x":1}}}',
        '{"dataVersion":{"counter":[]}}',
    ):
        path.write_text(text)
        with pytest.raises(StoreError, match="is damaged"):
            OffsetFile(tmp_path).load()


def test_damaged_delay_offsets_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_bytes(b"\xff{")
    assert DelayOffsets(tmp_path).text == ""
    assert path.read_bytes() == b"\xff{"
