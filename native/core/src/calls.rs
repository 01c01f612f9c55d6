//! The bytes of a connection become calls of a few methods; the frames of their answers.
//!
//! `Scan` walks over frames (RFC 9113) from a frame's begin on. It takes calls whose frames are all there and as most
//! clients send them; it does not judge. Whatever else comes, wrong or only unusual, is *foreign* and Python's.
//!
//! ```text
//! HEADERS (whole, of a new stream) -> DATA ... END_STREAM      a call; several may be interleaved
//! WINDOW_UPDATE                                                of the connection, or of a call that is being read
//! ```
//!
//! Between calls is a *quiet point*: no call is being read. All that stands between two quiet points is one group. It is
//! taken as a whole or not at all, so what is left begins at a frame, with no stream half in and half out. Of a group
//! that is not whole yet the rest is waited for, unless it has a whole call: then all its frames are foreign.

use crate::hpack::{Decoder, Fields};

pub const HEAD_BYTES: usize = 9;
pub(crate) const WINDOW_MAX: i64 = 0x7fff_ffff;
pub(crate) const PREFIX_BYTES: usize = 5; // of a gRPC message: not compressed, and its length
/// Bytes of a group that is not whole yet, at most.
pub const HOLD_BYTES_MAX: usize = 256 << 10;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const PRIORITIZED_END_HEADERS: u8 = 0x24;

/// Of what calls there are, and what each answer has around its message.
pub struct Shape {
    /// Of the methods, by their numbers.
    pub paths: Vec<Vec<u8>>,
    /// The headers that name a queue, and the client.
    pub queue_header: Vec<u8>,
    pub client_header: Vec<u8>,
    /// The header blocks before and behind the answer's message.
    pub answer_head: Vec<u8>,
    pub answer_tail: Vec<u8>,
}

/// What a guard looks at, and with what it has let in calls of this connection.
pub struct Approved {
    pub headers: Vec<Vec<u8>>,
    /// The values of these headers, `None` for one that is not there; of each method `None` before the first call.
    pub values: Vec<Option<Vec<Option<Vec<u8>>>>>,
}

impl Approved {
    /// Whether a call has the same headers as the last one of its method that the guard has let in, each at most once.
    fn lets_in(&self, method: usize, fields: &Fields) -> bool {
        let Some(Some(values)) = self.values.get(method) else { return false };
        self.headers.len() == values.len()
            && self.headers.iter().zip(values).all(|(name, value)| {
                let mut found = fields.iter().filter(|(one, _)| *one == name).map(|(_, value)| value);
                found.next() == value.as_deref() && found.next().is_none()
            })
    }
}

/// What a connection allows, and how far it is.
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub last_id: u32,
    /// Streams that may be opened.
    pub streams_left: usize,
    pub send_window: i64,
    pub receive_window: i64,
    /// Of each new stream, for what is sent and for what is received.
    pub peer_window: i64,
    pub stream_window: i64,
    /// The largest frames, to send and to receive, and the largest header block.
    pub peer_frame: usize,
    pub frame_max: usize,
    pub block_max: usize,
    /// Answers wait for windows: when the connection's grows, Python has to send them.
    pub blocked: bool,
}

/// A call of a method, whole.
#[derive(Debug, PartialEq)]
pub struct Call<'a> {
    pub id: u32,
    /// The number of its method.
    pub method: usize,
    /// What the peer has added to the stream's window.
    pub window: i64,
    pub timeout_s: Option<f64>,
    pub queue: Option<u32>,
    first: &'a [u8],
    joined: Vec<u8>, // where there are several pieces
    pieces: usize,
}

impl Call<'_> {
    fn size(&self) -> usize {
        if self.pieces > 1 { self.joined.len() } else { self.first.len() }
    }
    /// The only message of the request; `None` where there is not exactly one in plain.
    pub fn message(&self) -> Option<&[u8]> {
        let data = if self.pieces > 1 { &self.joined } else { self.first };
        let (prefix, message) = data.split_first_chunk::<PREFIX_BYTES>()?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        (prefix[0] == 0 && length == message.len()).then_some(message)
    }
}

pub(crate) struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub id: u32,
    pub payload: &'a [u8],
}

/// What stands at a place.
pub(crate) enum Next<'a> {
    Frame(Frame<'a>, usize), // and where it ends
    /// So many bytes from there are needed.
    Partial(usize),
    TooLarge,
}

fn u24(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2])
}
pub(crate) fn u31(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7fff_ffff
}

pub(crate) fn frame_at(data: &[u8], at: usize, frame_max: usize) -> Next<'_> {
    let Some(head) = data[at..].first_chunk::<HEAD_BYTES>() else {
        return Next::Partial(HEAD_BYTES);
    };
    let size = u24(head);
    if size > frame_max {
        return Next::TooLarge;
    }
    let end = at + HEAD_BYTES + size;
    match data.get(at + HEAD_BYTES..end) {
        None => Next::Partial(HEAD_BYTES + size),
        Some(payload) => {
            Next::Frame(Frame { kind: head[3], flags: head[4], id: u31(&head[5..]), payload }, end)
        }
    }
}

/// Where a scan stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What is left is the begin of a group; so many bytes of it are needed to go on.
    Partial(usize),
    /// What is left up to there is Python's; `true`: it may be about a stream that was opened before.
    Foreign(usize, bool),
    /// What is left begins with calls that are for a pass of their own.
    Other,
}

/// What the fields of a call say, as far as it is one of a method.
struct Kind {
    method: usize,
    timeout_s: Option<f64>,
    queue: Option<u32>,
}

/// Walks over the bytes of a read.
pub struct Scan<'a> {
    data: &'a [u8],
    /// The last quiet point: everything before it is taken.
    pub at: usize,
    pub state: State,
    quiet: State, // at the last quiet point
    client: &'a [u8],
    approved: Option<&'a Approved>,
    /// Another client that calls a method: Python is to meet it first.
    pub stranger: Option<Vec<u8>>,
    position: usize,
    decoded: usize, // where the frame stands whose block was decoded last
    open: Vec<Call<'a>>,
    grown: i64, // what this group adds to the connection's window
    received: i64,
}

impl<'a> Scan<'a> {
    /// Begin with the bytes of a read, the client whose calls are taken (empty for none), and what a guard, if there is
    /// one, has approved.
    pub fn new(data: &'a [u8], state: State, client: &'a [u8], approved: Option<&'a Approved>) -> Self {
        Self {
            data,
            at: 0,
            state,
            quiet: state,
            client,
            approved,
            stranger: None,
            position: 0,
            decoded: usize::MAX,
            open: vec![],
            grown: 0,
            received: 0,
        }
    }

    /// Read up to the next quiet point, behind which `calls` holds the calls of the group in the order of their ends.
    ///
    /// # Errors
    /// There is none: what is left begins at `at`, and the decoder is as it was there.
    pub fn group(
        &mut self,
        shape: &Shape,
        decoder: &mut Decoder,
        fields: &mut Fields,
        calls: &mut Vec<Call<'a>>,
    ) -> Result<(), Stop> {
        let mark = decoder.mark();
        (self.grown, self.received) = (0, 0);
        self.open.clear();
        calls.clear();
        self.position = self.at;
        loop {
            let stop = match frame_at(self.data, self.position, self.state.frame_max) {
                Next::Frame(frame, end) => {
                    if self.take(&frame, shape, decoder, fields, calls).is_some() {
                        self.position = end;
                        if self.open.is_empty() {
                            if !calls.is_empty() {
                                return Ok(());
                            }
                            self.taken();
                        }
                        continue;
                    }
                    self.foreign(end, shape, decoder, fields)
                }
                // A whole call does not wait for the rest of another.
                Next::Partial(_) if !calls.is_empty() => Stop::Foreign(self.position, false),
                Next::Partial(needed) => {
                    let needed = self.position - self.at + needed;
                    if needed <= HOLD_BYTES_MAX {
                        Stop::Partial(needed)
                    } else {
                        Stop::Foreign(self.data.len(), true)
                    }
                }
                Next::TooLarge => Stop::Foreign(self.data.len(), true),
            };
            decoder.undo(mark);
            self.state = self.quiet;
            return Err(stop);
        }
    }

    /// Take note that the group is taken: what is left begins behind it.
    pub fn taken(&mut self) {
        self.at = self.position;
        self.state.send_window += self.grown;
        self.state.receive_window -= self.received;
        (self.grown, self.received) = (0, 0);
        self.quiet = self.state;
    }

    /// The group is not the lane's: it is Python's up to its end. The caller puts the decoder back.
    pub fn refused(&mut self) -> Stop {
        self.state = self.quiet;
        Stop::Foreign(self.position, false)
    }

    /// The group is for another pass. The caller puts the decoder back.
    pub fn other(&mut self) -> Stop {
        self.state = self.quiet;
        Stop::Other
    }

    /// What is Python's when the frame at `position` is not the lane's: up to where a call of a method begins.
    ///
    /// Calls of other methods that follow are Python's as well. The caller puts the decoder back.
    fn foreign(&mut self, end: usize, shape: &Shape, decoder: &mut Decoder, fields: &mut Fields) -> Stop {
        let mut older = self.is_older(self.position);
        // Later blocks can be decoded if this one was, or if there was none.
        let mut follows = self.decoded == self.position || !self.is_block(self.position);
        let mut at = end;
        loop {
            match frame_at(self.data, at, self.state.frame_max) {
                Next::Frame(frame, next) => {
                    if frame.kind == HEADERS && frame.id > self.state.last_id {
                        if !follows || self.opens_call(&frame, shape, decoder, fields) != Some(false) {
                            break;
                        }
                    } else if frame.kind == HEADERS || frame.kind == CONTINUATION {
                        follows = false;
                    }
                    older |= self.is_older(at);
                    at = next;
                }
                Next::Partial(_) => break,
                Next::TooLarge => {
                    (older, at) = (true, self.data.len());
                    break;
                }
            }
        }
        Stop::Foreign(at, older)
    }

    /// Whether a frame opens a call of a method; `None` where that can't be said.
    fn opens_call(
        &mut self,
        frame: &Frame<'_>,
        shape: &Shape,
        decoder: &mut Decoder,
        fields: &mut Fields,
    ) -> Option<bool> {
        let block = plain_block(frame).filter(|block| block.len() <= self.state.block_max)?;
        decoder.decode(block, fields).ok()?;
        Some(kind_of(fields, shape).is_some_and(|kind| self.is_known(&kind, fields, shape)))
    }

    /// Whether a call comes from the client whose calls are taken, with headers that the guard has let in.
    fn is_known(&mut self, kind: &Kind, fields: &Fields, shape: &Shape) -> bool {
        let client = fields.iter().rfind(|(name, _)| *name == shape.client_header).map(|(_, value)| value);
        if let Some(client) = client.filter(|client| *client != self.client) {
            self.stranger = Some(client.to_vec());
        }
        client.is_some_and(|client| client == self.client && !client.is_empty())
            && self.approved.is_none_or(|approved| approved.lets_in(kind.method, fields))
    }

    fn is_block(&self, at: usize) -> bool {
        let found = frame_at(self.data, at, self.state.frame_max);
        matches!(found, Next::Frame(Frame { kind: HEADERS | CONTINUATION, .. }, _))
    }

    /// Whether a frame may change a stream that was opened before this read.
    fn is_older(&self, at: usize) -> bool {
        let Next::Frame(frame, _) = frame_at(self.data, at, self.state.frame_max) else { return true };
        match frame.kind {
            SETTINGS => frame.flags & 1 == 0,
            PING => false,
            _ => frame.id != 0 && frame.id <= self.quiet.last_id,
        }
    }

    /// Take a frame; `None` where it is foreign.
    fn take(
        &mut self,
        frame: &Frame<'a>,
        shape: &Shape,
        decoder: &mut Decoder,
        fields: &mut Fields,
        calls: &mut Vec<Call<'a>>,
    ) -> Option<()> {
        match frame.kind {
            DATA => self.take_data(frame, calls),
            HEADERS if calls.len() + self.open.len() < self.state.streams_left => {
                self.take_headers(frame, shape, decoder, fields)
            }
            WINDOW_UPDATE => self.take_window(frame),
            _ => None,
        }
    }

    fn take_window(&mut self, frame: &Frame<'_>) -> Option<()> {
        let size = i64::from(u31(frame.payload.first_chunk::<4>()?));
        if frame.payload.len() != 4 || size == 0 {
            return None;
        }
        if frame.id == 0 {
            if self.state.blocked || self.state.send_window + self.grown + size > WINDOW_MAX {
                return None;
            }
            self.grown += size;
            return Some(());
        }
        let window = self.state.peer_window;
        let call = self.open.iter_mut().find(|call| call.id == frame.id)?;
        if window + call.window + size > WINDOW_MAX {
            return None;
        }
        call.window += size;
        Some(())
    }

    fn take_headers(
        &mut self,
        frame: &Frame<'a>,
        shape: &Shape,
        decoder: &mut Decoder,
        fields: &mut Fields,
    ) -> Option<()> {
        let block = plain_block(frame)?;
        if frame.id & 1 == 0 || frame.id <= self.state.last_id || block.len() > self.state.block_max {
            return None;
        }
        decoder.decode(block, fields).ok()?;
        self.decoded = self.position;
        let kind = kind_of(fields, shape)?;
        if !self.is_known(&kind, fields, shape) {
            return None;
        }
        self.state.last_id = frame.id;
        self.open.push(Call {
            id: frame.id,
            window: 0,
            method: kind.method,
            timeout_s: kind.timeout_s,
            queue: kind.queue,
            first: &[],
            joined: vec![],
            pieces: 0,
        });
        Some(())
    }

    fn take_data(&mut self, frame: &Frame<'a>, calls: &mut Vec<Call<'a>>) -> Option<()> {
        let number = self.open.iter().position(|call| call.id == frame.id)?;
        let ended = frame.flags == END_STREAM;
        if frame.flags & !END_STREAM != 0 || (frame.payload.is_empty() && !ended) {
            return None;
        }
        let call = &mut self.open[number];
        let size = (call.size() + frame.payload.len()) as i64;
        let received = self.received + frame.payload.len() as i64;
        if size > self.state.stream_window || received > self.state.receive_window {
            return None;
        }
        self.received = received;
        if !frame.payload.is_empty() {
            call.pieces += 1;
            match call.pieces {
                1 => call.first = frame.payload,
                2 => call.joined = [call.first, frame.payload].concat(),
                _ => call.joined.extend_from_slice(frame.payload),
            }
        }
        if ended {
            calls.push(self.open.remove(number));
        }
        Some(())
    }
}

/// The block of a HEADERS frame that holds all of it, and does not end its stream.
fn plain_block<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    match frame.flags {
        END_HEADERS => Some(frame.payload),
        PRIORITIZED_END_HEADERS => {
            let (priority, block) = frame.payload.split_first_chunk::<5>()?;
            (u31(priority) != frame.id).then_some(block)
        }
        _ => None,
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| {
            matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'!' | b'#' | b'$' | b'%' | b'&'
                | b'\'' | b'*' | b'+' | b'^' | b'`' | b'|' | b'~')
        })
}

/// Whether a call's fields are as they must be (RFC 9113, section 8; `rpc/http2/fields.py`).
pub fn are_valid(fields: &Fields) -> bool {
    let (mut method, mut scheme, mut path, mut authority, mut regular) = (false, false, false, false, false);
    for (name, value) in fields.iter() {
        if name.first() == Some(&b':') {
            let seen = match name {
                b":method" => &mut method,
                b":scheme" => &mut scheme,
                b":path" if !value.is_empty() => &mut path,
                b":authority" => &mut authority,
                _ => return false,
            };
            if *seen || regular {
                return false;
            }
            *seen = true;
            continue;
        }
        regular = true;
        match name {
            b"te" if value != b"trailers" => return false,
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade"
            | b"content-length" => return false,
            _ if !is_name(name) => return false,
            _ => {}
        }
    }
    method && scheme && path
}

/// What the fields of a call say; `None` where it is of none of the methods, or an unusual one.
fn kind_of(fields: &Fields, shape: &Shape) -> Option<Kind> {
    if !are_valid(fields) {
        return None;
    }
    let (mut path, mut content, mut timeout, mut queue) = (None, None, None, None);
    for (name, value) in fields.iter() {
        match name {
            b":path" => path = Some(value),
            b"content-type" => content = Some(value),
            b"grpc-timeout" => timeout = Some(value),
            _ if name == shape.queue_header => queue = Some(value),
            _ => {}
        }
    }
    let path = path?;
    let method = shape.paths.iter().position(|one| one == path)?;
    if !content?.starts_with(b"application/grpc") {
        return None;
    }
    let queue = match queue {
        None => None,
        Some(text) => Some(number(text, 10)?),
    };
    Some(Kind { method, timeout_s: timeout.and_then(timeout_s), queue })
}

/// A number of at most so many digits.
fn number(text: &[u8], digits_max: usize) -> Option<u32> {
    if text.is_empty() || text.len() > digits_max || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    text.iter().try_fold(0_u32, |value, digit| value.checked_mul(10)?.checked_add(u32::from(digit - b'0')))
}

/// A timeout in seconds; `None` for a malformed one, which counts as none.
fn timeout_s(text: &[u8]) -> Option<f64> {
    let (unit, digits) = text.split_last()?;
    let unit = match unit {
        b'H' => 3600.0,
        b'M' => 60.0,
        b'S' => 1.0,
        b'm' => 1e-3,
        b'u' => 1e-6,
        b'n' => 1e-9,
        _ => return None,
    };
    Some(f64::from(number(digits, 8)?) * unit)
}

pub(crate) fn put_head(out: &mut Vec<u8>, size: usize, kind: u8, flags: u8, id: u32) {
    out.extend_from_slice(&(size as u32).to_be_bytes()[1..]);
    out.push(kind);
    out.push(flags);
    out.extend_from_slice(&id.to_be_bytes());
}

/// Bytes of data, as windows count them, of an answer with a message of `size` bytes.
pub fn framed(size: usize) -> usize {
    PREFIX_BYTES + size
}

/// Append the begin of an answer whose message has `size` bytes.
pub fn put_answer_head(shape: &Shape, id: u32, size: usize, out: &mut Vec<u8>) {
    put_head(out, shape.answer_head.len(), HEADERS, END_HEADERS, id);
    out.extend_from_slice(&shape.answer_head);
    put_head(out, framed(size), DATA, 0, id);
    out.push(0);
    out.extend_from_slice(&(size as u32).to_be_bytes());
}

/// Append the end of an answer: trailers with OK.
pub fn put_answer_tail(shape: &Shape, id: u32, out: &mut Vec<u8>) {
    put_head(out, shape.answer_tail.len(), HEADERS, END_HEADERS | END_STREAM, id);
    out.extend_from_slice(&shape.answer_tail);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            paths: vec![b"/p".to_vec()],
            queue_header: b"q".to_vec(),
            client_header: b"c".to_vec(),
            answer_head: vec![],
            answer_tail: vec![],
        }
    }
    fn state() -> State {
        State {
            last_id: 0,
            streams_left: 10,
            send_window: 65_535,
            receive_window: 1 << 20,
            peer_window: 65_535,
            stream_window: 1 << 20,
            peer_frame: 16_384,
            frame_max: 1 << 20,
            block_max: 1 << 15,
            blocked: false,
        }
    }
    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        put_head(&mut out, payload.len(), kind, flags, id);
        [out, payload.to_vec()].concat()
    }
    fn headers(id: u32, path: &[u8]) -> Vec<u8> {
        let mut block = b"\x83\x86\x04\x02".to_vec();
        block.extend_from_slice(path);
        block.extend_from_slice(b"\x0f\x10\x10application/grpc\x00\x01c\x02me");
        frame(HEADERS, END_HEADERS, id, &block)
    }
    fn data(id: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        frame(DATA, flags, id, payload)
    }
    fn scan(bytes: &[u8]) -> (Vec<Vec<u32>>, usize, Stop) {
        let (mut decoder, mut fields, mut groups) = (Decoder::new(1 << 14), Fields::default(), vec![]);
        let mut scan = Scan::new(bytes, state(), b"me", None);
        loop {
            let mut calls = vec![];
            match scan.group(&shape(), &mut decoder, &mut fields, &mut calls) {
                Ok(()) => {
                    groups.push(calls.iter().map(|call| call.id).collect());
                    scan.taken();
                }
                Err(stop) => return (groups, scan.at, stop),
            }
        }
    }

    #[test]
    fn calls_are_taken_in_groups_between_quiet_points() {
        let one = [headers(1, b"/p"), data(1, 1, b"\0\0\0\0\x01x")].concat();
        let mixed =
            [headers(3, b"/p"), headers(5, b"/p"), data(5, 1, b"a"), data(3, 0, b"b"), data(3, 1, b"")]
                .concat();
        let bytes = [one, mixed].concat();
        assert_eq!(scan(&bytes), (vec![vec![1], vec![5, 3]], bytes.len(), Stop::Partial(9)));
    }

    #[test]
    fn what_is_left_begins_at_a_quiet_point() {
        let begin = [headers(1, b"/p"), data(1, 1, b"x")].concat();
        let open = [headers(3, b"/p"), data(3, 0, b"x")].concat();
        let bytes = [&begin[..], &open].concat();
        assert_eq!(scan(&bytes), (vec![vec![1]], begin.len(), Stop::Partial(open.len() + 9)));
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(scan(cut), (vec![vec![1]], begin.len(), Stop::Partial(open.len())));
    }

    #[test]
    fn a_whole_call_does_not_wait_for_the_rest_of_another() {
        let mixed = [headers(1, b"/p"), headers(3, b"/p"), data(3, 1, b"x")].concat();
        assert_eq!(scan(&mixed), (vec![], 0, Stop::Foreign(mixed.len(), false)));
        let cut = [&mixed[..], &data(1, 1, b"xyz")[..5]].concat();
        assert_eq!(scan(&cut), (vec![], 0, Stop::Foreign(mixed.len(), false)));
    }

    #[test]
    fn calls_of_other_methods_are_pythons_up_to_the_next_one() {
        let other = [headers(1, b"/x"), data(1, 1, b"x"), headers(3, b"/x"), data(3, 1, b"x")].concat();
        let bytes = [&other[..], &headers(5, b"/p"), &data(5, 1, b"x")].concat();
        assert_eq!(scan(&bytes), (vec![], 0, Stop::Foreign(other.len(), false)));
        let reset = frame(3, 0, 1, &[0; 4]);
        let after = [&headers(1, b"/p")[..], &data(1, 1, b"x"), &reset].concat();
        assert!(matches!(scan(&after).2, Stop::Foreign(end, true) if end == after.len()));
    }

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        for (text, seconds) in
            [(&b"3S"[..], Some(3.0)), (b"20m", Some(0.02)), (b"S", None), (b"3", None), (b"123456789S", None)]
        {
            assert_eq!(timeout_s(text), seconds);
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let bytes = [headers(1, b"/p"), data(1, 0, b"x"), data(1, 1, b"x"), headers(3, b"/x")].concat();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                scan(&wrong);
            }
        }
    }
}
