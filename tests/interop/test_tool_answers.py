"""What tools are answered, beside what real RocketMQ answers them.

RocketMQ's exporter and its Dashboard ask some twenty things, by RocketMQ's own classes. Each is asked here of
a real broker and of ours after the same messages: every key that the real answer has is in ours, as it is
sent and as RocketMQ's classes read it, and has a value of the same kind.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.cluster.processes import Cluster
from support.systems.real_broker import Remoting, broker, kit, name_server, need_kit
from whimbrel.store import jsonconfig

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).parent / "java" / "ToolAnswers.java"
TOPIC, GROUP, CLUSTER = "T_answers", "G_answers", "DefaultCluster"
ANSWERS_S = 240.0
QUEUE = re.compile(r'\{"brokerName":"[^"]*","queueId":\d+,"topic":"[^"]*"\}:')  # a key of maps by queue
# Maps whose keys are names of this cluster: what is below any of them is one thing.
NAMED = re.compile(
    r"^(brokerAddrTable|clusterAddrTable|.*brokerAddrs|offsetTable|topicConfigTable|subscriptionGroupTable"
    r"|.*subscriptionTable|consumeStatsList\[\]|mqTable|statusTable|data|.*attributes|.*properties|forbiddenTable"
    r"|topicQueueMappingInfoMap|topicQueueMappingDetailMap|filterServerTable|mqPopTable|userConsumerInfo)$"
)
# What is asked for as it is sent: code, fields.
CODES: dict[str, tuple[int, dict[str, str]]] = {
    "28": (28, {}),
    "202": (202, {"topic": TOPIC}),
    "203": (203, {"consumerGroup": GROUP}),
    "204": (204, {"producerGroup": f"{GROUP}-producer"}),
    "208": (208, {"consumerGroup": GROUP, "topic": TOPIC}),
    "300": (300, {"topic": TOPIC}),
    "317": (317, {"isOrder": "false"}),
    "328": (328, {}),
    "351": (351, {"topic": TOPIC}),
    "201": (201, {}),
    "21": (21, {}),
    "907": (907, {}),
    **{
        f"315 {name}": (315, {"statsName": name, "statsKey": key})
        for name, key in (
            ("TOPIC_PUT_NUMS", TOPIC),
            ("TOPIC_PUT_SIZE", TOPIC),
            ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"),
            ("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
            ("SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
            ("BROKER_PUT_NUMS", CLUSTER),
            ("BROKER_GET_NUMS", CLUSTER),
        )
    },
}
# What ours leaves out, and why.
LEFT_OUT = {
    r"getBrokerConfig.*": "settings that ours has not",
    r"(28|fetchBrokerRuntimeStats 1) table\.commitLogDiskRatio_.*": "a path of this machine is in its name",
}


def kind_of(value: Any) -> str:
    """Return what a value is to who reads it: texts that are numbers are read as such."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        shape = re.sub(r"-?\d+(\.\d+)?([eE]-?\d+)?", "0", value)
        return (
            "digits" if set(shape) <= set("0 ,:.") else "text"
        )  # rates of a broker that has just begun are ""
    return "null" if value is None else type(value).__name__


def kinds(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key of an answer, and what it holds."""
    if isinstance(value, dict):
        for name, below in value.items():
            key = "*" if NAMED.match(at) else str(name)
            yield from kinds(below, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for below in value:
            yield from kinds(below, f"{at}[]")
    if at:
        yield at, kind_of(value)


def read(text: str) -> dict[str, set[str]]:
    """Return the kinds of values by key."""
    found: dict[str, set[str]] = {}
    for key, kind in kinds(jsonconfig.loads(QUEUE.sub('"queue":', text))):
        found.setdefault(key, set()).add(kind)
    return found


class Answers:
    """What a broker answers: as RocketMQ's classes read it, and as it is sent."""

    def __init__(self, version: str, root: Path, names: str, address: str) -> None:
        classes = root / "classes"
        classes.mkdir(parents=True)
        jars = kit("resolve", version).strip()
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(classes), str(SOURCE)], check=True)
        command = (
            *("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={root}"),
            *("-cp", f"{classes}:{jars}", "ToolAnswers", names, address, CLUSTER, TOPIC, GROUP),
        )
        with ExitStack() as stack:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(self.child.wait)
            stack.callback(self.child.kill)
            self.parsed, client = self.read_parsed()
            self.ids = int(self.parsed.pop("ids"))
            with Remoting(address) as peer:
                self.raw = {name: peer.call(code, fields) for name, (code, fields) in CODES.items()}
                self.raw["307"] = peer.call(307, {"consumerGroup": GROUP, "clientId": client})

    def read_parsed(self) -> tuple[dict[str, str], str]:
        """Return results by call, and the client id of the consumer."""
        assert self.child.stdout is not None
        found: dict[str, str] = {}
        lines = []
        for line in self.child.stdout:
            lines.append(line)
            if line.startswith("#"):
                name, _, text = line[1:].rstrip("\n").partition("\t")
                found[name] = text
            if line.startswith("ready "):
                return found, line.split()[1]
        raise AssertionError("".join(lines))


@pytest.fixture(scope="module", params=["4.9.3", pytest.param("5.3.3", marks=pytest.mark.slow)])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    need_kit()
    version = request.param
    root = tmp_path_factory.mktemp("answers")
    with name_server(version, root / "ns") as names:
        server = broker(version, root / "b", "ASYNC_MASTER", names.address, brokerClusterName=CLUSTER)
        with server:
            real = Answers(version, root / "real", names.address, server.address)
    with Cluster(root / "ours", slaves=0) as cluster:
        cluster.wait_usable()
        ours = Answers(version, root / "java", cluster.endpoint, cluster.master.grpc)
    return real, ours


def lacking(name: str, real: str, ours: str) -> list[str]:
    """Return in words what ours lacks, or has otherwise."""
    wanted, has = read(real), read(ours)
    found = []
    for key, kinds_of in wanted.items():
        if any(re.fullmatch(pattern, f"{name} {key}") for pattern in LEFT_OUT):
            continue
        if key not in has:
            found.append(f"{name}: {key} is missing ({', '.join(kinds_of)})")
        elif not has[key] <= kinds_of | {"number"} and not kinds_of <= has[key]:
            found.append(f"{name}: {key} is {has[key]}, and not {kinds_of}")
    return found


def test_each_message_of_a_batch_keeps_its_id(both: tuple[Answers, Answers]) -> None:
    """RocketMQ 5 gives them one id, that of the batch, and 4.9.3 takes each message's."""
    real, ours = both
    assert ours.ids == 20 and real.ids in (11, 20)


def test_rocketmqs_classes_find_in_our_answers_what_they_find_in_real_ones(
    both: tuple[Answers, Answers],
) -> None:
    real, ours = both
    asked = {name: text for name, text in real.parsed.items() if text != "absent" and text[:1] != "!"}
    assert len(asked) >= 20, real.parsed
    failed = {name: ours.parsed[name] for name in asked if ours.parsed[name][:1] == "!"}
    assert not failed
    found = [each for name, text in asked.items() for each in lacking(name, text, ours.parsed[name])]
    assert not found, "\n".join(found)


def test_our_answers_have_each_key_that_real_ones_have(both: tuple[Answers, Answers]) -> None:
    real, ours = both
    found = []
    answered = 0
    for name, (header, body) in real.raw.items():
        if header["code"] != 0:
            continue
        answered += 1
        assert ours.raw[name][0]["code"] == 0, (name, ours.raw[name])
        wanted = set(header.get("extFields") or {}) - set(ours.raw[name][0].get("extFields") or {})
        found += [f"{name}: field {each}" for each in wanted]
        found += lacking(name, body.decode() or "{}", ours.raw[name][1].decode() or "{}")
    assert answered >= 15
    assert not found, "\n".join(found)
