"""The commands of the pages on messages, in their order, against one `whimbrel dev`.

Other modules run the commands of groups that elect their leader, of backups, of processes, and of Spark.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.test_dead_letters import forward
from support.cluster.broker_api import Api
from support.cluster.command_line import Output, Terminal
from support.pages import Page, Places
from support.store import goldens
from support.systems.sdk_programs import DevCluster
from support.waiting import until
from whimbrel.client import Message, sync
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

README = Page("README.md")
BENCHMARKS = Page("docs/benchmarks.md")
COMMANDS = Page("docs/commands.md")
CONTAINERS = Page("docs/containers.md")
DEAD_LETTERS = Page("docs/dead-letters.md")
LANE = Page("docs/lane.md")
OPERATING = Page("docs/operating.md")
ORDERED = Page("docs/ordered.md")
TRACING = Page("docs/tracing.md")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """The cluster of the README, on free ports."""
    directory = tmp_path_factory.mktemp("pages") / "dev"
    with DevCluster(directory, *README["whimbrel dev"].words()[2:]) as running:
        running.wait_settled()
        yield running


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    cluster: DevCluster,
    tmp_path: Path,
) -> Terminal:
    return Terminal(capsys, tmp_path, WHIMBREL_DEV_DIR=cluster.directory)


@pytest.fixture
def producer(cluster: DevCluster) -> Iterator[sync.Producer]:
    with sync.Producer(cluster.endpoint) as client:
        yield client


def bodies(output: Output) -> list[str]:
    """Return the bodies that a command printed in JSON, a message a line."""
    return [json.loads(line)["body"] for line in output.out.splitlines()]


def of_json(output: Output) -> Any:
    """Return what a command printed with `-o json`."""
    return json.loads(output.out)


# It writes to a file as to a terminal; or `jq .body` where there is no jq.
UNBUFFERED = (".body", "--unbuffered")
BODY = "import json, sys\nfor line in sys.stdin: print(json.dumps(json.loads(line)['body']), flush=True)"
JQ: Places = {".body": UNBUFFERED} if shutil.which("jq") else {"jq": sys.executable, ".body": ("-c", BODY)}
JSON = ("-o", "json")
LINES = ("-o", "jsonl")


def test_first_look(run: Terminal, cluster: DevCluster) -> None:
    (sent,) = of_json(run(README['whimbrel send orders "hello" --key 42'], None, *JSON))
    assert sent["topic"] == "orders"
    got = run(README["whimbrel receive orders --group readers"], None, *LINES)
    assert bodies(got) == ["hello"]
    assert of_json(run(README["whimbrel dlq list readers"], None, *JSON)) == []
    first = run(README["whimbrel tail orders --from earliest -o jsonl | head -1"])
    assert bodies(first) == ["hello"]
    assert "broker-a" in run(README["whimbrel health"]).out
    watched = run.interrupted(README["whimbrel replication status --watch"], seen="broker-a")
    assert "master" in watched
    measured = run(README["whimbrel bench e2e --seconds 5"], {"5": 1}, *JSON)
    assert of_json(measured)["messages"] > 0
    place = "~/.local/state/whimbrel/dev/master"
    command = README["whimbrel store dump ~/.local/state/whimbrel/dev/master | head -1"]
    assert "queueOffset" in of_json(run(command, {place: cluster.directory / "master"}))


def test_one_message_is_traced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with DevCluster(tmp_path / "dev", *TRACING["whimbrel dev --trace 1"].words()[2:]) as traced:
        traced.wait_settled()
        run = Terminal(capsys, tmp_path, WHIMBREL_DEV_DIR=traced.directory)
        run.apart = True
        (sent,) = of_json(run(TRACING["whimbrel send orders hello"], None, *JSON))
        place = {"MESSAGE_ID": sent["message_id"]}
        for command in (TRACING["whimbrel trace MESSAGE_ID"], README["whimbrel trace MESSAGE_ID"]):
            told = run(command, place).out
            assert f"message {sent['message_id']}" in told
            assert "send orders" in told and "whimbrel.store.append" in told


def test_other_kinds_of_messages(run: Terminal, producer: sync.Producer) -> None:
    (sent,) = of_json(run(README['whimbrel send ledger "debit 5" --message-group account-7'], None, *JSON))
    assert sent["topic"] == "ledger"
    (sent,) = of_json(run(README['whimbrel send reminders "call back" --delay 10m'], None, *JSON))
    assert sent["recall_handle"]
    for price in (50, 150):
        properties = {"region": "eu", "price": str(price)}
        producer.send(Message(topic="orders", body=b"%d" % price, properties=properties))
    command = README["whimbrel receive orders --group eu --sql \"region = 'eu' AND price > 100\""]
    assert bodies(run(command, None, *LINES)) == ["150"]


def test_a_profile_and_the_completion_of_a_shell(run: Terminal) -> None:
    run(README["whimbrel profile set prod --endpoint ns1:8081"])
    assert "ns1:8081" in (run.folder / "config" / "whimbrel" / "profiles.toml").read_text()
    run.apart = True
    done = run(README["whimbrel --install-completion"], None)
    assert "completion installed" in done.out
    assert "whimbrel" in (run.folder / ".bashrc").read_text()


def test_sending(run: Terminal) -> None:
    assert of_json(run(COMMANDS["whimbrel send orders 'hello' --key 4711 --tag new"], None, *JSON))
    assert "hello" in bodies(run(COMMANDS["whimbrel receive orders --group billing"], None, *LINES))
    assert of_json(run(COMMANDS["whimbrel send orders 'hello'"], None, *JSON))[0]["topic"] == "orders"
    loaded = run(COMMANDS["whimbrel send orders 'load' --count 1000 --batch 32"], None, *LINES)
    assert len(loaded.out.splitlines()) == 1000
    (run.folder / "orders.txt").write_text("one\ntwo\n")
    sent = run(COMMANDS["whimbrel send orders - < orders.txt"], None, *LINES)
    assert len(sent.out.splitlines()) == 2
    (run.folder / "body.json").write_text('{"a":\n1}\n')
    (whole,) = of_json(run(COMMANDS["whimbrel send orders --whole < body.json"], None, *JSON))
    assert whole["topic"] == "orders"
    run(COMMANDS["whimbrel topic create reminders --type delay"], {"reminders": "calls"})
    call = run(COMMANDS["whimbrel send reminders 'call back' --delay 10m"], {"reminders": "calls"}, *JSON)
    handle = of_json(call)[0]["recall_handle"]
    for _ in range(2):  # no error
        run(COMMANDS["whimbrel recall reminders HANDLE"], {"reminders": "calls", "HANDLE": handle})
    paid = run(COMMANDS["whimbrel send payments 'order 4711' --transaction commit"], None, *JSON)
    assert of_json(paid)[0]["topic"] == "payments"


def test_receiving_and_watching(run: Terminal, producer: sync.Producer) -> None:
    queue = None
    for _ in range(60):
        receipt = producer.send(Message(topic="watched", body=b"seen"), queue=queue)
        queue = queue or next(q for q in producer.queues("watched") if q.queue_id == receipt.queue_id)
    assert queue is not None
    orders: dict[str, object] = {"orders": "watched"}
    got = run(COMMANDS["whimbrel receive orders -g billing"], orders, *LINES)
    assert 0 < len(bodies(got)) <= 32 and set(bodies(got)) == {"seen"}
    got = run(COMMANDS["whimbrel receive orders -g billing --count 10 --wait 30"], orders, *LINES)
    assert bodies(got) == ["seen"] * 10
    command = COMMANDS["whimbrel receive orders -g billing -f '%v' --count 1 > body.bin"]
    run(command, orders)
    assert (run.folder / "body.bin").read_bytes() == b"seen"
    run.interrupted(COMMANDS["whimbrel receive orders -g billing --follow"], orders, seen="seen")
    producer.send(Message(topic="watched", body=b"piped"))
    piped = COMMANDS["whimbrel receive orders -g billing --follow -o jsonl | jq .body"]
    assert '"piped"' in run.interrupted(piped, {**orders, **JQ}, seen='"piped"')
    with run.going(COMMANDS["whimbrel tail orders"], orders) as tail:
        tail.wait_for("reading")
        producer.send(Message(topic="watched", body=b"new"))
        tail.wait_for("new")
    with run.going(COMMANDS["whimbrel tail orders --format '%t %q %o %k %v\\n'"], orders) as tail:
        tail.wait_for("reading")
        producer.send(Message(topic="watched", body=b"formed", keys=("k1",)))
        tail.wait_for(" k1 formed\n")
        assert re.search(r"^watched \d+ \d+ k1 formed$", tail.said(), re.MULTILINE)
    assert run.interrupted(
        COMMANDS["whimbrel tail orders --from 2026-01-31T12:00:00Z"],
        orders | {"2026-01-31T12:00:00Z": "2020-01-31T12:00:00Z"},
        seen="seen",
    )
    got = run(COMMANDS["whimbrel tail orders --from earliest -n 10"], orders, *LINES)
    assert len(bodies(got)) == 10
    run(COMMANDS["whimbrel tail orders --from earliest --until-end -o jsonl > orders.jsonl"], orders)
    assert (run.folder / "orders.jsonl").read_text().count("seen") == 60
    pulled = run(
        COMMANDS["whimbrel pull orders --queue 0 --offset 1200 --count 5"],
        orders | {"0": queue.queue_id, "1200": 10},
        *LINES,
    )
    assert bodies(pulled) == ["seen"] * 5


def test_groups(run: Terminal, cluster: DevCluster) -> None:
    def group(name: str) -> Any:
        with sync.Admin(cluster.endpoint) as admin:
            return next(each for each in admin.groups() if each.name == name)

    run(COMMANDS["whimbrel group create ledger --fifo"])
    assert group("ledger").fifo
    fine = {"ledger": "ledger-2"}  # the page has the same group in two kinds
    run(COMMANDS["whimbrel group create ledger --ordered-by message-group"], fine)
    assert "message" in str(group("ledger-2").ordered_by).lower()
    run(COMMANDS["whimbrel group create mailer --max-attempts 5 --backoff 1s,10s,1m"])
    assert group("mailer").max_attempts == 5
    run(COMMANDS["whimbrel group update mailer --backoff exponential:5s,2h,2"])
    assert "2" in str(group("mailer"))
    run(ORDERED["whimbrel topic create orders --type fifo --queues 8"], {"orders": "in-order"})
    run(ORDERED["whimbrel group create ledger --fifo"], {"ledger": "ledger-3"})
    run(ORDERED["whimbrel group create ledger --fifo --ordered-by message-group"], {"ledger": "ledger-4"})
    with sync.Admin(cluster.endpoint) as admin:
        (made,) = admin.describe_topic("in-order")
        assert len(made.queues) == 8
    assert group("ledger-3").fifo and group("ledger-4").fifo


def test_fewer_queues_and_a_reset_that_is_only_planned(
    run: Terminal, cluster: DevCluster, producer: sync.Producer
) -> None:
    with sync.Admin(cluster.endpoint) as admin:
        admin.create_topic("fewer", queues=4)
    for _ in range(8):
        producer.send(Message(topic="fewer", body=b"x"))
    names: dict[str, object] = {"orders": "fewer", "billing": "finishers"}
    assert len(bodies(run(COMMANDS["whimbrel receive orders --group billing"], names, *LINES))) == 8
    fewer = run(COMMANDS["whimbrel topic update orders --queues 2 --wait 60"], {"orders": "fewer"}, *JSON)
    assert (of_json(fewer)["read_queues"], of_json(fewer)["write_queues"]) == (2, 2)
    command = COMMANDS["whimbrel group reset-offsets billing orders --to earliest --dry-run"]
    (moves,) = of_json(run(command, names, *JSON)).values()
    assert [move["queue_id"] for move in moves] == [0, 1]
    assert all((move["after"], move["again"], move["skipped"]) == (0, move["before"], 0) for move in moves)


@pytest.fixture
def given_up(cluster: DevCluster, producer: sync.Producer) -> Callable[[str, str], list[str]]:
    """Return what makes two dead letters of a group, and gives their ids."""

    def make(topic: str, group: str) -> list[str]:
        with sync.Admin(cluster.endpoint) as admin:
            if not any(each.name == group for each in admin.groups()):
                admin.create_group(group)
        ids = [producer.send(Message(topic=topic, body=b"bad")).message_id for _ in range(2)]
        (master,) = [each for each in cluster.described()["processes"] if each["role"] == "master"]
        with grpc.insecure_channel(master["grpc"]) as channel:
            api = Api(channel)
            for _ in ids:
                [handle] = api.receive(topic, group, batch=1, poll_s=5).handles
                assert forward(api, topic, group, handle).status.code == v2.OK
        return ids

    return make


def test_dead_letters(run: Terminal, given_up: Callable[[str, str], list[str]]) -> None:
    group, both = {"billing": "failing"}, {"billing": "failing", "orders": "failed"}
    first, second = given_up("failed", "failing")
    an_id = group | {"01A2B3C4D5E6F7": first}
    left = of_json(run(COMMANDS["whimbrel dlq list billing"], group, *JSON))
    assert {letter["message_id"] for letter in left} == {first, second}
    put_back = run(COMMANDS["whimbrel dlq replay billing --id 01A2B3C4D5E6F7 --yes"], an_id, *JSON)
    assert of_json(put_back)["put_back"] == 1
    dropped = run(COMMANDS["whimbrel dlq drop billing --topic orders --yes"], both, *JSON)
    assert of_json(dropped)["dropped"] == 1
    assert of_json(run(DEAD_LETTERS["whimbrel dlq list billing"], group, *JSON)) == []


def test_dead_letters_of_their_page(run: Terminal, given_up: Callable[[str, str], list[str]]) -> None:
    group, both = {"billing": "faulty"}, {"billing": "faulty", "orders": "faults"}
    first, _ = given_up("faults", "faulty")
    shown = run(
        DEAD_LETTERS["whimbrel dlq show billing --id 01A2B3C4D5E6F7"],
        group | {"01A2B3C4D5E6F7": first},
        *JSON,
    )
    assert of_json(shown)[0]["origin_topic"] == "faults"
    command = DEAD_LETTERS["whimbrel dlq replay billing --topic orders --since 2h --dry-run"]
    assert of_json(run(command, both, *JSON))["chosen"] == 2
    command = DEAD_LETTERS["whimbrel dlq replay billing --topic orders --since 2h --yes"]
    assert of_json(run(command, both, *JSON))["put_back"] == 2
    dropped = run(DEAD_LETTERS["whimbrel dlq drop billing --until 7d --yes"], group, *JSON)
    assert of_json(dropped)["chosen"] == 0  # what died a week ago


def test_measuring(run: Terminal) -> None:
    """Each for a second or some thousand messages, in place of what the page says."""
    sent = run(COMMANDS["whimbrel bench send"], None, "--seconds", 1, *JSON)
    assert of_json(sent)["messages"] > 0
    loaded = run(
        COMMANDS["whimbrel bench send orders --count 100000 --size 1024 --concurrency 16 --batch 32"],
        {"orders": "loaded", "100000": 2000},
        *JSON,
    )
    assert of_json(loaded)["messages"] >= 2000
    received = run(COMMANDS["whimbrel bench receive --count 100000"], {"100000": 20}, *JSON)
    assert of_json(received)["messages"] >= 20
    measured = run(COMMANDS["whimbrel bench e2e --concurrency 1 --seconds 30 -o json"], {"30": 1})
    assert of_json(measured)["messages"] > 0
    compared = run(BENCHMARKS["whimbrel bench send -c 32 --seconds 3 --size 100 -o json"], {"3": 1})
    assert of_json(compared)["messages"] > 0


def test_is_it_well(run: Terminal, cluster: DevCluster) -> None:
    well = run(OPERATING["whimbrel health --wait 60"], None, *JSON)
    assert of_json(well)["healthy"]
    assert of_json(run(OPERATING["whimbrel health"], None, *JSON))["healthy"]
    assert "broker-a" in run(OPERATING["whimbrel replication status"]).out
    assert "broker-a" in run(COMMANDS["whimbrel replication status"]).out
    assert "broker-a" in run(OPERATING["whimbrel cluster"]).out
    assert "whimbrel" in run(LANE["whimbrel --version"]).out
    assert "lane" in run(LANE["whimbrel health"]).out
    assert "lane" in run(LANE["whimbrel config show broker --store /data/a"]).out
    there = {"127.0.0.1:8081": cluster.endpoint}
    sent = run(CONTAINERS["whimbrel send greetings hello --endpoint 127.0.0.1:8081"], there, *JSON)
    assert of_json(sent)[0]["topic"] == "greetings"


def test_profiles(run: Terminal) -> None:
    run(OPERATING["whimbrel profile set prod --endpoint 'ns1:8081;ns2:8081'"])
    run(OPERATING["whimbrel profile use prod"])
    assert "ns2:8081" in run(OPERATING["whimbrel profile show"]).out
    listed = run(OPERATING["whimbrel topic list --profile dev"], None, *JSON)
    assert isinstance(of_json(listed), list)
    assert "prod" in run(OPERATING["whimbrel profile list"]).out
    run(OPERATING["whimbrel profile use dev"])
    assert "ns2:8081" not in run(OPERATING["whimbrel profile show"]).out


def test_store_directories(
    run: Terminal, cluster: DevCluster, producer: sync.Producer, tmp_path: Path
) -> None:
    producer.send(Message(topic="stored", body=b"x", keys=("of-stored",)))
    store = {"STORE": cluster.directory / "master"}
    until(lambda: '"stored"' in run(OPERATING["whimbrel store dump STORE"], store).out)
    assert "stored" in run(OPERATING["whimbrel store dump STORE --queues"], store).out
    keyed = OPERATING["whimbrel store dump STORE --index KEY"]
    until(lambda: '"stored"' in run(keyed, store | {"KEY": "of-stored"}).out)
    assert "topics" in run(OPERATING["whimbrel store dump STORE --config"], store).out
    still = {"STORE": shutil.copytree(goldens.golden("v493-basic"), tmp_path / "store")}
    assert "no damage" in run(OPERATING["whimbrel store verify STORE"], still).out
    assert "maxPhyOffset" in run(OPERATING["whimbrel store recover STORE --dry-run"], still).out
    mended = run(OPERATING["whimbrel store repair STORE"], still)
    assert "no damage in the log" in mended.out + mended.err
