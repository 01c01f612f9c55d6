"""Virtual time: events in order, and threads that take turns.

Time stands still while code runs and moves from event to event. Two events of one time happen in the order in
which they were added. All that is random comes from `rng`, so one seed gives one run.

A `Fiber` is a function in a real thread that runs only while it holds the baton. `resume` gives it the baton
and waits until it gives it back, by `pause` or by ending; so exactly one thread runs at any time, and which
one is decided by events alone. The threads are kept and used again.

Whoever calls `step` or `run_until` is the driver. Code of the driver that must wait for fibers of its own
process (`run_while`) runs that process's events, and only those; the rest of the world happens later than it
was to.
"""

import heapq
import os
import random
import threading
from collections.abc import Callable

__all__ = ["Crash", "Deadlock", "Fiber", "Handle", "Scheduler"]

STEPS_MAX = 20_000  # events run for one wait; a wait that needs more is taken for one that never ends
idle: list["Carrier"] = []  # threads without a fiber
os.register_at_fork(after_in_child=idle.clear)  # a fork has none of them


class Crash(BaseException):
    """The process that makes this call is dead: nothing it does has an effect any more."""


class Deadlock(AssertionError):
    """What is waited for can't happen."""


class Carrier(threading.Thread):
    """A thread that runs one fiber after another."""

    def __init__(self) -> None:
        super().__init__(name="sim-fiber", daemon=True)
        self.go = threading.Lock()
        self.go.acquire()
        self.fiber: Fiber | None = None
        self.start()

    def run(self) -> None:
        """The thread's loop."""
        while True:
            self.go.acquire()
            fiber = self.fiber
            assert fiber is not None
            try:
                fiber.function()
            except BaseException as error:  # noqa: BLE001 - whoever resumed it gets it
                fiber.error = error
            fiber.done = True
            self.fiber = None
            idle.append(self)
            fiber.back.release()
            del fiber


class Fiber:
    """A function that is run in turns.

    Attributes:
        waits_for: what it waits for, for people.
        done: whether it has ended.
        error: with what, None when it returned.
    """

    def __init__(self, scheduler: "Scheduler", name: str, function: Callable[[], None]) -> None:
        self.scheduler, self.name, self.function = scheduler, name, function
        self.back = threading.Lock()
        self.back.acquire()
        self.carrier: Carrier | None = None
        self.waits_for = ""
        self.done = self.killed = False
        self.error: BaseException | None = None

    def resume(self) -> None:
        """Let it run until it pauses or ends."""
        if self.done:
            return
        if self.carrier is None:
            self.carrier = idle.pop() if idle else Carrier()
            self.carrier.fiber = self
        scheduler = self.scheduler
        outer, scheduler.current = scheduler.current, self
        self.carrier.go.release()
        self.back.acquire()
        scheduler.current = outer

    def pause(self) -> None:
        """Give the baton back; returns when it is resumed. Called by the fiber itself.

        Raises:
            Crash: it was killed meanwhile.
        """
        assert self.carrier is not None
        assert self.scheduler.current is self
        self.back.release()
        self.carrier.go.acquire()
        if self.killed:
            raise Crash(f"{self.name} was killed")

    def kill(self) -> None:
        """End it where it paused; not to be called by itself."""
        self.killed = True
        if self.carrier is None:
            self.done = True
        while not self.done:
            self.resume()


class Handle:
    """An event to come."""

    __slots__ = ("callback", "owner", "when")

    def __init__(self, when: float, callback: Callable[[], None], owner: object) -> None:
        self.when, self.owner = when, owner
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Have it not happen; harmless when it has."""
        self.callback = None


class Scheduler:
    """Virtual time.

    Attributes:
        now: seconds since the begin; only events and waits move it.
        rng: the only source of chance.
        current: the fiber that runs, None while the driver does.
        steps: events that have happened.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.seed = seed
        self.rng = random.Random(seed)
        self.current: Fiber | None = None
        self.steps = 0
        self.events: list[tuple[float, int, Handle]] = []
        self.count = 0

    def at(self, when: float, callback: Callable[[], None], *, owner: object = None) -> Handle:
        """Have something happen at a time; a past one means as soon as possible.

        Args:
            owner: the process whose event it is; see `run_while` and `forget`.
        """
        now = self.now
        handle = Handle(when if when > now else now, callback, owner)
        self.count += 1
        heapq.heappush(self.events, (handle.when, self.count, handle))
        return handle

    def later(self, delay: float, callback: Callable[[], None], *, owner: object = None) -> Handle:
        """Have something happen after so many seconds."""
        when = self.now + delay
        handle = Handle(when, callback, owner)
        self.count += 1
        heapq.heappush(self.events, (when, self.count, handle))
        return handle

    def peek(self, owner: object = None) -> Handle | None:
        """Return the next event, of one owner if one is given; None without any."""
        while self.events and self.events[0][2].callback is None:
            heapq.heappop(self.events)
        if owner is None:
            return self.events[0][2] if self.events else None
        mine = [event for event in self.events if event[2].owner is owner and event[2].callback is not None]
        return min(mine, key=lambda event: event[:2])[2] if mine else None

    def step(self, owner: object = None) -> bool:
        """Have the next event happen; return whether there was one.

        Raises:
            whatever its callback raises.
        """
        handle = self.peek(owner)
        if handle is None:
            return False
        callback = handle.callback
        assert callback is not None
        handle.callback = None
        self.now = max(self.now, handle.when)
        self.steps += 1
        callback()
        return True

    def run_until(self, when: float, *, owner: object = None) -> None:
        """Have all happen that is due by a time, then let it be that time."""
        if owner is None:
            self.run_all(when)
        else:
            while (handle := self.peek(owner)) is not None and handle.when <= when:
                self.step(owner)
        self.now = max(self.now, when)

    def run_all(self, when: float) -> None:
        """Have all happen that is due by a time: `step` in a loop, without its detours."""
        events = self.events
        while events and events[0][0] <= when:
            at, _, handle = heapq.heappop(events)
            callback = handle.callback
            if callback is not None:
                handle.callback = None
                if at > self.now:
                    self.now = at
                self.steps += 1
                callback()

    def run_while(self, condition: Callable[[], bool], *, owner: object, what: Callable[[], str]) -> None:
        """Run one owner's events while a condition holds; for the driver.

        Raises:
            Deadlock: there are none left, or far too many; the text is that of `what`.
        """
        assert self.current is None, "a fiber pauses instead"
        for _ in range(STEPS_MAX):
            if not condition():
                return
            if not self.step(owner):
                raise Deadlock(what())
        raise Deadlock(f"after {STEPS_MAX} events: {what()}")

    def forget(self, owner: object) -> None:
        """Cancel all events of an owner."""
        for _, _, handle in self.events:
            if handle.owner is owner:
                handle.cancel()
