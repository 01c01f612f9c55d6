"""A group that elects its leader by Kubernetes, as processes, against a stand-in for its API server."""

from pathlib import Path

import pytest

from support.cluster.certificates import Tls
from support.cluster.elections import ElectedGroup
from support.systems.fake_kubernetes import FakeKube
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_it_elects_and_waits_while_the_api_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeKube(tmp_path, Tls(tmp_path / "tls")) as kube:
        for name, value in kube.variables.items():
            monkeypatch.setenv(name, value)  # for the processes
        with ElectedGroup(
            tmp_path / "group",
            coordinator="kubernetes:ns",
            coordinator_ca=kube.tls.ca,
            coordinator_token_file=kube.token_file,
        ) as group:
            leader = group.await_leader()
            until(lambda: leader.peer.send("t", b"first").status.code == v2.OK)
            (lease,) = kube.leases.values()
            assert lease["spec"]["holderIdentity"] == f"broker-a/{leader.number}"
            leader.kill()
            second = group.await_leader(leader)
            leader.start()
            (lease,) = kube.leases.values()
            assert lease["spec"]["holderIdentity"] == f"broker-a/{second.number}"

            kube.stop()
            until(
                lambda: "Kubernetes can't be reached" in second.view().election.coordinator_trouble,
                what="a sentence on it",
            )
            until(lambda: second.peer.send("t", b"alone").status.code == v2.OK)
            second.kill()
            with pytest.raises(AssertionError, match="a leader"):
                group.await_leader(timeout=4)
            kube.start(kube.port)
            third = group.await_leader(second)
            until(lambda: third.peer.send("t", b"again").status.code == v2.OK)
