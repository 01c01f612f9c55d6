"""A real nameserver that keeps the records of groups: swaps, waits, a kill, and a second one on its file."""

import asyncio
import time
from pathlib import Path
from typing import TypeVar

import pytest

from support.cluster.processes import Process
from whimbrel.errors import BadRequest, Refused
from whimbrel.model.group_record import GroupRecord
from whimbrel.rpc.api.calls import Outbound, perform
from whimbrel.rpc.api.group_calls import read_record, swap_record
from whimbrel.rpc.client.channel import open_aio_channel

pytestmark = pytest.mark.process

RECORD = GroupRecord(group="f" * 32, epoch=1, leader=1, voters=((1, "1" * 32), (2, "2" * 32)), acks=2)
T = TypeVar("T")


async def ask(process: Process, call: Outbound[T]) -> T:
    channel = open_aio_channel(process.grpc)
    try:
        return await perform(channel, call, (), 5)
    finally:
        await channel.close()


@pytest.mark.transport
async def test_a_record_outlives_a_kill_and_who_waits_for_the_next_is_told(tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "keeper", keeps_groups=tmp_path / "groups") as keeper:
        assert await ask(keeper, read_record("C", "a")) == (None, 0)
        assert await ask(keeper, swap_record("C", "a", RECORD, 0)) == (True, RECORD, 1)
        keeper.kill()
        keeper.start()
        assert await ask(keeper, read_record("C", "a")) == (RECORD, 1)
        waiting = asyncio.create_task(ask(keeper, read_record("C", "a", after_revision=1, wait_ms=4000)))
        second = RECORD.led_by(2, 2, at_ms=1, why="1 is silent")
        begun = time.monotonic()
        assert await ask(keeper, swap_record("C", "a", second, 1)) == (True, second, 2)
        assert await waiting == (second, 2)
        assert time.monotonic() - begun < 4  # it was woken
        assert await ask(keeper, swap_record("C", "a", RECORD, 1)) == (False, second, 2)
        with pytest.raises(BadRequest, match="would lower it"):
            await ask(keeper, swap_record("C", "a", RECORD, 2))
        waiting = asyncio.create_task(ask(keeper, read_record("C", "a", after_revision=2, wait_ms=4000)))
        assert await ask(keeper, read_record("C", "a", after_revision=2, wait_ms=50)) == (second, 2)
        assert keeper.stop() == 0
        assert await waiting == (second, 2)  # it does not hold up the end


async def test_one_nameserver_keeps_a_file_and_the_others_say_so(tmp_path: Path) -> None:
    with (
        Process(tmp_path, "nameserver", "keeper", keeps_groups=tmp_path / "groups"),
        Process(tmp_path, "nameserver", "plain") as plain,
    ):
        with pytest.raises(Refused, match="--keeps-groups FILE"):
            await ask(plain, read_record("C", "a"))
        second = Process(tmp_path, "nameserver", "second", keeps_groups=tmp_path / "groups").launch()
        assert second.wait() == 1
        assert "another nameserver keeps this file" in second.log_tail()


def test_a_damaged_file_refuses_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("{}\n")
    keeper = Process(tmp_path, "nameserver", "keeper", keeps_groups=tmp_path / "groups").launch()
    assert keeper.wait() == 1
    assert "is damaged" in keeper.log_tail() and "put its newest copy there" in keeper.log_tail()
    assert "Traceback" not in keeper.log_tail()
