"""The load of `whimbrel bench send` by our client in several processes, where the lane does not send.

One process of Python is at its end before a broker is that has the lane. Each process has its share of the
workers and of the messages, and a client of its own:

    this process                                  a child, `child()`
    a line: the access point and the plan     ─►
                                              ◄─  a line: ready, once it has the route
    a line: go                                ─►  it sends
    the end of its input, for Ctrl-C          ─►  it stops; so it does when this process dies
                                              ◄─  a line: its tally

A child is not in the terminal's group of processes: Ctrl-C comes to this one alone.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from whimbrel.cli.latencies import Latencies
from whimbrel.cli.limits import Use, use_of
from whimbrel.cli.load import Plan, Tally, send_load
from whimbrel.cli.process_times import CoreTimes, core_times
from whimbrel.client import Producer
from whimbrel.errors import ClientError, WhimbrelError

__all__ = ["PROCESSES_MAX", "child", "processes_of", "send_by_processes", "shares"]

PROCESSES_MAX = 8  # our broker is at its end with two or three
START_S_MAX = 30.0  # for imports and the route, on a machine that is busy
STOP_S_MAX = 3.0  # for a child's tally after Ctrl-C
LINE_BYTES_MAX = 1 << 20  # a tally has less than 0.1 MB
PROGRAM = "from whimbrel.cli.load_processes import child; child()"


def processes_of(cores: int, plan: Plan) -> int:
    """Return how many processes to send with.

    One core is left to the broker, but for two: there it takes less than one, and two processes send more.
    """
    requests = plan.concurrency if plan.count is None else min(plan.concurrency, -(-plan.count // plan.batch))
    return max(1, min(max(cores - 1, min(cores, 2)), requests, PROCESSES_MAX))


def shares(plan: Plan, processes: int) -> list[Plan]:
    """Return the plan of each process: together they are the whole one."""

    def share(whole: int, number: int) -> int:
        return whole // processes + (number < whole % processes)

    return [
        replace(
            plan,
            concurrency=share(plan.concurrency, number),
            count=None if plan.count is None else share(plan.count, number),
        )
        for number in range(processes)
    ]


async def send_by_processes(
    address: str, plan: Plan, tally: Tally, uses: list[Use], *, processes: int
) -> None:
    """Send until the plan is done; what was measured is known also after an error, or when it is cancelled.

    Args:
        address: the access point.
        plan: of all together.
        tally: gets what they have measured.
        uses: gets what each child has used.
        processes: how many.

    Raises:
        WhimbrelError: a child can't use the cluster, or too many of its calls have failed in a row.
    """
    children: list[asyncio.subprocess.Process] = []
    try:
        for part in shares(plan, processes):
            children += [await start(address, part)]
        for answer in await asyncio.gather(*(line_of(one, START_S_MAX) for one in children)):
            raise_failure(answer)
        for one in children:
            tell(one, "go\n")
        ends = [asyncio.create_task(line_of(one, None)) for one in children]
        try:
            await asyncio.wait(ends)
        except asyncio.CancelledError:
            for one in children:
                close_input(one)
            await asyncio.wait(ends, timeout=STOP_S_MAX)
            raise
        finally:
            for end in ends:
                if end.done() and end.exception() is None:
                    merge(tally, uses, end.result())
        for end in ends:
            raise_failure(end.result())
    finally:
        await asyncio.gather(*map(finish, children))


async def finish(one: asyncio.subprocess.Process) -> None:
    """Have a child end."""
    close_input(one)
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await one.wait()
    except TimeoutError:
        one.kill()
        await one.wait()


async def start(address: str, plan: Plan) -> asyncio.subprocess.Process:
    found = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    tell(found, json.dumps({"address": address, "plan": asdict(plan)}) + "\n")
    return found


def tell(one: asyncio.subprocess.Process, line: str) -> None:
    assert one.stdin is not None
    one.stdin.write(line.encode())


def close_input(one: asyncio.subprocess.Process) -> None:
    assert one.stdin is not None
    one.stdin.close()


async def line_of(one: asyncio.subprocess.Process, seconds: float | None) -> dict[str, Any]:
    """Return the next line of a child.

    Raises:
        ClientError: it has none, or is late.
    """
    assert one.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await one.stdout.readline()
    except TimeoutError as error:
        raise ClientError(f"a process that should send is not ready after {seconds:g} s") from error
    if not line:
        raise ClientError(f"a process that should send has ended (exit code {await one.wait()})")
    found: dict[str, Any] = json.loads(line)
    return found


def raise_failure(answer: dict[str, Any]) -> None:
    if (failure := answer.get("failed")) is not None:
        reason, text = failure
        raise WhimbrelError.known.get(reason, WhimbrelError)(text)


def merge(tally: Tally, uses: list[Use], found: dict[str, Any]) -> None:
    """Put what a child has measured into ours; both read the same monotonic clock."""
    if "messages" not in found:
        return
    tally.began = min(tally.began or found["began"], found["began"])
    tally.ended = max(tally.ended, found["ended"])
    tally.messages += found["messages"]
    tally.bytes += found["bytes"]
    tally.errors.update(found["errors"])
    tally.error = found["error"] or tally.error
    tally.latencies["send"].add_counters(found["counters"], found["greatest_ns"])
    uses.append(Use(cpu_s=found["cpu_s"], waited_s=found["waited_s"], processes=1))


def child() -> None:
    """Send as this process's input says, and print the tally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(obey())


async def obey() -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    order = json.loads(await reader.readline())
    plan, tally = Plan(**order["plan"]), Tally({"send": Latencies()})
    failed: WhimbrelError | None = None
    before = own_times()
    try:
        async with Producer(order["address"], topics=[plan.topic]) as producer:
            await producer.queues(plan.topic)
            say({"ready": os.getpid()})
            if not await reader.readline():
                return
            before = own_times()
            sending = asyncio.create_task(send_load(producer, plan, tally))
            stopping = asyncio.create_task(reader.read())
            await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            stopping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
    except WhimbrelError as error:
        failed = error
    say(described(tally, use_of(before, own_times()), failed))


def own_times() -> CoreTimes | None:
    return core_times([os.getpid()])


def described(tally: Tally, use: Use | None, failed: WhimbrelError | None) -> dict[str, Any]:
    latencies = tally.latencies["send"]
    return {
        "messages": tally.messages,
        "bytes": tally.bytes,
        "began": tally.began,
        "ended": tally.ended,
        "errors": dict(tally.errors),
        "error": tally.error,
        "counters": latencies.used(),
        "greatest_ns": latencies.greatest_ns,
        "cpu_s": use.cpu_s if use is not None else time.process_time(),
        "waited_s": use.waited_s if use is not None else 0.0,
        "failed": None if failed is None else (failed.reason, str(failed)),
    }


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
