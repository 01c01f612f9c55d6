//! Sends of `RocketMQ`'s remoting protocol (310, 320): frames become records, queue entries, keys and answers.
//!
//! A send is plain if all that it says is of the fields that `broker/remoting/send_header.py` reads, in digits; its
//! topic is one that Python finds for this pass; no property comes twice, and each message has an id. What the
//! properties of a message may not be: those of delays and of transactions, marks of the broker's own, CLUSTER, and,
//! while answers wait, WAIT with another value than true. Everything else, and each rule that is broken, is Python's
//! from the same bytes.
//!
//! The property text of a record is what was sent, each pair with its separator behind it, and CLUSTER behind them;
//! without WAIT. In a batch the header's properties that a message has not, WAIT among them, stand behind its own; but
//! for `UNIQ_KEY`, which is the batch's.
//!
//! A pass has reads of several connections, one after the other, and takes of each the plain frames at its begin.

use std::ops::Range;

use crate::command::{HEAD_BYTES, Header, Limits, Next, Text, next, read};
use crate::dispatch::UNIT_SIZE;
use crate::hash::{key_hash, tag_key_hash, tags_code};
use crate::index::Keyed;
use crate::pass::{Answer, Log, Plan, Topics};
use crate::record::MAGIC_V1;
use crate::send::{Topic, put_number, put_pair};

const SEND: i32 = 310;
const BATCH: i32 = 320;
const ONEWAY: i32 = 2;
const HEAD_SIZE: usize = 74; // of a record, without hosts; its topic's and its properties' lengths are in it
const BATCH_HEAD: usize = 20; // of a message in a batch: size, magic, CRC, flag, body length
const PAIRS_MAX: usize = 64; // they are searched one by one
const NAMES: &[u8] = b"abcdefghijklmn"; // of the fields of a send
const TRANSACTION_MASK: i32 = 0x0C;
const HOST_BITS: i32 = 0x30;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const WAIT: &str = "WAIT";
const CLUSTER: &str = "CLUSTER";
const UNIQ_KEY: &str = "UNIQ_KEY";
// How the headers of sends begin, of nearly all clients.
const SEND_BEGIN: &str = "{\"code\":310,";
const BATCH_BEGIN: &str = "{\"code\":320,";
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What a broker takes, and what it writes into records and answers.
pub struct Policy {
    pub limits: Limits,
    pub cluster: String,
    /// Address and port as records hold them, 8 or 20 bytes.
    pub store_host: Vec<u8>,
    /// Names of properties that make a message more than a plain one.
    pub special: Vec<String>,
    /// A text of properties with one of these in it is Python's.
    pub traced: Vec<Vec<u8>>,
    pub body_max: usize,
    /// Bytes of a property text.
    pub text_max: usize,
    pub time_max_ms: i64,
    pub messages_max: usize,
    /// The header of an answer around the ids, the queue, its offset and the number of the request.
    pub answer: [Vec<u8>; 5],
    pub indexed: bool,
    /// The index has tags as well.
    pub index_tags: bool,
    /// Bounds of a histogram of record sizes, rising.
    pub size_bounds: Vec<usize>,
}

/// What a connection has brought.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    pub data: &'a [u8],
    /// The peer's address as records hold it.
    pub born_host: &'a [u8],
}

/// Why a pass stopped in a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What is left is the begin of a frame; so many bytes of it are needed to go on.
    Partial(usize),
    /// What is left up to there is Python's.
    Foreign(usize),
    /// What is left is for a pass of its own.
    Other,
}

/// What became of a read.
pub struct Taken {
    /// So many bytes of it were plain sends.
    pub at: usize,
    pub stop: Stop,
    /// Of all answers, one behind the other; a request that is not to be answered has none.
    pub frames: Vec<u8>,
    /// Their windows are the codes of the requests.
    pub answers: Vec<Answer>,
}

/// A send's header, but its properties.
struct Head<'a> {
    topic: &'a str,
    /// `None` for a negative one: the next in turn.
    queue: Option<u32>,
    sys_flag: i32,
    born_ms: i64,
    flag: i32,
    reconsume_times: i32,
    batch: bool,
}

/// Where the records of a send go.
struct Placed<'a> {
    run: usize,
    first: i64,
    /// Bytes of each record beside its body and its properties.
    around: usize,
    born_host: &'a [u8],
}

/// A message that is plain; its texts are in the pass.
struct Message<'a> {
    body: &'a [u8],
    flag: i32,
    tags: i64,
    text: Range<usize>,
    keys: Range<usize>,
}

type Pairs<'a> = Vec<(&'a str, &'a str)>;

fn number(text: &Text<'_>, digits_max: usize, max: i64) -> Option<i64> {
    let digits = text.plain()?;
    let fine = (1..=digits_max).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|value| fine && *value <= max)
}
fn int32(text: &Text<'_>) -> Option<i32> {
    i32::try_from(number(text, 10, i64::from(i32::MAX))?).ok()
}

/// Read a send's header, and its properties as they were sent.
fn head<'a>(header: &Header<'a>, policy: &Policy, text: &mut String) -> Option<Head<'a>> {
    if (header.code != SEND && header.code != BATCH) || (header.flag != 0 && header.flag != ONEWAY) {
        return None;
    }
    let mut fields = [None::<Text<'a>>; NAMES.len()];
    for (name, value) in &header.fields {
        let [name] = name.as_bytes() else { return None };
        fields[NAMES.iter().position(|one| one == name)?] = Some(*value);
    }
    let [group, topic, default, queues, queue, system, born, flag, properties, times, _, most, batch, _] =
        fields;
    let (_, _) = (group?, default?);
    int32(&queues?)?;
    if let Some(most) = most {
        int32(&most)?;
    }
    let batch = match batch.map(|text| text.plain()) {
        None | Some(Some("false")) => false,
        Some(Some("true")) => true,
        Some(_) => return None,
    };
    if let Some(properties) = properties {
        properties.put(text);
    }
    Some(Head {
        topic: topic?.plain()?,
        queue: if negative(&queue?) { None } else { Some(int32(&queue?)?.cast_unsigned()) },
        sys_flag: int32(&system?)?,
        born_ms: number(&born?, 15, policy.time_max_ms)?,
        flag: int32(&flag?)?,
        reconsume_times: times.map_or(Some(0), |times| int32(&times))?,
        batch,
    })
}

/// Whether a text is a negative number.
fn negative(text: &Text<'_>) -> bool {
    let digits = text.plain().and_then(|text| text.strip_prefix('-')).map(Text::of);
    digits.and_then(|digits| int32(&digits)).is_some_and(|value| value > 0)
}

/// Read the pairs of a property text; `None` where one is not plain.
fn pairs<'a>(text: &'a str, policy: &Policy, found: &mut Pairs<'a>) -> Option<()> {
    found.clear();
    for (name, value) in text.split('\x02').filter_map(|pair| pair.split_once('\x01')) {
        if name.is_empty() || value.is_empty() {
            continue;
        }
        let known = found.len() >= PAIRS_MAX || found.iter().any(|(before, _)| *before == name);
        if known || name == CLUSTER || policy.special.iter().any(|one| one == name) {
            return None;
        }
        found.push((name, value));
    }
    Some(())
}

fn value_of<'a>(pairs: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(one, _)| *one == name).map(|(_, value)| *value)
}

/// A pass over reads of several connections.
pub struct Pass<'a, T: Topics> {
    policy: &'a Policy,
    topics: &'a mut T,
    log: Log,
    plan: Plan<T::Queue>,
    full: bool,     // of topics or queues
    texts: Vec<u8>, // of the messages of a frame, and the hashes of their keys
    hashes: Vec<u32>,
}

impl<'a, T: Topics> Pass<'a, T> {
    pub fn new(policy: &'a Policy, log: Log, topics: &'a mut T) -> Self {
        let (texts, hashes) = (vec![], vec![]);
        Self { policy, topics, log, plan: Plan::default(), full: false, texts, hashes }
    }

    /// All that follows from the reads so far, but their answers.
    pub fn plan(self) -> Plan<T::Queue> {
        self.plan
    }

    /// Take the plain sends at the begin of a connection's read.
    pub fn take(&mut self, read: Read<'_>) -> Taken {
        let mut taken = Taken { at: 0, stop: Stop::Other, frames: vec![], answers: vec![] };
        let limits = self.policy.limits;
        let mut header = Header::default();
        taken.stop = loop {
            let end = match next(read.data, taken.at, limits) {
                Next::Partial(needed) => break Stop::Partial(needed),
                Next::Broken => break Stop::Foreign(read.data.len()),
                Next::Foreign(end) => end,
                Next::Frame(text, body, end) => {
                    if self.add(text, body, read.born_host, &mut header, &mut taken).is_some() {
                        taken.at = end;
                        continue;
                    }
                    if self.full && self.plan.messages > 0 {
                        break Stop::Other;
                    }
                    end
                }
            };
            break Stop::Foreign(foreign(read.data, end, limits));
        };
        taken
    }

    /// Add a send to the plan; `None`, and nothing added, where it is not plain.
    fn add<'r>(
        &mut self,
        text: &'r str,
        body: &'r [u8],
        born_host: &[u8],
        header: &mut Header<'r>,
        taken: &mut Taken,
    ) -> Option<()> {
        read(text, header)?;
        let mut properties = String::new();
        let head = head(header, self.policy, &mut properties)?;
        let topic = Topic::named(head.topic)?;
        self.texts.clear();
        self.hashes.clear();
        let mut messages = vec![];
        self.messages(&head, &topic, &properties, body, &mut messages)?;
        if messages.len() as u64 > self.log.unsampled {
            return None;
        }
        let around = HEAD_SIZE + born_host.len() + self.policy.store_host.len() + topic.field.len();
        let bytes = messages.iter().map(|one| around + one.body.len() + one.text.len()).sum::<usize>();
        if bytes > self.log.room - self.plan.records.len() || self.log.parks_left == Some(0) {
            return None;
        }
        let wanted = (head.topic, head.queue, messages.len());
        let bounds = &self.policy.size_bounds;
        let (run, first) = self.plan.place(self.topics, wanted, bounds, &mut self.full)?;
        self.log.unsampled -= messages.len() as u64;
        if let Some(left) = &mut self.log.parks_left {
            *left -= 1;
        }
        let placed = Placed { run, first, around, born_host };
        self.write(&head, &messages, &placed);
        self.answer(header, run, first, messages.len(), taken);
        Some(())
    }

    /// Read the messages of a send; their texts and hashes are behind those before.
    fn messages<'r>(
        &mut self,
        head: &Head<'_>,
        topic: &Topic,
        properties: &str,
        body: &'r [u8],
        messages: &mut Vec<Message<'r>>,
    ) -> Option<()> {
        let (policy, mut common) = (self.policy, Pairs::new());
        pairs(properties, policy, &mut common)?;
        if self.log.parks_left.is_some() && value_of(&common, WAIT).is_some_and(|value| value != "true") {
            return None;
        }
        let not_added = if head.batch { UNIQ_KEY } else { WAIT };
        common.retain(|(name, _)| *name != not_added);
        common.push((CLUSTER, &policy.cluster));
        if !head.batch {
            messages.push(self.message(topic, &common, body, head.flag)?);
            return Some(());
        }
        let (mut rest, mut own) = (body, Pairs::new());
        while !rest.is_empty() {
            if messages.len() >= policy.messages_max {
                return None;
            }
            let (fixed, behind) = rest.split_first_chunk::<BATCH_HEAD>()?;
            let field =
                |at: usize| i32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
            let (size, flag) = (usize::try_from(field(0)).ok()?, field(12));
            let (body, behind) = behind.split_at_checked(usize::try_from(field(16)).ok()?)?;
            let (length, behind) = behind.split_first_chunk::<2>()?;
            let (text, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            if size != rest.len() - behind.len() {
                return None;
            }
            rest = behind;
            pairs(std::str::from_utf8(text).ok()?, policy, &mut own)?;
            for pair in &common {
                if value_of(&own, pair.0).is_none() {
                    own.push(*pair);
                }
            }
            messages.push(self.message(topic, &own, body, flag)?);
        }
        (!messages.is_empty()).then_some(())
    }

    /// Make a message of its properties.
    fn message<'r>(
        &mut self,
        topic: &Topic,
        pairs: &[(&str, &str)],
        body: &'r [u8],
        flag: i32,
    ) -> Option<Message<'r>> {
        let (policy, begin, first) = (self.policy, self.texts.len(), self.hashes.len());
        for (name, value) in pairs {
            put_pair(&mut self.texts, name.as_bytes(), value.as_bytes());
        }
        let text = begin..self.texts.len();
        if text.len() > policy.text_max || body.len() > policy.body_max {
            return None;
        }
        let traced =
            |name: &Vec<u8>| self.texts[begin..].windows(name.len()).any(|some| some == name.as_slice());
        if policy.traced.iter().any(traced) {
            return None;
        }
        let words = value_of(pairs, "KEYS").unwrap_or_default().split(' ').filter(|word| !word.is_empty());
        for key in std::iter::once(value_of(pairs, UNIQ_KEY)?).chain(words) {
            self.hashes.push(key_hash(topic.hash, key.as_bytes())?);
        }
        let tag = value_of(pairs, "TAGS").unwrap_or_default().as_bytes();
        if policy.index_tags && !tag.is_empty() {
            self.hashes.push(tag_key_hash(topic.hash, tag)?);
        }
        Some(Message { body, flag, tags: tags_code(tag)?, text, keys: first..self.hashes.len() })
    }

    /// Write the records, entries and keys of a send.
    fn write(&mut self, head: &Head<'_>, messages: &[Message<'_>], placed: &Placed<'_>) {
        let Self { policy, log, plan, texts, hashes, .. } = self;
        let run = &mut plan.runs[placed.run];
        let sent = &mut plan.topics[run.topic];
        let hosts = if placed.born_host.len() == 20 { BORN_V6 } else { 0 }
            | if policy.store_host.len() == 20 { STORE_V6 } else { 0 };
        let sys_flag = head.sys_flag & !(TRANSACTION_MASK | HOST_BITS) | hosts;
        for (message, queue_offset) in messages.iter().zip(placed.first..) {
            let text = &texts[message.text.clone()];
            let size = placed.around + message.body.len() + text.len();
            let length = i32::try_from(size).expect("bodies and texts have bounds");
            let out = &mut plan.records;
            let begin = out.len();
            out.reserve(size);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&MAGIC_V1.to_be_bytes());
            out.extend_from_slice(&(crc32fast::hash(message.body) & 0x7fff_ffff).to_be_bytes());
            out.extend_from_slice(&run.queue_id.to_be_bytes());
            out.extend_from_slice(&message.flag.to_be_bytes());
            out.extend_from_slice(&queue_offset.to_be_bytes());
            out.extend_from_slice(&log.end.to_be_bytes());
            out.extend_from_slice(&sys_flag.to_be_bytes());
            out.extend_from_slice(&head.born_ms.to_be_bytes());
            out.extend_from_slice(placed.born_host);
            out.extend_from_slice(&log.now_ms.to_be_bytes());
            out.extend_from_slice(&policy.store_host);
            out.extend_from_slice(&head.reconsume_times.to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&(message.body.len() as i32).to_be_bytes());
            out.extend_from_slice(message.body);
            out.extend_from_slice(&sent.topic.field);
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text);
            assert_eq!(out.len() - begin, size, "a record of another size than was counted");
            run.entries.extend_from_slice(&log.end.to_be_bytes());
            run.entries.extend_from_slice(&length.to_be_bytes());
            run.entries.extend_from_slice(&message.tags.to_be_bytes());
            if policy.indexed {
                let keyed =
                    |hash: &u32| Keyed { hash: *hash, physical_offset: log.end, store_time_ms: log.now_ms };
                plan.keys.extend(hashes[message.keys.clone()].iter().map(keyed));
            }
            sent.counts[policy.size_bounds.partition_point(|bound| *bound < size)] += 1;
            sent.bytes += size as u64;
            log.end += size as i64;
        }
        run.note_tags();
        plan.messages += messages.len() as u64;
    }

    /// Add the answer to a send whose records are the last ones.
    fn answer(&self, header: &Header<'_>, run: usize, first: i64, count: usize, taken: &mut Taken) {
        let (policy, run) = (self.policy, &self.plan.runs[run]);
        let (begin, end) = (taken.frames.len(), self.log.end);
        let window = i64::from(header.code);
        let id = header.opaque as u32;
        let mut answer = Answer { id, begin, message: begin, message_size: 0, end, window, timeout_s: None };
        if header.flag & ONEWAY == 0 {
            let out = &mut taken.frames;
            out.extend_from_slice(&[0; HEAD_BYTES]);
            out.extend_from_slice(&policy.answer[0]);
            let entries = run.entries.len() - count * UNIT_SIZE;
            for (number, entry) in run.entries[entries..].chunks_exact(UNIT_SIZE).enumerate() {
                if number > 0 {
                    out.push(b',');
                }
                for byte in policy.store_host.iter().chain(&entry[..8]) {
                    out.push(HEX[usize::from(byte >> 4)]);
                    out.push(HEX[usize::from(byte & 15)]);
                }
            }
            out.extend_from_slice(&policy.answer[1]);
            put_number(out, i64::from(run.queue_id));
            out.extend_from_slice(&policy.answer[2]);
            put_number(out, first);
            out.extend_from_slice(&policy.answer[3]);
            if header.opaque < 0 {
                out.push(b'-');
            }
            put_number(out, i64::from(header.opaque).abs());
            out.extend_from_slice(&policy.answer[4]);
            let size = out.len() - begin - HEAD_BYTES;
            out[begin..begin + 4].copy_from_slice(&(size as u32 + 4).to_be_bytes());
            out[begin + 4..begin + 8].copy_from_slice(&(size as u32).to_be_bytes());
            answer.message_size = out.len() - begin;
        }
        taken.answers.push(answer);
    }
}

/// Where the frames end, from a frame's end on, that can't be plain sends as far as their first bytes tell.
fn foreign(data: &[u8], mut at: usize, limits: Limits) -> usize {
    loop {
        match next(data, at, limits) {
            Next::Foreign(end) => at = end,
            Next::Frame(header, _, end)
                if !header.starts_with(SEND_BEGIN) && !header.starts_with(BATCH_BEGIN) =>
            {
                at = end;
            }
            _ => return at,
        }
    }
}
