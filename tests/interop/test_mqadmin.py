"""mqadmin of 4.9.3 and of 5.3.3 at our processes: each command works, and shows what is there.

Numbers are those of the gateway's checklist: 41 traces of a 4.x producer, 46 and 47 each command without an
exception, 48 what `clusterList` shows, 49 requests that go through to a client, 50 resets, 51 deletions,
52 settings.
"""

import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import Cluster, until
from realbroker import kit, need_kit

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).parent / "java" / "AdminCommands.java"
COMMAND_S = 60.0
ENDED = "### the process has ended"
TOPIC, GROUP = "T_tools", "G_tools"


class Tools:
    """A Java process with a producer, a consumer and mqadmin."""

    def __init__(self, version: str, root: Path, names: str) -> None:
        self.version = version
        jars = kit("resolve", version).strip()
        (root / "conf").mkdir()
        (root / "conf" / "logback_tools.xml").write_text("<configuration/>")
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(root), str(SOURCE)], check=True)
        self.names, self.root = names, root
        self.java = (
            *("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={root}"),
            *("-cp", f"{root}:{jars}"),
        )
        self.child = self.start("AdminCommands", names, TOPIC, GROUP)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        while not (line := self.lines.get(timeout=COMMAND_S)).startswith(("ready", "missing")):
            pass
        word, self.client, self.message, self.unique = line.split()
        if word != "ready":
            self.close()
        assert word == "ready", "not all messages were consumed"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.java, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,  # consumerStatus writes files there
            env=os.environ | {"ROCKETMQ_HOME": str(self.root)},
        )

    def alone(self, *words: object, until: str) -> str:
        """Run a command in a process of its own, until it prints a line with a text or ends.

        For those that never end, and those that work once in a process.
        """
        startup = "org.apache.rocketmq.tools.command.MQAdminStartup"
        child = self.start(startup, *map(str, words), "-n", self.names)
        timer = threading.Timer(COMMAND_S, child.kill)
        timer.start()
        assert child.stdout is not None
        found = []
        for line in child.stdout:
            found.append(line)
            if until in line:
                break
        timer.cancel()
        end(child)
        text = "".join(found)
        assert until in text and "Exception" not in text, f"{words}: {text}"
        return text

    def refused(self, *words: object) -> str:
        """Run a command that fails, and return what it prints."""
        with pytest.raises(AssertionError) as error:
            self(*words)
        return str(error.value)

    def lists(self, name: str, text: str) -> Path:
        """Return a file with a text."""
        path = self.root / f"{name}.json"
        path.write_text(text)
        return path

    def read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(ENDED)

    def __call__(self, *words: object) -> str:
        """Run a command and return what it prints; it must print no exception."""
        assert self.child.stdin is not None
        self.child.stdin.write("\t".join(map(str, words)) + "\n")
        self.child.stdin.flush()
        found = []
        while (line := self.lines.get(timeout=COMMAND_S)) not in ("### end", ENDED):
            found.append(line)
        text = "\n".join(found)
        assert line != ENDED and "Exception" not in text, f"{words}: {text}"
        return text

    def close(self) -> None:
        end(self.child)


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_kit()
    with Cluster(tmp_path_factory.mktemp("tools"), broker={"trace_topic_enable": True}, slaves=1) as running:
        running.wait_usable()
        yield running


@pytest.fixture(scope="module", params=["4.9.3", pytest.param("5.3.3", marks=pytest.mark.slow)])
def tools(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tools]:
    found = Tools(request.param, tmp_path_factory.mktemp("java"), cluster.endpoint)
    yield found
    found.close()


def test_6_1_48_the_brokers_of_a_cluster(tools: Tools, cluster: Cluster) -> None:
    text = tools("clusterList")
    for broker in (cluster.master, *cluster.slaves):
        assert broker.grpc in text
    assert text.count("V4_9_3") == 2
    assert "broker-a" in tools("clusterList", "-m")
    assert "commitLogMaxOffset" in tools("brokerStatus", "-b", cluster.master.grpc)


def test_6_1_46_47_topics(tools: Tools, cluster: Cluster) -> None:
    assert TOPIC in tools("topicList")
    assert TOPIC in tools("topicList", "-c")
    assert tools("topicStatus", "-t", TOPIC).count("broker-a") == 4
    assert "success" in tools("updateTopic", "-c", "DefaultCluster", "-t", "T_made", "-r", 4, "-w", 4)
    assert "T_made" in tools("topicList")
    assert "success" in tools("updateTopicPerm", "-b", cluster.master.grpc, "-t", "T_made", "-p", 4)
    assert "#InTPS" in tools("statsAll", "-t", TOPIC)
    assert "success" in tools("deleteTopic", "-c", "DefaultCluster", "-t", "T_made")
    assert "T_made" not in tools("topicList")


def test_6_1_46_47_groups(tools: Tools, cluster: Cluster) -> None:
    assert "success" in tools("updateSubGroup", "-c", "DefaultCluster", "-g", "G_made", "-r", 3)
    assert "groupName" in tools("getConsumerConfig", "-g", "G_made")

    def caught_up() -> bool:
        rows = [line.split() for line in tools("consumerProgress", "-g", GROUP).splitlines()]
        behind = [row[3:6] for row in rows if row[:1] == [TOPIC]]
        return len(behind) == 4 and all(end == done and left == "0" for end, done, left in behind)

    until(caught_up, timeout=20, what="the consumer's positions, which it commits after 10 s")
    assert GROUP in tools("consumerProgress")
    text = tools("consumerConnection", "-g", GROUP)
    assert tools.client in text and "TagA || TagB" in text and "CONSUME_FROM_FIRST_OFFSET" in text
    assert "JAVA" in tools("producerConnection", "-g", f"{GROUP}-producer", "-t", TOPIC)
    assert TOPIC in tools("brokerConsumeStats", "-b", cluster.master.grpc)
    assert "success" in tools("deleteSubGroup", "-c", "DefaultCluster", "-g", "G_made")


def test_6_1_49_requests_that_go_through_to_a_client(tools: Tools) -> None:
    assert "Rebalance OK" in tools("consumerStatus", "-g", GROUP)
    words = ["queryMsgById", "-i", tools.message, "-g", GROUP, "-d", tools.client]
    text = tools(*words, *(("-t", TOPIC) if tools.version == "5.3.3" else ()))
    assert "CR_SUCCESS" in text
    text = tools("queryMsgByUniqueKey", "-i", tools.unique, "-t", TOPIC, "-g", GROUP, "-d", tools.client)
    assert "CR_SUCCESS" in text


def test_6_1_41_the_traces_of_a_message(tools: Tools) -> None:
    def found() -> bool:
        try:
            return "success" in tools("queryMsgTraceById", "-i", tools.unique)
        except AssertionError:  # nothing is there yet: mqadmin then shows an exception
            return False

    until(found, timeout=20, what="the producer's traces, which it sends by and by")
    text = tools("queryMsgTraceById", "-i", tools.unique)
    assert "Pub" in text and f"{GROUP}-producer" in text


def test_6_1_50_resets_of_a_group_that_is_online_and_of_one_that_is_not(tools: Tools) -> None:
    assert tools("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "now").count("broker-a") == 4
    tools("cloneGroupOffset", "-s", GROUP, "-d", "G_offline", "-t", TOPIC)
    text = tools("resetOffsetByTime", "-g", "G_offline", "-t", TOPIC, "-s", "0")
    rows = [line.split() for line in text.splitlines() if line.startswith("broker-a")]
    assert sorted(rows) == [["broker-a", str(number), "0"] for number in range(4)]
    assert tools("skipAccumulatedMessage", "-g", "G_offline", "-t", TOPIC).count("broker-a") == 4
    # Else queryMsgByOffset shows an exception for it, as for each group that has never had a consumer.
    assert "success" in tools("deleteSubGroup", "-c", "DefaultCluster", "-g", "G_offline")


def test_6_1_52_settings(tools: Tools, cluster: Cluster) -> None:
    address = cluster.master.grpc
    assert "fileReservedTime" in tools("getBrokerConfig", "-b", address)
    assert "success" in tools("updateBrokerConfig", "-b", address, "-k", "fileReservedTime", "-v", "48")
    with pytest.raises(AssertionError, match="nothing was changed"):
        tools("updateBrokerConfig", "-b", address, "-k", "rocketmqHome", "-v", "/tmp")
    assert "success" in tools("cleanExpiredCQ", "-b", address)
    assert "success" in tools("cleanUnusedTopic", "-b", address)


def test_6_1_46_47_every_other_command_that_was_recorded(
    tools: Tools, cluster: Cluster, tmp_path: Path
) -> None:
    address = cluster.master.grpc
    topic, group, cluster_name = ("-t", TOPIC), ("-g", GROUP), ("-c", "DefaultCluster")
    commands: list[tuple[object, ...]] = [
        ("topicRoute", *topic),
        ("topicClusterList", *topic),
        ("updateTopic", "-b", address, "-t", "T_ordered", "-r", 2, "-w", 2, "-o", "true"),
        ("queryMsgByOffset", *topic, "-b", "broker-a", "-i", 0, "-o", 0),
        ("queryMsgByKey", *topic, "-k", "key1"),
        ("printMsg", *topic),
        ("printMsgByQueue", *topic, "-a", "broker-a", "-i", 0),
        ("consumeMessage", *topic),
        ("sendMessage", *topic, "-p", "body"),
        ("sendMsgStatus", "-b", "broker-a", "-s", 10, "-c", 2),
        ("checkMsgSendRT", *topic, "-a", 2, "-s", 10),
        ("wipeWritePerm", "-b", "broker-a"),
        ("addWritePerm", "-b", "broker-a"),
        ("updateKvConfig", "-s", "NSX", "-k", "a", "-v", "b"),
        ("deleteKvConfig", "-s", "NSX", "-k", "a"),
        ("updateOrderConf", *topic, "-v", "broker-a:4", "-m", "put"),
        ("updateOrderConf", *topic, "-m", "get"),
        ("updateOrderConf", *topic, "-m", "delete"),
        ("allocateMQ", *topic, "-i", "1.1.1.1,2.2.2.2"),
        ("getNamesrvConfig",),
        ("queryCq", *topic, "-q", 0, "-i", 0, "-c", 2, "-b", address, *group),
        ("exportMetadata", *cluster_name, "-f", tmp_path),
        ("exportConfigs", *cluster_name, "-f", tmp_path),
        ("exportMetrics", *cluster_name, "-f", tmp_path),
    ]
    found = {}
    for words in commands:
        try:
            tools(*words)
        except AssertionError as error:
            # 4.9.3 shows an exception where a name server has no value yet, at RocketMQ's as well.
            if "No config item, Namespace: ORDER_TOPIC_CONFIG" not in str(error):
                found[" ".join(map(str, words))] = str(error)
    assert found == {}


def test_6_1_46_47_commands_that_need_a_process_of_their_own(tools: Tools) -> None:
    text = tools.alone("queryMsgByUniqueKey", "-i", tools.unique, "-t", TOPIC, until="Message Body Path")
    assert "[TagA]" in text and "[key9]" in text
    text = tools.alone("clusterRT", "-a", 2, "-s", 10, "-i", 1, until="broker-a")
    (row,) = [line.split() for line in text.splitlines() if "broker-a" in line]
    assert row[-2:] == ["2", "0"]  # sent, failed


def test_6_1_46_47_what_is_not_served_is_said_to_be_so(tools: Tools, cluster: Cluster) -> None:
    to = ("-b", cluster.master.grpc)
    commands: list[tuple[object, ...]] = [
        ("updateAclConfig", *to, "-a", "someone", "-s", "a secret"),
        ("deleteAccessConfig", *to, "-a", "someone"),
        ("updateGlobalWhiteAddr", *to, "-g", "10.0.0.1"),
        ("clusterAclConfigVersion", "-c", "DefaultCluster"),
        ("getAccessConfigSubCommand", "-c", "DefaultCluster"),
    ]
    if tools.version == "5.3.3":
        commands = [
            ("listUser", *to),
            ("listAcl", *to),
            ("createUser", *to, "-u", "u", "-p", "p", "-t", "Super"),
            ("getBrokerEpoch", "-b", "broker-a"),
            ("updateTopicList", *to, "-f", tools.lists("topics", '[{"topicName":"T_list"}]')),
            ("updateSubGroupList", *to, "-f", tools.lists("groups", '[{"groupName":"G_list"}]')),
        ]
    for words in commands:
        assert "CODE: 3" in (text := tools.refused(*words)) and "is not served here" in text, text


def test_6_1_47_commands_that_only_5_x_has(tools: Tools, cluster: Cluster) -> None:
    if tools.version == "4.9.3":
        pytest.skip("they came later")
    made = tools("updateTopic", "-c", "DefaultCluster", "-t", "T_fifo", "-a", "+message.type=FIFO")
    assert "success" in made
    assert GROUP in tools("producer", "-b", cluster.master.grpc)
    assert "#InSyncSlaveNum\t1" in tools("haStatus", "-b", cluster.master.grpc)
    assert "success" in tools("deleteExpiredCommitLog", "-b", cluster.master.grpc)
    mode = ("setConsumeMode", "-b", cluster.master.grpc, "-t", TOPIC, "-g", GROUP)
    assert "success" in tools(*mode, "-m", "PULL")
    assert "pop by the remoting protocol is not served" in tools.refused(*mode, "-m", "POP", "-q", 1)
