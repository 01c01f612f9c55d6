"""The cluster of compose.yaml: `make up`, `make down`, `make logs`, and what CI does before its tests.

    python deploy/cluster.py up [COMPOSE OPTION ...]     build, start, wait, and tell what it took
    python deploy/cluster.py down [-v]                   stop; -v removes the stores as well
    python deploy/cluster.py logs [-f] [SERVICE ...]
    python deploy/cluster.py base                        only see to it that the base image is there
    python deploy/cluster.py build                       base and image

`up` is `docker compose up` with three things around it: the base image is made here where it can't be pulled,
the health of all containers is waited for (docker-compose 1.29.2 has no --wait), and what was measured is
printed. COMPOSE_PROJECT_NAME names another project than `whimbrel`.
"""

import datetime
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

ROOT = Path(__file__).resolve().parent.parent
BASE_IMAGE = "python:3.11-slim-bookworm"
HEALTHY_S = 60.0  # a machine with all cores taken by other work; a quiet one needs about three seconds
PULL_S = 600.0
POLL_S = 0.05
SERVICES = ("nameserver", "broker-master", "replicator-master", "broker-slave", "replicator-slave")


class Failed(Exception):
    """What could not be done, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a container took.

    Attributes:
        healthy_s: from its start to the end of the first health check that passed.
        anonymous: bytes of memory that only this process accounts for.
        cached: bytes of files in memory, the log among them: the kernel takes them back when it needs them.
    """

    service: str
    healthy_s: float
    anonymous: int
    cached: int


def project() -> str:
    """Return the name under which compose knows our containers."""
    return os.environ.get("COMPOSE_PROJECT_NAME") or "whimbrel"


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


def run_compose(*words: str) -> None:
    """Run a compose command on our file.

    Raises:
        Failed: it failed; it has said why.
    """
    command = [*compose(), "-p", project(), "-f", str(ROOT / "compose.yaml"), *words]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        raise Failed(f"`{' '.join(command)}` ended with code {done.returncode}")


def engine() -> Any:
    """Return a client of the engine.

    Raises:
        Failed: none answers.
    """
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise Failed(f"no Docker engine answers: {error}") from error
    return client


def ensure_base(client: Any) -> None:
    """See to it that the base image is there: pulled, or where that can't be done made here.

    Raises:
        Failed: neither worked.
    """
    try:
        client.images.get(BASE_IMAGE)
    except docker.errors.ImageNotFound:
        pass
    else:
        return
    pulled = subprocess.run(
        ["docker", "pull", BASE_IMAGE], capture_output=True, text=True, check=False, timeout=PULL_S
    )
    if pulled.returncode == 0:
        return
    reason = (pulled.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"{BASE_IMAGE} can't be pulled: {reason}")
    script = ROOT / "deploy" / "base-image.sh"
    if os.geteuid() or not shutil.which("debootstrap"):
        raise Failed(f"a stand-in can be made by root, with debootstrap installed: {script}")
    saved = [path] if (path := os.environ.get("BASE_IMAGE_CACHE")) else []
    if subprocess.run([str(script), *saved], check=False).returncode:
        raise Failed("the stand-in can't be made")


def containers(client: Any, services: Iterable[str] = SERVICES) -> dict[str, Any]:
    """Return our containers by service; by label, because their names depend on compose's version."""
    found: dict[str, Any] = {}
    for service in services:
        labels = [f"com.docker.compose.project={project()}", f"com.docker.compose.service={service}"]
        for container in client.containers.list(all=True, filters={"label": labels}):
            found[service] = container
    return found


def seconds(text: str) -> float:
    """Return an engine's time as seconds since the epoch; it may have nanoseconds, and a zone."""
    whole, _, rest = text.replace("Z", "+00:00").partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return datetime.datetime.fromisoformat(f"{whole}.{rest[:digits][:6]:0<6}{rest[digits:]}").timestamp()


def wait_healthy(client: Any, services: Sequence[str] = SERVICES) -> dict[str, float]:
    """Wait until all services are healthy; return the seconds that each took from its start.

    Raises:
        Failed: one was not in time, or has ended.
    """
    deadline, healthy = time.monotonic() + HEALTHY_S, dict[str, float]()
    while len(healthy) < len(services):
        found = containers(client, services)
        for service in services:
            if service not in found:
                raise Failed(f"{service}: there is no container")
            state = found[service].attrs["State"]
            health = state.get("Health", {"Status": "starting", "Log": []})
            if health["Status"] == "healthy" and service not in healthy:
                passed = min(seconds(probe["End"]) for probe in health["Log"] if not probe["ExitCode"])
                healthy[service] = max(passed - seconds(state["StartedAt"]), 0.0)
            elif service not in healthy and time.monotonic() > deadline:
                said = [probe["Output"].strip() for probe in health["Log"]][-1:]
                raise Failed(f"{service} is {state['Status']}, {health['Status']}: {said}; see its log")
        time.sleep(POLL_S)
    return healthy


def memory(container: Any) -> tuple[int, int]:
    """Return bytes of anonymous memory, and of files in memory, under either version of cgroups."""
    found = container.stats(stream=False, one_shot=True)["memory_stats"].get("stats", {})
    anonymous = found.get("total_rss", found.get("anon", 0))
    return anonymous, found.get("total_cache", found.get("file", 0))


def up(client: Any, options: Sequence[str]) -> None:
    """Start everything and print what it took."""
    ensure_base(client)
    run_compose("build")
    begun = time.monotonic()
    run_compose("up", "-d", *options)
    healthy = wait_healthy(client)
    all_s = time.monotonic() - begun
    found = containers(client)
    port = os.environ.get("NAMESERVER_PORT") or "8081"
    usable = found["nameserver"].exec_run(
        ["python", "-m", "whimbrel.cli.usable", f"nameserver:{port}", "2", str(HEALTHY_S)]
    )
    if usable.exit_code:
        raise Failed(f"the cluster takes no messages: {usable.output.decode().strip()}")
    usable_s = time.monotonic() - begun
    print(f"\n{'container':18}{'healthy after':>14}{'anonymous':>12}{'page cache':>12}")
    for service, took in healthy.items():
        anonymous, cached = (count / 1e6 for count in memory(found[service]))
        print(f"{service:18}{took:>12.1f} s{anonymous:>9.1f} MB{cached:>9.1f} MB")
    print(
        f"All healthy after {all_s:.1f} s, messages taken after {usable_s:.1f} s at the latest.\n"
        "The page cache holds files that the kernel can drop, the log's above all.\n\n"
        f"Clients connect to 127.0.0.1:{port}, and those in containers of the network `{project()}_default`"
        f" to nameserver:{port}.\n"
        f"    .venv/bin/whimbrel --help                 or: docker exec {found['nameserver'].name} whimbrel\n"
        f"    .venv/bin/whimbrel send greetings 'hello' --endpoint 127.0.0.1:{port}\n"
        f"    .venv/bin/whimbrel receive greetings --group readers --endpoint 127.0.0.1:{port}\n"
        "    make logs, make down"
    )


def main(arguments: Sequence[str]) -> int:
    """Do what the first argument says; return the exit code."""
    what, *options = arguments or ["help"]
    try:
        if what == "up":
            up(engine(), options)
        elif what == "base":
            ensure_base(engine())
        elif what == "build":
            ensure_base(engine())
            run_compose("build", *options)
        elif what in ("down", "logs"):
            run_compose(what, *options)
        else:
            print((__doc__ or "").partition("\n\n")[2])
            return 2
    except Failed as error:
        print(f"deploy/cluster.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
