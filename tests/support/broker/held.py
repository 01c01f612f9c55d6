"""What holds the answers of an elected leader (`roles/held_answers.py`), around a handler that a test words.

rig = HeldRig(tmp_path)                a leader of three; nobody has stored anything yet
rig.ask("CreateTopic", ADMIN_SERVICE)  calls a method; rig.ask_code(17) makes a request by remoting
rig.waits(lambda: ...)                 says for which majorities the answer waits
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whimbrel.broker.cluster.leader_state import LeaderState
from whimbrel.broker.roles.held_answers import HeldAnswers
from whimbrel.broker.tables.metadata_version import MetadataVersionFile
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.wire import MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.server.handlers import Call, RemotingService, ServerStreamMethod, Service, UnaryMethod

__all__ = ["HeldRig"]


class HeldRig:
    """A leader of three; nobody has stored anything yet.

    Attributes:
        answer: of the handler; an error is raised. why: why this leader does not serve yet.
        asked: the handler was called.
    """

    def __init__(self, root: Path) -> None:
        self.number, self.why, self.asked = 1, "", False
        self.answer: Any = "answer"
        seats = tuple((member, f"{member:032x}") for member in (1, 2, 3))
        term = GroupRecord(group="1" * 32, epoch=5, leader=1, voters=seats, acks=2)
        self.state = LeaderState(
            term, 1, seats[0][1], leases=lambda: self.number, leases_durable=lambda: self.number,
            file=MetadataVersionFile(root), take_tables=lambda _: None, clock=lambda: 0.0, timeout_s=3.0,
            on_change=lambda: None,
        )  # fmt: skip
        self.state.begin()
        self.held = HeldAnswers(self.state, why_not=lambda: self.why)

    def handle(self, call: Any, request: Any) -> Any:
        """Answer as the test says."""
        self.asked = True
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ask(self, name: str, service: str = MESSAGING_SERVICE) -> Any:
        """Call a method of gRPC."""
        kind = ServerStreamMethod if name in ("ReceiveMessage", "PullMessage") else UnaryMethod
        method = kind(name, messaging.AckMessageRequest, self.handle, lambda call, error: [error])
        (wrapped,) = self.held.wrap([Service(service, (method,))])
        return wrapped.methods[0].handle(Call(name, "", {}, None), None)  # type: ignore[union-attr]

    def ask_code(self, code: int) -> Any:
        """Make a request of the remoting protocol."""
        service = self.held.wrap_remoting(RemotingService({code: self.handle}))
        peer: Any = None
        return service.handles[code](peer, Command(code, 1))

    def reach(self, kind: str) -> None:
        """Have a majority store all changes of a kind so far, `metadata` or `leases`."""
        (self.state.metadata if kind == "metadata" else self.state.leases).stored(2, 1)

    def waits(self, ask: Callable[[], Any]) -> str:
        """Return which majorities must have stored what they lack for an answer to leave, in their order.

        Raises:
            NotReady: this leader does not serve yet.
        """
        try:
            found = ask()
        except NotReady:
            raise
        except WhimbrelError as error:
            assert error is self.answer
            return ""
        waits = []
        while isinstance(found, Deferred) and not found.done:
            for kind, quorum in (("metadata", self.state.metadata), ("leases", self.state.leases)):
                if quorum.waiting:
                    waits.append(kind)
                    self.reach(kind)
                    break
            else:
                raise AssertionError("the answer waits for neither")
        told = (found.error or found.result) if isinstance(found, Deferred) else found
        assert told is self.answer
        return " ".join(waits)

    def waits_for(self, name: str, service: str = MESSAGING_SERVICE) -> set[str]:
        """Return of what a majority must have stored for the answer of a method to leave."""
        return set(self.waits(lambda: self.ask(name, service)).split())
