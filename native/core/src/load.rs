//! The load of `whimbrel bench send`: what is sent next, over which connection, and the tally of what came of it.
//!
//! So many calls are under way at a time; when one ends, the next one begins, at the connection whose turn it is. Each
//! message has an id and a born time of its own, as an SDK makes them; all have the same body. The caller has sockets
//! and clocks (`binding/src/load.rs`): it hands in what came and when, and sends what is in `out`.
//!
//! A call's latency is from the moment in which its bytes were made to that in which its answer's end was read, for all
//! that one read brought the same.

use std::collections::BTreeMap;

use crate::client::{
    Connection, DATE_BYTES_MAX, End, Ended, Fault, Header, REQUEST_ID_BYTES_MAX, Start, Values,
};
use crate::latencies::Latencies;
use crate::proto::{Reader, put_varint, varint_len};

const OK: u32 = 20_000;
/// Messages that may fail in a row: more is no measurement. As in `cli/load.py`.
pub const FAILURES_MAX: u32 = 20;
/// Kinds of failures that are told apart; what comes beyond them counts as the last one.
const KINDS_MAX: usize = 64;
const CALL_NS_MAX: i64 = 10_000_000_000; // as producers' `send_timeout_s`
const SEQUENCE_DIGITS: usize = 8; // of a message id
const NUMBER_DIGITS: usize = 12; // of a request id

/// What is to be sent.
pub struct Plan {
    pub topic: Vec<u8>,
    pub body: Vec<u8>,
    pub born_host: Vec<u8>,
    /// Messages in all.
    pub count: Option<u64>,
    /// Calls under way, and messages of each.
    pub concurrency: usize,
    pub batch: u32,
    /// Message ids without the sequence that ends them, and where that begins.
    pub id_begin: Vec<u8>,
    pub sequence: u32,
    /// Request ids without the number that ends them.
    pub request_id_begin: Vec<u8>,
}

/// A moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Of a monotonic clock.
    pub ns: i64,
    /// Since the epoch.
    pub wall_ms: u64,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// A code of a response or of one of its results.
    Code(u32),
    /// A status of gRPC.
    Status(u32),
    /// A stream that was reset with this code.
    Reset(u32),
    /// A status of HTTP.
    Http(u32),
}

/// What was measured so far.
#[derive(Default)]
pub struct Tally {
    pub messages: u64,
    pub latencies: Latencies,
    /// Messages that failed.
    pub failures: BTreeMap<Failure, u64>,
    /// What the last failure was, and its text.
    pub last: Option<(Failure, String)>,
    pub began_ns: i64,
    /// When the last message was done.
    pub ended_ns: i64,
    failures_in_row: u32,
}

impl Tally {
    fn done(&mut self, ended: &Ended, now_ns: i64) -> Result<(), Fault> {
        let failure = match &ended.end {
            End::Answered(answer) => match outcome(answer, ended.messages) {
                None => return Err(Fault("the server's answer is no SendMessageResponse".into())),
                Some((OK, _)) => None,
                Some((code, text)) => Some((Failure::Code(code), text)),
            },
            End::Status(code, text) => Some((Failure::Status(*code), text.clone())),
            End::Reset(code) => Some((Failure::Reset(*code), String::new())),
            End::Http(code) => Some((Failure::Http(*code), String::new())),
        };
        let messages = u64::from(ended.messages);
        let Some((failure, text)) = failure else {
            self.latencies.add((now_ns - ended.began_ns).max(0) as u64);
            self.messages += messages;
            self.ended_ns = now_ns;
            self.failures_in_row = 0;
            return Ok(());
        };
        let known = self.failures.contains_key(&failure) || self.failures.len() < KINDS_MAX;
        let kind = if known { Some(failure) } else { self.failures.last_key_value().map(|(kind, _)| *kind) };
        *self.failures.entry(kind.unwrap_or(failure)).or_default() += messages;
        self.last = Some((failure, text));
        self.failures_in_row += 1;
        Ok(())
    }

    /// Whether too many have failed in a row.
    pub fn is_hopeless(&self) -> bool {
        self.failures_in_row >= FAILURES_MAX
    }
}

/// The code of a response: OK, or that of the response, else of its first result that is not; and its text. `None`: it
/// is malformed, or has not one result a message.
fn outcome(response: &[u8], messages: u32) -> Option<(u32, String)> {
    let (mut own, mut first, mut results) = (OK, None, 0);
    let mut text = String::new();
    let mut reader = Reader::new(response);
    while !reader.is_done() {
        match reader.value()? {
            0x0a => (own, text) = status(reader.bytes()?)?,
            0x12 => {
                results += 1;
                let mut result = Reader::new(reader.bytes()?);
                while !result.is_done() {
                    let tag = result.value()?;
                    if tag == 0x0a {
                        let found = status(result.bytes()?)?;
                        if found.0 != OK && first.is_none() {
                            first = Some(found);
                        }
                    } else {
                        skip(&mut result, tag)?;
                    }
                }
            }
            tag => skip(&mut reader, tag)?,
        }
    }
    match first {
        Some(found) => Some(found),
        None if own == OK && results != messages => None,
        None => Some((own, text)),
    }
}

fn status(bytes: &[u8]) -> Option<(u32, String)> {
    let (mut code, mut text) = (0, String::new());
    let mut reader = Reader::new(bytes);
    while !reader.is_done() {
        match reader.value()? {
            0x08 => code = u32::try_from(reader.value()?).ok()?,
            0x12 => text = reader.text()?.chars().take(300).collect(),
            tag => skip(&mut reader, tag)?,
        }
    }
    Some((code, text))
}

/// Step over a field that says nothing here.
fn skip(reader: &mut Reader<'_>, tag: u64) -> Option<()> {
    match tag & 7 {
        0 => reader.value().map(|_| ()),
        2 => reader.bytes().map(|_| ()),
        _ => None, // no field of these messages
    }
}

/// A connection, and the queues of its broker.
struct Target {
    connection: Connection,
    queues: Vec<u32>,
    turn: usize,
}

/// A load that runs.
pub struct Load {
    plan: Plan,
    pub tally: Tally,
    targets: Vec<Target>,
    turn: usize,
    reserved: u64,
    numbers: u64,
    stopped: bool,
    date: (u64, Vec<u8>), // second, and its text
    request: Vec<u8>,
    ended: Vec<Ended>,
}

impl Load {
    /// Begin with a connection to each broker: its headers, and its queues.
    pub fn new(plan: Plan, targets: Vec<(Vec<Header>, Vec<u32>)>) -> Self {
        let one = |(headers, queues)| Target { connection: Connection::new(headers), queues, turn: 0 };
        Self {
            plan,
            tally: Tally::default(),
            targets: targets.into_iter().map(one).collect(),
            turn: 0,
            reserved: 0,
            numbers: 0,
            stopped: false,
            date: (u64::MAX, vec![]),
            request: vec![],
            ended: vec![],
        }
    }

    /// What is to be sent over a connection.
    pub fn out(&mut self, number: usize) -> &mut Vec<u8> {
        &mut self.targets[number].connection.out
    }
    /// Whether all servers have answered, so that it can begin.
    pub fn is_ready(&self) -> bool {
        self.targets.iter().all(|target| target.connection.is_settled())
    }
    /// Whether nothing is under way, and nothing follows.
    pub fn is_done(&self) -> bool {
        let under_way = self.targets.iter().any(|target| target.connection.under_way() > 0);
        !under_way && (self.stopped || self.left() == 0)
    }
    /// Begin no more calls.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// How many messages the next call has.
    fn left(&self) -> u32 {
        let left = self.plan.count.map_or(u64::MAX, |count| count - self.reserved);
        left.min(u64::from(self.plan.batch)) as u32
    }

    /// Put out what waits, and begin as many calls as may be under way.
    ///
    /// # Errors
    /// A connection can't have more.
    pub fn fill(&mut self, now: Now) -> Result<(), Fault> {
        for target in &mut self.targets {
            target.connection.pump();
        }
        if self.stopped || !self.is_ready() {
            return Ok(());
        }
        if self.tally.began_ns == 0 {
            (self.tally.began_ns, self.tally.ended_ns) = (now.ns, now.ns);
        }
        let under_way: usize = self.targets.iter().map(|target| target.connection.under_way()).sum();
        for _ in under_way..self.plan.concurrency {
            let messages = self.left();
            let Some(number) = self.next_target().filter(|_| messages > 0) else { return Ok(()) };
            self.reserved += u64::from(messages);
            self.start(number, messages, now)?;
        }
        Ok(())
    }

    fn next_target(&mut self) -> Option<usize> {
        for step in 0..self.targets.len() {
            let number = (self.turn + step) % self.targets.len();
            if self.targets[number].connection.has_room() {
                self.turn = number + 1;
                return Some(number);
            }
        }
        None
    }

    fn start(&mut self, number: usize, messages: u32, now: Now) -> Result<(), Fault> {
        self.numbers += 1;
        let second = now.wall_ms / 1000;
        if self.date.0 != second {
            self.date = (second, date_of(second));
        }
        let Self { plan, targets, request, .. } = self;
        let target = &mut targets[number];
        let queue = target.queues.get(target.turn % target.queues.len().max(1)).copied().unwrap_or_default();
        target.turn += 1;
        put_request(request, plan, messages, queue, now.wall_ms);
        let mut id = [0; REQUEST_ID_BYTES_MAX];
        let begin = plan.request_id_begin.len().min(REQUEST_ID_BYTES_MAX - NUMBER_DIGITS);
        id[..begin].copy_from_slice(&plan.request_id_begin[..begin]);
        put_hex(&mut id[begin..begin + NUMBER_DIGITS], self.numbers, b"0123456789abcdef");
        let values = Values { date: &self.date.1, request_id: &id[..begin + NUMBER_DIGITS] };
        target.connection.start(&Start { request, values, messages, now_ns: now.ns })
    }

    /// Take what came over a connection, and begin what follows.
    ///
    /// # Errors
    /// The connection can't go on.
    pub fn receive(&mut self, number: usize, data: &[u8], now: Now) -> Result<(), Fault> {
        let mut ended = std::mem::take(&mut self.ended);
        let received = self.targets[number].connection.receive(data, &mut ended);
        // What ended before the fault counts as well.
        let counted = ended.drain(..).try_for_each(|one| self.tally.done(&one, now.ns));
        self.ended = ended;
        received.and(counted)?;
        if self.tally.is_hopeless() {
            self.stop();
        }
        self.fill(now)
    }

    /// The connection with a call that waits for too long, for its answer or to be made, and what to say of it.
    pub fn late(&self, now_ns: i64) -> Option<(usize, Fault)> {
        let limit_s = CALL_NS_MAX / 1_000_000_000;
        let is_late = |target: &Target| {
            target.connection.oldest_ns().is_some_and(|began_ns| now_ns - began_ns > CALL_NS_MAX)
        };
        if let Some(number) = self.targets.iter().position(is_late) {
            return Some((number, Fault(format!("a call has had no answer for {limit_s} s"))));
        }
        let none_under_way = self.targets.iter().all(|target| target.connection.under_way() == 0);
        let has_begun = self.tally.began_ns > 0 && !self.is_done();
        let is_stuck = has_begun && none_under_way && now_ns - self.tally.ended_ns > CALL_NS_MAX;
        is_stuck.then(|| (0, Fault(format!("the server has let no call begin for {limit_s} s"))))
    }
}

/// Make a request behind gRPC's prefix.
fn put_request(out: &mut Vec<u8>, plan: &mut Plan, messages: u32, queue: u32, wall_ms: u64) {
    out.clear();
    out.resize(5, 0);
    let mut born = vec![0x08];
    put_varint(&mut born, wall_ms / 1000);
    if !wall_ms.is_multiple_of(1000) {
        born.push(0x10);
        put_varint(&mut born, wall_ms % 1000 * 1_000_000);
    }
    let mut rest = vec![0x28, 1, 0x30, 1]; // body_encoding IDENTITY, message_type NORMAL
    put_bytes(&mut rest, 0x3a, &born);
    if !plan.born_host.is_empty() {
        put_bytes(&mut rest, 0x42, &plan.born_host);
    }
    if queue > 0 {
        rest.push(0x68);
        put_varint(&mut rest, u64::from(queue));
    }
    let mut topic = vec![];
    put_bytes(&mut topic, 0x12, &plan.topic);
    let id_size = plan.id_begin.len() + SEQUENCE_DIGITS;
    let system = sized(id_size) + rest.len();
    let message = sized(topic.len()) + sized(system) + sized(plan.body.len());
    out.reserve(messages as usize * sized(message));
    for _ in 0..messages {
        put_size(out, 0x0a, message);
        put_bytes(out, 0x0a, &topic);
        put_size(out, 0x1a, system);
        put_size(out, 0x1a, id_size);
        out.extend_from_slice(&plan.id_begin);
        let at = out.len();
        out.resize(at + SEQUENCE_DIGITS, 0);
        put_hex(&mut out[at..], u64::from(plan.sequence), b"0123456789ABCDEF");
        plan.sequence = plan.sequence.wrapping_add(1);
        out.extend_from_slice(&rest);
        put_bytes(out, 0x22, &plan.body);
    }
    let size = (out.len() - 5) as u32;
    out[1..5].copy_from_slice(&size.to_be_bytes());
}

/// How many bytes a field takes whose number is below 16.
fn sized(size: usize) -> usize {
    1 + varint_len(size as u64) + size
}
fn put_size(out: &mut Vec<u8>, tag: u8, size: usize) {
    out.push(tag);
    put_varint(out, size as u64);
}
fn put_bytes(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    put_size(out, tag, bytes.len());
    out.extend_from_slice(bytes);
}
fn put_hex(out: &mut [u8], mut value: u64, digits: &[u8; 16]) {
    for place in out.iter_mut().rev() {
        *place = digits[(value & 15) as usize];
        value >>= 4;
    }
}

/// A second since the epoch as `20260101T000000Z`.
fn date_of(second: u64) -> Vec<u8> {
    let (days, rest) = (second / 86_400, second % 86_400);
    // Days since 0000-03-01: years begin with March, so that a leap day is their last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + month / 10, if month < 10 { month + 3 } else { month - 9 });
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let text = format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z");
    let mut text = text.into_bytes();
    text.truncate(DATE_BYTES_MAX);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{DATA, END_HEADERS, END_STREAM, HEADERS, Next, SETTINGS, frame_at, put_head};
    use crate::client::Value;

    fn plan(count: Option<u64>, concurrency: usize, batch: u32) -> Plan {
        Plan {
            topic: b"t".to_vec(),
            body: b"xyz".to_vec(),
            born_host: b"here".to_vec(),
            count,
            concurrency,
            batch,
            id_begin: b"01".to_vec(),
            sequence: 0xab,
            request_id_begin: b"id-".to_vec(),
        }
    }
    fn load(count: Option<u64>, concurrency: usize, batch: u32, targets: usize) -> Load {
        let headers = vec![Header { name: b"a".to_vec(), value: Value::Fixed(b"b".to_vec()) }];
        let mut load = Load::new(
            plan(count, concurrency, batch),
            (0..targets).map(|_| (headers.clone(), vec![1, 2])).collect(),
        );
        for number in 0..targets {
            load.out(number).clear();
            load.receive(number, &frame(SETTINGS, 0, 0, &[]), NOW).expect("settings");
        }
        load
    }
    const NOW: Now = Now { ns: 1_000, wall_ms: 1_767_225_600_005 };

    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        put_head(&mut out, payload.len(), kind, flags, id);
        out.extend_from_slice(payload);
        out
    }
    /// The frames of an answer.
    fn answer(id: u32, response: &[u8]) -> Vec<u8> {
        let mut data = vec![0, 0, 0, 0, response.len() as u8];
        data.extend_from_slice(response);
        let trailers = b"\x00\x0bgrpc-status\x010";
        [
            frame(HEADERS, END_HEADERS, id, b"\x88"),
            frame(DATA, 0, id, &data),
            frame(HEADERS, END_HEADERS | END_STREAM, id, trailers),
        ]
        .concat()
    }
    fn response(codes: &[u64]) -> Vec<u8> {
        let one = |tag: u8, code: u64, inner: bool| {
            let mut status = vec![0x08];
            put_varint(&mut status, code);
            status.extend_from_slice(b"\x12\x02no");
            let (mut field, mut out) = (vec![], vec![]);
            put_bytes(&mut field, 0x0a, &status);
            put_bytes(&mut out, tag, if inner { &field } else { &status });
            out
        };
        let own = if codes.iter().all(|code| *code == 20_000) { 20_000 } else { 30_000 };
        let mut out = one(0x0a, own, false);
        for code in codes {
            out.extend(one(0x12, *code, true));
        }
        out
    }
    /// The requests that a connection sends, by their streams.
    fn requests(load: &mut Load, number: usize) -> Vec<(u32, Vec<u8>)> {
        let data = std::mem::take(load.out(number));
        let (mut at, mut found) = (0, vec![]);
        while let Next::Frame(frame, end) = frame_at(&data, at, 16_384) {
            if frame.kind == DATA {
                found.push((frame.id, frame.payload[5..].to_vec()));
            }
            at = end;
        }
        found
    }

    #[test]
    fn a_message_is_as_an_sdk_makes_it() {
        let mut found = vec![];
        put_request(&mut found, &mut plan(None, 1, 1), 1, 3, NOW.wall_ms);
        let expected = b"\x0a\x03\x12\x01t\x1a\x25\x1a\x0a01000000AB\x28\x01\x30\x01\x3a\x0b\x08\x80\xf2\xd6\xca\x06\x10\xc0\x96\xb1\x02\
            \x42\x04here\x68\x03\x22\x03xyz";
        assert_eq!(found[5 + 2..], expected[..]);
        assert_eq!(usize::from(found[4]), found.len() - 5);
        assert_eq!(usize::from(found[6]), expected.len());
    }

    #[test]
    fn as_many_messages_are_sent_as_were_asked_for() {
        let mut load = load(Some(7), 2, 3, 1);
        let mut sizes = vec![];
        for round in 0.. {
            let made = requests(&mut load, 0);
            if made.is_empty() {
                break;
            }
            for (id, request) in made {
                let messages = request.windows(5).filter(|part| part == b"\x22\x03xyz").count();
                sizes.push(messages);
                let now = Now { ns: NOW.ns + 100 * (round + 1), ..NOW };
                load.receive(0, &answer(id, &response(&vec![20_000; messages])), now).expect("an answer");
            }
        }
        assert_eq!(sizes, [3, 3, 1]);
        let tally = &load.tally;
        assert_eq!((load.is_done(), tally.messages, tally.latencies.count), (true, 7, 3));
        assert_eq!((tally.began_ns, tally.ended_ns, tally.latencies.greatest_ns), (1_000, 1_200, 100));
    }

    #[test]
    fn connections_have_their_turns() {
        let mut load = load(None, 5, 1, 3);
        let made: Vec<_> = (0..3).map(|number| requests(&mut load, number).len()).collect();
        assert_eq!(made, [2, 2, 1]);
        load.receive(1, &answer(1, &response(&[20_000])), NOW).expect("an answer");
        assert_eq!(requests(&mut load, 2).len(), 1);
        load.stop();
        load.receive(1, &answer(3, &response(&[20_000])), NOW).expect("an answer");
        assert!((0..3).all(|number| requests(&mut load, number).is_empty()) && !load.is_done());
    }

    #[test]
    fn failures_are_counted_by_their_codes_and_too_many_in_a_row_end_it() {
        let mut load = load(None, 1, 2, 1);
        let mut id = 1;
        load.receive(0, &answer(id, &response(&[20_000, 50_401])), NOW).expect("an answer");
        assert_eq!(load.tally.failures.get(&Failure::Code(50_401)), Some(&2));
        assert_eq!(load.tally.last, Some((Failure::Code(50_401), "no".into())));
        load.receive(0, &answer(id + 2, &response(&[20_000, 20_000])), NOW).expect("an answer");
        id += 4;
        while !load.is_done() {
            let trailers = b"\x00\x0bgrpc-status\x0214\x00\x0cgrpc-message\x04gone";
            load.receive(0, &frame(HEADERS, END_HEADERS | END_STREAM, id, trailers), NOW).expect("an end");
            id += 2;
        }
        assert!(load.tally.is_hopeless());
        assert_eq!(load.tally.failures.get(&Failure::Status(14)), Some(&40));
        assert_eq!(
            (load.tally.messages, load.tally.last.clone()),
            (2, Some((Failure::Status(14), "gone".into())))
        );
    }

    #[test]
    fn an_answer_that_is_none_ends_it() {
        for response in [b"\x0a".to_vec(), response(&[20_000]), b"\x0d\0\0\0\0".to_vec()] {
            let mut load = load(None, 1, 2, 1);
            let error = load.receive(0, &answer(1, &response), NOW).expect_err("a fault");
            assert_eq!(error.0, "the server's answer is no SendMessageResponse");
        }
    }

    #[test]
    fn a_call_that_is_not_answered_ends_it() {
        let load = load(None, 1, 1, 1);
        assert_eq!(load.late(NOW.ns + CALL_NS_MAX), None);
        let fault = Fault("a call has had no answer for 10 s".into());
        assert_eq!(load.late(NOW.ns + CALL_NS_MAX + 1), Some((0, fault)));
    }

    #[test]
    fn a_server_that_allows_no_call_ends_it() {
        let mut load = Load::new(plan(Some(1), 1, 1), vec![(vec![], vec![1])]);
        load.receive(0, &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0]), NOW).expect("settings");
        assert!(load.is_ready() && !load.is_done());
        assert_eq!(load.late(NOW.ns + CALL_NS_MAX), None);
        let fault = Fault("the server has let no call begin for 10 s".into());
        assert_eq!(load.late(NOW.ns + CALL_NS_MAX + 1), Some((0, fault)));
        load.stop();
        assert_eq!(load.late(NOW.ns + CALL_NS_MAX + 1), None);
    }

    #[test]
    fn kinds_of_failures_are_bounded() {
        let mut tally = Tally::default();
        for code in 0..2 * KINDS_MAX as u32 {
            let ended = Ended { began_ns: 0, messages: 1, end: End::Reset(code) };
            tally.done(&ended, 1).expect("a failure");
        }
        assert_eq!(tally.failures.len(), KINDS_MAX);
        assert_eq!(tally.failures.values().sum::<u64>(), 2 * KINDS_MAX as u64);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (second, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_767_225_600, "20260101T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(date_of(second), text.as_bytes());
        }
    }
}
