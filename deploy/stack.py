"""The cluster of docker-compose.yml, for `make up`, `make down`, `make logs`, CI and tests.

With GROUP=3 the one of docker-compose.group.yml: three members that elect their leader, three nameservers,
three etcd. It is a project of its own.

    python deploy/stack.py up [COMPOSE OPTION ...]     build, start, wait, and print times and memory
    python deploy/stack.py down [-v]                   stop; -v removes the stores as well
    python deploy/stack.py logs [-f] [SERVICE ...]
    python deploy/stack.py base                        only make sure that the base image is there
    python deploy/stack.py build                       base and image

`up` is `docker compose up`, and three things more: it builds the base image where it can't be pulled, waits
until all containers are healthy (docker-compose 1.29.2 has no --wait), and prints what it measured.
COMPOSE_PROJECT_NAME names another project than `whimbrel`, or `whimbrel-group`.
ETCD_IMAGE names another image of etcd; where none can be pulled one is built from Debian's packages.
"""

import contextlib
import datetime
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

from etcd import PROGRAMS, NoEtcd, programs

__all__ = [
    "GROUP_FILE",
    "GROUP_SERVICES",
    "SERVICES",
    "Failed",
    "Stack",
    "engine",
    "ensure_base",
    "ensure_etcd",
]

ROOT = Path(__file__).resolve().parent.parent
BASE_IMAGE = "python:3.11.13-slim-bookworm"
HEALTHY_S = 60.0  # enough on a machine whose cores are all busy
ENGINE_S = 60.0  # the engine answers sooner to all requests but those that stop and build
POLL_S = 0.05
SERVICES = ("nameserver", "broker-master", "replicator-master", "broker-slave", "replicator-slave")
LANE_MODULE = "whimbrel_lane"
LANE_FOLDER = ROOT / "build" / "image"  # as in the Dockerfile
GROUP_FILE = ROOT / "docker-compose.group.yml"
GROUP_SIZE = 3
GROUP_SERVICES = tuple(
    f"{kind}-{number}"
    for kind in ("etcd", "nameserver", "broker", "replicator")
    for number in range(1, GROUP_SIZE + 1)
)
ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.21"
ETCD_STAND_IN = "whimbrel-etcd:debian"


class Failed(Exception):
    """Something could not be done; the text is for people."""


def compose() -> list[str]:
    """Return the compose command of this machine, version 2 where there is one.

    Raises:
        Failed: there is none.
    """
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return command
    raise Failed("neither `docker compose` nor `docker-compose` is installed")


def engine() -> Any:
    """Return a client of the engine.

    Raises:
        Failed: none answers.
    """
    try:
        client = docker.from_env(timeout=ENGINE_S)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        reason = str(error).partition(": ")[0]
        raise Failed(
            f"no Docker engine answers ({reason}): is dockerd running, and may you use its socket?"
            " Without Docker, `make run` and `whimbrel dev` need none"
        ) from error
    return client


def ensure_base(client: Any) -> None:
    """Make sure that the base image is there: pulled, or else built here.

    Raises:
        Failed: neither worked.
    """
    with contextlib.suppress(docker.errors.ImageNotFound):
        client.images.get(BASE_IMAGE)
        return
    try:
        client.images.pull(*BASE_IMAGE.split(":"))
        return
    except (docker.errors.APIError, OSError) as error:
        reason = getattr(error, "explanation", None) or error
    print(f"{BASE_IMAGE} can't be pulled: {reason}", flush=True)
    script = ROOT / "deploy" / "base-image.sh"
    if os.geteuid() or not shutil.which("debootstrap"):
        raise Failed(f"a stand-in can be made by root, with debootstrap installed: {script}")
    saved = [path] if (path := os.environ.get("BASE_IMAGE_CACHE")) else []
    if subprocess.run([str(script), *saved], check=False).returncode:
        raise Failed("the stand-in can't be made")


def ensure_etcd(client: Any) -> str:
    """Make sure that an image of etcd is there: pulled, or else built here; return its name.

    Raises:
        Failed: neither worked.
    """
    wanted = os.environ.get("ETCD_IMAGE") or ETCD_IMAGE
    for there in (wanted, ETCD_STAND_IN):
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.get(there)
            return there
    try:
        client.images.pull(*wanted.rsplit(":", 1))
        return wanted
    except (docker.errors.APIError, OSError) as error:
        reason = getattr(error, "explanation", None) or error
    print(f"{wanted} can't be pulled: {reason}", flush=True)
    ensure_base(client)
    try:
        folder = programs()
    except NoEtcd as error:
        raise Failed(str(error)) from error
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        tar.add(ROOT / "deploy" / "etcd.Dockerfile", "Dockerfile")
        for program in PROGRAMS:
            tar.add(folder / program, program)
    context.seek(0)
    try:
        client.images.build(fileobj=context, custom_context=True, tag=ETCD_STAND_IN, rm=True, forcerm=True)
    except (docker.errors.BuildError, docker.errors.APIError) as error:
        raise Failed(f"the image of etcd can't be built: {error}") from error
    return ETCD_STAND_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One compose project.

    Attributes:
        client: of the engine.
        project: under which compose knows the containers.
        environment: variables of docker-compose.yml, over those of this process; may change between commands.
        files: compose files, the later ones over the earlier ones.
        services: that are started without a profile.
        entry: the nameserver that is asked, and its port's variable and default.
        brokers: how many register.
    """

    client: Any
    project: str
    environment: dict[str, str]
    files: tuple[Path, ...] = (ROOT / "docker-compose.yml",)
    services: tuple[str, ...] = SERVICES
    entry: tuple[str, str, int] = ("nameserver", "NAMESERVER_PORT", 8081)
    brokers: int = 2

    @classmethod
    def group(cls, client: Any, project: str, environment: dict[str, str]) -> "Stack":
        """Return the stack of a group that elects its leader.

        Raises:
            Failed: there is no image of etcd, and none can be made.
        """
        return cls(
            client=client,
            project=project,
            environment={"ETCD_IMAGE": ensure_etcd(client), **environment},
            files=(GROUP_FILE,),
            services=GROUP_SERVICES,
            entry=("nameserver-1", "NAMESERVER_1_PORT", 8081),
            brokers=GROUP_SIZE,
        )

    def compose(self, *words: str, quiet: bool = False) -> str:
        """Run a compose command; with `quiet`, return its output instead of showing it.

        Raises:
            Failed: it failed; the text has its output if that was not shown.
        """
        if words[0] == "build":
            lay_lane_out()
        named = [word for file in self.files for word in ("-f", str(file))]
        command = [*compose(), "-p", self.project, "--project-directory", str(ROOT), *named, *words]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            check=False,
            text=True,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
        )
        if done.returncode:
            raise Failed(f"`{' '.join(command)}` ended with code {done.returncode}\n{done.stdout or ''}")
        return done.stdout or ""

    def container(self, service: str) -> Any:
        """Return the container of a service; by label, because its name depends on compose's version.

        Raises:
            Failed: there is none.
        """
        labels = [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]
        found = self.client.containers.list(all=True, filters={"label": labels})
        if not found:
            raise Failed(f"{service}: there is no container")
        return found[0]

    def wait_healthy(self, services: Sequence[str] = (), timeout_s: float = HEALTHY_S) -> dict[str, float]:
        """Wait until services, all without names, are healthy; return the seconds from each one's start.

        Raises:
            Failed: a service was not healthy in time.
        """
        services = services or self.services
        deadline, healthy = time.monotonic() + timeout_s, dict[str, float]()
        while len(healthy) < len(services):
            for service in services:
                if service in healthy:
                    continue
                state = self.container(service).attrs["State"]
                health = state.get("Health", {"Status": "not checked", "Log": []})
                if state["Running"] and health["Status"] == "healthy":
                    passed = [seconds(probe["End"]) for probe in health["Log"] if not probe["ExitCode"]]
                    healthy[service] = max(min(passed, default=0.0) - seconds(state["StartedAt"]), 0.0)
                elif time.monotonic() > deadline:
                    output = [probe["Output"].strip() for probe in health["Log"]][-1:]
                    raise Failed(f"{service} is {state['Status']}, {health['Status']}: {output}; see its log")
            time.sleep(POLL_S)
        return healthy

    def wait_usable(self) -> None:
        """Wait until all brokers are registered and the master, or leader, accepts messages.

        Raises:
            Failed: that was not so in time.
        """
        name, variable, default = self.entry
        endpoint = f"{name}:{self.port(variable, default)}"
        command = ["python", "-m", "whimbrel.cli.usable", endpoint, str(self.brokers), str(HEALTHY_S)]
        done = self.container(name).exec_run(command)
        if done.exit_code:
            raise Failed(f"the cluster takes no messages: {done.output.decode().strip()}")

    @property
    def option(self) -> str:
        """What `make` needs besides to mean this stack."""
        return f" GROUP={GROUP_SIZE}" if self.files == (GROUP_FILE,) else ""

    def port(self, name: str, default: int) -> int:
        """Return a port of docker-compose.yml."""
        return int(self.environment.get(name) or os.environ.get(name) or default)


def lay_lane_out() -> None:
    """Put this environment's compiled lane, or why it has none, where the Dockerfile takes it from."""
    shutil.rmtree(LANE_FOLDER, ignore_errors=True)
    found = importlib.util.find_spec(LANE_MODULE)
    if found is not None and found.origin is not None:
        LANE_FOLDER.mkdir(parents=True)
        shutil.copy(found.origin, LANE_FOLDER)


def seconds(text: str) -> float:
    """Return an engine's time as seconds since the epoch; it may have nanoseconds, and a zone."""
    whole, _, rest = text.replace("Z", "+00:00").partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return datetime.datetime.fromisoformat(f"{whole}.{rest[:digits][:6]:0<6}{rest[digits:]}").timestamp()


def memory(container: Any) -> tuple[int, int]:
    """Return bytes of anonymous memory and of the page cache, under either version of cgroups."""
    found = container.stats(stream=False, one_shot=True)["memory_stats"].get("stats", {})
    anonymous = found.get("total_rss", found.get("anon", 0))
    return anonymous, found.get("total_cache", found.get("file", 0))


def up(stack: Stack, options: Sequence[str]) -> None:
    """Start all services, and print times and memory."""
    ensure_base(stack.client)
    stack.compose("build")
    begun = time.monotonic()
    stack.compose("up", "-d", *options)
    healthy = stack.wait_healthy()
    all_s = time.monotonic() - begun
    stack.wait_usable()
    usable_s = time.monotonic() - begun
    print(f"\n{'container':18}{'healthy after':>14}{'anonymous':>12}{'page cache':>12}")
    for service in stack.services:
        anonymous, cached = (count / 1e6 for count in memory(stack.container(service)))
        print(f"{service:18}{healthy[service]:>12.1f} s{anonymous:>9.1f} MB{cached:>9.1f} MB")
    entry, variable, default = stack.entry
    port = stack.port(variable, default)
    name = stack.container(entry).name
    print(
        f"All healthy after {all_s:.1f} s, messages taken after {usable_s:.1f} s at the latest.\n"
        "The page cache holds files that the kernel can drop, the log's above all.\n\n"
        f"Clients on this machine connect to 127.0.0.1:{port}, those in containers of the network"
        f" {stack.project}_default\nto {entry}:{port}. The first message:\n\n"
        f"    .venv/bin/whimbrel send greetings 'hello' --endpoint 127.0.0.1:{port}\n"
        f"    .venv/bin/whimbrel receive greetings --group readers --endpoint 127.0.0.1:{port}\n"
        f"    docker exec {name} whimbrel replication status --endpoint {entry}:{port}\n\n"
        f"make logs{stack.option} follows the logs, make down{stack.option} stops it all."
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command of the first argument; return the exit code."""
    what, *options = arguments or ["help"]
    size = os.environ.get("GROUP") or ""
    project = os.environ.get("COMPOSE_PROJECT_NAME") or ("whimbrel-group" if size else "whimbrel")
    try:
        if what not in ("up", "base", "build", "down", "logs"):
            print((__doc__ or "").partition("\n\n")[2])
            return 2
        if size not in ("", str(GROUP_SIZE)):
            raise Failed(
                f"GROUP={size}: there is a compose file for {GROUP_SIZE} members, and none for others"
            )
        client = engine()
        stack = (
            Stack.group(client, project, {})
            if size
            else Stack(client=client, project=project, environment={})
        )
        if what == "up":
            up(stack, options)
        elif what == "base":
            ensure_base(stack.client)
        else:
            if what == "build":
                ensure_base(stack.client)
            stack.compose(what, *options)
    except Failed as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
