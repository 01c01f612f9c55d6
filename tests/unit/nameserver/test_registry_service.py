"""Sessions of brokers at the nameserver's door: what is refused, and what that does to others."""

from typing import Any

import pytest

from whimbrel.errors import BadRequest, Throttled
from whimbrel.model.limits import ROUTE_QUEUES_MAX, TOPICS_MAX
from whimbrel.nameserver.absences import ABSENCE_S_MAX, ABSENCES_MAX
from whimbrel.nameserver.registry import Registry
from whimbrel.nameserver.registry_service import SESSIONS_MAX, BrokerStream, RegistryService
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.sessions import Sessions
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as pb
from whimbrel.rpc.server.handlers import Call

LEASE_S = 8.0


class Box:
    """Keeps what a stream is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False

    def send(self, message: Any) -> bool:
        self.sent.append(message)
        return True

    def close(self, error: Exception | None = None) -> None:
        self.closed = True


class Rig:
    """The service with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = Registry(lease_s=LEASE_S, renew_s=2.0, started=0.0)
        self.service = RegistryService(
            self.registry,
            own=lambda: ("10.0.0.9",),
            resolver=Resolver(),
            now=lambda: self.now,
            wall=lambda: 1e9,
            sessions=Sessions(),
        )

    def open(self, host: str = "10.0.0.1") -> tuple[BrokerStream, Box]:
        box = Box()
        return self.service.open_session(Call("Session", f"{host}:5000", {}, None), box), box

    def cluster(self) -> Any:
        call = Call("DescribeCluster", "127.0.0.1:5000", {}, None)
        return self.service.describe_cluster(call, pb.DescribeClusterRequest()).result


def registration(**fields: Any) -> Any:
    known: dict[str, Any] = {
        "cluster": "C",
        "broker_name": "a",
        "role": pb.BROKER_ROLE_MASTER,
        "port": 8091,
        "ha_address": "0.0.0.0:10912",
        "host_name": "host-a",
        "nameserver_host": "10.0.0.9",
    }
    return pb.SessionRequest(registration=pb.Registration(**known | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"ha_address": "0.0.0.0:²"},
        {"ha_address": "0.0.0.0:" + "9" * 5000},
        {"ha_address": "host"},
        {"ha_address": "a\n2026-01-01 forged:1"},
        {"broker_name": ""},
        {"broker_name": "a\x1b[2J"},
        {"broker_name": "a" * 128},
        {"cluster": "C\nD"},
        {"cluster": ""},
        {"port": 0},
        {"port": 65536},
        {"broker_id": 1},
        {"broker_id": -1, "role": pb.BROKER_ROLE_SLAVE},
        {"broker_id": 1 << 40, "role": pb.BROKER_ROLE_SLAVE},
        {"host_name": "h\x1b]0;x\x07"},
        {"host_name": "h" * 256},
        {"advertised_host": "http://h"},
        {"advertised_host": "h:1"},
        {"nameserver_host": "n\n"},
        {"instance_id": "i" * 65},
        {"instance_id": "\x9b"},
        {"epoch": -1},
        {"epoch": 1 << 31},
        {"member_id": 64},
        {"member_id": 1, "voters": 8},
        {"voters": 3},
    ],
)
def test_a_registration_with_a_bad_field_is_refused_and_others_notice_nothing(fields: dict[str, Any]) -> None:
    rig = Rig()
    stream, box = rig.open()
    stream.received(registration())
    stranger, _ = rig.open("10.0.0.66")
    with pytest.raises(BadRequest) as refused:
        stranger.received(registration(**{"broker_name": "b"} | fields))
    assert str(refused.value).isprintable()
    stranger.closed()
    assert [broker.broker_name for broker in rig.cluster().brokers] == ["a"]
    stream.received(pb.SessionRequest())
    assert box.sent[-1].displaced_by == ""


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ({"topic": "T", "read_queues": ROUTE_QUEUES_MAX + 1}, "give it fewer"),
        ({"topic": "T", "write_queues": 200_000}, "topic T: 0 queues to read and 200000 to write"),
        ({"topic": "T", "read_queues": -1}, "give it fewer"),
        ({"topic": "T", "permission": 16}, "permission 16"),
        ({"topic": "T\x1b[31m"}, "rename or delete it"),
        ({"topic": ""}, "rename or delete it"),
        ({"topic": "T" * 300}, "300 characters"),
    ],
)
def test_a_table_with_a_bad_topic_is_refused(topic: dict[str, Any], text: str) -> None:
    stream, _ = Rig().open()
    request = registration()
    request.topics_included = True
    request.topics.add(topic="fine", read_queues=4, write_queues=4, permission=6)
    request.topics.add(**topic)
    with pytest.raises(BadRequest, match=text) as refused:
        stream.received(request)
    assert str(refused.value).isprintable()


def test_a_log_that_no_disk_holds_is_refused() -> None:
    stream, _ = Rig().open()
    stream.received(registration())
    for begin, end in ((0, -1), (-1, 0), (0, (1 << 62) + 1)):
        with pytest.raises(BadRequest, match="a log can't reach"):
            stream.received(pb.SessionRequest(log_begin=begin, log_end=end))


def test_topics_that_are_alike_share_their_counts_and_unknown_types_are_normal() -> None:
    rig = Rig()
    stream, _ = rig.open()
    request = registration()
    request.topics_included = True
    for number in range(100):
        request.topics.add(
            topic=f"%RETRY%{'g' * 250}{number}",
            read_queues=1,
            write_queues=1,
            permission=6,
            message_type="NEW",
        )
    stream.received(request)
    (counts,) = {id(counts): counts for counts in rig.registry.live[stream].topics.values()}.values()
    assert counts.message_type == "NORMAL"


def test_how_many_topics_a_broker_has_is_bounded() -> None:
    stream, _ = Rig().open()
    request = registration()
    request.MergeFromString(b"\x18\x01" + b"\x12\x00" * (TOPICS_MAX + 1))
    with pytest.raises(BadRequest, match=f"65537 topics: a broker has at most {TOPICS_MAX}"):
        stream.received(request)


def test_sessions_are_bounded_and_those_that_never_register_end() -> None:
    rig = Rig()
    opened = [rig.open() for _ in range(SESSIONS_MAX)]
    with pytest.raises(Throttled, match="takes no more"):
        rig.open()
    registered, _ = opened[0]
    registered.received(registration())
    rig.now += LEASE_S / 2
    registered.received(pb.SessionRequest())
    rig.now += LEASE_S / 2 + 0.1
    rig.service.ticked_at = rig.now
    rig.service.tick(rig.now)
    assert list(rig.service.streams) == [registered]
    assert sum(box.closed for _, box in opened) == SESSIONS_MAX - 1
    rig.open()


def test_a_second_broker_is_told_who_has_the_place_and_takes_it_when_that_one_leaves() -> None:
    rig = Rig()
    first, _ = rig.open("10.0.0.1")
    second, box = rig.open("10.0.0.2")
    first.received(registration(instance_id="i1"))
    second.received(registration(instance_id="i2", port=9091))
    assert box.sent[-1].displaced_by == "10.0.0.1:8091"
    first.half_closed()
    first.closed()
    assert box.sent[-1].displaced_by == ""
    assert rig.registry.holder(rig.registry.live[second].broker) is rig.registry.live[second]


def test_a_second_broker_waits_while_the_place_of_a_lost_one_is_kept() -> None:
    rig = Rig()
    first, _ = rig.open("10.0.0.1")
    second, box = rig.open("10.0.0.2")
    first.received(registration(instance_id="i1"))
    second.received(registration(instance_id="i2", port=9091))
    first.closed()
    rig.now += LEASE_S / 2
    second.received(pb.SessionRequest())
    assert box.sent[-1].displaced_by == "10.0.0.1:8091"
    again, answers = rig.open("10.0.0.1")
    again.received(registration(instance_id="i1"))
    assert answers.sent[-1].displaced_by == ""
    second.received(pb.SessionRequest())
    assert box.sent[-1].displaced_by == "10.0.0.1:8091"


@pytest.mark.parametrize("host", ["h" * 256, "h\x1b[2J", "h:8081", "http://h"])
def test_a_host_that_is_none_stands_in_no_address(host: str) -> None:
    call = Call("DescribeCluster", "127.0.0.1:5000", {}, None)
    with pytest.raises(BadRequest, match="access_host: "):
        Rig().service.describe_cluster(call, pb.DescribeClusterRequest(access_host=host))


def master(rig: Rig, name: str, host: str, **topics: tuple[int, str]) -> tuple[BrokerStream, Box]:
    """Register a master with topics: queues and type of each."""
    stream, box = rig.open(host)
    request = registration(broker_name=name, host_name=f"host-{name}")
    request.topics_included = True
    for topic, (queues, kind) in topics.items():
        request.topics.add(
            topic=topic, read_queues=queues, write_queues=queues, permission=6, message_type=kind
        )
    stream.received(request)
    return stream, box


def shared(box: Box) -> list[Any]:
    """Return what a master was told of topics that it shares, each time."""
    return [response.shared for response in box.sent if response.HasField("shared")]


def queues_of(told: Any) -> dict[str, dict[str, int]]:
    return {one.topic: {each.broker_name: each.write_queues for each in one.brokers} for one in told.topics}


def test_masters_learn_of_topics_for_message_groups_that_others_have() -> None:
    rig = Rig()
    _, first = master(rig, "a", "10.0.0.1", t=(4, "FIFO"), m=(2, "MIXED"), plain=(8, "NORMAL"))
    stream, second = master(rig, "b", "10.0.0.2", t=(8, "FIFO"), m=(1, "MIXED"), plain=(8, "NORMAL"))
    assert [queues_of(told) for told in shared(first)] == [{}]
    rig.service.tick(rig.now)
    assert queues_of(shared(first)[-1]) == {"t": {"b": 8}, "m": {"b": 1}}
    assert queues_of(shared(second)[-1]) == {"t": {"a": 4}, "m": {"a": 2}}
    assert [(one.broker_name, one.address) for one in shared(first)[-1].masters] == [("b", "10.0.0.2:8091")]
    before = len(first.sent)
    rig.service.tick(rig.now)
    assert len(first.sent) == before  # nothing has changed
    stream.closed()
    rig.service.tick(rig.now)
    assert queues_of(shared(first)[-1]) == {} and not shared(first)[-1].masters


def test_a_master_alone_is_told_nothing_new() -> None:
    rig = Rig()
    _, box = master(rig, "a", "10.0.0.1", t=(4, "FIFO"))
    before = len(box.sent)
    rig.service.tick(rig.now)
    assert len(box.sent) == before


def test_a_group_of_slaves_only_has_no_master_to_dial() -> None:
    rig = Rig()
    _, box = master(rig, "a", "10.0.0.1", t=(4, "FIFO"))
    stream, _ = rig.open("10.0.0.2")
    stream.received(
        registration(
            broker_name="b", broker_id=1, role=pb.BROKER_ROLE_SLAVE, host_name="host-b", ha_address=""
        )
    )
    rig.service.tick(rig.now)
    assert [(one.broker_name, one.address) for one in shared(box)[-1].masters] == [("b", "")]


def change(base: int, version: int, *deleted: str, **topics: tuple[int, str]) -> Any:
    request = pb.SessionRequest(
        version=pb.DataVersion(counter=version),
        change_base=pb.DataVersion(counter=base),
        deleted_topics=deleted,
    )
    for topic, (queues, kind) in topics.items():
        request.changed_topics.add(
            topic=topic, read_queues=queues, write_queues=queues, permission=6, message_type=kind
        )
    return request


def test_a_broker_is_told_that_changes_are_taken_and_when_its_whole_table_is_wanted() -> None:
    rig = Rig()
    stream, box = master(rig, "a", "10.0.0.1", t=(4, "NORMAL"))
    assert box.sent[-1].takes_changes and not box.sent[-1].topics_wanted
    stream.received(change(0, 1, u=(2, "NORMAL")))
    assert rig.registry.topics.keys() == {"t", "u"} and not box.sent[-1].topics_wanted
    stream.received(change(7, 8, "t"))
    assert rig.registry.topics.keys() == {"t", "u"} and box.sent[-1].topics_wanted
    whole = pb.SessionRequest(version=pb.DataVersion(counter=8), topics_included=True)
    stream.received(whole)
    assert not rig.registry.topics and not box.sent[-1].topics_wanted


@pytest.mark.parametrize("bad", [{"topic": ""}, {"topic": "T", "read_queues": -1}])
def test_a_change_with_a_bad_topic_is_refused(bad: dict[str, Any]) -> None:
    rig = Rig()
    stream, _ = master(rig, "a", "10.0.0.1", t=(4, "NORMAL"))
    request = change(0, 1, "t")
    request.changed_topics.add(**bad)
    with pytest.raises(BadRequest):
        stream.received(request)
    assert rig.registry.topics.keys() == {"t"}


def test_a_topic_that_is_both_gone_and_changed_is_there() -> None:
    rig = Rig()
    stream, _ = master(rig, "a", "10.0.0.1", t=(4, "NORMAL"))
    stream.received(change(0, 1, "t", t=(2, "NORMAL")))
    assert rig.registry.topics["t"]["a"].read_queues == 2


def test_a_change_of_what_masters_share_is_answered_with_it_and_others_hear_by_the_tick() -> None:
    rig = Rig()
    one, first = master(rig, "a", "10.0.0.1", t=(4, "FIFO"))
    _, second = master(rig, "b", "10.0.0.2", t=(8, "FIFO"), m=(1, "MIXED"))
    rig.service.tick(rig.now)
    one.received(change(0, 1, m=(2, "MIXED")))
    assert queues_of(first.sent[-1].shared) == {"t": {"b": 8}, "m": {"b": 1}}
    rig.service.tick(rig.now)
    assert queues_of(shared(second)[-1]) == {"t": {"a": 4}, "m": {"a": 2}}


def test_a_change_of_what_no_other_has_makes_nobody_look_for_what_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    one, box = master(rig, "a", "10.0.0.1", t=(4, "FIFO"))
    master(rig, "b", "10.0.0.2", t=(8, "FIFO"))
    rig.service.tick(rig.now)
    one.received(change(0, 1, u=(1, "NORMAL")))
    before = len(box.sent)
    monkeypatch.setattr(rig.registry, "shared_topics", lambda session: pytest.fail("all topics are walked"))
    one.received(change(1, 2, w=(1, "FIFO")))
    rig.service.tick(rig.now)
    assert len(box.sent) == before + 1


def elected(number: int, epoch: int, *, leads: bool = False) -> Any:
    """Return the registration of a member of a group of three."""
    return registration(
        broker_id=0 if leads else number,
        role=pb.BROKER_ROLE_MASTER if leads else pb.BROKER_ROLE_SLAVE,
        host_name=f"host-{number}",
        instance_id=f"i{number}",
        ha_address="",
        epoch=epoch,
        member_id=number,
        voters=3,
    )


def elected_group(rig: Rig) -> list[tuple[BrokerStream, Box]]:
    """Register three members, of which the first leads in epoch 7."""
    opened = [rig.open(f"10.0.0.{number}") for number in (1, 2, 3)]
    for number, (stream, _) in enumerate(opened, 1):
        stream.received(elected(number, 7, leads=number == 1))
    return opened


def test_members_and_tools_are_told_of_epochs() -> None:
    rig = Rig()
    _, (_, second), _ = elected_group(rig)
    told = second.sent[-1].members
    assert [(one.broker_id, one.member_id, one.epoch) for one in told] == [(0, 1, 7), (3, 3, 7)]
    described = [(one.broker_id, one.member_id, one.epoch) for one in rig.cluster().brokers]
    assert described == [(0, 1, 7), (2, 2, 7), (3, 3, 7)]


def test_a_leader_hears_at_once_that_another_one_was_elected(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    (first, told), (second, winner), (_, third) = elected_group(rig)
    second.received(elected(2, 8, leads=True))
    assert told.sent[-1].displaced_by == "10.0.0.2:8091"
    assert [(one.member_id, one.epoch) for one in told.sent[-1].members] == [(2, 8), (3, 7)]
    assert winner.sent[-1].displaced_by == "" and third.sent[-1].displaced_by == ""
    assert third.sent[-1].members[0].epoch == 8
    caplog.clear()
    with caplog.at_level("INFO"):
        first.received(registration(**{"epoch": 7, "member_id": 1, "voters": 3, "port": 9000}))
    assert "master a/0 (member 2, epoch 8) leads or led the group" in caplog.text
    assert "must not share name and id" not in caplog.text
    first.received(elected(1, 8))  # it follows
    assert told.sent[-1].displaced_by == "" and told.sent[-1].members[0].member_id == 2


def test_a_leader_of_before_is_refused_a_free_place_and_told_whose_it_was() -> None:
    rig = Rig()
    (first, told), (second, _), _ = elected_group(rig)
    second.received(elected(2, 8, leads=True))
    second.half_closed()
    second.closed()
    assert told.sent[-1].displaced_by == "10.0.0.2:8091"
    rig.now += LEASE_S / 2
    first.received(pb.SessionRequest())
    assert told.sent[-1].displaced_by == "10.0.0.2:8091"
    first.received(elected(1, 9, leads=True))
    assert told.sent[-1].displaced_by == ""


def test_a_member_that_leads_again_is_told_again_what_it_shares() -> None:
    rig = Rig()
    master(rig, "b", "10.0.0.9", t=(8, "FIFO"))
    stream, box = rig.open("10.0.0.1")
    for leads, epoch in ((True, 7), (False, 8), (True, 9)):
        request = elected(1, epoch, leads=leads)
        request.topics_included = True
        request.topics.add(topic="t", read_queues=4, write_queues=4, permission=6, message_type="FIFO")
        stream.received(request)
    assert [queues_of(told) for told in shared(box)] == [{"t": {"b": 8}}] * 2


def test_the_log_tells_when_a_broker_that_was_taken_out_of_routes_takes_writes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    stream, _ = rig.open()
    stream.received(registration())
    slave, _ = rig.open("10.0.0.2")
    slave.received(registration(broker_id=1, role=pb.BROKER_ROLE_SLAVE))
    rig.registry.wipe_writes("a")
    slave.closed()
    assert "write bit" not in caplog.text
    stream.closed()
    assert "routes give a its write bit again, since its session ended" in caplog.text


def has(rig: Rig, *, topic: str = "orders", permission: int = 6, **fields: Any) -> BrokerStream:
    """Register a broker with a topic."""
    stream, _ = rig.open()
    request = registration(**fields)
    request.topics_included = True
    request.topics.add(topic=topic, read_queues=1, write_queues=1, permission=permission)
    stream.received(request)
    return stream


def absent(rig: Rig) -> list[tuple[str, int, int]]:
    """Return who is away, with since when."""
    return [(one.broker_name, one.broker_id, one.since.seconds) for one in rig.cluster().absent]


def test_a_broker_that_is_lost_is_told_as_absent_until_it_is_back() -> None:
    rig = Rig()
    has(rig).closed()
    rig.now += 60
    assert absent(rig) == [("a", 0, int(1e9) - 60)]
    has(rig)
    assert absent(rig) == []


def test_a_slave_whose_lease_is_over_is_absent() -> None:
    rig = Rig()
    has(rig)
    has(rig, broker_id=1, role=pb.BROKER_ROLE_SLAVE, port=8092)
    rig.now += LEASE_S + 1
    rig.service.tick(rig.now)
    assert [one[:2] for one in absent(rig)] == [("a", 0), ("a", 1)]


@pytest.mark.parametrize(
    ("fields", "missed"),
    [
        ({}, True),  # its messages can't be read, and more were to come
        ({"permission": 4}, False),  # it was drained
        ({"topic": "TBW102"}, False),  # it held nothing
        ({"broker_id": 1, "role": pb.BROKER_ROLE_SLAVE}, False),  # its master has all that it had
    ],
)
def test_who_takes_its_leave_is_absent_only_if_something_is_left_out_with_it(
    fields: dict[str, Any], missed: bool
) -> None:
    rig = Rig()
    stream = has(rig, **fields)
    stream.left = True
    rig.service.remove(stream)
    assert bool(absent(rig)) is missed


def test_a_slave_that_leads_its_group_now_is_not_absent_as_the_slave_that_it_was() -> None:
    rig = Rig()
    has(rig, broker_id=1, role=pb.BROKER_ROLE_SLAVE).closed()
    has(rig)  # from the same address
    assert absent(rig) == []


def test_who_never_comes_back_is_let_go_of() -> None:
    rig = Rig()
    for broker_id in (1, 2):
        has(rig, broker_id=broker_id, role=pb.BROKER_ROLE_SLAVE, port=8090 + broker_id).closed()

    def forget(**fields: Any) -> int:
        call = Call("ForgetBroker", "127.0.0.1:5000", {}, None)
        return int(rig.service.forget_broker(call, pb.ForgetBrokerRequest(**fields)).absent)

    assert forget(broker_name="b") == 0
    assert forget(broker_name="a", id=2) == 1 and [one[1] for one in absent(rig)] == [1]
    assert forget(broker_name="a") == 1 and absent(rig) == []


def test_absences_are_bounded_and_end() -> None:
    rig = Rig()
    rig.now = 0.0
    for number in range(ABSENCES_MAX + 1):
        has(rig, broker_name=f"a{number}", port=1 + number).closed()
    assert len(rig.registry.absences.places) == ABSENCES_MAX and ("a0", 0) not in rig.registry.absences.places
    rig.now += ABSENCE_S_MAX
    assert absent(rig) == []


def test_tools_are_told_which_groups_are_absent_and_their_topics_if_they_ask() -> None:
    rig = Rig()
    stream, _ = master(rig, "b", "10.0.0.2", x=(4, "NORMAL"))
    assert not rig.cluster().absent_groups
    rig.now += 3
    stream.closed()
    (told,) = rig.cluster().absent_groups
    assert (told.broker_name, told.cluster, list(told.topics), told.topics_unknown) == ("b", "C", [], False)
    assert told.renewed_at.seconds == 1_000_000_000 - 3
    call = Call("DescribeCluster", "127.0.0.1:5000", {}, None)
    asked = rig.service.describe_cluster(call, pb.DescribeClusterRequest(absent_topics=True)).result
    assert asked is not None and list(asked.absent_groups[0].topics) == ["x"]
    forget = pb.ForgetBrokerRequest(broker_name="b")
    assert rig.service.forget_broker(call, forget).known
    assert not rig.service.forget_broker(call, pb.ForgetBrokerRequest(broker_name="x")).known
    assert not rig.cluster().absent_groups
    assert list(rig.cluster().forgotten) == ["b", "x"]
    with pytest.raises(BadRequest):
        rig.service.forget_broker(call, pb.ForgetBrokerRequest(broker_name="a b"))
