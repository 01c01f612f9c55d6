"""`whimbrel trace`: a message's story from heaps of spans, and where the heaps come from."""

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from whimbrel.cli.main import main
from whimbrel.cli.message_trace import MessageTrace, lines, spans_of, structure, trace_of
from whimbrel.telemetry import (
    BROKER_SERVICE,
    MAJORITY_STAGES,
    MAJORITY_TREE,
    REPLICATOR_SERVICE,
    STAGES,
    TREE,
    Attribute,
)

TRACE, ROOT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROCESSES = {
    "whimbrel.store.append": ("master", BROKER_SERVICE),
    "whimbrel.store.flush": ("master", BROKER_SERVICE),
    "whimbrel.ha.transfer": ("master", REPLICATOR_SERVICE),
    "whimbrel.ha.append": ("slave", REPLICATOR_SERVICE),
    "whimbrel.ha.acknowledge": ("master", REPLICATOR_SERVICE),
    "whimbrel.store.commit": ("master", BROKER_SERVICE),
    "whimbrel.ha.commit": ("slave", REPLICATOR_SERVICE),
    "whimbrel.store.dispatch": ("slave", BROKER_SERVICE),
}


def text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def request(
    name: str,
    *,
    service: tuple[str, str] = ("", "shop"),
    trace: str = TRACE,
    span: str = "",
    parent: str = "",
    message: str = "m1",
    links: tuple[tuple[str, str], ...] = (),
    kind: Any = 1,
    at: int = 0,
    offset: int | None = None,
    topic: str = "",
    epoch: int = 0,
    broker_id: int = 0,
    slaves: int | None = None,
) -> dict[str, Any]:
    """Return a request with one span."""
    attributes = [text(Attribute.MESSAGE_ID, message)] if message else []
    if offset is not None:
        attributes += [
            {"key": Attribute.OFFSET, "value": {"intValue": str(offset)}},
            text(Attribute.TOPIC, topic),
        ]
    for key, number in ((Attribute.EPOCH, epoch), (Attribute.BROKER_ID, broker_id)):
        attributes += [{"key": key, "value": {"intValue": str(number)}}] if number else []
    if slaves is not None:
        attributes.append({"key": Attribute.SLAVES, "value": {"intValue": str(slaves)}})
    one = {
        "traceId": trace,
        "spanId": span or f"{abs(hash((name, trace, parent, message))) % (1 << 64):016x}",
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(at),
        "endTimeUnixNano": str(at + 5),
        "attributes": attributes,
        "links": [{"traceId": link[0], "spanId": link[1]} for link in links],
    }
    resource = [text(Attribute.ROLE, service[0]), text("service.name", service[1])]
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"spans": [one]}]}]}


def whole() -> list[dict[str, Any]]:
    """Return what all processes report of one message, in no order."""
    link = ((TRACE, ROOT),)
    return [
        request("ack orders", trace="a" * 32, links=link, kind="SPAN_KIND_CLIENT", at=9),
        request("process orders", trace="b" * 32, links=link, kind=5, at=8),
        *(request(name, service=PROCESSES[name], parent=ROOT, at=2) for name in reversed(STAGES)),
        request("send orders", span=ROOT, kind=4),
        request("receive orders", trace="c" * 32, links=link, message="", kind=3, at=7),
        request(
            "whimbrel.ha.frame",
            service=("master", REPLICATOR_SERVICE),
            trace="d" * 32,
            links=link,
            message="",
            at=3,
        ),
    ]


def rows(drawn: str) -> list[list[str]]:
    """Return a drawing without its alignment, which depends on the topic's name."""
    return [line.split() for line in drawn.splitlines()]


def trace(requests: list[dict[str, Any]], message: str = "m1") -> MessageTrace | None:
    return trace_of(message, [span for one in requests for span in spans_of(one)])


def test_the_story_is_the_tree_that_telemetry_draws() -> None:
    found = trace(whole())
    assert found is not None
    assert rows(structure(found)) == rows(TREE.format(topic="orders"))
    assert found.missing == ()


def stage(name: str, **values: Any) -> dict[str, Any]:
    return request(name, service=PROCESSES[name], parent=ROOT, at=2, **values)


def test_where_a_majority_commits_the_story_has_the_commits() -> None:
    begun = [request("send orders", span=ROOT, kind=4), stage("whimbrel.store.append", epoch=3)]
    found = trace(begun + [stage(name) for name in reversed(MAJORITY_STAGES[1:])])
    assert found is not None
    assert rows(structure(found)) == rows(MAJORITY_TREE.format(topic="orders"))
    assert found.missing == ()
    assert "epoch 3" in lines(found)
    early = trace(begun + [stage(name) for name in STAGES[1:]])
    assert early is not None
    assert early.missing == ("whimbrel.store.commit", "whimbrel.ha.commit")


@pytest.mark.parametrize(
    ("slaves", "missing"),
    [(0, ()), (1, STAGES[2:]), (None, STAGES[2:])],  # an earlier version's append does not tell
)
def test_a_slave_that_is_not_there_is_not_waited_for(slaves: int | None, missing: tuple[str, ...]) -> None:
    begun = [request("send orders", span=ROOT, kind=4), stage(STAGES[0], slaves=slaves), stage(STAGES[1])]
    found = trace(begun)
    assert found is not None
    assert (found.missing, found.without_slaves) == (missing, slaves == 0)


def test_without_a_slave_the_rest_is_waited_for() -> None:
    found = trace([stage(STAGES[0], slaves=0)])
    assert found is not None and found.missing == (STAGES[1],)
    delayed = trace(
        [stage(STAGES[0], slaves=0, offset=0), stage(STAGES[0], span="1" * 16, slaves=1, offset=9)]
    )
    assert delayed is not None and delayed.missing == STAGES[1:]  # a slave came before it was delivered


def test_slaves_are_told_apart_where_there_are_several() -> None:
    found = trace([stage("whimbrel.ha.append", broker_id=1), stage("whimbrel.ha.commit", broker_id=1)])
    assert found is not None and "slave replicator 1" not in lines(found)
    found = trace([stage("whimbrel.ha.append", broker_id=1), stage("whimbrel.ha.commit", broker_id=2)])
    assert found is not None
    assert [line.split()[2:5] for line in lines(found).splitlines()[3:]] == [
        ["slave", "replicator", "1"],
        ["slave", "replicator", "2"],
    ]


def test_other_messages_of_the_same_trace_stay_out() -> None:
    others = [request(name, parent="1" * 16, message="m2") for name in STAGES]
    twin = [request("whimbrel.store.append", parent=ROOT, message="m3", span="2" * 16)]
    found = trace(whole() + others + twin)
    assert found is not None
    assert rows(structure(found)) == rows(TREE.format(topic="orders"))


def test_records_of_one_message_are_told_one_by_one() -> None:
    waits, delivered = (100, "rmq_sys_wheel_timer"), (2000, "later")
    found = trace(
        [
            request(name, parent=ROOT, at=at, span=f"{number:016x}", offset=offset, topic=topic)
            for number, (name, at, (offset, topic)) in enumerate(
                [
                    (STAGES[1], 40, delivered),
                    (STAGES[1], 12, waits),
                    (STAGES[0], 30, delivered),
                    (STAGES[0], 10, waits),
                ],
                start=1,
            )
        ]
    )
    assert found is not None
    told = lines(found).splitlines()
    assert told[1] == "2 records"
    assert [line.split()[1] for line in told[3:]] == [*STAGES[:2], *STAGES[:2]]
    assert told[3].endswith("topic rmq_sys_wheel_timer, log offset 100")
    assert told[5].endswith("topic later, log offset 2000")
    assert "topic" not in told[4] + told[6]


def test_a_story_can_be_told_without_its_root() -> None:
    found = trace([request("whimbrel.store.append", parent=ROOT)])
    assert found is not None
    assert (found.root, found.trace_id) == (None, TRACE)
    assert found.missing == STAGES[1:]


def test_a_consumer_alone_leads_to_the_trace_by_its_link() -> None:
    found = trace([request("process orders", trace="b" * 32, links=((TRACE, ROOT),), kind=5)])
    assert found is not None
    assert found.trace_id == TRACE


def test_a_message_without_a_span_has_no_story() -> None:
    assert trace(whole(), "m9") is None


def test_ids_in_base_64_are_understood() -> None:
    one = request("send orders", span=base64.b64encode(bytes.fromhex(ROOT)).decode(), kind=4)
    span = one["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["traceId"] = base64.b64encode(bytes.fromhex(TRACE)).decode()
    (read,) = spans_of(one)
    assert (read.trace_id, read.span_id) == (TRACE, ROOT)


def write(path: Path, requests: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))


def test_the_command_reads_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = whole()
    write(tmp_path / "a.jsonl", requests[:4])
    write(tmp_path / "b.jsonl.1", requests[4:])
    (tmp_path / "half.jsonl").write_text('{"resourceSpans": [')  # a process is writing it
    assert main(["trace", "m1", "--from", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert TRACE in printed
    assert all(name in printed for name in STAGES)
    assert main(["trace", "m1", "--from", str(tmp_path / "a.jsonl"), "--wait", "0", "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert {span["name"] for span in json.loads(shown.out)} == {
        "ack orders", "process orders", "whimbrel.store.dispatch", "whimbrel.ha.acknowledge",
    }  # fmt: skip
    assert "no span yet of: whimbrel.store.append" in shown.err
    assert main(["trace", "m1", "--from", str(tmp_path / "a.jsonl"), "--wait", "0", "-o", "jsonl"]) == 0
    shown = capsys.readouterr()
    assert len([json.loads(line)["name"] for line in shown.out.splitlines()]) == 4
    assert "no span yet of: " in shown.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "none of 0 spans"),
        ("spam\n", "does not hold OTLP"),
        ("[]\n", "does not hold OTLP"),
        (None, "no such"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    path = tmp_path / "spans.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["trace", "m1", "--from", str(path), "--wait", "0"]) == 1
    assert words in capsys.readouterr().err


def test_the_command_without_a_source_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    assert main(["trace", "m1"]) == 1
    assert "whimbrel dev --trace 1" in capsys.readouterr().err


@contextmanager
def viewer(services: list[str], traces: bytes, status: int = 200) -> Iterator[str]:
    """Serve Jaeger's query API, version 3; as Jaeger 1.76, it wants to be told how many traces to give."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_services = "/services" in self.path
            body = json.dumps({"services": services}).encode() if of_services else traces
            self.send_response(status if of_services or "query.num_traces=" in self.path else 500)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_command_asks_a_viewer(capsys: pytest.CaptureFixture[str]) -> None:
    chunks = "\n".join(json.dumps({"result": one}) for one in whole()).encode()
    with viewer(["shop"], chunks) as url:
        assert main(["trace", "m1", "--from", url]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in STAGES)


@pytest.mark.parametrize(
    ("traces", "status", "words"), [(b"<html>", 200, "JSON"), (b"{}", 500, "answers 500")]
)
def test_a_viewer_of_another_kind_is_named(
    capsys: pytest.CaptureFixture[str], traces: bytes, status: int, words: str
) -> None:
    with viewer(["shop"], traces, status) as url:
        assert main(["trace", "m1", "--from", url, "--wait", "0"]) == 1
    assert words in capsys.readouterr().err


def test_nobody_at_the_viewers_address_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "m1", "--from", "http://127.0.0.1:1", "--wait", "0"]) == 1
    assert "can't be asked" in capsys.readouterr().err
