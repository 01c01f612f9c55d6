"""What an answer from several brokers lacks."""

from dataclasses import replace

from support.cluster.statuses import registered
from whimbrel.model.cluster import AbsentBroker, Cluster
from whimbrel.model.unasked import YOUNG, Unasked, away, left_out, sentence

BROKER = registered()
GONE = AbsentBroker(cluster="c", broker_name="broker-b", broker_id=0, since=0.0)


def test_a_group_that_is_gone_is_left_out_with_since_when() -> None:
    (one,) = left_out(Cluster((BROKER,), settled=True, absent=(GONE,)))
    assert sentence(one).startswith(
        "broker-b could not be asked, and what it holds is left out: its master is not registered since"
        " 1970-01-01 00:00:00 UTC; start its broker"
    )
    assert "`whimbrel broker forget broker-b`" in sentence(one)


def test_a_group_of_slaves_alone_is_left_out() -> None:
    slave = replace(BROKER, broker_name="broker-b", broker_id=1, role="slave")
    (one,) = left_out(Cluster((BROKER, slave), settled=True))
    assert (one.broker_name, one.why) == ("broker-b", "its master is not registered")


def test_a_slave_that_is_away_leaves_nothing_out() -> None:
    slave = replace(GONE, broker_name="broker-a", broker_id=1)
    cluster = Cluster((BROKER,), settled=True, absent=(slave,))
    assert left_out(cluster) == [] and away(cluster) == (slave,)


def test_who_has_come_back_is_not_away() -> None:
    assert away(Cluster((replace(BROKER, broker_name="broker-b"),), settled=True, absent=(GONE,))) == ()


def test_of_members_that_are_gone_the_last_one_tells_since_when() -> None:
    members = tuple(replace(GONE, broker_id=each, member_id=each, since=60.0 * each) for each in (1, 2))
    (one,) = left_out(Cluster((), settled=True, absent=members))
    assert one.why.endswith("since 1970-01-01 00:02:00 UTC")


def test_a_young_nameserver_may_leave_out_anybody() -> None:
    assert [sentence(one) for one in left_out(Cluster((BROKER,), settled=False))] == [YOUNG]


def test_one_that_does_not_answer_is_told_with_its_error() -> None:
    text = sentence(Unasked("broker-b", "no answer from 10.0.0.2:10911 within 10 s"))
    assert text == (
        "broker-b could not be asked, and what it holds is left out: no answer from 10.0.0.2:10911 within"
        " 10 s; `whimbrel health` says what is wrong"
    )
