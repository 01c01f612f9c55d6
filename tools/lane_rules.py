"""Break the rules of the compiled lane one by one, and see whether the tests find each of them.

    python -m lane_rules                 all rules; exit code 1 when one is not found
    python -m lane_rules NAME ...        some, or all of a file: replica.rs
    python -m lane_rules --share 12      those that have changed, and of the others one of 12
    python -m lane_rules --record        all, and writes down which were found (support/rule_records.py)

A rule is broken in a copy of `native/`, by replacing one piece of a source file; the module built from it
takes the place of the installed one, and a test must fail, which ends the run of its suite. In the end each
test that has failed must pass with the module of the unchanged copy: no rule counts as found because a test
is broken, or what is done here. That all tests pass with the unchanged lane is not shown here, but where they
run like others, with the release.

Each core breaks rules in a copy of its own. The core is built with optimization, the binding without: what is
built anew for a rule takes two seconds, and tests take a third of what they take without optimization.
Dependencies that `make native-check` has built are taken from there. Tests run in forks of a process that has
collected them once.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from support import rule_records
from support.provenance import REPOSITORY, head

SET = "lane"
TEST_S_MAX = "600"
SOURCES = REPOSITORY / "native/core/src"
# Of what has been built in this tree: what a copy would build just so.
BUILT = REPOSITORY / "native/target/debug"
OURS = ("incremental", "examples", "*whimbrel*")
# Of dependencies only what is slow without optimization has other settings than where they were built.
SETTINGS = (
    "whimbrel-core.debug=false",
    "whimbrel-lane.debug=false",
    "whimbrel-core.opt-level=1",
    "crc32fast.opt-level=1",
    "md-5.opt-level=1",
)
MEMORY, MEMORY_MIN = Path("/dev/shm"), 2 << 30
MODULE = "whimbrel_lane"
FORKS = multiprocessing.get_context("fork")
FAILED = int(pytest.ExitCode.TESTS_FAILED)
STORE_TESTS = ("tests/property/test_lane_store.py",)
SEND_TESTS = (
    "tests/unit/rpc/server/test_lane_calls.py",
    "tests/property/test_lane_gathered.py",
    "tests/property/test_lane_sends.py",
    "-k",
    "not nearly_all",
)
PULL_TESTS = ("tests/property/test_lane_pulls.py", "-k", "not nearly_all")
RECEIVE_TESTS = ("tests/property/test_lane_receives.py", *PULL_TESTS)
PARKED_TESTS = ("tests/unit/broker/api/test_parked_acks.py",)
REPLICA_TESTS = (
    "tests/unit/replicator/test_lane_turns.py",
    "tests/unit/replicator/test_follower.py",
    "-k",
    "lane",
)
MEMBER_TESTS = ("tests/unit/replicator/test_lane_turns.py", "tests/property/test_lane_members.py")
KEPT_TESTS = ("tests/property/test_lane_recovery.py",)
BULK_TESTS = ("tests/property/test_lane_bulk.py",)
REMOTE_TESTS = ("tests/property/test_lane_remoting.py", "-k", "not nearly_all")
RECEIVE_FILES = ("ack.rs", "deliver.rs")
PULL_FILES = ("digest.rs", "pull.rs")
REMOTE_FILES = ("command.rs", "remote.rs", "remote_pull.rs")
SEND_FILES = ("send.rs", "pass.rs", "calls.rs", "hpack.rs", "proto.rs")


@dataclass(frozen=True)
class Rule:
    """A rule of the lane, and how it is broken: `old` becomes `new` in a file below `native/core/src`.

    `tests` must find it; by default those of the file.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()


RULES = (
    Rule("a record stands where it says", "dispatch.rs", "if record.physical_offset != place", "if false"),
    Rule("the delay topic is Python's", "dispatch.rs", "if record.topic == SCHEDULE_TOPIC", "if false"),
    Rule("prepared records have no entry", "record.rs", "kind != TRANSACTION_PREPARED && ", ""),
    Rule("rolled-back records have no entry", "record.rs", " && kind != TRANSACTION_ROLLBACK", ""),
    Rule(
        "rolled-back records have no keys",
        "record.rs",
        "!= TRANSACTION_ROLLBACK\n    }\n}",
        "!= 99\n    }\n}",
    ),
    Rule(
        "entries of a run follow each other",
        "dispatch.rs",
        "!= Some(record.queue_offset) {",
        "== Some(i64::MIN) {",
    ),
    Rule(
        "hosts may be of IPv6",
        "record.rs",
        "sys_flag & BORN_V6 == 0 { 8 } else { 20 }",
        "true { 8 } else { 20 }",
    ),
    Rule("topics of V2 are longer", "record.rs", "if magic == MAGIC_V1 {", "if magic != 0 {"),
    Rule("the last of equal properties counts", "record.rs", ".rfind(", ".find("),
    Rule("empty properties do not count", "record.rs", "|value| !value.is_empty()", "|_| true"),
    Rule("a property's name is its whole name", "record.rs", 'strip_prefix(b"\\x01")', 'strip_prefix(b"")'),
    Rule("hashes are of UTF-16 units", "hash.rs", "text.encode_utf16()", "text.bytes().map(u16::from)"),
    Rule(
        "text that is no UTF-8 is Python's",
        "hash.rs",
        "std::str::from_utf8(text).ok()?",
        'std::str::from_utf8(text).unwrap_or("")',
    ),
    Rule("index hashes are absolute values", "hash.rs", "if hash < 0x8000_0000 { hash }", "if true { hash }"),
    Rule("the id is a key as well", "dispatch.rs", "std::iter::once(unique)", "std::iter::once(&b\"\"[..])"),
    Rule(
        "an index's keys are words",
        "dispatch.rs",
        "words.split(|byte| *byte == b' ')",
        "words.split(|byte| *byte == b'-')",
    ),
    Rule("a slot leads to entries before", "index.rs", "0 < before && before < header.count", "0 < before"),
    Rule("seconds count from the file's begin", "index.rs", "if header.count == 1 {", "if false {"),
    Rule("seconds are not negative", "index.rs", ".clamp(0, ", ".clamp(i64::from(i32::MIN), "),
    Rule("used slots are counted", "index.rs", "header.slots_used.saturating_add(1)", "header.slots_used"),
    Rule(
        "the last record ends the file's header",
        "index.rs",
        "(last.store_time_ms, last.physical_offset)",
        "(0, 0)",
    ),
    # Sends
    Rule("a reserved property is Python's", "send.rs", "policy.reserved.contains(key.as_bytes()) || ", ""),
    Rule("control characters are Python's", "send.rs", "!text.chars().any(char::is_control)", "true"),
    Rule("properties stand by their names", "send.rs", "message.users.sort_unstable();", ""),
    Rule("a blank id is Python's", "send.rs", "|| blank(message.id)", ""),
    Rule("a tag holds no bar", "send.rs", "!tag.contains('|') && clean(tag)", "clean(tag)"),
    Rule("a born time has an end", "send.rs", "|ms| ms > policy.time_max_ms", "|_| false"),
    Rule("properties have a weight", "send.rs", "weight <= policy.weight_max", "true"),
    Rule("a request has one topic", "send.rs", "one.topic != found.topic", "false"),
    Rule("a field is there once", "send.rs", "if *seen & bit != 0 {", "if false {"),
    Rule("special messages are not the lane's", "send.rs", "|value| *value <= NORMAL)?;", "|_| true)?;"),
    Rule("a compressed body is marked", "send.rs", "i32::from(self.zipped)", "0_i32"),
    Rule(
        "the first offset is not written",
        "send.rs",
        "if offset > 0 {\n            out.push",
        "if true {\n            out.push",
    ),
    Rule("requests take turns", "pass.rs", "sent.turn = sent.turn.checked_add(1)?;", ""),
    Rule(
        "a wanted queue is there",
        "pass.rs",
        "(queue_id < sent.queues).then_some(queue_id)",
        "Some(queue_id)",
    ),
    Rule("a refused group leaves no turn", "pass.rs", "topic.turn = turn;", ""),
    Rule("an answer fits into the window", "pass.rs", " || size as i64 > most", ""),
    Rule("an answer fits into a frame", "pass.rs", "size > state.peer_frame || ", ""),
    Rule("an answer fits into its stream's window", "pass.rs", ".min(state.peer_window + call.window)", ""),
    Rule("answers keep their order", "pass.rs", "self.beyond |=", "self.beyond ="),
    Rule("answers wait behind those that wait", "pass.rs", "beyond: state.blocked", "beyond: false"),
    Rule(
        "windows that grow behind such answers are Python's", "calls.rs", "self.state.blocked || self", "self"
    ),
    Rule(
        "a guard has let a call in",
        "calls.rs",
        "&& self.approved.is_none_or(|approved| approved.lets_in(kind.method, fields))",
        "",
    ),
    Rule("a guard looks at values", "calls.rs", "found.next() == value.as_deref() && ", ""),
    Rule("a guarded header is there once", "calls.rs", " && found.next().is_none()", ""),
    Rule(
        "more queues than a pass has are for the next one",
        "pass.rs",
        "self.full && self.begun.is_some()",
        "false",
    ),
    Rule(
        "streams have a bound",
        "calls.rs",
        "calls.len() + self.open.len() < self.state.streams_left",
        "true",
    ),
    Rule(
        "sampled messages are not the lane's",
        "pass.rs",
        "(messages.len() as u64 <= log.unsampled)",
        "true",
    ),
    Rule(
        "a refused group leaves the table",
        "pass.rs",
        "decoder.undo(mark);\n            return",
        "return",
    ),
    Rule("a refused block leaves the table", "calls.rs", "            decoder.undo(mark);\n", ""),
    Rule(
        "calls come from a known client",
        "calls.rs",
        "client == self.client && !client.is_empty()",
        "client == client",
    ),
    Rule("a whole call does not wait", "calls.rs", "if !calls.is_empty() => Stop", "if false => Stop"),
    Rule("a message is not compressed", "calls.rs", "prefix[0] == 0 && length", "length"),
    Rule("received data has a window", "calls.rs", "|| received > self.state.receive_window", ""),
    Rule(
        "a path is of the method",
        "calls.rs",
        "position(|one| one == path)?",
        "position(|one| one == path).unwrap_or(0)",
    ),
    Rule("a window that grows is counted", "calls.rs", "self.state.send_window += self.grown;", ""),
    Rule(
        "frames for older streams are told",
        "calls.rs",
        "frame.id != 0 && frame.id <= self.quiet.last_id",
        "false",
    ),
    Rule(
        "the newest entry is the first",
        "hpack.rs",
        "self.table.push_front(entry);",
        "self.table.push_back(entry);",
    ),
    Rule("a table has a size", "hpack.rs", "while self.size + needed > self.capacity {", "while false {"),
    Rule("padding is of ones", "hpack.rs", "accepted.then_some(())", "Some(())"),
    Rule("a run is of one epoch", "replica.rs", "marks.epoch == self.marks.epoch && ", ""),
    Rule("replaced files end a run", "replica.rs", " && marks.replaced == self.marks.replaced", ""),
    Rule("what is removed is not sent", "replica.rs", "at < marks.begin || ", ""),
    Rule("a log that is cut ends a run", "replica.rs", " || at > end", ""),
    Rule("frames end where the longest would", "replica.rs", ".min(longest)", ""),
    Rule("a slave has what it was sent", "replica.rs", "written.min(link.next)", "written"),
    Rule("reports are not negative", "replica.rs", "(0..=most)", "(i64::MIN..=most)"),
    Rule("a part of a report waits", "replica.rs", "link.partial = partial;", ""),
    Rule(
        "a frame that is half sent goes on",
        "replica.rs",
        "link.rest = Some((link.next, size, count));",
        "",
    ),
    Rule(
        "an idle slave hears of the master",
        "replica.rs",
        "link.sent_ns + self.limits.heartbeat_ns);\n        let due = silent",
        "i64::MAX);\n        let due = silent",
    ),
    Rule("the broker hears of acknowledgements", "replica.rs", "self.moved = true;", ""),
    Rule("notes have a bound", "replica.rs", "> self.notes_max.max(SLAVES_MAX)", "> usize::MAX - 1"),
    Rule("frames follow each other", "replica.rs", "*offset == self.end && ", ""),
    Rule("a frame is in one file", "replica.rs", " && size as i64 <= room", ""),
    Rule(
        "frames are whole", "replica.rs", "(data.len() - head >= size as usize).then_some", "true.then_some"
    ),
    Rule(
        "the end is shown before it is reported",
        "replica.rs",
        "if self.end != self.published {",
        "if false {",
    ),
    Rule("rings are some time apart", "replica.rs", "now_ns - self.rung_ns >= self.ring_apart_ns", "true"),
    Rule(
        "a report that is half sent goes on",
        "replica.rs",
        "self.unsent = report[count.min(report.len())..].to_vec();",
        "",
    ),
    Rule(
        "the buffer keeps what is not parsed",
        "replica.rs",
        "buffer.copy_within(self.parsed..self.filled, 0);",
        "",
    ),
    Rule("growth is told", "replica.rs", "self.end >= self.room.wake_at || ", ""),
    # Groups that commit by majority
    Rule("what a leader's run stands on is as it was", "members.rs", "lead.settled\n            && ", ""),
    Rule("what a member's run stands on is as it was", "replica.rs", "self.left |= !shown.settled;", ""),
    Rule(
        "a leader's broker beats", "members.rs", "now_ns.saturating_sub(lead.beat_ns) < self.beat_ns", "true"
    ),
    Rule("observers wait for the epoch", "members.rs", "(!observed || lead.commit >= self.start)", "true"),
    Rule("enough voters report", "members.rs", "self.heard(links, now_ns) >= self.needed", "true"),
    Rule("voters report lately", "members.rs", "now_ns - link.received_ns < self.heard_ns", "true"),
    Rule("who only follows is not heard", "members.rs", ".filter(|member| member.counts)", ""),
    Rule("observers get what is committed", "replica.rs", "marks.written.min(lead.commit)", "marks.written"),
    Rule(
        "a commit offset is told after its connection was seen",
        "members.rs",
        "if self.connected_at <= lead.saw { lead.commit } else { -1 }",
        "lead.commit",
    ),
    Rule("a commit that moves is told", "members.rs", "self.commit(lead) != self.told;", "false;"),
    Rule("frames about commits are apart", "members.rs", "self.apart_ns.min(self.beat_ns)", "0"),
    Rule("a leader beats", "members.rs", "else { self.beat_ns }", "else { self.beat_ns * 2 }"),
    Rule("what was told is known", "members.rs", "self.told = self.telling;", ""),
    Rule("a frame ends with its epoch", "members.rs", "size.min(self.era.end - at)", "size"),
    Rule(
        "a frame names its epoch",
        "members.rs",
        "if !(self.era.start..self.era.end).contains(&at)",
        "if false",
    ),
    Rule("reports of members have a state", "members.rs", "state(report) != TRANSFER || ", ""),
    Rule(
        "members take back no report",
        "members.rs",
        "newest.unwrap_or(acknowledged).max(0)",
        "0",
    ),
    Rule("members have what they were sent", "members.rs", "..=most)", "..=i64::MAX)"),
    Rule(
        "a report that begins wrongly is Python's",
        "members.rs",
        "(rest.len() < 4 || state(&rest) == TRANSFER)",
        "true",
    ),
    Rule("frames of leaders have a state", "members.rs", "state(data) == TRANSFER && self", "self"),
    Rule("commit offsets are not negative", "members.rs", "self.coming >= -1 && ", ""),
    Rule("frames have a size", "members.rs", " && size >= 0;", ";"),
    Rule("frames are of the log's epoch", "members.rs", "plain && known && ", "plain && "),
    Rule(
        "an epoch is on disk before its start is reported",
        "members.rs",
        "i64::from(size) < self.era.end - end",
        "i64::from(size) <= self.era.end - end",
    ),
    Rule("the newest commit offset counts", "members.rs", "self.commit.max(self.coming)", "self.coming"),
    Rule("no more is committed than the log has", "members.rs", "self.commit.min(end)", "self.commit"),
    Rule("what is shown as committed stays", "members.rs", "self.shown.max(commit)", "commit"),
    Rule("the broker hears of commits", "members.rs", "= commit > self.shown;", "= false;"),
    Rule("a leader that says anything is heard", "replica.rs", "leader.news = true;", ""),
    Rule("the log is put on disk", "replica.rs", "|end| end < self.published", "|_| false"),
    Rule(
        "what is not on disk is not reported",
        "replica.rs",
        "|_| self.published.min(shown.flushed)",
        "|_| self.published",
    ),
    Rule("a request acknowledges something", "ack.rs", "entries.is_empty() || ", ""),
    Rule(
        "handles are of this broker",
        "ack.rs",
        "strip_prefix(&policy.handle_begin[..])?",
        "get(policy.handle_begin.len()..)?",
    ),
    Rule(
        "handles are of the group",
        "ack.rs",
        'strip_prefix(group.as_bytes())?.strip_prefix(b":")?',
        "splitn(2, |byte| *byte == b':').nth(1)?",
    ),
    Rule(
        "handles are of the topic",
        "ack.rs",
        'strip_prefix(topic.as_bytes())?.strip_prefix(b":")?',
        "splitn(2, |byte| *byte == b':').nth(1)?",
    ),
    Rule("the first attempt is 1", "ack.rs", "(1..=policy.attempt_max)", "(0..=policy.attempt_max)"),
    Rule("an answer names the message", "ack.rs", "[(0x0a, entry.id), ", "["),
    Rule("an entry has a status", "ack.rs", "            out.extend_from_slice(&policy.ok_3);\n", ""),
    Rule(
        "acknowledgements fit into the window",
        "pass.rs",
        "                windows.put(framed(size), call, state);\n",
        "                windows.left -= framed(size) as i64;\n                windows.fitting += 1;\n",
        RECEIVE_TESTS,
    ),
    Rule(
        "no more acknowledgements are parked than may be",
        "pass.rs",
        "if self.acks_left.is_some_and(|left| left < calls.len()) {",
        "if false {",
        PARKED_TESTS,
    ),
    Rule(
        "each acknowledgement that is parked counts",
        "pass.rs",
        "if let Some(left) = &mut self.acks_left {",
        "if let Some(left) = &mut None::<usize> {",
        PARKED_TESTS,
    ),
    Rule(
        "acknowledgements that are parked take no window yet",
        "pass.rs",
        "if self.acks_left.is_some() {",
        "if false {",
        PARKED_TESTS,
    ),
    Rule(
        "acknowledgements wait where a majority must have them",
        "pass.rs",
        "self.acks_left.is_some()\n",
        "false\n",
        PARKED_TESTS,
    ),
    Rule(
        "deliveries are current",
        "pass.rs",
        "self.leases.holds(request.group, request.topic, one)?",
        "self.leases.holds(request.group, request.topic, one).unwrap_or(0)",
        RECEIVE_TESTS,
    ),
    Rule("offsets are those of the handles", "pass.rs", "one.offset));", "one.offset + 1));", RECEIVE_TESTS),
    Rule("ranges are not joined over a gap", "pass.rs", "*one + 1 == *next", "*one < *next", RECEIVE_TESTS),
    Rule(
        "each state has its own offsets",
        "pass.rs",
        "self.settled.entry(state)",
        "self.settled.entry(0)",
        RECEIVE_TESTS,
    ),
    Rule(
        "a pass takes calls of one kind",
        "pass.rs",
        "self.begun.is_some_and(|before| before != method)",
        "false",
        RECEIVE_TESTS,
    ),
    Rule("numbers are not negative", "deliver.rs", " || numbers.iter().any(|number| *number < 0)", ""),
    Rule("text is UTF-8", "deliver.rs", "text.is_ok() && ", ""),
    Rule("rare messages are Python's", "deliver.rs", "words.rare.contains(name) || few", "few"),
    Rule("no property comes twice", "deliver.rs", " || few[..count].contains(&name)", ""),
    Rule("of many properties none is rare", "deliver.rs", " && !names.iter().any(", " || !names.iter().all("),
    Rule("of many properties none comes twice", "deliver.rs", "two[0] != two[1]", "two[0] <= two[1]"),
    Rule(
        "a host's text is that of its address",
        "deliver.rs",
        "if self.host != host {",
        "if self.text.is_empty() {",
    ),
    Rule("pairs have a name", "deliver.rs", "!name.is_empty() && !value", "!value"),
    Rule("pairs have a value", "deliver.rs", "!name.is_empty() && !value.is_empty()", "!name.is_empty()"),
    Rule(
        "hidden properties are not passed on", "deliver.rs", "_ if words.hidden.contains(name) => {}", ""
    ),
    Rule(
        "a message's keys are words",
        "deliver.rs",
        ".filter(|key| !key.is_empty()) {\n            put_field(system",
        " {\n            put_field(system",
    ),
    Rule("a message without an id has one", "deliver.rs", "            id = pair;\n", ""),
    Rule("compressed bodies say so", "deliver.rs", "if zipped { 2 }", "if zipped { 1 }"),
    Rule("what SDKs can't inflate is Python's", "deliver.rs", "!ZLIB.contains(", "false && !ZLIB.contains("),
    Rule("empty bodies are not compressed", "deliver.rs", " && !record.body.is_empty();", ";"),
    Rule("tags are keys of sends by remoting", "remote.rs", "if policy.index_tags && ", "if false && "),
    Rule("tags are keys of sends", "send.rs", "if policy.index_tags && ", "if false && "),
    Rule("tags are keys of the log", "dispatch.rs", "if tags { property(", "if false { property("),
    Rule("the host is the producer's word", "deliver.rs", "if host.is_empty() {", "{"),
    Rule("IPv6 is written as Java does", "deliver.rs", "out.push(']');", ""),
    Rule("times have a last one", "deliver.rs", "at_ms.min(words.time_max_ms)", "at_ms"),
    Rule("queue 0 is left out", "deliver.rs", "if record.queue_id > 0 {", "{"),
    Rule("a pulled message has no handle", "deliver.rs", "if !handle.is_empty() {", "{"),
    Rule("a topic has its namespace", "deliver.rs", 'put_field(out, b"\\x0a", namespace.as_bytes());', ""),
    Rule("an empty body is left out", "deliver.rs", "if body > 0 {", "{"),
    Rule("a trace context is passed on", "deliver.rs", 'b"TRACE_CONTEXT" => trace = value,', ""),
    Rule("a digest is of the size, too", "digest.rs", "body.len() as u64 * 8", "body.len() as u64"),
    Rule("the size may need a block more", "digest.rs", "(rest.len() + 9)", "(rest.len() + 8)"),
    Rule("the shortest bodies end first", "digest.rs", "Reverse(stream.blocks)", "Reverse(0)"),
    Rule("digests are in the order of bodies", "digest.rs", "begin + done.number", "begin + streams.len()"),
    Rule("all lanes take each step", "digest.rs", "some.next_multiple_of(NARROW)", "WIDE_MIN"),
    Rule("a body goes on where it was", "digest.rs", "(self.done + after, self", "(after, self"),
    Rule("an answer has so many messages", "pull.rs", " || chosen >= budget.room", ""),
    Rule("an answer has so many bytes", "pull.rs", "size > limit || ", ""),
    Rule("the bytes of all records count", "pull.rs", "left -= size;", ""),
    Rule("bytes are told", "pull.rs", "self.bytes += one.size;", ""),
    Rule("the last message's place is told", "pull.rs", "self.last_place = one.place;", ""),
    Rule("a tags code decides first", "pull.rs", "!tags.codes.contains(&code)", "false"),
    Rule("a tag's text decides", "pull.rs", "tags.admit_text(record.properties)", "tags.codes != [0]"),
    Rule("an entry without a record is Python's", "pull.rs", "                end = number;", ""),
    Rule("what is not plain is Python's", "pull.rs", "entries = one.number;", "entries = one.number + 1;"),
    Rule("a first delivery has the number 1", "pull.rs", ".unsigned_abs()) + 1;", ".unsigned_abs());"),
    Rule("negative counts are none", "pull.rs", "reconsume_times.max(0)", "reconsume_times"),
    Rule("deliveries have a last number", "pull.rs", "attempt.min(words.attempt_max)", "attempt"),
    # Records that recovery keeps
    Rule(
        "a body matches its CRC",
        "record.rs",
        "crc32fast::hash(record.body) & CRC_MASK != record.body_crc & CRC_MASK",
        "false",
        RECEIVE_TESTS,
    ),
    Rule(
        "sealed records are Python's",
        "record.rs",
        'text.starts_with(b"__CR") || text.ends_with(b"C32#")',
        "false",
        RECEIVE_TESTS,
    ),
    Rule(
        "a kept record has no wrong seal", "record.rs", "(!sealed).then_some", "true.then_some", KEPT_TESTS
    ),
    Rule(
        "lengths make up a record",
        "record.rs",
        "record.properties_length != record.properties.len() || ",
        "",
        KEPT_TESTS,
    ),
    Rule(
        "a kept record is where it says", "record.rs", " || record.physical_offset != place", "", KEPT_TESTS
    ),
    Rule(
        "a topic that is no text is Python's",
        "record.rs",
        "!record.topic.iter().all(printable) || ",
        "",
        KEPT_TESTS,
    ),
    Rule("a hole is Python's", "record.rs", " || record.properties.contains(&0)", "", KEPT_TESTS),
    Rule(
        "the last kept record is told",
        "record.rs",
        "last = Some(record.physical_offset);",
        "last = Some(base);",
        KEPT_TESTS,
    ),
    # Bulk reads
    Rule("unwanted tags are not read", "bulk.rs", "!codes.contains(&code)", "false"),
    Rule(
        "half of a tags code is the hash",
        "bulk.rs",
        "field(entry, 12)?) as u32",
        "field(entry, 12)?) as u16 as u32",
    ),
    Rule("a frame of records has a bound", "bulk.rs", "bytes > self.room || ", ""),
    Rule("records take room", "bulk.rs", "self.room -= bytes;", ""),
    Rule("an entry tells of a record", "bulk.rs", " || bytes < RECORD_BYTES_MIN as i64", ""),
    Rule("fillers are passed", "bulk.rs", "(size == FILLER_SIZE).then_some(())", "None"),
    Rule("a larger record is no filler", "bulk.rs", "(size == FILLER_SIZE).then_some(())", "Some(())"),
    Rule("places are not negative", "bulk.rs", "place < 0 || ", ""),
    Rule("gaps have a bound", "bulk.rs", "|_| near && ", "|_| "),
    Rule(
        "a span does not go back",
        "bulk.rs",
        "(0..=self.bounds.gap_max)",
        "(i64::MIN..=self.bounds.gap_max)",
    ),
    Rule("spans end where they may", "bulk.rs", "near && end <= self.limit", "near"),
    Rule(
        "a span is in one file",
        "bulk.rs",
        "file_end.min(place.checked_add(self.bounds.span_max)?)",
        "place.checked_add(self.bounds.span_max)?",
    ),
    Rule(
        "a span has a bound",
        "bulk.rs",
        "file_end.min(place.checked_add(self.bounds.span_max)?)",
        "file_end",
    ),
    Rule("a span ends with its last record", "bulk.rs", "            span.end = end;\n", ""),
    Rule("a record has its size", "bulk.rs", "stored != *size || ", ""),
    Rule("a record has a magic", "bulk.rs", "(magic != MAGIC_V1 && magic != MAGIC_V2)", "false"),
    Rule("there are two of them", "bulk.rs", " && magic != MAGIC_V2", ""),
    Rule(
        "what lies between is cut out",
        "bulk.rs",
        "*read == number && piece.end == begin",
        "*read == number",
    ),
    Rule("a pull has so many records", "bulk.rs", "self.records.len() >= pulled.records_max || ", ""),
    Rule("a pull has so many bytes", "bulk.rs", "(some && bytes > self.room)", "false"),
    Rule(
        "a pull's first record may be larger",
        "bulk.rs",
        "(some && bytes > self.room)",
        "bytes > self.room",
    ),
    Rule("records that are gone are passed", "bulk.rs", " && place >= pulled.log_begin", ""),
    Rule("a pull passes fillers", "bulk.rs", " && size != FILLER_SIZE", ""),
    Rule("a pull leaves out other tags", "bulk.rs", "if wanted && size", "if size"),
    # Sends of the remoting protocol
    Rule("nothing follows a header", "command.rs", "json.at == header.len() && ", ""),
    Rule("a text has no control characters", "command.rs", "_ => return None, // a", "_ => {} // a"),
    Rule("a number has no zero before it", "command.rs", " || (zero && size + minus > 1)", ""),
    Rule("there are so many fields", "command.rs", "fields.len() >= FIELDS_MAX || ", ""),
    Rule("a frame has a bound", "command.rs", " || length > limits.frame_max - LENGTH_BYTES", ""),
    Rule("a header has a bound", "command.rs", "limits.header_max.min(0x00ff_ffff)", "0x00ff_ffff"),
    Rule("a header has code and number", "command.rs", " && seen & 0b11 == 0b11", ""),
    Rule("a pull names what it must", "remote_pull.rs", "(seen == REQUIRED.len())", "true"),
    Rule("a pull's bytes have a bound", "remote_pull.rs", ".clamp(1, bounds.bytes_max)", ".max(1)"),
    Rule(
        "a pull asks for some bytes",
        "remote_pull.rs",
        ".clamp(1, bounds.bytes_max)",
        ".min(bounds.bytes_max)",
    ),
    Rule("a pull asks for a message", "remote_pull.rs", "int32(value)?.max(1)", "int32(value)?"),
    Rule("a pull waits so long", "remote_pull.rs", ".min(bounds.suspend_max_ms)", ""),
    Rule(
        "a subscription has a bound",
        "remote_pull.rs",
        "if !text.is_shorter(bounds.text_max) {",
        "if false {",
    ),
    Rule("not each pull names a subscription", "remote_pull.rs", "& NAMES_SUBSCRIPTION != 0", "!= -1"),
    Rule("a filter may be of SQL", "remote_pull.rs", "!matches!(value.plain()?, \"TAG\" | \"\")", "false"),
    Rule("only sends are taken", "remote.rs", "(header.code != SEND && header.code != BATCH) || ", ""),
    Rule("of flags there is oneway", "remote.rs", " || (header.flag != 0 && header.flag != ONEWAY)", ""),
    Rule(
        "group and template are there",
        "remote.rs",
        "let (_, _) = (group?, default?);",
        "let _ = (group, default);",
    ),
    Rule("times have an end", "remote.rs", "fine && *value <= max", "fine"),
    Rule("numbers are digits", "remote.rs", "fine && *value <= max", "*value <= max"),
    Rule("-0 is a queue", "remote.rs", ".is_some_and(|value| value > 0)", ".is_some()"),
    Rule("a property is there once", "remote.rs", " || found.iter().any(|(before, _)| *before == name)", ""),
    Rule("CLUSTER is the broker's", "remote.rs", " || name == CLUSTER", ""),
    Rule(
        "special messages are Python's",
        "remote.rs",
        " || policy.special.iter().any(|one| one == name)",
        "",
    ),
    Rule("empty values are dropped", "remote.rs", "name.is_empty() || value.is_empty()", "name.is_empty()"),
    Rule(
        "who does not wait is Python's",
        "remote.rs",
        'is_some_and(|value| value != "true")',
        "is_some_and(|_| false)",
    ),
    Rule("WAIT is not stored", "remote.rs", "{ UNIQ_KEY } else { WAIT }", '{ UNIQ_KEY } else { "" }'),
    Rule(
        "the id of a batch is none of its messages'",
        "remote.rs",
        "if head.batch { UNIQ_KEY } else",
        'if head.batch { "" } else',
    ),
    Rule(
        "a message's properties come first",
        "remote.rs",
        "if value_of(&own, pair.0).is_none() {",
        "own.retain(|one| one.0 != pair.0);\n                {",
    ),
    Rule("a batch's properties are each one's", "remote.rs", "own.push(*pair);", ""),
    Rule("sizes in a batch are right", "remote.rs", "if size != rest.len() - behind.len() {", "if false {"),
    Rule("a batch has a message", "remote.rs", "(!messages.is_empty()).then_some(())", "Some(())"),
    Rule("a property text has a bound", "remote.rs", "text.len() > policy.text_max || ", ""),
    Rule("a body has a bound", "remote.rs", " || body.len() > policy.body_max", ""),
    Rule("traced messages are Python's", "remote.rs", "if policy.traced.iter().any(traced) {", "if false {"),
    Rule(
        "a message has an id",
        "remote.rs",
        "value_of(pairs, UNIQ_KEY)?",
        "value_of(pairs, UNIQ_KEY).unwrap_or_default()",
    ),
    Rule("keys are words", "remote.rs", ".filter(|word| !word.is_empty())", ""),
    Rule("transactions are not made by a flag", "remote.rs", "!(TRANSACTION_MASK | HOST_BITS)", "!HOST_BITS"),
    Rule("hosts are what they are", "remote.rs", "!(TRANSACTION_MASK | HOST_BITS)", "!TRANSACTION_MASK"),
    Rule("redeliveries are stored", "remote.rs", "&head.reconsume_times.to_be_bytes()", "&[0; 4]"),
    Rule(
        "a message has its own flag",
        "remote.rs",
        "&message.flag.to_be_bytes()",
        "&head.flag.to_be_bytes()",
    ),
    Rule("oneway is not answered", "remote.rs", "if header.flag & ONEWAY == 0 {", "if true {"),
    Rule("numbers may be negative", "remote.rs", "if header.opaque < 0 {", "if false {"),
    Rule("ids are apart", "remote.rs", "if number > 0 {", "if false {"),
    Rule(
        "sampled messages are Python's",
        "remote.rs",
        "if messages.len() as u64 > self.log.unsampled {",
        "if false {",
    ),
    Rule(
        "each message counts to the sampled one",
        "remote.rs",
        "self.log.unsampled -= messages.len() as u64;",
        "",
    ),
    Rule(
        "records fit into the file",
        "remote.rs",
        "bytes > self.log.room - self.plan.records.len()",
        "false",
    ),
    Rule(
        "queues that are read take no turns",
        "pass.rs",
        "(u64::from(sent.turns))",
        "(u64::from(sent.queues))",
        REMOTE_TESTS,
    ),
)  # fmt: skip


class Broken(Exception):
    """What is done here is at fault, and no rule; the text says what happened."""


@dataclass(frozen=True)
class Copy:
    """A directory with a copy of `native/`, and the modules that were built from it."""

    root: Path

    @property
    def native(self) -> Path:
        """Where the sources stand."""
        return self.root / "native"

    def fill(self) -> None:
        """Copy the sources, and what is built already."""
        shutil.copytree(REPOSITORY / "native", self.native, ignore=shutil.ignore_patterns("target"))
        if BUILT.exists():
            shutil.copytree(BUILT, self.native / "target/debug", ignore=shutil.ignore_patterns(*OURS))

    def build(self, name: str) -> Path:
        """Build the module; return the folder of this name that it is in.

        Raises:
            Broken: it does not compile.
        """
        command = ["cargo", "build", "--locked", "-q", "-p", "whimbrel-lane"]
        for setting in SETTINGS:
            command += ["--config", f"profile.dev.package.{setting}"]
        # What it says, is warnings: a broken rule leaves unused names.
        done = subprocess.run(command, cwd=self.native, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Broken(done.stderr)
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        library = folder / f"{MODULE}.so"
        library.unlink(missing_ok=True)  # a process may have it mapped
        shutil.copy(self.native / f"target/debug/lib{MODULE}.so", library)
        return folder

    def finds(self, rule: "Rule") -> list[str]:
        """Break a rule, run its tests, mend it; return which of them failed."""
        path = self.native / "core/src" / rule.file
        text = path.read_text()
        path.write_text(text.replace(rule.old, rule.new))
        try:
            return failed(self.build("broken"), tests_of(rule))
        finally:
            path.write_text(text)


@dataclass(eq=False)  # pytest wants a hash
class Failures:
    """A plugin of the runs: the first part of each test comes first, since it finds most rules.

    Attributes:
        tests: those that have failed.
        running: the file that names the test that runs.
    """

    running: Path | None = None
    tests: list[str] = field(default_factory=list)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write it down."""
        if self.running:
            self.running.write_text(nodeid, encoding="utf-8")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort them."""
        items.sort(key=lambda item: item.nodeid.endswith(("[1]", "[2]", "[3]")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note it."""
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


def run_tests(words: Iterable[str], plugin: Failures) -> int:
    """Run pytest in this process; return its exit code."""
    common = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(REPOSITORY / "pyproject.toml"),
        "--timeout",
        TEST_S_MAX,
    ]
    return int(pytest.main([*common, *words], [plugin]))  # a time limit: what is broken may hang


def in_memory() -> Path | None:
    """Return where files of tests have no disk to wait for; None where there is no room."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_MIN else None


def run_with(module: Path, words: Sequence[str], work: Path) -> None:
    """Run tests with the module in a folder, in a process of their own; write down what came of it."""
    plugin = Failures(work / "running")
    with (work / "output").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path.insert(0, str(module))
    code = run_tests(("--basetemp", str(work / "files"), *words), plugin)
    loaded = getattr(sys.modules.get(MODULE), "__file__", None)
    outcome = {"code": code, "failed": plugin.tests, "loaded": loaded}
    (work / "outcome").write_text(json.dumps(outcome), encoding="utf-8")


def failed(module: Path, words: Sequence[str]) -> list[str]:
    """Run tests with the module in a folder; return which failed.

    Raises:
        Broken: they did not run, or not with that module.
    """
    with tempfile.TemporaryDirectory(dir=in_memory()) as name:
        work = Path(name)
        child = FORKS.Process(target=run_with, args=(module, ("-x", *words), work))
        child.start()
        child.join()
        output = work / "output"
        said = output.read_text(errors="replace")[-3000:] if output.exists() else ""
        if child.exitcode and child.exitcode < 0 and (work / "running").exists():
            return [(work / "running").read_text(encoding="utf-8")]  # the process died in this test
        if not (work / "outcome").exists():
            raise Broken(f"the tests ended with {child.exitcode}: {said}")
        outcome = json.loads((work / "outcome").read_text(encoding="utf-8"))
    if outcome["loaded"] != str(module / f"{MODULE}.so"):
        raise Broken(f"the tests ran with {outcome['loaded']}: {said}")
    if (outcome["code"], bool(outcome["failed"])) not in ((0, False), (FAILED, True)):
        raise Broken(f"pytest ended with {outcome['code']}: {said}")
    return list(outcome["failed"])


@contextlib.contextmanager
def collected(suites: Iterable[tuple[str, ...]]) -> Iterator[None]:
    """Collect the tests once, so that processes that are forked meanwhile have imported all that they need.

    Raises:
        Broken: they can't be collected, or that has loaded a module of the lane.
    """
    # The lane of these processes is off, as where it is of other sources; tests take it by `lane_or_skip`.
    changes = {"REQUIRE_LANE": "1", "WHIMBREL_LANE_RULES": "1", "WHIMBREL_LANE": "off"}
    paths = {"PYTHONPATH": ":".join(str(REPOSITORY / name) for name in ("services", "tests", "tools"))}
    before = os.environ.copy()
    os.environ.update(changes | paths)
    files = sorted({word for words in suites for word in words if word.endswith(".py")})
    try:
        with contextlib.chdir(REPOSITORY):
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                code = run_tests(["--collect-only", *files], Failures())
            if code:
                raise Broken(f"the tests can't be collected: pytest ended with {code}")
            if MODULE in sys.modules:
                raise Broken(f"tests load {MODULE} where they are collected")
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tests_of(rule: Rule) -> tuple[str, ...]:
    """Return the tests that must find a broken rule."""
    if rule.tests:
        return rule.tests
    if rule.file == "replica.rs":
        return REPLICA_TESTS
    if rule.file == "members.rs":
        return MEMBER_TESTS
    if rule.file in RECEIVE_FILES:
        return RECEIVE_TESTS
    if rule.file in PULL_FILES:
        return PULL_TESTS
    if rule.file == "bulk.rs":
        return BULK_TESTS
    if rule.file in REMOTE_FILES:
        return REMOTE_TESTS
    return SEND_TESTS if rule.file in SEND_FILES else STORE_TESTS


own: Copy  # of a process that breaks rules


def take(copies: "SimpleQueue[Copy]") -> None:
    """Take a copy, as one of the processes that break rules."""
    global own
    own = copies.get()


def find(rule: Rule) -> list[str]:
    """Break a rule in the copy of this process; return which tests have failed."""
    began = time.monotonic()
    tests = own.finds(rule)
    took = time.monotonic() - began
    by = f" by {tests[0]}" if tests else ""
    print(f"{'found' if tests else 'MISSED'} in {took:4.1f} s: {rule.name}{by}", flush=True)
    return tests


def missed_of(rules: Sequence[Rule], folder: Path) -> list[str]:
    """Break rules, on each core; return the names of those that no test has found.

    Raises:
        Broken: a test fails with the unchanged lane as well, or what is done here is at fault.
    """
    count = min(len(rules), os.cpu_count() or 1)
    copies = [Copy(folder / str(number)) for number in range(count)]
    left: SimpleQueue[Copy] = FORKS.SimpleQueue()
    for copy in copies:
        if copy is copies[0]:
            copy.fill()
            unchanged = copy.build("unchanged")
        else:
            shutil.copytree(copies[0].native, copy.native)
        left.put(copy)
    with (
        collected({tests_of(rule) for rule in rules}),
        ProcessPoolExecutor(count, FORKS, initializer=take, initargs=(left,)) as workers,
    ):
        found = list(workers.map(find, rules))
        # Each process runs the files of some, so that what a file's tests share is made once.
        failing = sorted({test for tests in found for test in tests})
        files = sorted({test.partition("::")[0] for test in failing})
        shares = [
            [test for test in failing if test.partition("::")[0] in files[number::count]]
            for number in range(count)
        ]
        shares = [share for share in shares if share]
        for tests in workers.map(failed, [unchanged] * len(shares), shares):
            if tests:
                raise Broken(f"fails with the unchanged lane: {', '.join(tests)}")
        print(f"with the unchanged lane the {len(failing)} tests that have found them pass", flush=True)
    return [rule.name for rule, tests in zip(rules, found, strict=True) if not tests]


def digests() -> dict[str, str]:
    """Return what each rule is now: how it is broken, its file, and the tests that must find it."""
    found = {}
    for rule in RULES:
        tests = [REPOSITORY / word for word in tests_of(rule) if word.endswith(".py")]
        found[rule.name] = rule_records.digest(repr(rule), [SOURCES / rule.file, *tests])
    return found


def main(arguments: list[str]) -> None:
    """Break the rules."""
    parser = argparse.ArgumentParser(prog="lane_rules", description="Break rules of the compiled lane.")
    parser.add_argument("names", nargs="*", help="rules, or files; all where none is named")
    parser.add_argument("--share", type=int, default=1, help="those that have changed, and one of so many")
    parser.add_argument("--record", action="store_true", help="write down which were found")
    options = parser.parse_args(arguments)
    now, commit = digests(), head()
    wanted = set(rule_records.chosen(now, rule_records.recorded(SET), share=options.share, commit=commit))
    if options.names:
        wanted = {rule.name for rule in RULES if {rule.name, rule.file} & set(options.names)}
    rules = [rule for rule in RULES if rule.name in wanted]
    print(f"commit {commit[:7]}, {len(rules)} of {len(RULES)} rules", flush=True)
    for rule in rules:
        count = (SOURCES / rule.file).read_text().count(rule.old)
        if count != 1:
            sys.exit(f"{rule.name}: {rule.old!r} stands {count} times in {rule.file}")
    if not rules:
        return
    with tempfile.TemporaryDirectory() as name:
        try:
            missed = missed_of(rules, Path(name))
        except Broken as error:
            sys.exit(str(error))
    if options.record:
        found = {rule.name: now[rule.name] for rule in rules if rule.name not in missed}
        rule_records.record(SET, found, now)
    if missed:
        sys.exit(f"{len(missed)} of {len(rules)} broken rules are not found: {', '.join(missed)}")
    print(f"all {len(rules)} broken rules are found")


if __name__ == "__main__":
    main(sys.argv[1:])
