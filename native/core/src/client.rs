//! The client's end of an HTTP/2 connection with unary gRPC calls: calls become bytes, bytes become ends of calls.
//!
//! It knows what a load generator needs: POSTs with the same few fields, requests that are there as a whole, answers
//! of one message. A server's breach of RFC 9113, of a bound below, or a connection that is given up (GOAWAY) is a
//! `Fault` with a sentence, which ends the connection. What fails one call alone is that call's end.
//!
//! ```text
//! start ─► HEADERS, DATA ... END_STREAM     as far as the windows let it; the rest waits in `waiting`
//! receive ─► HEADERS, DATA, HEADERS with END_STREAM, or RST_STREAM: a call has ended
//! ```
//!
//! Header blocks are as our client library's: the first one puts all fields into the server's table; later ones have a
//! number for each, and in full the two values that differ in every call. A server with a smaller table than
//! HTTP/2's default gets every block in full.

use std::collections::{HashMap, VecDeque};

use crate::calls::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, Next, PING, PREFIX_BYTES, SETTINGS,
    WINDOW_MAX, WINDOW_UPDATE, frame_at, put_head, u31,
};
use crate::hpack::{Decoder, ENTRY_BYTES, Fields, STATIC, TABLE_BYTES};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const PADDED: u8 = 8;
const PRIORITIZED: u8 = 0x20;
const DYNAMIC: usize = STATIC.len() + 1; // the number of the newest entry

const WINDOW_DEFAULT: i64 = 65_535;
const FRAME_DEFAULT: usize = 16_384; // that we take, and that any peer takes
const FRAME_MAX: u32 = 0x00ff_ffff;
const ID_MAX: u32 = 0x7fff_fffd; // six hours at 50,000 calls a second
/// Bytes of one answer, which are a stream's window: 1,000 results have 0.1 MB.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Bytes of all answers that are not whole yet; also the connection's window.
pub const ANSWERS_BYTES_MAX: usize = 16 << 20;
/// Bytes of a header block, and of its fields once decoded.
pub const BLOCK_BYTES_MAX: usize = 16 << 10;
/// Bytes that wait to be sent, beyond which no call is started.
pub const OUT_BYTES_MAX: usize = 1 << 20;
/// Bytes that wait for a server that asks (PING, SETTINGS) and does not read: `OUT_BYTES_MAX` and what one read may add.
const OUT_BYTES_END: usize = 8 << 20;
/// Bytes of the values that differ in every call.
pub const DATE_BYTES_MAX: usize = 16;
pub const REQUEST_ID_BYTES_MAX: usize = 36;
const TEXT_BYTES_MAX: usize = 300; // of what a server says

/// Why a connection can't go on, as a sentence without its end.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault(pub String);

fn fault<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(text.into()))
}

/// What the value of a header is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Fixed(Vec<u8>),
    /// Of each call: when it was made.
    Date,
    /// Of each call: an id of its own.
    RequestId,
}

/// A header of all calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: Vec<u8>,
    pub value: Value,
}

/// The values of a call that is being made.
#[derive(Clone, Copy, Default)]
pub struct Values<'a> {
    pub date: &'a [u8],
    pub request_id: &'a [u8],
}

impl Value {
    fn of<'a>(&'a self, values: Values<'a>) -> &'a [u8] {
        match self {
            Self::Fixed(value) => value,
            Self::Date => values.date,
            Self::RequestId => values.request_id,
        }
    }
}

enum Mode {
    /// The table is empty, and has room for all.
    First,
    /// The table has them: what each block is made of.
    Later(Vec<Part>),
    /// Nothing goes into the table; `true`: the next block says that it is empty.
    Full(bool),
}
enum Part {
    Same(Vec<u8>),
    Differs(usize), // the number of a header
}

/// Makes the header blocks of a connection, in their order.
struct Blocks {
    headers: Vec<Header>,
    mode: Mode,
}

impl Blocks {
    fn new(headers: Vec<Header>) -> Self {
        let longest = Values { date: &[0; DATE_BYTES_MAX], request_id: &[0; REQUEST_ID_BYTES_MAX] };
        let sizes = headers.iter().map(|one| one.name.len() + one.value.of(longest).len() + ENTRY_BYTES);
        let mode = if sizes.sum::<usize>() > TABLE_BYTES { Mode::Full(false) } else { Mode::First };
        Self { headers, mode }
    }

    /// Go on with a table of at most so many bytes.
    fn resize(&mut self, capacity: usize) {
        if capacity < TABLE_BYTES {
            self.mode = Mode::Full(true);
        }
    }

    fn put(&mut self, out: &mut Vec<u8>, values: Values<'_>) {
        match &self.mode {
            Mode::Later(parts) => {
                for part in parts {
                    match part {
                        Part::Same(bytes) => out.extend_from_slice(bytes),
                        Part::Differs(number) => put_string(out, self.headers[*number].value.of(values)),
                    }
                }
            }
            Mode::First => {
                let mut places = vec![];
                let mut count = 0;
                for header in &self.headers {
                    let value = header.value.of(values);
                    if let Some(number) = whole(&header.name, value) {
                        put_integer(out, number, 7, 0x80);
                        places.push(None);
                    } else {
                        put_named(out, &header.name, 6, 0x40);
                        put_string(out, value);
                        count += 1;
                        places.push(Some(count));
                    }
                }
                self.mode = Mode::Later(self.parts(&places, count));
            }
            Mode::Full(first) => {
                if *first {
                    out.push(0x20);
                }
                for header in &self.headers {
                    put_named(out, &header.name, 4, 0);
                    put_string(out, header.value.of(values));
                }
                self.mode = Mode::Full(false);
            }
        }
    }

    /// What later blocks are made of; `places`: which entry each header became, counted from 1.
    fn parts(&self, places: &[Option<usize>], count: usize) -> Vec<Part> {
        let (mut parts, mut same) = (vec![], vec![]);
        for (number, (header, place)) in self.headers.iter().zip(places).enumerate() {
            let index = place.map(|place| DYNAMIC + count - place);
            match (&header.value, index) {
                (Value::Fixed(value), None) => {
                    put_integer(&mut same, whole(&header.name, value).unwrap_or_default(), 7, 0x80);
                }
                (Value::Fixed(_), Some(index)) => put_integer(&mut same, index, 7, 0x80),
                (_, index) => {
                    put_integer(&mut same, index.unwrap_or_default(), 4, 0);
                    parts.push(Part::Same(std::mem::take(&mut same)));
                    parts.push(Part::Differs(number));
                }
            }
        }
        parts.push(Part::Same(same));
        parts
    }
}

fn whole(name: &[u8], value: &[u8]) -> Option<usize> {
    STATIC.iter().position(|pair| *pair == (name, value) && !value.is_empty()).map(|at| at + 1)
}
fn put_integer(out: &mut Vec<u8>, value: usize, bits: u32, flags: u8) {
    let mask = (1 << bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    crate::proto::put_varint(out, (value - mask) as u64);
}
fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_integer(out, text.len(), 7, 0);
    out.extend_from_slice(text);
}
/// Append the begin of a field whose value follows: its name's number in the static table, or the name.
fn put_named(out: &mut Vec<u8>, name: &[u8], bits: u32, flags: u8) {
    let number = STATIC.iter().position(|(one, _)| *one == name).map_or(0, |at| at + 1);
    put_integer(out, number, bits, flags);
    if number == 0 {
        put_string(out, name);
    }
}

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// OK, with its message.
    Answered(Vec<u8>),
    /// A status of gRPC other than OK, with its text as it came.
    Status(u32, String),
    /// The stream was reset.
    Reset(u32),
    /// No gRPC: a status of HTTP.
    Http(u32),
}

/// A call that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub began_ns: i64,
    pub messages: u32,
    pub end: End,
}

/// A call that is to be made.
pub struct Start<'a> {
    /// The request behind gRPC's prefix.
    pub request: &'a [u8],
    pub values: Values<'a>,
    pub messages: u32,
    pub now_ns: i64,
}

struct Open {
    began_ns: i64,
    messages: u32,
    window: i64,
    rest: Vec<u8>, // of the request
    sent: usize,   // of the rest
    answer: Vec<u8>,
    http: Option<u32>,
}

/// A connection.
pub struct Connection {
    /// What is to be sent; the caller takes it from its begin.
    pub out: Vec<u8>,
    blocks: Blocks,
    decoder: Decoder,
    fields: Fields,
    held: Vec<u8>, // the begin of a frame
    open: HashMap<u32, Open>,
    waiting: VecDeque<u32>, // those whose request is not sent yet
    next_id: u32,
    window: i64,
    peer_window: i64,
    peer_frame: usize,
    peer_streams: usize,
    settled: bool,
    received: usize,                     // bytes of data since the window was opened again
    answers: usize,                      // bytes of answers that are not whole
    block: Option<(u32, bool, Vec<u8>)>, // that goes on in another frame; whether its stream ends
}

impl Connection {
    /// Begin; the preface and our settings are in `out`.
    pub fn new(headers: Vec<Header>) -> Self {
        let mut out = PREFACE.to_vec();
        put_head(&mut out, 12, SETTINGS, 0, 0);
        for (name, value) in [(2_u16, 0_u32), (4, ANSWER_BYTES_MAX as u32)] {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        put_window(&mut out, ANSWERS_BYTES_MAX - WINDOW_DEFAULT as usize);
        Self {
            out,
            blocks: Blocks::new(headers),
            decoder: Decoder::new(BLOCK_BYTES_MAX),
            fields: Fields::default(),
            held: vec![],
            open: HashMap::new(),
            waiting: VecDeque::new(),
            next_id: 1,
            window: WINDOW_DEFAULT,
            peer_window: WINDOW_DEFAULT,
            peer_frame: FRAME_DEFAULT,
            peer_streams: usize::MAX,
            settled: false,
            received: 0,
            answers: 0,
            block: None,
        }
    }

    /// Whether the server's settings have come, so that calls can be made.
    pub fn is_settled(&self) -> bool {
        self.settled
    }
    /// Whether another call may be started now.
    pub fn has_room(&self) -> bool {
        self.settled && self.open.len() < self.peer_streams && self.out.len() < OUT_BYTES_MAX
    }
    /// How many calls are under way.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }
    /// When the call began that has waited longest.
    pub fn oldest_ns(&self) -> Option<i64> {
        self.open.values().map(|open| open.began_ns).min()
    }

    /// Begin a call; there must be room.
    ///
    /// # Errors
    /// The connection has had as many as it may have.
    pub fn start(&mut self, call: &Start<'_>) -> Result<(), Fault> {
        let id = self.next_id;
        if id > ID_MAX {
            return fault("the connection has had as many calls as HTTP/2 allows");
        }
        self.next_id += 2;
        let at = self.out.len();
        put_head(&mut self.out, 0, HEADERS, END_HEADERS, id);
        let begin = self.out.len();
        self.blocks.put(&mut self.out, call.values);
        let size = (self.out.len() - begin) as u32; // a few hundred bytes: every peer takes such a frame
        self.out[at..at + 3].copy_from_slice(&size.to_be_bytes()[1..]);
        let mut open = Open {
            began_ns: call.now_ns,
            messages: call.messages,
            window: self.peer_window,
            rest: vec![],
            sent: 0,
            answer: vec![],
            http: None,
        };
        let sent =
            put_data(&mut self.out, &mut self.window, &mut open.window, self.peer_frame, id, call.request);
        if sent < call.request.len() {
            open.rest = call.request[sent..].to_vec();
            self.waiting.push_back(id);
        }
        self.open.insert(id, open);
        Ok(())
    }

    /// Put out what waits for windows, as far as they let it.
    pub fn pump(&mut self) {
        for _ in 0..self.waiting.len() {
            if self.window <= 0 || self.out.len() >= OUT_BYTES_MAX {
                return;
            }
            let Some(id) = self.waiting.pop_front() else { return };
            let Some(open) = self.open.get_mut(&id) else { continue };
            let Open { rest, sent, window, .. } = open;
            *sent += put_data(&mut self.out, &mut self.window, window, self.peer_frame, id, &rest[*sent..]);
            if *sent < rest.len() {
                self.waiting.push_back(id);
            } else {
                *rest = vec![];
            }
        }
    }

    /// Take bytes that came; what ended is appended to `ended`.
    ///
    /// # Errors
    /// The connection can't go on.
    pub fn receive(&mut self, data: &[u8], ended: &mut Vec<Ended>) -> Result<(), Fault> {
        if self.held.is_empty() {
            let done = self.take_all(data, ended)?;
            self.held.extend_from_slice(&data[done..]);
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(data);
            let done = self.take_all(&held, ended)?;
            held.drain(..done);
            self.held = held;
        }
        if self.received >= ANSWERS_BYTES_MAX / 2 {
            put_window(&mut self.out, std::mem::take(&mut self.received));
        }
        self.pump();
        Ok(())
    }

    fn take_all(&mut self, data: &[u8], ended: &mut Vec<Ended>) -> Result<usize, Fault> {
        let mut at = 0;
        loop {
            match frame_at(data, at, FRAME_DEFAULT) {
                Next::Frame(frame, end) => {
                    if !self.settled && (frame.kind != SETTINGS || frame.flags & ACK != 0) {
                        return fault("the server does not speak HTTP/2");
                    }
                    self.take(&frame, ended)?;
                    at = end;
                }
                Next::Partial(_) => return Ok(at),
                Next::TooLarge if self.settled => return fault("the server sends a frame that is too large"),
                Next::TooLarge => return fault("the server does not speak HTTP/2"),
            }
            if self.out.len() > OUT_BYTES_END {
                return fault("the server asks and does not read the answers");
            }
        }
    }

    fn take(&mut self, frame: &Frame<'_>, ended: &mut Vec<Ended>) -> Result<(), Fault> {
        if self.block.is_some() && frame.kind != CONTINUATION {
            return fault("the server interrupts a header block");
        }
        match frame.kind {
            DATA => self.take_data(frame, ended),
            HEADERS => {
                let block = unpadded(frame)?;
                let block = if frame.flags & PRIORITIZED == 0 { Some(block) } else { block.get(5..) };
                let Some(block) = block else { return fault("the server sends a malformed HEADERS frame") };
                self.take_block(frame, frame.flags & END_STREAM != 0, block.to_vec(), ended)
            }
            CONTINUATION => match self.block.take() {
                Some((id, ends, mut block)) if id == frame.id => {
                    block.extend_from_slice(frame.payload);
                    self.take_block(frame, ends, block, ended)
                }
                _ => fault("the server continues a header block that it has not begun"),
            },
            RST_STREAM => {
                let Some(code) = frame.payload.first_chunk::<4>() else {
                    return fault("the server sends a malformed RST_STREAM frame");
                };
                self.known(frame.id)?;
                self.end(frame.id, End::Reset(u32::from_be_bytes(*code)), ended);
                Ok(())
            }
            SETTINGS if frame.flags & ACK == 0 => self.take_settings(frame.payload),
            PUSH_PROMISE => fault("the server pushes, which it was told not to do"),
            PING if frame.payload.len() == 8 => {
                if frame.flags & ACK == 0 {
                    put_head(&mut self.out, 8, PING, ACK, 0);
                    self.out.extend_from_slice(frame.payload);
                }
                Ok(())
            }
            PING => fault("the server sends a malformed PING frame"),
            GOAWAY => {
                let code = frame.payload.get(4..8).map_or(0, u32_of);
                let text = text_of(frame.payload.get(8..).unwrap_or_default());
                let why = if text.is_empty() { String::new() } else { format!(": {text}") };
                fault(format!("the server gives up the connection (GOAWAY, code {code}){why}"))
            }
            WINDOW_UPDATE => self.take_window(frame),
            _ => Ok(()), // RFC 9113, section 5.5
        }
    }

    /// Whether a stream is open.
    ///
    /// # Errors
    /// It was never opened.
    fn known(&self, id: u32) -> Result<bool, Fault> {
        if id & 1 == 0 || id >= self.next_id {
            return fault("the server answers a call that was not made");
        }
        Ok(self.open.contains_key(&id))
    }

    fn take_window(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let Some(size) = frame.payload.first_chunk::<4>() else {
            return fault("the server sends a malformed WINDOW_UPDATE frame");
        };
        let size = i64::from(u31(size));
        let window = if frame.id == 0 {
            &mut self.window
        } else if self.known(frame.id)? {
            &mut self.open.get_mut(&frame.id).expect("it is known").window
        } else {
            return Ok(());
        };
        *window += size;
        if size == 0 || *window > WINDOW_MAX {
            return fault("the server opens a window by nothing, or too far");
        }
        Ok(())
    }

    fn take_settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let pairs = payload.chunks_exact(6);
        if !pairs.remainder().is_empty() {
            return fault("the server sends malformed settings");
        }
        for pair in pairs {
            let value = u32_of(&pair[2..]);
            match u16::from_be_bytes([pair[0], pair[1]]) {
                1 => self.blocks.resize(value as usize),
                3 => self.peer_streams = value as usize,
                4 if i64::from(value) <= WINDOW_MAX => {
                    let change = i64::from(value) - self.peer_window;
                    self.peer_window = i64::from(value);
                    for open in self.open.values_mut() {
                        open.window += change;
                        if open.window > WINDOW_MAX {
                            return fault("the server opens a window too far");
                        }
                    }
                }
                5 if (FRAME_DEFAULT as u32..=FRAME_MAX).contains(&value) => self.peer_frame = value as usize,
                4 | 5 => return fault("the server sends a setting that HTTP/2 does not allow"),
                _ => {}
            }
        }
        self.settled = true;
        put_head(&mut self.out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn take_data(&mut self, frame: &Frame<'_>, ended: &mut Vec<Ended>) -> Result<(), Fault> {
        let data = unpadded(frame)?;
        self.received += frame.payload.len();
        if !self.known(frame.id)? {
            return Ok(());
        }
        let open = self.open.get_mut(&frame.id).expect("it is known");
        if open.http.is_none() {
            return fault("the server answers with data before headers");
        }
        open.answer.extend_from_slice(data);
        self.answers += data.len();
        if open.answer.len() > ANSWER_BYTES_MAX || self.answers > ANSWERS_BYTES_MAX {
            return fault("the server's answers are larger than their windows");
        }
        if frame.flags & END_STREAM != 0 {
            let http = open.http.unwrap_or_default();
            let end =
                if http == 200 { End::Status(2, "the answer has no status".into()) } else { End::Http(http) };
            self.end(frame.id, end, ended);
        }
        Ok(())
    }

    fn take_block(
        &mut self,
        frame: &Frame<'_>,
        ends: bool,
        block: Vec<u8>,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Fault> {
        if block.len() > BLOCK_BYTES_MAX {
            return fault("the server sends a header block that is too large");
        }
        if frame.flags & END_HEADERS == 0 {
            if frame.kind == CONTINUATION && frame.payload.is_empty() {
                return fault("the server continues a header block with nothing");
            }
            self.block = Some((frame.id, ends, block));
            return Ok(());
        }
        if self.decoder.decode(&block, &mut self.fields).is_err() {
            return fault("the server sends a header block that can't be decoded, or is too large");
        }
        self.decoder.keep();
        if !self.known(frame.id)? {
            return Ok(());
        }
        let open = self.open.get_mut(&frame.id).expect("it is known");
        let (mut status, mut text) = (None, String::new());
        for (name, value) in self.fields.iter() {
            match name {
                b":status" => open.http = Some(number(value)).filter(|code| *code >= 200),
                b"grpc-status" => status = Some(number(value)),
                b"grpc-message" => text = text_of(value),
                _ => {}
            }
        }
        if !ends {
            return Ok(());
        }
        let end = match (open.http, status) {
            (Some(200), Some(0)) => {
                let answer = std::mem::take(&mut open.answer);
                self.answers -= answer.len();
                End::Answered(message(answer)?)
            }
            (Some(200) | None, status) => End::Status(status.unwrap_or(2), text),
            (Some(http), None) => End::Http(http),
            (Some(_), Some(status)) => End::Status(status, text),
        };
        self.end(frame.id, end, ended);
        Ok(())
    }

    /// Take note that a call has ended. If its request is not sent yet, it never will be.
    fn end(&mut self, id: u32, end: End, ended: &mut Vec<Ended>) {
        let Some(open) = self.open.remove(&id) else { return };
        self.answers -= open.answer.len();
        if !open.rest.is_empty() && !matches!(end, End::Reset(_)) {
            put_head(&mut self.out, 4, RST_STREAM, 0, id);
            self.out.extend_from_slice(&8_u32.to_be_bytes()); // CANCEL
        }
        ended.push(Ended { began_ns: open.began_ns, messages: open.messages, end });
    }
}

/// Put out as much of a request as the windows let it; return how much.
fn put_data(
    out: &mut Vec<u8>,
    window: &mut i64,
    stream_window: &mut i64,
    frame_max: usize,
    id: u32,
    data: &[u8],
) -> usize {
    let mut sent = 0;
    while sent < data.len() && out.len() < OUT_BYTES_MAX {
        let room = (*window).min(*stream_window);
        if room <= 0 {
            break;
        }
        let size = (data.len() - sent).min(frame_max).min(room as usize);
        let flags = if sent + size == data.len() { END_STREAM } else { 0 };
        put_head(out, size, DATA, flags, id);
        out.extend_from_slice(&data[sent..sent + size]);
        sent += size;
        *window -= size as i64;
        *stream_window -= size as i64;
    }
    sent
}

fn put_window(out: &mut Vec<u8>, size: usize) {
    put_head(out, 4, WINDOW_UPDATE, 0, 0);
    out.extend_from_slice(&(size as u32).to_be_bytes());
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn unpadded<'a>(frame: &Frame<'a>) -> Result<&'a [u8], Fault> {
    if frame.flags & PADDED == 0 {
        return Ok(frame.payload);
    }
    let data = frame.payload.split_first().and_then(|(size, rest)| {
        let size = rest.len().checked_sub(usize::from(*size))?;
        rest.get(..size)
    });
    data.map_or_else(|| fault("the server sends a malformed padded frame"), Ok)
}

/// A decimal number; one that is malformed or too large is gRPC's UNKNOWN.
fn number(text: &[u8]) -> u32 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

fn text_of(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    String::from_utf8_lossy(cut).chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
}

/// The only message of an answer.
fn message(mut answer: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let whole = answer
        .first_chunk::<PREFIX_BYTES>()
        .is_some_and(|prefix| prefix[0] == 0 && u32_of(&prefix[1..]) as usize == answer.len() - PREFIX_BYTES);
    if !whole {
        return fault("the server's answer is not one message in plain");
    }
    answer.drain(..PREFIX_BYTES);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> Vec<Header> {
        let fixed =
            |name: &[u8], value: &[u8]| Header { name: name.to_vec(), value: Value::Fixed(value.to_vec()) };
        vec![
            fixed(b":method", b"POST"),
            fixed(b":path", b"/s/m"),
            fixed(b"te", b"trailers"),
            Header { name: b"x-id".to_vec(), value: Value::RequestId },
            fixed(b"x-none", b""),
            Header { name: b"x-date".to_vec(), value: Value::Date },
        ]
    }
    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        put_head(&mut out, payload.len(), kind, flags, id);
        out.extend_from_slice(payload);
        out
    }
    fn setting(name: u16, value: u32) -> Vec<u8> {
        frame(SETTINGS, 0, 0, &[&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
    }
    fn connection(settings: &[u8]) -> Connection {
        let mut one = Connection::new(headers());
        one.receive(settings, &mut vec![]).expect("settings");
        one.out.clear();
        one
    }
    fn start(one: &mut Connection, request: &[u8]) {
        let values = Values { date: b"today", request_id: b"1" };
        one.start(&Start { request, values, messages: 1, now_ns: 7 }).expect("a call");
    }
    /// The frames that it sends: kind, flags, stream, payload.
    fn frames(one: &mut Connection) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let data = std::mem::take(&mut one.out);
        let (mut at, mut found) = (0, vec![]);
        while let Next::Frame(frame, end) = frame_at(&data, at, FRAME_MAX as usize) {
            found.push((frame.kind, frame.flags, frame.id, frame.payload.to_vec()));
            at = end;
        }
        assert_eq!(at, data.len());
        found
    }
    fn fault_of(one: &mut Connection, data: &[u8]) -> String {
        one.receive(data, &mut vec![]).expect_err("a fault").0
    }
    const HEAD: &[u8] = b"\x88";
    const OK: &[u8] = b"\x00\x0bgrpc-status\x010";

    #[test]
    fn blocks_say_the_same_with_any_table() {
        for (settings, sizes) in [
            (setting(3, 9), [80, 16, 16]),
            (setting(1, 4096), [80, 16, 16]),
            (setting(1, 100), [76, 75, 75]),
            (setting(1, 0), [76, 75, 75]),
        ] {
            let mut one = connection(&settings);
            let (mut decoder, mut fields) = (Decoder::new(1000), Fields::default());
            for size in sizes {
                start(&mut one, b"r");
                let sent = frames(&mut one);
                assert_eq!((sent[0].0, sent[0].1), (HEADERS, END_HEADERS));
                decoder.decode(&sent[0].3, &mut fields).expect("a block");
                let found: Vec<_> = fields.iter().map(|(name, value)| [name, value].concat()).collect();
                let found: Vec<_> =
                    found.iter().map(|one| std::str::from_utf8(one).expect("a text")).collect();
                assert_eq!(
                    found,
                    [":methodPOST", ":path/s/m", "tetrailers", "x-id1", "x-none", "x-datetoday"]
                );
                assert!(sent[0].3.len() <= size, "{} {size}", sent[0].3.len());
            }
        }
    }

    #[test]
    fn an_answer_may_come_in_any_pieces() {
        let data = [
            frame(HEADERS, END_HEADERS | PADDED | PRIORITIZED, 1, b"\x02\0\0\0\0\0\x88\0\0"),
            frame(DATA, 0, 1, b"\0\0\0"),
            frame(DATA, PADDED, 1, b"\x01\0\x02h\0"),
            frame(DATA, 0, 1, b"i"),
            frame(HEADERS, END_STREAM, 1, &OK[..3]),
            frame(CONTINUATION, END_HEADERS, 1, &OK[3..]),
        ]
        .concat();
        for size in 1..=data.len() {
            let mut one = connection(&frame(SETTINGS, 0, 0, &[]));
            start(&mut one, b"r");
            let mut ended = vec![];
            data.chunks(size).for_each(|piece| one.receive(piece, &mut ended).expect("an answer"));
            assert_eq!(ended, [Ended { began_ns: 7, messages: 1, end: End::Answered(b"hi".to_vec()) }]);
            assert_eq!((one.under_way(), one.answers, one.oldest_ns()), (0, 0, None));
        }
    }

    #[test]
    fn requests_keep_to_windows_and_frames() {
        let mut one = connection(&setting(4, 10));
        start(&mut one, &[1; 25]);
        let sizes = |one: &mut Connection| {
            let sent = frames(one);
            sent.iter()
                .filter(|(kind, ..)| *kind == DATA)
                .map(|sent| (sent.2, sent.3.len(), sent.1))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(&mut one), [(1, 10, 0)]);
        one.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5]), &mut vec![]).expect("a window");
        assert_eq!(sizes(&mut one), [(1, 5, 0)]);
        one.receive(&setting(4, 40), &mut vec![]).expect("a window");
        assert_eq!(sizes(&mut one), [(1, 10, END_STREAM)]);

        let mut one = connection(&setting(4, 100_000));
        start(&mut one, &vec![1; 70_000]);
        assert_eq!(sizes(&mut one).len(), 4); // 65,535 bytes
        one.receive(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0x80, 0]), &mut vec![]).expect("a window");
        assert_eq!(sizes(&mut one), [(1, 4_465, END_STREAM)]);
    }

    #[test]
    fn calls_wait_for_streams_and_for_a_reader() {
        let mut one = connection(&setting(3, 1));
        assert!(one.has_room());
        start(&mut one, b"r");
        assert!(!one.has_room());
        let mut one =
            connection(&[setting(4, 0x7fff_ffff), frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])].concat());
        start(&mut one, &vec![1; 2 * OUT_BYTES_MAX]);
        assert!(!one.has_room() && one.out.len() < OUT_BYTES_MAX + 2 * FRAME_DEFAULT);
        let mut sent = 0;
        while one.waiting.front().is_some() {
            sent += frames(&mut one).iter().map(|(.., data)| data.len()).sum::<usize>();
            one.pump();
        }
        sent += frames(&mut one).iter().map(|(.., data)| data.len()).sum::<usize>();
        assert!(sent > OUT_BYTES_MAX && one.has_room());
    }

    #[test]
    fn a_call_may_fail_alone() {
        let failed = b"\x88\x00\x0bgrpc-status\x018\x00\x0cgrpc-message\x03a\nb";
        for (data, end) in [
            (frame(RST_STREAM, 0, 1, &[0, 0, 0, 7]), End::Reset(7)),
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, failed), End::Status(8, "a b".into())),
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x8d"), End::Http(404)),
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD), End::Status(2, String::new())),
            (
                [frame(HEADERS, END_HEADERS, 1, b"\x8d"), frame(DATA, END_STREAM, 1, b"no")].concat(),
                End::Http(404),
            ),
        ] {
            let mut one = connection(&setting(4, 10));
            start(&mut one, &[1; 25]); // whose rest is given up
            let mut ended = vec![];
            one.receive(&data, &mut ended).expect("an end");
            assert_eq!(ended[0].end, end);
            one.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5]), &mut ended).expect("of an older stream");
            assert_eq!((ended.len(), one.under_way(), one.answers), (1, 0, 0));
        }
    }

    #[test]
    fn what_a_server_asks_is_answered() {
        let mut one = connection(&frame(SETTINGS, 0, 0, &[]));
        one.receive(&[frame(PING, 0, 0, b"12345678"), frame(99, 3, 0, b"new")].concat(), &mut vec![])
            .expect("a ping");
        assert_eq!(frames(&mut one), [(PING, ACK, 0, b"12345678".to_vec())]);
    }

    #[test]
    fn a_window_is_opened_again_for_what_has_come() {
        let mut one = connection(&frame(SETTINGS, 0, 0, &[]));
        let mut granted = 0;
        for number in 0..40 {
            start(&mut one, b"r");
            let id = 2 * number + 1;
            let mut message = (1_000_000_u32).to_be_bytes().to_vec();
            message.insert(0, 0);
            message.resize(1_000_005, 0);
            let mut ended = vec![];
            one.receive(&frame(HEADERS, END_HEADERS, id, HEAD), &mut ended).expect("a head");
            for piece in message.chunks(FRAME_DEFAULT) {
                one.receive(&frame(DATA, 0, id, piece), &mut ended).expect("data");
            }
            one.receive(&frame(HEADERS, END_HEADERS | END_STREAM, id, OK), &mut ended).expect("an end");
            assert_eq!(ended.len(), 1);
            granted += frames(&mut one)
                .iter()
                .filter(|sent| sent.0 == WINDOW_UPDATE)
                .map(|sent| u32_of(&sent.3))
                .sum::<u32>();
        }
        assert!((30_000_000..=40_000_200).contains(&granted), "{granted}");
    }

    #[test]
    fn what_is_no_http2_is_said_so() {
        for data in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &frame(PING, 0, 0, b"12345678"), &[0; 40]] {
            assert_eq!(fault_of(&mut Connection::new(headers()), data), "the server does not speak HTTP/2");
        }
    }

    #[test]
    fn breaches_are_faults() {
        let block = [0_u8; FRAME_DEFAULT];
        let goaway = [&[0; 4][..], &[0, 0, 0, 11], b"calm\x07 down"].concat();
        let longer = [0, 0, 0, 0, 200];
        for (data, said) in [
            (frame(GOAWAY, 0, 0, &goaway), "gives up the connection (GOAWAY, code 11): calm  down"),
            (frame(GOAWAY, 0, 0, &[]), "gives up the connection (GOAWAY, code 0)"),
            (frame(DATA, 0, 3, b""), "a call that was not made"),
            (frame(DATA, 0, 0, b""), "a call that was not made"),
            (frame(DATA, 0, 1, b""), "data before headers"),
            (frame(DATA, PADDED, 1, b"\x05"), "malformed padded frame"),
            (frame(DATA, PADDED, 1, b""), "malformed padded frame"),
            (frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"1234"), "malformed HEADERS"),
            (frame(HEADERS, END_HEADERS, 1, b"\xff"), "can't be decoded"),
            (frame(CONTINUATION, END_HEADERS, 1, b""), "has not begun"),
            ([frame(HEADERS, 0, 1, HEAD), frame(PING, 0, 0, &[0; 8])].concat(), "interrupts a header block"),
            ([frame(HEADERS, 0, 1, HEAD), frame(CONTINUATION, 0, 1, b"")].concat(), "with nothing"),
            (
                [frame(HEADERS, 0, 1, &block), frame(CONTINUATION, 0, 1, b"1")].concat(),
                "block that is too large",
            ),
            (frame(PUSH_PROMISE, END_HEADERS, 1, b""), "pushes"),
            (frame(PING, 0, 0, b"1"), "malformed PING"),
            (frame(RST_STREAM, 0, 1, b"1"), "malformed RST_STREAM"),
            (frame(RST_STREAM, 0, 2, &[0; 4]), "a call that was not made"),
            (frame(WINDOW_UPDATE, 0, 0, b"1"), "malformed WINDOW_UPDATE"),
            (frame(WINDOW_UPDATE, 0, 0, &[0; 4]), "opens a window by nothing, or too far"),
            (frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), "opens a window by nothing, or too far"),
            (frame(SETTINGS, 0, 0, b"1"), "malformed settings"),
            (setting(4, 0x8000_0000), "that HTTP/2 does not allow"),
            (setting(5, 100), "that HTTP/2 does not allow"),
            (frame(DATA, 0, 1, &vec![0; FRAME_DEFAULT + 1]), "a frame that is too large"),
            (
                [
                    frame(HEADERS, END_HEADERS, 1, HEAD),
                    frame(DATA, 0, 1, &longer),
                    frame(HEADERS, END_HEADERS | END_STREAM, 1, OK),
                ]
                .concat(),
                "not one message in plain",
            ),
            (
                [vec![frame(HEADERS, END_HEADERS, 1, HEAD)], vec![frame(DATA, 0, 1, &block); 65]]
                    .concat()
                    .concat(),
                "larger than their windows",
            ),
            (vec![frame(PING, 0, 0, &[0; 8]); OUT_BYTES_END / 17 + 1].concat(), "does not read the answers"),
        ] {
            let mut one = connection(&frame(SETTINGS, 0, 0, &[]));
            start(&mut one, b"r");
            let found = fault_of(&mut one, &data);
            assert!(found.contains(said), "{found}: {said}");
        }
    }

    #[test]
    fn any_bytes_are_events_or_a_fault() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let mut one = connection(&frame(SETTINGS, 0, 0, &[]));
            start(&mut one, &vec![1; 70_000]);
            let mut data = vec![];
            for _ in 0..draw() % 6 {
                let payload: Vec<u8> = (0..draw() % 12).map(|_| draw() as u8).collect();
                data.extend(frame((draw() % 11) as u8, draw() as u8, (draw() % 4) as u32, &payload));
            }
            let _ = one.receive(&data, &mut vec![]);
        }
    }
}
