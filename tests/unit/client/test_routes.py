"""The route cache: what is fresh, what may be used meanwhile, and what is dropped."""

from whimbrel.client.routes import REFETCH_S, RouteCache
from whimbrel.model.route import Endpoint, Queue, Route


def route(topic: str, port: int = 1) -> Route:
    queue = Queue(
        topic=topic,
        broker_name="a",
        broker_id=0,
        queue_id=0,
        readable=True,
        writable=True,
        endpoints=(Endpoint("h", port),),
    )
    return Route(topic, (queue,))


def test_a_route_is_fetched_again_when_its_time_is_over() -> None:
    cache = RouteCache(30.0)
    cache.put(route("t"), 100.0)
    assert cache.get("t", 129.9) is not None
    assert cache.get("t", 130.0) is None


def test_an_old_route_can_still_be_used_when_no_nameserver_answers() -> None:
    cache = RouteCache(30.0)
    cache.put(route("t"), 0.0)
    assert cache.get("t", 1000.0) is None
    assert cache.stale("t") == route("t")


def test_an_error_makes_a_route_stale() -> None:
    cache = RouteCache(30.0)
    cache.put(route("t"), 0.0)
    cache.report_error("t")
    assert cache.get("t", 5.0) is None


def test_a_burst_of_errors_asks_once() -> None:
    cache = RouteCache(30.0)
    cache.put(route("t"), 10.0)
    cache.report_error("t")
    assert cache.get("t", 10.0 + REFETCH_S / 2) is not None
    assert cache.get("t", 10.0 + REFETCH_S) is None


def test_an_error_of_an_unknown_topic_is_ignored() -> None:
    cache = RouteCache(30.0)
    cache.report_error("t")
    assert cache.stale("t") is None


def test_the_topic_that_was_not_asked_for_the_longest_leaves_first() -> None:
    cache = RouteCache(30.0, topics_max=2)
    cache.put(route("a"), 0.0)
    cache.put(route("b"), 0.0)
    assert cache.get("a", 1.0)
    cache.put(route("c"), 1.0)
    assert cache.get("b", 1.0) is None
    assert cache.get("a", 1.0)


def test_a_deleted_topic_is_forgotten() -> None:
    cache = RouteCache(30.0)
    cache.put(route("t"), 0.0)
    cache.forget("t")
    assert cache.stale("t") is None


def test_endpoints_of_all_routes_are_known_once_each() -> None:
    cache = RouteCache(30.0)
    cache.put(route("a", 1), 0.0)
    cache.put(route("b", 1), 0.0)
    cache.put(route("c", 2), 0.0)
    assert cache.endpoints() == {Endpoint("h", 1), Endpoint("h", 2)}
