"""`whimbrel bench send`, once it is known what to send: who sends, and what both sides used meanwhile.

    the compiled lane     where it is on; one process, one connection a broker
    our client            elsewhere: in this process, or in several (`load_processes.py`)

Core times are those of the processes that send, and of the brokers, where those run on this machine and may
be looked at (`listeners.py`); `limits.py` says from both which side was the limit.
"""

import os
from dataclasses import dataclass
from typing import Any

from whimbrel.cli.lane_load import left_to_python, send_by_lane
from whimbrel.cli.limits import Use, limit_of, use_of
from whimbrel.cli.listeners import listening_processes
from whimbrel.cli.load import Plan, Tally, send_load
from whimbrel.cli.load_processes import processes_of, send_by_processes
from whimbrel.cli.process_times import core_times
from whimbrel.client import Producer
from whimbrel.lane import Lane

__all__ = ["SendBench"]


@dataclass(slots=True)
class SendBench:
    """A load, and who makes it.

    Attributes:
        address: the access point.
        plan: what is sent.
        tally: what was measured.
        lane: of this process.
        cores: of this machine that this process may use.
        generator: "lane" or "python".
        why_not_lane: as it follows "because"; "" where the lane sends.
        processes: that send.
        client: what these have used.
        broker_pids: the brokers' processes; empty where they can't be known.
        broker: what those have used; None where it can't be known.
    """

    address: str
    plan: Plan
    tally: Tally
    lane: Lane
    cores: int
    generator: str = "python"
    why_not_lane: str = ""
    processes: int = 1
    client: Use | None = None
    broker_pids: tuple[int, ...] = ()
    broker: Use | None = None

    async def run(self) -> None:
        """Send until the plan is done; what was measured is known also after an error.

        Raises:
            WhimbrelError: as `send_by_lane`, `send_by_processes` and `send_load`.
        """
        plan, tally = self.plan, self.tally
        self.why_not_lane = left_to_python(plan, self.lane)
        self.generator = "python" if self.why_not_lane else "lane"
        self.processes = processes_of(self.cores, plan) if self.why_not_lane else 1
        async with Producer(self.address, topics=[plan.topic]) as producer:
            await self.find_brokers(producer)
            brokers, own = core_times(self.broker_pids), core_times([os.getpid()])
            children: list[Use] = []
            try:
                if not self.why_not_lane:
                    await send_by_lane(self.lane, producer, plan, tally)
                elif self.processes == 1:
                    await send_load(producer, plan, tally)
                else:
                    await send_by_processes(self.address, plan, tally, children, processes=self.processes)
            finally:
                self.broker = use_of(brokers, core_times(self.broker_pids))
                self.client = together(children) or use_of(own, core_times([os.getpid()]))

    async def find_brokers(self, producer: Producer) -> None:
        """Find the processes that serve the topic; none unless all of its brokers' are found."""
        endpoints = {queue.endpoints[0] for queue in await producer.queues(self.plan.topic)}
        found = [listening_processes(endpoint.host, endpoint.port) for endpoint in endpoints]
        pids = {pid for each in found for pid in each}
        if all(found) and os.getpid() not in pids:
            self.broker_pids = tuple(sorted(pids))

    def sides(self) -> dict[str, Any]:
        """Return what both sides used, and which was the limit, for JSON."""
        seconds = self.tally.seconds
        limit, sentence = limit_of(self.client, self.broker, seconds=seconds, cores=self.cores)
        return {
            "generator": self.generator,
            "why_not_lane": self.why_not_lane or None,
            "client": {"processes": self.processes} | described(self.client, seconds),
            "broker": {"pids": list(self.broker_pids)} | described(self.broker, seconds),
            "limit": limit,
            "limit_text": sentence,
        }


def together(uses: list[Use]) -> Use | None:
    """Return what several processes have used; None without any."""
    if not uses:
        return None
    return Use(
        cpu_s=sum(one.cpu_s for one in uses),
        waited_s=sum(one.waited_s for one in uses),
        processes=len(uses),
    )


def described(use: Use | None, seconds: float) -> dict[str, float | None]:
    if use is None:
        return {"cpu_s": None, "waited_s": None, "cores": None}
    return {
        "cpu_s": round(use.cpu_s, 3),
        "waited_s": round(use.waited_s, 3),
        "cores": round(use.cpu_s / seconds, 3) if seconds else None,
    }
