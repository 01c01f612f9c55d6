"""What `whimbrel dev` runs, when it starts a dead child again, and how it ends."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from whimbrel.cli import dev_plan, malloc, supervisor
from whimbrel.cli.dev_plan import DevOptions, RestartBackoff, StartError, plan
from whimbrel.cli.supervisor import Child, Supervisor, memory
from whimbrel.store.shared_page import SharedPage
from whimbrel.testing.signals import send_signal

CHILD = """
import json, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ready = sys.argv[-1]
open(ready + '.tmp', 'w').write(json.dumps({'pid': os.getpid(), 'grpc': '127.0.0.1:4321', 'ha': ''}))
os.rename(ready + '.tmp', ready)
while True:
    signal.pause()
"""

LINE = "2026-01-02T03:04:05.678Z ERROR   the store is locked [broker.program]"


class Script:
    """A view that lets the test act while the supervisor runs."""

    def __init__(self, steps: list[Callable[[Supervisor], bool]]) -> None:
        self.steps = steps
        self.lines: list[str] = []
        self.supervisor: Supervisor | None = None

    def notify(self, text: str) -> None:
        self.lines.append(text)

    def ready(self, endpoint: str, children: Sequence[Child], ready_s: float, lack: str = "") -> None:
        self.lines.append(f"not ready: {lack}" if lack else f"ready {endpoint} {len(children)}")
        self.ready_s = ready_s

    def refresh(self, children: Sequence[Child]) -> None:
        assert self.supervisor is not None
        if not self.supervisor.complete:
            return
        if not self.steps:
            os.kill(os.getpid(), signal.SIGINT)
        elif self.steps[0](self.supervisor):
            self.steps.pop(0)


def fake_children(monkeypatch: pytest.MonkeyPatch, code: str = CHILD) -> None:
    """Let tiny scripts stand for the processes."""
    monkeypatch.setattr(
        Child, "command", lambda self: [sys.executable, "-S", "-c", code, str(self.ready_file)]
    )
    monkeypatch.setattr(Supervisor, "takes_messages", lambda self: True)


def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *steps: Callable[[Supervisor], bool],
    code: str = CHILD,
) -> Script:
    """Run a supervisor whose children are tiny scripts, and end it with SIGINT after the steps."""
    fake_children(monkeypatch, code)
    view = Script(list(steps))
    view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=0), view)
    view.supervisor.run()
    return view


def test_what_is_not_asked_for_is_not_switched_on(tmp_path: Path) -> None:
    settings = [set(each.settings) for each in plan(DevOptions(directory=tmp_path), "")]
    assert not any({"metrics_port", "trace_to", "trace_ratio"} & each for each in settings)


def test_metrics_and_traces_are_switched_on_everywhere(tmp_path: Path) -> None:
    plans = plan(DevOptions(directory=tmp_path, slaves=2, metrics=True, trace_ratio=0.5), "")
    assert all(each.settings["metrics_port"] == 0 for each in plans)
    targets = [each.settings["trace_to"] for each in plans if each.program != "nameserver"]
    assert len(set(targets)) == 6  # a file each
    assert [each.name for each in plans if "trace_ratio" in each.settings] == ["master"]


def test_ports_that_a_child_got_are_kept(tmp_path: Path) -> None:
    nameserver = plan(DevOptions(directory=tmp_path, port=0, metrics=True), "")[0]
    child = Child(nameserver, tmp_path)
    assert {"--port=0", "--metrics-port=0"} <= set(child.command())
    child.ready = {"grpc": "127.0.0.1:4321", "metrics": "127.0.0.1:4322"}
    assert {"--port=4321", "--metrics-port=4322"} <= set(child.command())


def test_children_get_the_settings_of_malloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    seen: list[bytes] = []

    def look(supervisor: Supervisor) -> bool:
        seen.extend(Path(f"/proc/{child.pid}/environ").read_bytes() for child in supervisor.children)
        return True

    run(tmp_path, monkeypatch, look)
    assert seen
    for name, value in malloc.SETTINGS.items():
        assert all(f"{name}={value}\0".encode() in each for each in seen)


def test_ports_follow_the_base(tmp_path: Path) -> None:
    plans = plan(DevOptions(directory=tmp_path, port=9000, slaves=2), "127.0.0.1:9000")
    assert [(each.name, each.port) for each in plans] == [
        ("nameserver", 9000),
        ("master", 9010),
        ("master-replicator", 9011),
        ("slave-1", 9020),
        ("slave-1-replicator", None),
        ("slave-2", 9030),
        ("slave-2-replicator", None),
    ]


def test_broker_groups_have_names_stores_and_ports_of_their_own(tmp_path: Path) -> None:
    plans = plan(DevOptions(directory=tmp_path, port=9000, brokers=2), "127.0.0.1:9000")
    assert [(each.name, each.port) for each in plans if each.port is not None] == [
        ("nameserver", 9000),
        ("master", 9010),
        ("master-replicator", 9011),
        ("slave-1", 9020),
        ("b-master", 9030),
        ("b-master-replicator", 9031),
        ("b-slave-1", 9040),
    ]
    assert plans[0].settings["expected_brokers"] == 4
    brokers = [each for each in plans if each.program == "broker"]
    assert [(each.settings["name"], each.settings["id"]) for each in brokers] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
        ("broker-b", 1),
    ]
    assert len({each.store for each in brokers}) == 4


def test_the_nameserver_expects_all_brokers_and_has_the_port_that_the_others_are_told(tmp_path: Path) -> None:
    nameserver, master, *_ = plan(DevOptions(directory=tmp_path, port=0, slaves=2), "127.0.0.1:4711")
    assert nameserver.settings["expected_brokers"] == 3
    assert (nameserver.port, master.settings["nameservers"]) == (4711, "127.0.0.1:4711")


def test_a_reserved_port_can_be_listened_on_and_is_given_to_nobody_else() -> None:
    with supervisor.reserved_port("127.0.0.1", 0) as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()


def test_strictness_and_file_sizes_reach_the_processes(tmp_path: Path) -> None:
    options = DevOptions(
        directory=tmp_path, auto_create=False, log_file_size=1 << 25, lease_file_size=1 << 20
    )
    _, master, _, slave, replicator = plan(options, "")
    for broker in (master, slave):
        assert broker.settings["auto_create_topics"] == broker.settings["auto_create_groups"] == "false"
        assert (broker.settings["commitlog_file_size"], broker.settings["lease_file_size"]) == (
            1 << 25,
            1 << 20,
        )
        # A reader of an index file derives its slots from RocketMQ's ratio.
        assert broker.settings["index_entries"] == 4 * int(broker.settings["index_slots"])
    assert replicator.settings["commitlog_file_size"] == 1 << 25


def test_the_master_takes_messages_when_its_own_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = SharedPage.open(tmp_path / "master")
    waiting = Supervisor(DevOptions(directory=tmp_path), Script([]))
    waiting.children = [Child(each, tmp_path) for each in plan(waiting.options, "")]
    monkeypatch.setattr(Child, "pid", os.getpid())
    page.writable, page.broker_pid = 1, os.getpid() + 1  # left there by the last master
    assert not waiting.takes_messages()
    page.broker_pid = os.getpid()
    assert waiting.takes_messages()
    page.writable = 0
    assert not waiting.takes_messages()
    page.close()


def test_port_zero_takes_any(tmp_path: Path) -> None:
    assert {each.port for each in plan(DevOptions(directory=tmp_path, port=0), "")} == {0, None}


def test_a_broker_and_its_replicator_share_the_store(tmp_path: Path) -> None:
    plans = plan(DevOptions(directory=tmp_path), "")
    stores = {each.name: each.settings.get("store") for each in plans}
    assert stores["master"] == stores["master-replicator"] == str(tmp_path / "master")
    assert stores["slave-1"] == stores["slave-1-replicator"] == str(tmp_path / "slave-1")


def test_brokers_get_the_modes_and_the_number_of_slaves(tmp_path: Path) -> None:
    options = DevOptions(directory=tmp_path, flush="sync", replication="sync", slaves=3)
    master = plan(options, "h:1")[1]
    assert master.settings["flush"] == master.settings["replication"] == "sync"
    assert master.settings["expected_slaves"] == 3
    assert master.settings["nameservers"] == "h:1"


def test_synchronous_replication_without_slaves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="needs a slave"):
        plan(DevOptions(directory=tmp_path, replication="sync", slaves=0), "")


def test_the_restart_delay_doubles_up_to_its_bound_and_starts_over_after_a_steady_time() -> None:
    restarts = RestartBackoff()
    delays = []
    for _ in range(8):
        restarts.ready(100.0)
        delays.append(restarts.died(101.0) - 101.0)
    assert [round(delay, 3) for delay in delays] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    restarts.ready(200.0)
    assert restarts.died(200.0 + dev_plan.STEADY_S) - 210.0 == pytest.approx(dev_plan.RESTART_FIRST_S)


def test_memory_tells_anonymous_and_file_pages_apart() -> None:
    size = memory(os.getpid())
    assert size is not None
    assert size.resident == size.anonymous + size.file
    assert size.anonymous > 0
    assert size.file > 0


def test_memory_of_nobody_is_none() -> None:
    assert memory(2**22 + 1) is None


def test_a_taken_port_is_named_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        view = Script([])
        view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=port), view)
        with pytest.raises(StartError, match=rf"port {port} \(for the nameserver\) is taken"):
            view.supervisor.run()


def test_a_second_supervisor_in_the_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(running: Supervisor) -> bool:
        with pytest.raises(StartError, match="another `whimbrel dev` runs"), running.locked():
            pass
        return True

    run(tmp_path, monkeypatch, second)


def test_the_cluster_file_is_there_while_it_runs_and_gone_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(running: Supervisor) -> bool:
        seen.append(json.loads((tmp_path / "cluster.json").read_text()))
        return True

    view = run(tmp_path, monkeypatch, look)
    assert seen[0]["endpoint"] == "127.0.0.1:4321"
    roles = [process["role"] for process in seen[0]["processes"]]
    assert roles == ["nameserver", "master", "master-replicator", "slave", "slave-replicator"]
    assert set(seen[0]["processes"][0]) == {"name", "role", "pid", "grpc", "ha", "metrics", "store"}
    assert not (tmp_path / "cluster.json").exists()
    assert view.lines == ["ready 127.0.0.1:4321 5"]


def test_a_dead_child_is_started_again_and_the_cluster_file_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = []

    def kill(running: Supervisor) -> bool:
        pids.append(running.children[1].pid)
        os.kill(pids[0], signal.SIGKILL)
        return True

    def back(running: Supervisor) -> bool:
        child = running.children[1]
        if child.state != "ready" or child.starts != 2:
            return False
        entry = json.loads((tmp_path / "cluster.json").read_text())["processes"][1]
        pids.append(entry["pid"])
        return True

    view = run(tmp_path, monkeypatch, kill, back)
    assert pids[1] not in (0, pids[0])
    assert view.lines[1] == "master: killed by SIGKILL; starting it again in 0.2 s"
    assert view.lines[2].startswith("master is back after")


def test_a_held_child_stays_down_until_the_hold_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "run" / "master.hold"
    held: list[float] = []

    def kill(running: Supervisor) -> bool:
        hold.touch()
        running.children[1].restarts.delay = dev_plan.RESTART_MAX_S  # it has died often
        os.kill(running.children[1].pid, signal.SIGKILL)
        return True

    def wait(running: Supervisor) -> bool:
        child = running.children[1]
        if child.state == "waiting" and child.due > child.started_at + 1.0:
            held.append(child.due)
            hold.unlink()
        return bool(held)

    def back(running: Supervisor) -> bool:
        return running.children[1].state == "ready"

    view = run(tmp_path, monkeypatch, kill, wait, back)
    assert view.supervisor is not None
    assert view.supervisor.children[1].restarts.delay == dev_plan.RESTART_FIRST_S
    assert view.lines[1].startswith("master: killed by SIGKILL; it stays down while")
    assert view.lines[2].startswith("master is back")


def test_a_cluster_file_that_can_not_be_written_is_written_later_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Supervisor.write_cluster
    full: list[bool] = []
    pids: list[int] = []

    def write_cluster(self: Supervisor) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write(self)

    def kill(running: Supervisor) -> bool:
        full.append(True)
        os.kill(running.children[0].pid, signal.SIGKILL)
        return True

    def back(running: Supervisor) -> bool:
        if not running.refused:
            return False
        full.clear()
        return True

    def written(running: Supervisor) -> bool:
        pids[:] = [each["pid"] for each in json.loads((tmp_path / "cluster.json").read_text())["processes"]]
        return not running.stale and pids == [child.pid for child in running.children]

    monkeypatch.setattr(Supervisor, "write_cluster", write_cluster)
    view = run(tmp_path, monkeypatch, kill, back, written)
    refused = [line for line in view.lines if "No space left" in line]
    assert len(refused) == 1
    assert refused[0].startswith(
        f"{tmp_path / 'cluster.json'}: No space left on device; until it can be written"
    )


def test_no_child_is_left_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def note(running: Supervisor) -> bool:
        pids.extend(child.pid for child in running.children)
        return True

    run(tmp_path, monkeypatch, note)
    assert len(pids) == 5
    assert [memory(pid) for pid in pids] == [None] * 5


def refusing(monkeypatch: pytest.MonkeyPatch, takes: Callable[[], bool] = lambda: False) -> None:
    """Let tiny scripts stand for processes that take no messages."""
    fake_children(monkeypatch)
    monkeypatch.setattr(
        Supervisor, "usable_command", lambda self: ["/bin/echo", "broker-a: the disk is full"]
    )
    monkeypatch.setattr(Supervisor, "takes_messages", lambda self: takes())
    monkeypatch.setattr(supervisor, "ASK_AFTER_S", 0.0)


def test_a_cluster_that_takes_no_messages_stays_up_and_is_not_called_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch)
    view = Script([])
    view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=0), view)
    view.supervisor.run()
    assert view.lines == ["not ready: broker-a: the disk is full"]
    assert not view.supervisor.interrupted


def test_it_is_called_ready_once_it_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.touch()
    refusing(monkeypatch, lambda: not full.exists())

    def make_room(_: Supervisor) -> bool:
        full.unlink()
        return True

    view = Script([make_room, lambda running: not running.lack])
    view.supervisor = Supervisor(DevOptions(directory=tmp_path / "c", port=0), view)
    view.supervisor.run()
    assert view.lines[1:] == ["the cluster is ready: it takes messages now"]


def test_one_that_must_be_ready_and_takes_none_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch)
    view = Script([])
    view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=0), view, must_be_ready=True)
    with pytest.raises(
        StartError, match=r"takes no messages, and was stopped again: broker-a: the disk is full"
    ):
        view.supervisor.run()
    assert view.lines == []
    assert not any(child.pid for child in view.supervisor.children)
    assert not (tmp_path / "cluster.json").exists()


def test_one_that_was_interrupted_before_it_was_ready_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes() -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return False

    refusing(monkeypatch, takes)
    monkeypatch.setattr(supervisor, "ASK_AFTER_S", 60.0)
    view = Script([])
    view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=0), view)
    view.supervisor.run()
    assert view.supervisor.interrupted


def test_all_settings_that_a_child_refuses_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "nameserver.log").write_text("whimbrel nameserver: of yesterday\n", encoding="utf-8")
    said = "whimbrel nameserver: a is wrong\\nwhimbrel nameserver: b is wrong\\n"
    with pytest.raises(StartError, match=r"nameserver did not start: a is wrong; b is wrong \(log: "):
        run(tmp_path, monkeypatch, code=f"import os, sys; sys.stderr.write('{said}'); os._exit(2)")


def test_a_child_that_cannot_start_fails_the_cluster_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StartError, match=r"nameserver did not start: the store is locked \(log: "):
        run(tmp_path, monkeypatch, code=f"import sys; sys.exit({LINE!r})")


def test_a_stopped_child_ends_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(running: Supervisor) -> bool:
        send_signal(running.children[1].pid, signal.SIGSTOP)
        return True

    view = run(tmp_path, monkeypatch, pause)
    assert not any("does not stop" in line for line in view.lines)


def test_the_end_of_the_process_that_asked_for_it_ends_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    fd = os.pidfd_open(parent.pid)
    fake_children(monkeypatch)
    view = Script([lambda running: parent.communicate() is not None, lambda running: False])
    view.supervisor = Supervisor(DevOptions(directory=tmp_path, port=0), view, ends_with=fd)
    view.supervisor.run()
    os.close(fd)
    assert view.supervisor.wakeups.signals == [signal.SIGTERM]


def test_a_child_that_ignores_the_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.3)
    stubborn = CHILD.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    view = run(tmp_path, monkeypatch, code=stubborn)
    assert sum(line.endswith("does not stop; killing it") for line in view.lines) == 5


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from whimbrel.cli.dev_plan import DevOptions
from whimbrel.cli.supervisor import Child, Supervisor
Child.command = lambda self: [sys.executable, "-S", "-c", {CHILD!r}, str(self.ready_file)]
Supervisor.takes_messages = lambda self: True
class View:
    def notify(self, text): pass
    def ready(self, endpoint, children, ready_s, lack): print(*(child.pid for child in children), flush=True)
    def refresh(self, children): pass
Supervisor(DevOptions(directory=Path({str(tmp_path)!r}), port=0), View()).run()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(supervisor.__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True
    ) as running:
        watchdog = threading.Timer(20, running.kill)
        watchdog.start()
        assert running.stdout is not None
        pids = [int(word) for word in running.stdout.readline().split()]
        running.kill()
        running.wait()
        watchdog.cancel()
    assert len(pids) == 5
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            pidfd = os.pidfd_open(pid)
            select.select([pidfd], [], [], 10)
            os.close(pidfd)
    assert [memory(pid) for pid in pids] == [None] * 5
