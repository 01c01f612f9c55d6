"""RocketMQ's official SDKs, unmodified, against `whimbrel dev`: five languages, the same cases.

Every SDK runs in a small program (tests/sdks/README.md). One cluster serves all cases; each has topics and
groups of its own. Node.js and Go send and receive in every run of the tests where they can be installed
quickly; all else is marked `slow`. docs/sdks.md says what came out.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest

from support.systems.sdk_programs import LANGUAGES, DevCluster, Program, home
from support.waiting import until

pytestmark = pytest.mark.process

COUNT = 50
QUICK = ("nodejs", "go")
WITHOUT_PUSH = ("rust",)  # it has neither a push consumer nor a change of the invisible time
STEADY = 20  # messages before a fault, and again after it
PAUSE_MS = 20
INVISIBLE_S = 15.0  # the programs ask for that at each receive
ROUTE_POLL_S = 30.0  # all SDKs
RECOVERY_S = (
    60.0  # gRPC's reconnection waits grow to some seconds, and an SDK's isolated endpoint needs a heartbeat
)
PUSH_LEASE_S = 60.0  # what the broker gives a push consumer that renews by itself

# It asks its access point for assignments, takes "no answer" for "none", and polls nothing until there are
# some.
NEEDS_ITS_NAMESERVER = "go push"
STAYS = ("rust",)  # it looks a topic's route up once, and waits for the master that it knows

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster for all cases; what it has acknowledged is on its slave."""
    with DevCluster(tmp_path_factory.mktemp("sdks") / "dev", "--replication", "sync") as running:
        yield running


def expected(prefix: str, numbers: Iterable[int]) -> list[tuple[str, ...]]:
    """Return what a consumer should tell of these messages: body, attempt, tag, keys, own property."""
    return sorted(
        (f"{prefix}-{n}", "1", "ab"[n % 2], ",".join(sorted((f"key-{n}", prefix))), f"value-{n}")
        for n in numbers
    )


def told(consumer: Program) -> list[tuple[str, ...]]:
    """Return what a consumer told of its messages, ids left out."""
    return sorted((body, *rest) for body, _, *rest in consumer.of("got"))


def produce(language: str, cluster: DevCluster, topic: str, prefix: str, count: int) -> Program:
    """Send some messages, each of which has to be acknowledged at once."""
    with Program(language, "produce", cluster.endpoint, topic, prefix, count, 0) as producer:
        producer.wait_ended()
        assert producer.bodies("sent") == [f"{prefix}-{n}" for n in range(count)], producer.lines
        return producer


def exchange(language: str, cluster: DevCluster, topic: str, *, to_the_end: bool = True) -> None:
    """Send, receive, acknowledge; `to_the_end`: see that nothing comes after them, too."""
    sent = produce(language, cluster, topic, "m", COUNT)
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-simple", "*") as consumer:
        consumer.wait_bodies("acked", set(sent.bodies("sent")))
        if to_the_end:
            assert consumer.end().lines[-1] == ("done",)
        assert told(consumer) == expected("m", range(COUNT))
        assert {(body, name) for body, name, *_ in consumer.of("got")} == {
            (body, name) for body, name, _ in sent.of("sent")
        }
        assert consumer.of("error") == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("language", QUICK, indirect=True)
def test_all_messages_arrive_once_as_they_were_sent(language: str, cluster: DevCluster) -> None:
    exchange(language, cluster, f"quick-{language}", to_the_end=False)


@slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_all_messages_arrive_once_and_nothing_comes_after_them(language: str, cluster: DevCluster) -> None:
    exchange(language, cluster, f"plain-{language}")


@slow
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_tag_filter_lets_through_what_matches(language: str, cluster: DevCluster) -> None:
    topic = f"tags-{language}"
    produce(language, cluster, topic, "m", COUNT)
    for expression, numbers in (("b", range(1, COUNT, 2)), ("a || c", range(0, COUNT, 2))):
        with Program(
            language, "simple", cluster.endpoint, topic, f"{topic}-{expression[0]}", expression
        ) as consumer:
            consumer.wait_bodies("acked", {f"m-{n}" for n in numbers})
            consumer.end()
            assert told(consumer) == expected("m", numbers)


@slow
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_sql_filter_lets_through_what_matches(language: str, cluster: DevCluster) -> None:
    topic = f"sql-{language}"
    expression = "sql:TAGS = 'b' AND own <> 'value-3' OR own IN ('value-4', 'value-10')"
    wanted = sorted({4, 10, *range(1, COUNT, 2)} - {3})
    produce(language, cluster, topic, "m", COUNT)
    roles = ("simple",) if language in WITHOUT_PUSH else ("simple", "push")
    for role in roles:
        with Program(language, role, cluster.endpoint, topic, f"{topic}-{role}", expression) as consumer:
            consumer.wait_bodies("acked" if role == "simple" else "got", {f"m-{n}" for n in wanted})
            consumer.end()
            assert told(consumer) == expected("m", wanted)


@slow
@pytest.mark.parametrize("language", [each for each in LANGUAGES if each not in WITHOUT_PUSH], indirect=True)
def test_message_made_invisible_comes_back_as_the_next_attempt(language: str, cluster: DevCluster) -> None:
    topic = f"later-{language}"
    produce(language, cluster, topic, "later", 3)
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as consumer:
        consumer.wait_bodies("later", {f"later-{n}" for n in range(3)})
        put_at = time.monotonic()
        consumer.wait_bodies("acked", {f"later-{n}" for n in range(3)})
        assert time.monotonic() - put_at > 9  # it asks for 10 s
        consumer.end()
        assert Counter((body, attempt) for body, _, attempt, *_ in consumer.of("got")) == Counter(
            (f"later-{n}", attempt) for n in range(3) for attempt in ("1", "2")
        )


@slow
@pytest.mark.parametrize("language", [each for each in LANGUAGES if each not in WITHOUT_PUSH], indirect=True)
def test_push_consumer_takes_all_once_and_a_failed_one_again(language: str, cluster: DevCluster) -> None:
    topic = f"push-{language}"
    with Program(language, "push", cluster.endpoint, topic, f"{topic}-g", "*") as consumer:
        consumer.wait_ready()
        produce(language, cluster, topic, "m", COUNT)
        produce(language, cluster, topic, "fail", 3)
        retried = {(f"fail-{n}", attempt) for n in range(3) for attempt in ("1", "2")}
        consumer.wait_bodies("got", {f"m-{n}" for n in range(COUNT)})
        until(
            lambda: retried <= {(body, attempt) for body, _, attempt, *_ in consumer.of("got")},
            timeout=30,
            what=lambda: f"the retries: {consumer.lines[-8:]}",
        )
        consumer.end()
        assert Counter((body, attempt) for body, _, attempt, *_ in consumer.of("got")) == Counter(
            retried | {(f"m-{n}", "1") for n in range(COUNT)}
        )
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as rest:
        rest.wait_ready().end()
        assert rest.of("got") == []  # the push consumer has acknowledged all


@slow
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_wrong_topic_is_refused_in_our_words(language: str, cluster: DevCluster) -> None:
    words = "rmq_sys_mine is a system topic"
    before = logged(words)
    with Program(language, "produce", cluster.endpoint, "rmq_sys_mine", "m", 1, 0) as producer:
        producer.wait_ended()
        assert producer.of("sent") == []
        (error,) = producer.of("error") or producer.of("failed")
    if language == "python":  # this SDK's exception names the topic alone; what it was told is in its log
        assert "rmq_sys_mine" in error[-1]
        assert logged(words) > before
    else:
        assert words in error[-1]


def logged(words: str) -> int:
    """Return how often the Python SDK's logs hold these words."""
    logs = [path for path in (home("python") / "logs").rglob("*") if path.is_file()]
    return sum(path.read_text(errors="replace").count(words) for path in logs)


class Clients:
    """A producer that goes on sending, and consumers of what it sends; as the programs see it."""

    def __init__(self, language: str, cluster: DevCluster, topic: str) -> None:
        cluster.wait_settled()  # after the fault of the case before
        endpoint = cluster.endpoint
        self.producer = Program(language, "produce", endpoint, topic, "m", 0, PAUSE_MS)
        self.consumers = [(Program(language, "simple", endpoint, topic, f"{topic}-simple", "*"), "acked")]
        if language not in WITHOUT_PUSH:
            self.consumers.append((Program(language, "push", endpoint, topic, f"{topic}-push", "*"), "got"))

    def __enter__(self) -> "Clients":
        for each in (self.producer, *(consumer for consumer, _ in self.consumers)):
            each.wait_ready()
        self.flow(RECOVERY_S)
        return self

    def __exit__(self, *error: object) -> None:
        kind, value, trace = error
        for each in (self.producer, *(consumer for consumer, _ in self.consumers)):
            each.__exit__(kind, value, trace)  # type: ignore[arg-type]

    def flow(self, timeout: float, *, without: str = "") -> None:
        """Wait until more messages are acknowledged and have come through everywhere."""
        self.producer.wait_more("sent", STEADY, timeout, "sending goes on")
        newest = set(self.producer.bodies("sent")[-STEADY:])
        for consumer, kind in self.consumers:
            if consumer.name != without:
                consumer.wait_bodies(kind, newest, timeout)

    def all_through(self, timeout: float) -> str:
        """End the producer, wait until nothing it was promised is missing, and tell the counts."""
        self.producer.end()
        sent = self.producer.bodies("sent")
        line = f"{len(sent)} acknowledged, {len(self.producer.of('failed'))} refused"
        for consumer, kind in self.consumers:
            consumer.wait_bodies(kind, set(sent), timeout)
            again = consumer.bodies("got")
            line += f"; {consumer.name} has all, {len(again) - len(set(again))} of them twice"
        return line


@slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("role", ["master", "nameserver"])
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_running_clients_go_on_after_a_kill(
    language: str, role: str, cluster: DevCluster, measured: Callable[[str], None]
) -> None:
    with Clients(language, cluster, f"kill-{role}-{language}") as clients:
        killed_at = time.monotonic()
        pid = cluster.kill(role, hold=role == "nameserver")
        if role == "nameserver":  # for longer than any SDK takes between two looks at its routes
            try:
                while time.monotonic() < killed_at + ROUTE_POLL_S + 5:
                    clients.flow(10, without=NEEDS_ITS_NAMESERVER)
            finally:
                cluster.release(role)
        cluster.wait_restarted(role, pid)
        restarted_at = time.monotonic()
        clients.flow(RECOVERY_S)
        flowing_at = time.monotonic()
        pauses = [clients.producer.longest_pause("sent", killed_at)]
        pauses += [consumer.longest_pause("got", killed_at) for consumer, _ in clients.consumers]
        counts = clients.all_through(RECOVERY_S)
        measured(
            f"all flows {flowing_at - restarted_at:.1f} s after the restart; longest pauses "
            f"{', '.join(f'{pause:.1f}' for pause in pauses)} s (sending, receiving); {counts}"
        )
        if role == "nameserver":
            assert clients.producer.of("failed") == []


@slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("language", LANGUAGES, indirect=True)
def test_running_consumers_go_on_at_the_slave_while_the_master_is_down(
    language: str, cluster: DevCluster, measured: Callable[[str], None]
) -> None:
    with Clients(language, cluster, f"slave-{language}") as clients:
        for consumer, _ in clients.consumers:
            consumer.freeze()  # so that the dead master leaves something to receive
        clients.producer.wait_more("sent", STEADY, RECOVERY_S, "sending while nobody receives")
        pid = cluster.kill("master", hold=True)
        killed_at = time.monotonic()
        try:
            promised = set(clients.producer.bodies("sent"))
            waits = []
            for consumer, _ in clients.consumers:
                consumer.thaw()
            for consumer, kind in clients.consumers if language not in STAYS else ():
                lease = INVISIBLE_S if kind == "acked" else PUSH_LEASE_S
                consumer.wait_bodies(kind, promised, ROUTE_POLL_S + lease + 10)
                waits.append(time.monotonic() - killed_at)
            assert set(clients.producer.bodies("sent")) == promised  # a slave takes no messages
        finally:
            cluster.release("master")
        cluster.wait_restarted("master", pid)
        back_at = time.monotonic()
        clients.flow(RECOVERY_S)
        flowing_at = time.monotonic()
        counts = clients.all_through(RECOVERY_S)
        measured(
            f"all received from the slave after {', '.join(f'{wait:.1f}' for wait in waits) or '-'} s; "
            f"all flows {flowing_at - back_at:.1f} s after the master's return; {counts}"
        )
