"""The cases of ../README.md with grpcio: `echo.py sync|aio HOST:PORT MANY SIZE...`."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio

SERVICE = "/whimbrel.test.Echo/"
LIMIT_S = 30.0
MESSAGE = 'no such thing: 100 % ümlaut & "quotes"'
SENT = (("x-echo", "hello"), ("x-echo-bin", b"\x00\xff\x80"))


def body(size: int) -> bytes:
    """Return the bytes of a size."""
    return bytes((i * 31 + i // 256) & 255 for i in range(size))


def hold(name: str, truth: bool, what: object = "") -> None:
    """Tell that a case holds, or end."""
    if not truth:
        sys.exit(f"{name}: {what}")
    print(name, flush=True)


def is_status(error: Any) -> bool:
    """Tell whether an error is the one of `Fail`."""
    found = (error.code(), error.details(), dict(error.trailing_metadata()).get("x-reason"))
    return found == (grpc.StatusCode.NOT_FOUND, MESSAGE, "none")


def sync(endpoint: str, calls: int, sizes: list[str]) -> None:
    """Run the cases over a channel for threads."""
    channel: Any = grpc.insecure_channel(endpoint)

    def unary(name: str) -> Any:
        return channel.unary_unary(SERVICE + name)

    both = channel.stream_stream(SERVICE + "Both")
    for word in sizes:
        want = body(int(word))
        hold(f"unary {word}", unary("Unary")(want, timeout=LIMIT_S) == want)
        for name in ("Listed", "Pulled"):
            answers = list(channel.unary_stream(SERVICE + name)(want, timeout=LIMIT_S))
            hold(f"{name.lower()} {word}", answers == [want] * 3)
        answer, call = channel.stream_unary(SERVICE + "Gather").with_call(iter([want] * 3), timeout=LIMIT_S)
        hold(f"client {word}", (answer, dict(call.trailing_metadata())["x-count"]) == (want, "3"))
        turn = threading.Semaphore()
        answers = []

        def requests(want: bytes = want, turn: threading.Semaphore = turn) -> Iterator[bytes]:
            for _ in range(3):
                turn.acquire()
                yield want

        for answer in both(requests(), timeout=LIMIT_S):
            answers.append(answer)
            turn.release()
        hold(f"both {word}", answers == [want] * 3)

    want = body(10)
    try:
        hold("status", unary("Fail")(want, timeout=LIMIT_S) is None)
    except grpc.RpcError as error:
        hold("status", is_status(error), error)
    _, call = unary("Unary").with_call(want, timeout=LIMIT_S, metadata=SENT)
    hold("metadata", set(SENT) <= set(call.trailing_metadata()), call.trailing_metadata())
    many = [unary("Unary").future(body(i), timeout=LIMIT_S) for i in range(calls)]
    hold("many", all(one.result() == body(i) for i, one in enumerate(many)))
    late = unary("Never").future(want, timeout=0.2)
    hold("deadline", late.exception().code() == grpc.StatusCode.DEADLINE_EXCEEDED)
    waiting = unary("Never").future(want)
    unary("Unary")(want, timeout=LIMIT_S)  # answered, so the call before it has arrived as well
    waiting.cancel()
    stop = threading.Event()

    def one_request() -> Iterator[bytes]:
        yield want
        stop.wait(LIMIT_S)

    stream = both(one_request())
    first = next(stream)
    stream.cancel()
    stop.set()
    hold("cancel", (waiting.cancelled(), first, stream.code()) == (True, want, grpc.StatusCode.CANCELLED))
    channel.close()


async def aio(endpoint: str, calls: int, sizes: list[str]) -> None:
    """Run the cases over a channel for asyncio."""
    channel: Any = grpc.aio.insecure_channel(endpoint)

    def unary(name: str) -> Any:
        return channel.unary_unary(SERVICE + name)

    both = channel.stream_stream(SERVICE + "Both")
    for word in sizes:
        want = body(int(word))
        hold(f"unary {word}", await unary("Unary")(want, timeout=LIMIT_S) == want)
        for name in ("Listed", "Pulled"):
            opened = channel.unary_stream(SERVICE + name)
            answers = [answer async for answer in opened(want, timeout=LIMIT_S)]
            hold(f"{name.lower()} {word}", answers == [want] * 3)
        gathering = channel.stream_unary(SERVICE + "Gather")
        call = gathering([want] * 3, timeout=LIMIT_S)
        hold(f"client {word}", await call == want and dict(await call.trailing_metadata())["x-count"] == "3")
        call = both(timeout=LIMIT_S)
        for _ in range(3):
            await call.write(want)
            if await call.read() != want:
                hold(f"both {word}", False, "another answer")
        await call.done_writing()
        hold(f"both {word}", await call.read() is grpc.aio.EOF and await call.code() == grpc.StatusCode.OK)

    want = body(10)
    try:
        hold("status", await unary("Fail")(want, timeout=LIMIT_S) is None)
    except grpc.aio.AioRpcError as error:
        hold("status", is_status(error), error)
    call = unary("Unary")(want, timeout=LIMIT_S, metadata=SENT)
    await call
    hold("metadata", set(SENT) <= set(await call.trailing_metadata()))
    many = await asyncio.gather(*(unary("Unary")(body(i), timeout=LIMIT_S) for i in range(calls)))
    hold("many", many == [body(i) for i in range(calls)])
    late = unary("Never")(want, timeout=0.2)
    hold("deadline", await late.code() == grpc.StatusCode.DEADLINE_EXCEEDED)
    waiting = unary("Never")(want)
    await unary("Unary")(want, timeout=LIMIT_S)  # answered, so the call before it has arrived as well
    waiting.cancel()
    stream = both()
    await stream.write(want)
    first = await stream.read()
    stream.cancel()
    codes = (await waiting.code(), await stream.code())
    hold("cancel", first == want and codes == (grpc.StatusCode.CANCELLED,) * 2, codes)
    await channel.close()


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        sync(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        asyncio.run(aio(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
