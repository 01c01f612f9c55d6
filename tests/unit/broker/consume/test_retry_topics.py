"""Which retry topics belong to a group on a topic."""

from whimbrel.broker.consume.retry_topics import retry_topics


def test_names_are_split_where_group_and_topic_are_known() -> None:
    kept = {
        "%RETRY%g_t": 1,
        "%RETRY%g+t": 2,
        "%RETRY%g_a_t": 1,
        "%RETRY%g": 1,
        "%RETRY%h_t": 1,
    }
    assert retry_topics(kept, {"t", "a_t", *kept}, {"g", "g_a"}) == {
        ("g", "t"): (("%RETRY%g_t", 1), ("%RETRY%g+t", 2)),
        ("g", "a_t"): (("%RETRY%g_a_t", 1),),
        ("g_a", "t"): (("%RETRY%g_a_t", 1),),
    }


def test_most_stores_have_none() -> None:
    assert retry_topics({}, {"t"}, {"g"}) == {}
