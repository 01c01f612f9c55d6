"""The broker's topics, groups and offset files on disk."""

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from support.store.goldens import golden
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.tables.versioned import CHANGED_NAMES_MAX
from whimbrel.errors import AlreadyExists, RemoteProtocolError, StoreError, StoreFull
from whimbrel.machine import Files
from whimbrel.model.names import BUILT_IN_GROUPS
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.store import jsonconfig


class FullDisk(Files):
    """A disk that takes no file while it is full."""

    full = False

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        return super().pwrite(fd, data, position)


def topics_of(
    config: Path, *, auto_create: bool = False, now: int = 1_000, files: Files | None = None
) -> TopicTable:
    return TopicTable(
        config,
        cluster="DefaultCluster",
        broker_name="broker-a",
        auto_create=auto_create,
        clock=lambda: now,
        files=files or Files(),
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


def test_offsets_of_a_broker_with_lmq_count_where_they_are_newer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ 5 with enableLmq keeps the offsets of all groups there; without them each begins anew."""

    def write(name: str, offset: int, version: str) -> None:
        text = f'{{{version}"lmqOffsetTable":{{}},"offsetTable":{{"T@g":{{0:{offset}}}}}}}'
        (tmp_path / name).write_text(text)

    of_lmq = "lmqConsumerOffset.json"
    write(of_lmq, 7, "")
    assert OffsetFile(tmp_path).load() == {("T", "g"): {0: 7}}, "there is no other"
    write("consumerOffset.json", 5, '"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1000},')
    assert OffsetFile(tmp_path).load() == {("T", "g"): {0: 5}}, "which of them is newer is not known"
    write(of_lmq, 7, '"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1001},')
    caplog.clear()
    file = OffsetFile(tmp_path)
    assert file.load() == {("T", "g"): {0: 7}} and of_lmq in caplog.text
    file.save({("T", "g"): {0: 8}}, 1002)
    assert OffsetFile(tmp_path).load() == {("T", "g"): {0: 8}}, "what is written here is newer"
    (tmp_path / of_lmq).write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        OffsetFile(tmp_path).load()


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


def test_the_file_is_that_of_its_rows_after_any_changes(tmp_path: Path) -> None:
    topics, random_ = topics_of(tmp_path), random.Random(7)
    for step in range(300):
        name = f"t{random_.randrange(20)}"
        if random_.random() < 0.3:
            topics.remove(name)
        else:
            topics.put(TopicConfig(name=name, read_queues=random_.randrange(1, 5)))
        if step % 10 == 0:
            content = {
                "dataVersion": topics.version.bean(),
                "topicConfigTable": {name: row.bean() for name, row in topics.rows.items()},
            }
            assert (tmp_path / "topics.json").read_text() == jsonconfig.dumps(content) == topics.encode()
            assert topics.encode(pretty=False) == jsonconfig.dumps(content, pretty=False)
    again = topics_of(tmp_path)
    assert list(again.rows) == list(topics.rows) and again.version == topics.version


def test_fields_of_newer_versions_stay_in_the_file_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text('{"aNew":{"b":[1]},"topicConfigTable":{"t":{}},"zNew":"z"}')
    topics = topics_of(tmp_path)
    topics.add(TopicConfig(name="u"))
    content = jsonconfig.load(tmp_path / "topics.json")
    assert list(content) == ["aNew", "dataVersion", "topicConfigTable", "zNew"]
    assert (content["aNew"], content["zNew"]) == ({"b": [1]}, "z")
    assert {"t", "u"} <= content["topicConfigTable"].keys()


def test_a_change_that_finds_no_room_changes_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    disk = FullDisk()
    topics = topics_of(tmp_path, files=disk)
    topics.add(TopicConfig(name="t"))
    master = topics_of(tmp_path / "m")
    before = (dict(topics.rows), topics.version, (tmp_path / "topics.json").read_bytes())
    seen: list[bool] = []
    topics.on_change.append(lambda: seen.append(True))
    disk.full = True
    for change in (
        lambda: topics.add(TopicConfig(name="u")),
        lambda: topics.put(TopicConfig(name="t", read_queues=1)),
        lambda: topics.remove("t"),
        lambda: topics.replace_all(master.encode(pretty=False)),
    ):
        with pytest.raises(StoreFull):
            change()
        assert (topics.rows, topics.version, (tmp_path / "topics.json").read_bytes()) == before
    assert not seen
    disk.full = False
    topics.add(TopicConfig(name="v"))
    again = topics_of(tmp_path)
    assert again.rows == topics.rows and {"t", "v"} <= again.rows.keys() and "u" not in again.rows


def test_what_changed_since_a_version_leads_to_the_table_as_it_is(tmp_path: Path) -> None:
    topics, other = topics_of(tmp_path / "a"), topics_of(tmp_path / "b")
    topics.add(TopicConfig(name="gone"))
    other.replace_all(topics.encode(pretty=False))
    since = topics.version
    topics.add(TopicConfig(name="t"))
    topics.put(TopicConfig(name="t", read_queues=2))
    topics.remove("gone")
    topics.add(TopicConfig(name="short-lived"))
    topics.remove("short-lived")
    change = topics.change_since(since)
    assert change is not None
    assert ([row.name for row in change.rows], set(change.removed)) == (["t"], {"gone", "short-lived"})
    other.apply(change)
    assert (other.rows, other.version) == (topics.rows, topics.version)
    with pytest.raises(RemoteProtocolError):
        other.apply(change)
    none = topics.change_since(topics.version)
    assert none is not None and not none.rows and not none.removed


def test_changes_are_remembered_up_to_a_bound(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    assert topics.change_since(topics.version.after(5)) is None
    first = topics.version
    topics.add(TopicConfig(name="t"))
    second = topics.version
    topics.put_all(TopicConfig(name=f"t{number}") for number in range(CHANGED_NAMES_MAX - 2))
    assert topics.change_since(first) is None
    assert topics.change_since(second) is not None
    topics.put_all(TopicConfig(name=f"u{number}") for number in range(CHANGED_NAMES_MAX))
    assert topics.change_since(second) is None and not topics.changes


def test_drained_topics_and_retry_topics_are_counted_as_they_come_and_go(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    drained = TopicConfig(name="d").with_drained(drained=True)
    topics.put_all([drained, TopicConfig(name="t"), TopicConfig(name="%RETRY%g_t")])
    assert (topics.drained, list(topics.retry_names)) == (1, ["%RETRY%g_t"])
    again = topics_of(tmp_path)
    assert (again.drained, list(again.retry_names)) == (1, ["%RETRY%g_t"])
    again.put(drained.with_drained(drained=False))
    again.remove("%RETRY%g_t")
    assert (again.drained, list(again.retry_names)) == (0, [])
    again.replace_all(topics.encode(pretty=False))
    assert (again.drained, list(again.retry_names)) == (1, ["%RETRY%g_t"])
    again.remove("d")
    assert again.drained == 0
