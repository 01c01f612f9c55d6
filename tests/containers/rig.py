"""The compose cluster under test: images, ports of its own, looks inside, and what is left of it removed.

Every run has a project name of its own, `whimbrel-test-PID-N`, so that several can share an engine. What a
run left that was ended from outside is removed by the next one, by label, once its process is gone.
"""

import contextlib
import io
import itertools
import json
import os
import re
import socket
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors

from stack import ROOT, SERVICES, Failed, Stack, ensure_base
from support.pages import Page
from support.waiting import until

__all__ = [
    "HERE",
    "LOGS",
    "Rig",
    "engine_problem",
    "free_ports",
    "freeze",
    "network_image",
    "our_image",
    "sdk_image",
    "sweep",
]

PAGE = Page("docs/containers.md")
HERE = Path(__file__).resolve().parent
LOGS = ROOT / "build" / "container-logs"
PROJECT = re.compile(r"whimbrel-test-(\d+)-\d+")
PROJECT_LABEL, SERVICE_LABEL = "com.docker.compose.project", "com.docker.compose.service"
SMALL_LOG_FILE = 1 << 20
LOG_FILE = 16 << 20
FREEZE_S = 20.0  # to pause a container; mostly milliseconds
numbers = itertools.count()


def engine_problem() -> str:
    """Return why no tests of containers can run here, "" when they can."""
    try:
        client = docker.from_env(timeout=5)
        client.ping()
        system = client.info()["OSType"]
    except (docker.errors.DockerException, OSError) as error:
        return f"no Docker engine answers: {error}"
    return "" if system == "linux" else f"the engine runs {system} containers"


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def our_image(client: Any) -> str:
    """Build the image of the services; return its tag, which no other run shares."""
    ensure_base(client)
    tag = f"whimbrel:test-{os.getpid()}"
    stack = Stack(client=client, project="whimbrel-test-build", environment={"WHIMBREL_IMAGE": tag})
    stack.compose("build", quiet=True)
    return tag


def build(client: Any, target: str) -> str:
    """Build a target of our own Dockerfile; the engine's cache makes that quick the second time."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for path in (
            HERE / "Dockerfile",
            ROOT / "pyproject.toml",
            ROOT / "uv.lock",
            *sorted((ROOT / "examples").glob("sdk_*.py")),
        ):
            tar.add(path, path.name, filter=plain)
    context.seek(0)
    tag = f"whimbrel-test-{target}:latest"
    client.images.build(
        fileobj=context, custom_context=True, target=target, tag=tag, rm=True, forcerm=True, pull=False
    )
    return tag


def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave times out, so that the engine's cache sees equal files as equal."""
    info.mtime = 0
    return info


def sdk_image(client: Any) -> str:
    """Build an image with the official SDK and the example programs; return its tag."""
    return build(client, "sdk")


def network_image(client: Any) -> str:
    """Build an image with iptables; return its tag."""
    return build(client, "net")


def sweep(client: Any) -> None:
    """Remove what runs left whose process is gone."""
    kinds: tuple[tuple[Any, Callable[[Any], None]], ...] = (
        (client.containers, lambda found: found.remove(force=True, v=True)),
        (client.networks, lambda found: found.remove()),
        (client.volumes, lambda found: found.remove(force=True)),
    )
    for collection, remove in kinds:
        listed = collection.list(
            filters={"label": PROJECT_LABEL}, **({"all": True} if collection is client.containers else {})
        )
        for found in listed:
            labels = found.attrs.get("Labels") or found.attrs.get("Config", {}).get("Labels") or {}
            match = PROJECT.fullmatch(labels.get(PROJECT_LABEL, ""))
            if match and not Path(f"/proc/{match[1]}").exists():
                remove(found)


def freeze(container: Any) -> None:
    """Pause a container; an engine that gives up, its processes being busy in the kernel, is asked again."""

    def frozen() -> bool:
        try:
            container.pause()
        except docker.errors.APIError as error:
            if "unable to freeze" not in str(error):
                raise
            return False
        return True

    until(frozen, timeout=FREEZE_S, what=f"the engine pausing {container.name}")


class Rig:
    """One cluster, from `up` to `down`.

    Attributes:
        stack: the compose project.
        endpoint: of the nameserver, through its published port.
        small: its stores lie on small disks.
    """

    def __init__(self, client: Any, image: str, *, small: bool = False, **environment: str) -> None:
        nameserver, master, slave = free_ports(3)
        self.client, self.image, self.small = client, image, small
        settings = {
            "WHIMBREL_IMAGE": image,
            "NAMESERVER_PORT": str(nameserver),
            "MASTER_PORT": str(master),
            "SLAVE_PORT": str(slave),
            "COMMITLOG_FILE_SIZE": str(SMALL_LOG_FILE if small else LOG_FILE),
            "HEALTH_INTERVAL": "1s",
            "LANE": os.environ.get("WHIMBREL_TEST_LANE", "auto"),
            **environment,
        }
        files = (ROOT / "docker-compose.yml", *([HERE / "small-disk.yaml"] if small else []))
        self.stack = Stack(
            client=client,
            project=f"whimbrel-test-{os.getpid()}-{next(numbers)}",
            environment=settings,
            files=files,
        )
        self.endpoint = f"127.0.0.1:{nameserver}"
        self.probe = (HERE / "probe.py").read_text(encoding="utf-8")

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.compose("down", "-v", "--remove-orphans", "-t", "5", quiet=True)

    def up(self) -> dict[str, float]:
        """Start everything; return the seconds that each took to be healthy."""
        self.stack.compose(*PAGE["docker compose up"].words()[2:], "-d", quiet=True)
        healthy = self.stack.wait_healthy()
        self.stack.wait_usable()
        return healthy

    def container(self, service: str) -> Any:
        """Return the container of a service as it is now."""
        return self.stack.container(service)

    @property
    def network(self) -> Any:
        """Return the network that all are in."""
        return self.client.networks.get(f"{self.stack.project}_default")

    def address(self, service: str) -> str:
        """Return the address of a service in that network, "" when it is cut off."""
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        return str(networks.get(f"{self.stack.project}_default", {}).get("IPAddress", ""))

    def look(self, service: str, *words: object) -> Any:
        """Run the probe in a container and return what it says.

        Raises:
            Failed: it did not run to its end.
        """
        try:
            done = self.container(service).exec_run(
                ["python", "-c", self.probe, *map(str, words)], demux=True
            )
        except docker.errors.APIError as error:  # it does not run, or is paused
            raise Failed(f"{service}: {error}") from error
        out, err = (part or b"" for part in done.output)
        if done.exit_code:
            raise Failed(f"{service}: {err.decode()[-2000:]}")
        return json.loads(out)

    def marks(self, role: str) -> Mapping[str, Any]:
        """Return the marks of the master's or the slave's store."""
        return dict(self.look(f"broker-{role}", "marks"))

    def converged(self) -> bool:
        """Tell whether the slave has all of the log, both have dispatched it, and the master knows it."""
        try:
            master, slave = self.marks("master"), self.marks("slave")
        except Failed:
            return False
        end = master["written"]
        dispatched = master["dispatched"] == slave["dispatched"] == end
        return bool(slave["written"] == end and dispatched and master["acks"] == [end])

    def stop(self) -> dict[str, int]:
        """Stop everything as its operator would; return the exit codes."""
        self.stack.compose("stop", quiet=True)
        return {service: self.container(service).attrs["State"]["ExitCode"] for service in SERVICES}

    def verify(self, role: str, image: str) -> None:
        """Check a store at rest: closed cleanly, every record in its queue and found by its keys.

        Raises:
            Failed: it is not.
        """
        volumes = {f"{self.stack.project}_{role}-store": {"bind": "/store", "mode": "ro"}}
        look = "test ! -e /store/abort && whimbrel store verify /store"
        self.run(image, ["sh", "-c", look], timeout_s=120, volumes=volumes)

    def logs(self) -> str:
        """Return what all containers have logged."""
        return self.stack.compose("logs", "--no-color", "--timestamps", quiet=True)

    def health(self, service: str) -> str:
        """Return what the engine's health checks say of a service."""
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    def states(self) -> dict[str, str]:
        """Return the state of each service."""
        found = {}
        for service in SERVICES:
            state = self.container(service).attrs["State"]
            found[service] = f"{state['Status']}, {state.get('Health', {}).get('Status')}"
        return found

    @contextlib.contextmanager
    def beside(self, image: str, command: list[str], **options: Any) -> Iterator[Any]:
        """Run a container beside the cluster, removed at the end."""
        container = self.client.containers.run(
            image,
            command,
            detach=True,
            # Version 2 of compose labels images that it builds as a service's, and containers inherit that.
            labels={PROJECT_LABEL: self.stack.project, SERVICE_LABEL: "beside"},
            **options,
        )
        try:
            yield container
        finally:
            container.remove(force=True, v=True)

    def run(self, image: str, command: list[str], *, timeout_s: float, **options: Any) -> str:
        """Run a command in a container beside the cluster to its end; return what it wrote.

        Raises:
            Failed: it ended with another code than 0, or not in time.
        """
        with self.beside(image, command, **options) as container:
            try:
                code = container.wait(timeout=timeout_s)["StatusCode"]
            except Exception as error:  # requests' own, or urllib3's
                raise Failed(f"{command}: {error}\n{container.logs().decode()[-2000:]}") from error
            if code:
                raise Failed(f"{command} ended with {code}:\n{container.logs().decode()[-2000:]}")
            return str(container.logs(stderr=False).decode())
