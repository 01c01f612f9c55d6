"""What one unary call costs a client process: grpc.aio and our own transport by turns, in one run.

    python bench/calls.py [--rounds 5] [--secs 1.0] [--bytes 100]

A process of its own serves by our own HTTP/2 a method that does nothing. Calls carry the headers that our
client sends, one of which differs each time. Compared are medians over the rounds of the client's CPU time a
call (`getrusage`, all of its threads), for one call after the other and for 32 at a time. Prints JSON.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.client.channel import ClientTransport, open_aio_channel
from whimbrel.rpc.server.handlers import Service, UnaryMethod
from whimbrel.rpc.server.loop import run as run_loop
from whimbrel.rpc.server.serving import serve

PATH = "/bench.Bench/Call"
TRANSPORTS: tuple[ClientTransport, ...] = ("grpcio", "native")
AT_A_TIME = (1, 32)
WARM_UP_S = 0.3
HEADERS = (
    ("x-mq-client-id", "host@4711@0@abcdef"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-client-version", "0.1.0"),
    ("x-mq-protocol", "v2"),
    ("x-mq-namespace", ""),
)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description="What one unary call costs a client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=float, default=1.0)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help="be the server")
    args = parser.parse_args()
    if args.serve:
        run_loop(server())
        return
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            result = run_loop(measure(address, args.rounds, args.secs, args.bytes))
        finally:
            process.terminate()
    print(json.dumps(result, indent=2))


async def server() -> None:
    """Serve until standard input ends."""
    answer = messaging.HeartbeatResponse()
    method = UnaryMethod("Call", messaging.HeartbeatRequest, lambda call, request: answer)
    running = await serve([Service("bench.Bench", (method,))], host="127.0.0.1", port=0)
    print(running.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await running.stop(grace=0)


async def measure(address: str, rounds: int, secs: float, size: int) -> dict[str, Any]:
    """Return the medians."""
    request = messaging.HeartbeatRequest()
    request.group.name = "g" * max(0, size - 6)
    payload = request.SerializeToString()
    costs: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for transport in TRANSPORTS if number % 2 else reversed(TRANSPORTS):
            async with open_aio_channel(address, transport=transport) as channel:
                for count in AT_A_TIME:
                    await load(channel, payload, count, WARM_UP_S)
                    costs.setdefault((count, transport), []).append(await load(channel, payload, count, secs))
    result: dict[str, Any] = {"bytes": len(payload), "rounds": rounds}
    for count in AT_A_TIME:
        median = {t: statistics.median(cpu for cpu, _ in costs[count, t]) for t in TRANSPORTS}
        result[f"{count} at a time"] = {
            "client CPU us a call": {t: round(median[t], 1) for t in TRANSPORTS},
            "calls a second": {
                t: round(statistics.median(rate for _, rate in costs[count, t])) for t in TRANSPORTS
            },
            "ratio of CPU": round(median["grpcio"] / median["native"], 1),
        }
    return result


async def load(channel: Any, payload: bytes, count: int, secs: float) -> tuple[float, float]:
    """Call for so long, so many at a time; return CPU microseconds a call, and calls a second."""
    call = channel.unary_unary(PATH)
    calls = 0
    end = time.perf_counter() + secs

    async def repeat(name: int) -> None:
        nonlocal calls
        number = 0
        while time.perf_counter() < end:
            number += 1
            await call(
                payload,
                timeout=3.0,
                metadata=(*HEADERS, ("x-mq-request-id", f"00000000-0000-4000-{name:04x}-{number:012x}")),
            )
            calls += 1

    before, began = cpu_s(), time.perf_counter()
    await asyncio.gather(*(repeat(name) for name in range(count)))
    return (cpu_s() - before) / calls * 1e6, calls / (time.perf_counter() - began)


def cpu_s() -> float:
    """Return the CPU time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
