"""Delayed messages that are stored again on the way, by one implementation, and delivered by the other one.

Both roll after ten seconds here, where days are usual: 5.3.3 by `timerRollWindowSlot`. Of three messages one
is through when the broker is changed, one was rolled and waits in the slot of its time, and one waits in a
slot from which it is to be rolled once more.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.test_transactions import SIZES, records
from interop.test_delayed_in_rocketmq import REAL, SEND_MESSAGE, TOPIC, bodies, check_times, received
from support.cluster.broker_api import Api
from support.cluster.processes import Process
from support.cluster.rolling import RollingBroker
from support.systems.real_broker import Remoting, Server, broker, name_server
from support.waiting import until
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store.timer_layout import ROLL, UNIT_SIZE, TimerUnit

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(240)]

WINDOW_S = 10
DELAYS_S = {b"through": 12, b"rolled": 20, b"rolls": 28}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with name_server("5.3.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def ours(root: Path, store: Path, name: str) -> Process:
    return Process(root, "broker", name, store=store, nameservers="", **SIZES)


def rolled(store: Path) -> set[bytes]:
    """Return the bodies of what waits and was stored again."""
    return {one.body for one in records(store, TIMER_TOPIC) if "TIMER_ROLL_TIMES" in one.properties}


def send_to_real(client: Remoting, body: bytes, due_ms: int) -> None:
    pairs = {"UNIQ_KEY": body.decode(), "TIMER_DELIVER_MS": str(due_ms), "WAIT": "true"}
    fields = {
        "producerGroup": "p", "topic": TOPIC, "queueId": "0", "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000), "flag": "0", "reconsumeTimes": "0",
        "properties": "".join(f"{key}\x01{value}\x02" for key, value in pairs.items()),
        "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    header, _ = client.call(SEND_MESSAGE, fields, body)
    assert header["code"] == 0, header


def one_is_to_be_rolled(store: Path) -> bool:
    """Tell whether the last message waits in a slot from which it is rolled, and the one before it not."""
    newest = {one.body: one.physical_offset for one in records(store, TIMER_TOPIC)}
    magics = {unit.place: unit.magic for unit in units(store)}
    last, before = (magics.get(newest[body], 0) for body in (b"rolls", b"rolled"))
    return bool(last & ROLL and before and not before & ROLL)


def units(store: Path) -> list[TimerUnit]:
    """Return what stands in the timer log, whose first file is more than enough."""
    data = (store / "timerlog" / f"{0:020}").read_bytes()[: 1000 * UNIT_SIZE]
    found: list[TimerUnit] = []
    while (unit := TimerUnit.unpack(data, len(found) * UNIT_SIZE)) is not None:
        found.append(unit)
    return found


def test_a_real_broker_delivers_what_we_have_rolled(names: Server, tmp_path: Path) -> None:
    """Checklist 34: each once and not before its time, whether rolled, or to be rolled once more."""
    store = tmp_path / "store"
    due_ms: dict[bytes, int] = {}
    rolling = RollingBroker(tmp_path, "ours", window_s=WINDOW_S, store=store, nameservers="", **SIZES)
    with rolling, grpc.insecure_channel(rolling.grpc) as channel:
        api = Api(channel)
        api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, message_type=admin.MESSAGE_TYPE_DELAY))
        now = int(time.time())
        for body, delay_s in DELAYS_S.items():
            due_ms[body] = (now + delay_s) * 1000
            sent = api.send(
                TOPIC,
                body,
                message_id=body.decode(),
                message_type=v2.DELAY,
                delivery_timestamp=Timestamp(seconds=now + delay_s),
            )
            assert sent.status.code == v2.OK
        until(lambda: bodies(store) == [b"through"], timeout=20, what="the first delivery")
        until(lambda: one_is_to_be_rolled(store), what="the units of what was rolled")
        assert rolled(store) == set(DELAYS_S)
        assert rolling.stop() == 0
    root = tmp_path / "real"
    shutil.copytree(store, root / "store", ignore=shutil.ignore_patterns("*.sock"))
    with broker("5.3.3", root, "ASYNC_MASTER", names.address, **REAL):
        until(lambda: len(bodies(root / "store")) >= 3, timeout=60, what="the deliveries", every_s=0.2)
    with ours(tmp_path, root / "store", "again") as process:
        assert received(process) == sorted(due_ms)
        assert process.stop() == 0
    assert sorted(bodies(root / "store")) == sorted(due_ms)
    check_times(root / "store", due_ms)


def test_we_deliver_what_a_real_broker_has_rolled(names: Server, tmp_path: Path) -> None:
    """Checklist 34: the other way round."""
    store = tmp_path / "store"
    due_ms: dict[bytes, int] = {}
    settings = REAL | {"timerRollWindowSlot": WINDOW_S}
    with broker("5.3.3", tmp_path, "ASYNC_MASTER", names.address, **settings) as server:
        with Remoting(server.address) as client:
            now = int(time.time())
            for body, delay_s in DELAYS_S.items():
                due_ms[body] = (now + delay_s) * 1000
                send_to_real(client, body, due_ms[body])
        until(lambda: bodies(store) == [b"through"], timeout=30, what="the first delivery", every_s=0.2)
        until(lambda: one_is_to_be_rolled(store), what="the units of what was rolled")
        assert rolled(store) == set(DELAYS_S)
    with ours(tmp_path, store, "ours") as process:
        until(lambda: len(bodies(store)) >= 3, timeout=60, what="the deliveries", every_s=0.2)
        process.kill()
    with ours(tmp_path, store, "again") as process:
        assert received(process) == sorted(due_ms)
        assert process.stop() == 0
    assert sorted(bodies(store)) == sorted(due_ms)
    check_times(store, due_ms)
