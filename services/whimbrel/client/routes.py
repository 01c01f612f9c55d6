"""Keeps the routes of the topics in use. Pure: the session fetches, this decides when.

    missing ──put──► fresh ──ttl, or an error reported──► stale ──put──► fresh
                                                            └── still used when the nameserver can't be asked

A route is fetched again when it is as old as the time to live, or earlier after an error; errors have no
effect on a route younger than `REFETCH_S`, so that a burst of failures makes one query. When there are too
many topics, those that were used least recently are dropped.
"""

from dataclasses import dataclass

from whimbrel.model.route import Endpoint, Route

__all__ = ["REFETCH_S", "TOPICS_MAX", "RouteCache"]

TOPICS_MAX = 4096  # with more topics than that, routes are queried more often
REFETCH_S = 0.2  # so that a thousand failed sends at a time make one query


@dataclass(slots=True)
class CachedRoute:
    """One topic's route; `expires_at` is when it should be fetched again."""

    route: Route
    fetched_at: float
    expires_at: float


class RouteCache:
    """Routes by topic, each with its expiry; times are seconds of one monotonic clock."""

    def __init__(self, ttl_s: float, *, topics_max: int = TOPICS_MAX) -> None:
        """Start empty."""
        self.ttl_s = ttl_s
        self.topics_max = topics_max
        self.entries: dict[str, CachedRoute] = {}  # the least recently used topic first

    def get(self, topic: str, now: float) -> Route | None:
        """Return the route, or None when it has to be fetched."""
        entry = self.entries.get(topic)
        if entry is None or now >= entry.expires_at:
            return None
        self.entries[topic] = self.entries.pop(topic)
        return entry.route

    def stale(self, topic: str) -> Route | None:
        """Return the last known route, of any age: for when the nameserver can't be asked."""
        entry = self.entries.get(topic)
        return None if entry is None else entry.route

    def put(self, route: Route, now: float) -> None:
        """Keep a route that was just fetched."""
        self.entries.pop(route.topic, None)
        while len(self.entries) >= self.topics_max:
            del self.entries[next(iter(self.entries))]
        self.entries[route.topic] = CachedRoute(route, now, now + self.ttl_s)

    def report_error(self, topic: str) -> None:
        """Note that the route may be wrong: it is fetched again soon."""
        entry = self.entries.get(topic)
        if entry is not None:
            entry.expires_at = min(entry.expires_at, entry.fetched_at + REFETCH_S)

    def forget(self, topic: str) -> None:
        """Drop a topic that the nameserver does not know."""
        self.entries.pop(topic, None)

    def endpoints(self) -> set[Endpoint]:
        """Return one endpoint for each broker in any route."""
        return {endpoint for entry in self.entries.values() for endpoint in entry.route.endpoints()}
