"""A real etcd for tests: one member or three, on free ports of the loopback, with their data below a folder.

    with Etcd(tmp_path, members=3) as etcd:
        etcd.setting                        # "etcd:127.0.0.1:PORT,..." for --coordinator
        etcd.members[0].kill()
        etcd.leader().signal(signal.SIGSTOP)
        etcd.ctl("get", "--prefix", "/whimbrel/")

The programs come from `deploy/etcd.py`. Where they can't be had, tests are skipped with the reason, and fail
with `REQUIRE_ETCD=1`.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from etcd import NoEtcd, programs
from support.cluster.certificates import Tls
from support.waiting import until
from whimbrel.testing.signals import send_signal

__all__ = ["Etcd", "EtcdMember", "need_etcd"]

# Shorter than etcd's own: tests wait for elections. Fsyncs are kept.
HEARTBEAT_MS, ELECTION_MS = 50, 500
SERVES_S = 20.0
CTL_S = 20

alive: set["EtcdMember"] = set()


def need_etcd() -> Path:
    """Return the folder of etcd's programs; skip the test where they can't be had."""
    try:
        return programs()
    except NoEtcd as error:
        if os.environ.get("REQUIRE_ETCD"):
            pytest.fail(f"REQUIRE_ETCD is set, and {error}")
        pytest.skip(str(error))


class EtcdMember:
    """One member; starts with the data that it has."""

    def __init__(self, number: int, program: Path, folder: Path, words: Sequence[str], client: int) -> None:
        self.number, self.program, self.folder, self.words = number, program, folder, words
        self.address = f"127.0.0.1:{client}"
        self.log = folder.with_suffix(".log")
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.child is not None and self.child.poll() is None

    def start(self) -> None:
        """Start it; it may not serve yet."""
        assert not self.running
        with self.log.open("ab") as output:
            self.child = subprocess.Popen(
                [self.program, *self.words], stdout=output, stderr=output, start_new_session=True,
                env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        alive.add(self)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; SIGSTOP has taken effect when this returns."""
        if self.running:
            assert self.child is not None
            send_signal(self.child.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        if self.child is not None:
            self.child.wait(20)
        alive.discard(self)


class Etcd:
    """The cluster, started; it may not serve yet after `start`.

    Args:
        root: where data and logs go.
        members: one or three.
        tls: certificates, which clients have to show as well.
        cluster: names it; another name makes another cluster id.
        words: more arguments for each member.
    """

    def __init__(
        self,
        root: Path,
        *,
        members: int = 1,
        tls: Tls | None = None,
        cluster: str = "test",
        words: Sequence[str] = (),
        ports: Sequence[int] = (),
    ) -> None:
        self.root, self.tls = root, tls
        self.bin = need_etcd()
        self.cluster, self.more = cluster, tuple(words)
        root.mkdir(parents=True, exist_ok=True)
        self.ports = tuple(ports) or free_ports(2 * members)
        self.peers = [f"m{number}=http://127.0.0.1:{self.ports[2 * number + 1]}" for number in range(members)]
        self.members = [self.describe(number) for number in range(members)]
        self.user: tuple[str, str] | None = None

    def describe(self, number: int) -> EtcdMember:
        """Describe a member."""
        scheme = "https" if self.tls else "http"
        client, peer = self.ports[2 * number : 2 * number + 2]
        folder = self.root / f"m{number}"
        words = [
            "--name", f"m{number}", "--data-dir", str(folder), "--logger", "zap", "--log-level", "warn",
            "--listen-client-urls", f"{scheme}://127.0.0.1:{client}",
            "--advertise-client-urls", f"{scheme}://127.0.0.1:{client}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", ",".join(self.peers), "--initial-cluster-token", self.cluster,
            "--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS), *self.more,
        ]  # fmt: skip
        if self.tls:
            words += [
                "--cert-file", str(self.tls.server), "--key-file", str(self.tls.server_key),
                "--trusted-ca-file", str(self.tls.ca), "--client-cert-auth",
            ]  # fmt: skip
        return EtcdMember(number, self.bin / "etcd", folder, words, client)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def addresses(self) -> list[str]:
        """Where its members serve clients."""
        return [member.address for member in self.members]

    @property
    def setting(self) -> str:
        """For `--coordinator`."""
        return "etcd:" + ",".join(self.addresses)

    def start(self) -> Self:
        """Start all that do not run, and wait until they serve."""
        for member in self.members:
            if not member.running:
                member.start()
        self.wait_serving()
        return self

    def wait_serving(self) -> None:
        """Wait until a write through each member that runs is done."""
        for member in self.members:
            if member.running:
                until(partial(self.writes, member), timeout=SERVES_S, what=f"etcd {member.address}")

    def writes(self, member: EtcdMember) -> bool:
        """Return whether a member takes a write."""
        return self.run("put", "/ready", "yes", at=[member.address], command_s=2).returncode == 0

    def kill(self) -> None:
        """End all at once."""
        for member in self.members:
            member.signal(signal.SIGKILL)
        for member in self.members:
            member.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send all of them a signal."""
        for member in self.members:
            member.signal(number)

    def leader(self) -> EtcdMember:
        """Return the member that leads etcd."""

        def found() -> EtcdMember | None:
            for member in self.members:
                if not member.running:
                    continue
                done = self.run("endpoint", "status", "-w", "json", at=[member.address], command_s=2)
                if done.returncode:
                    continue
                status: Any = json.loads(done.stdout)[0]["Status"]
                if status["header"]["member_id"] == status["leader"]:
                    return member
            return None

        leading = until(found, timeout=SERVES_S, what="a leader of etcd")
        assert isinstance(leading, EtcdMember)
        return leading

    def ctl(self, *words: str, at: Sequence[str] = ()) -> str:
        """Run etcdctl, and return what it prints."""
        done = self.run(*words, at=at)
        assert done.returncode == 0, f"etcdctl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(
        self, *words: str, at: Sequence[str] = (), command_s: int = CTL_S
    ) -> "subprocess.CompletedProcess[str]":
        """Run etcdctl."""
        scheme = "https" if self.tls else "http"
        endpoints = ",".join(f"{scheme}://{each}" for each in at or self.addresses)
        command = [
            str(self.bin / "etcdctl"), "--endpoints", endpoints, "--dial-timeout", "2s",
            "--command-timeout", f"{command_s}s",
        ]  # fmt: skip
        if self.tls:
            tls = self.tls
            command += ["--cacert", str(tls.ca), "--cert", str(tls.client), "--key", str(tls.client_key)]
        if self.user is not None:
            command += ["--user", ":".join(self.user)]
        variables = {"PATH": os.environ["PATH"], "ETCDCTL_API": "3"}
        return subprocess.run(
            [*command, *words], env=variables, check=False, capture_output=True, text=True, timeout=CTL_S + 5
        )

    def value(self, key: str) -> str:
        """Return what stands under a key."""
        return self.ctl("get", "--print-value-only", key).rstrip("\n")

    def restored(self, snapshot: Path, root: Path, *, cluster: str = "") -> "Etcd":
        """Return a cluster of one member at our ports, made of a snapshot; it is not started yet."""
        assert len(self.members) == 1
        other = Etcd(root, tls=self.tls, cluster=cluster or self.cluster, words=self.more, ports=self.ports)
        self.ctl(
            "snapshot", "restore", str(snapshot), "--name", "m0", "--data-dir", str(other.members[0].folder),
            "--initial-cluster", other.peers[0], "--initial-cluster-token", other.cluster,
            "--initial-advertise-peer-urls", other.peers[0].partition("=")[2],
        )  # fmt: skip
        return other


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that nobody listens on; all are held until all are known."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)
    finally:
        for each in sockets:
            each.close()


def end_all() -> None:
    """Kill what tests left behind."""
    for member in list(alive):
        member.kill()


atexit.register(end_all)
