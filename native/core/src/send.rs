//! `SendMessage`: a request's bytes become records, queue entries, keys, and the bytes of the answer.
//!
//! A message is plain if it has a topic, user properties, a tag, keys, a message id, a born time and host, a trace
//! context and a body, and nothing else that means something: `produce/admission.py` says what is allowed of these, in
//! `draft` and `check_in_order`. Everything else, and each rule that is broken, is Python's: `read` returns `None`.
//!
//! The property text of a record is that of `admission.py`: the user's properties by name, `UNIQ_KEY`, `CLUSTER`,
//! `BORN_TIMESTAMP`, `TAGS`, `KEYS`, `__BORNHOST`, `TRACE_CONTEXT`.

use std::collections::HashSet;

use crate::hash::{key_hash, tag_key_hash, tags_code, topic_hash};
use crate::index::Keyed;
use crate::proto::{Reader, put_varint, varint_len};
use crate::record::MAGIC_V1;

const HEAD_SIZE: usize = 74; // of a record, without hosts; its topic's and its properties' lengths are in it
const SECONDS_MAX: u64 = 1 << 40;
const NANOS_MAX: u64 = 999_999_999;
const GZIP: u64 = 2;
const NORMAL: u64 = 1;

/// What a broker takes, and what it writes into each record.
pub struct Policy {
    /// `0x02 CLUSTER 0x01 its name 0x02 BORN_TIMESTAMP 0x01`, between the message id and the born time.
    pub after_id: Vec<u8>,
    /// Address and port as records hold them, 8 or 20 bytes.
    pub store_host: Vec<u8>,
    /// Names that a user's property may not have.
    pub reserved: HashSet<Vec<u8>>,
    /// The property that carries a trace context where there is no field for it.
    pub fallback: Vec<u8>,
    /// Messages with a trace context are Python's.
    pub tracing: bool,
    /// The status of a success as the first field of an answer.
    pub ok: Vec<u8>,
    pub body_max: usize,
    pub properties_max: usize,
    /// Bytes of the user's properties, tag and keys together.
    pub weight_max: usize,
    /// Bytes of a property text.
    pub text_max: usize,
    pub time_max_ms: i64,
    pub messages_max: usize,
    /// Keys, and user properties, of all messages of a request.
    pub entries_max: usize,
    /// The index has tags as well.
    pub index_tags: bool,
}

/// A plain message of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub body: &'a [u8],
    pub id: &'a str,
    tag: &'a str,
    host: &'a str,
    trace: &'a str,
    keys: Vec<&'a str>,
    key_fields: usize, // with those that are empty
    users: Vec<(&'a str, &'a str)>,
    born_ms: Option<i64>,
    zipped: bool,
}

/// Take note of a field that may be there once.
pub(crate) fn once(seen: &mut u32, number: u32) -> Option<()> {
    let bit = 1 << number;
    if *seen & bit != 0 {
        return None;
    }
    *seen |= bit;
    Some(())
}

/// Whether a text has no control characters, which would end it within the property text.
fn clean(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) || !text.chars().any(char::is_control)
}
fn blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

/// Read a message's topic.
pub(crate) fn resource(mut reader: Reader<'_>) -> Option<&str> {
    let (mut seen, mut name) = (0, "");
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                reader.text()?; // the namespace
            }
            0x12 => {
                once(&mut seen, 2)?;
                name = reader.text()?;
            }
            _ => return None,
        }
    }
    Some(name)
}

/// Read an entry of the map of user properties.
fn pair(mut reader: Reader<'_>) -> Option<(&str, &str)> {
    let (mut seen, mut key, mut value) = (0, "", "");
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                key = reader.text()?;
            }
            0x12 => {
                once(&mut seen, 2)?;
                value = reader.text()?;
            }
            _ => return None,
        }
    }
    Some((key, value))
}

/// Read a time as milliseconds, into `ms` if it says something.
fn time(mut reader: Reader<'_>, ms: &mut Option<i64>) -> Option<()> {
    let (mut seen, mut seconds, mut nanos) = (0, 0, 0);
    while !reader.is_done() {
        match reader.varint()? {
            0x08 => {
                once(&mut seen, 1)?;
                seconds = reader.value().filter(|value| *value <= SECONDS_MAX)?;
            }
            0x10 => {
                once(&mut seen, 2)?;
                nanos = reader.value().filter(|value| *value <= NANOS_MAX)?;
            }
            _ => return None,
        }
    }
    if seconds > 0 {
        *ms = Some(i64::try_from(seconds * 1000 + nanos / 1_000_000).ok()?);
    }
    Some(())
}

/// Read the system properties into `message`.
fn system<'a>(mut reader: Reader<'a>, message: &mut Message<'a>) -> Option<()> {
    let mut seen = 0;
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                message.tag = reader.text().filter(|tag| !tag.contains('|') && clean(tag))?;
                if !message.tag.is_empty() && blank(message.tag) {
                    return None;
                }
            }
            0x12 => {
                message.key_fields += 1;
                let key = reader.text().filter(|key| !key.contains(' ') && clean(key))?;
                if !key.is_empty() {
                    if blank(key) {
                        return None;
                    }
                    message.keys.push(key);
                }
            }
            0x1a => {
                once(&mut seen, 3)?;
                message.id = reader.text().filter(|id| clean(id))?;
            }
            0x28 => {
                once(&mut seen, 5)?;
                message.zipped = reader.value().filter(|value| *value <= GZIP)? == GZIP;
            }
            0x30 => {
                once(&mut seen, 6)?;
                reader.value().filter(|value| *value <= NORMAL)?;
            }
            0x3a => {
                once(&mut seen, 7)?;
                time(Reader::new(reader.bytes()?), &mut message.born_ms)?;
            }
            0x42 => {
                once(&mut seen, 8)?;
                message.host = reader.text().filter(|host| clean(host))?;
            }
            0x52 => {
                once(&mut seen, 10)?;
                reader.text()?; // the store's host: nobody reads it
            }
            0x68 => {
                once(&mut seen, 13)?;
                reader.value()?; // a queue: the same
            }
            0x92 => {
                once(&mut seen, 18)?;
                message.trace = reader.text().filter(|trace| clean(trace))?;
            }
            _ => return None, // digests, delays, groups, priorities, and what is unknown
        }
    }
    Some(())
}

/// Read a message.
fn message<'a>(mut reader: Reader<'a>, policy: &Policy) -> Option<Message<'a>> {
    let (mut seen, mut found) = (0, Message::default());
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                found.topic = resource(Reader::new(reader.bytes()?))?;
            }
            0x12 => {
                let (key, value) = pair(Reader::new(reader.bytes()?))?;
                if found.users.len() >= policy.properties_max || key.is_empty() {
                    return None;
                }
                found.users.push((key, value));
            }
            0x1a => {
                once(&mut seen, 3)?;
                system(Reader::new(reader.bytes()?), &mut found)?;
            }
            0x22 => {
                once(&mut seen, 4)?;
                found.body = reader.bytes()?;
            }
            _ => return None,
        }
    }
    allowed(&mut found, policy).then_some(found)
}

/// Whether the fields of a message are allowed together; its user properties are sorted.
fn allowed(message: &mut Message<'_>, policy: &Policy) -> bool {
    if message.body.is_empty() || message.body.len() > policy.body_max || blank(message.id) {
        return false;
    }
    if message.born_ms.is_some_and(|ms| ms > policy.time_max_ms) {
        return false;
    }
    if policy.tracing && !message.trace.is_empty() {
        return false;
    }
    message.users.sort_unstable();
    let mut weight = message.tag.len() + message.keys.iter().map(|key| key.len()).sum::<usize>();
    let mut before = "";
    for (key, value) in &message.users {
        if *key == before || policy.reserved.contains(key.as_bytes()) || !clean(key) || !clean(value) {
            return false;
        }
        if policy.tracing && key.as_bytes() == policy.fallback {
            return false;
        }
        weight += key.len() + value.len();
        before = key;
    }
    weight <= policy.weight_max
}

/// Read a request; `None` where it is not plain, or names several topics.
pub fn read<'a>(request: &'a [u8], policy: &Policy, messages: &mut Vec<Message<'a>>) -> Option<()> {
    let first = messages.len();
    let (mut keys, mut users) = (0, 0);
    let mut reader = Reader::new(request);
    while !reader.is_done() {
        if reader.varint()? != 0x0a || messages.len() - first >= policy.messages_max {
            return None;
        }
        let found = message(Reader::new(reader.bytes()?), policy)?;
        keys += found.key_fields;
        users += found.users.len();
        if keys.max(users) > policy.entries_max {
            return None;
        }
        if messages.get(first).is_some_and(|one: &Message| one.topic != found.topic) {
            return None;
        }
        messages.push(found);
    }
    (messages.len() > first).then_some(())
}

fn digits(value: i64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}
pub(crate) fn put_number(out: &mut Vec<u8>, mut value: i64) {
    let begin = out.len();
    loop {
        out.push(b'0' + (value % 10) as u8);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out[begin..].reverse();
}
pub(crate) fn put_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.push(1);
    out.extend_from_slice(value);
    out.push(2);
}

/// Where and when a record is written.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub physical_offset: i64,
    /// Of the record.
    pub size: usize,
    pub queue_id: i32,
    pub queue_offset: i64,
    /// The store time, and the born time of messages without one.
    pub now_ms: i64,
    pub born_default_ms: i64,
}

/// A topic as records hold it, and the begin of the hashes of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub field: Vec<u8>,
    pub hash: u32,
}

impl Topic {
    /// A topic of a name that records of V1 hold.
    pub fn named(name: &str) -> Option<Self> {
        let mut field = vec![u8::try_from(name.len()).ok().filter(|size| (1..=127).contains(size))?];
        field.extend_from_slice(name.as_bytes());
        Some(Self { field, hash: topic_hash(name.as_bytes())? })
    }
}

impl Message<'_> {
    /// Bytes of the property text.
    fn text_size(&self, policy: &Policy, born_ms: i64) -> usize {
        let pair = |name: usize, value: usize| if value == 0 { 0 } else { name + value + 2 };
        let users = self.users.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>();
        let keys = (self.keys.iter().map(|key| key.len() + 1).sum::<usize>()).saturating_sub(1);
        users
            + 9
            + self.id.len()
            + policy.after_id.len()
            + digits(born_ms)
            + 1
            + pair(4, self.tag.len())
            + pair(4, keys)
            + pair(10, self.host.len())
            + pair(13, self.trace.len())
    }

    /// Bytes of the record with these hosts; `None` where its property text is too long.
    pub fn record_size(
        &self,
        policy: &Policy,
        topic: &Topic,
        born_host: &[u8],
        default: i64,
    ) -> Option<usize> {
        let text = self.text_size(policy, self.born_ms.unwrap_or(default));
        let hosts = born_host.len() + policy.store_host.len();
        (text <= policy.text_max).then(|| HEAD_SIZE + hosts + topic.field.len() + self.body.len() + text)
    }

    /// Append the record to `out`, of the size that was counted.
    pub fn put_record(
        &self,
        policy: &Policy,
        topic: &Topic,
        born_host: &[u8],
        place: Place,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let size = place.size;
        let born_ms = self.born_ms.unwrap_or(place.born_default_ms);
        let flag = i32::from(self.zipped)
            | if born_host.len() == 20 { 0x10 } else { 0 }
            | if policy.store_host.len() == 20 { 0x20 } else { 0 };
        let begin = out.len();
        out.extend_from_slice(&i32::try_from(size).ok()?.to_be_bytes());
        out.extend_from_slice(&MAGIC_V1.to_be_bytes());
        out.extend_from_slice(&(crc32fast::hash(self.body) & 0x7fff_ffff).to_be_bytes());
        out.extend_from_slice(&place.queue_id.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&place.queue_offset.to_be_bytes());
        out.extend_from_slice(&place.physical_offset.to_be_bytes());
        out.extend_from_slice(&flag.to_be_bytes());
        out.extend_from_slice(&born_ms.to_be_bytes());
        out.extend_from_slice(born_host);
        out.extend_from_slice(&place.now_ms.to_be_bytes());
        out.extend_from_slice(&policy.store_host);
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&i32::try_from(self.body.len()).ok()?.to_be_bytes());
        out.extend_from_slice(self.body);
        out.extend_from_slice(&topic.field);
        let text = size - (out.len() - begin) - 2;
        out.extend_from_slice(&u16::try_from(text).ok()?.to_be_bytes());
        for (key, value) in &self.users {
            put_pair(out, key.as_bytes(), value.as_bytes());
        }
        out.extend_from_slice(b"UNIQ_KEY\x01");
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(&policy.after_id);
        put_number(out, born_ms);
        out.push(2);
        if !self.tag.is_empty() {
            put_pair(out, b"TAGS", self.tag.as_bytes());
        }
        if let Some((first, rest)) = self.keys.split_first() {
            out.extend_from_slice(b"KEYS\x01");
            out.extend_from_slice(first.as_bytes());
            for key in rest {
                out.push(b' ');
                out.extend_from_slice(key.as_bytes());
            }
            out.push(2);
        }
        if !self.host.is_empty() {
            put_pair(out, b"__BORNHOST", self.host.as_bytes());
        }
        if !self.trace.is_empty() {
            put_pair(out, b"TRACE_CONTEXT", self.trace.as_bytes());
        }
        assert_eq!(out.len() - begin, size, "a record of another size than was counted");
        Some(())
    }

    /// Append the record's queue entry to `entries`.
    pub fn put_entry(&self, place: Place, entries: &mut Vec<u8>) -> Option<()> {
        let tags = if self.tag.is_empty() { 0 } else { tags_code(self.tag.as_bytes())? };
        entries.extend_from_slice(&place.physical_offset.to_be_bytes());
        entries.extend_from_slice(&i32::try_from(place.size).ok()?.to_be_bytes());
        entries.extend_from_slice(&tags.to_be_bytes());
        Some(())
    }

    /// Append the record's keys to `keys`.
    pub fn put_keys(
        &self,
        policy: &Policy,
        topic: &Topic,
        place: Place,
        keys: &mut Vec<Keyed>,
    ) -> Option<()> {
        let keyed =
            |hash| Keyed { hash, physical_offset: place.physical_offset, store_time_ms: place.now_ms };
        for key in std::iter::once(&self.id).chain(&self.keys) {
            keys.push(keyed(key_hash(topic.hash, key.as_bytes())?));
        }
        if policy.index_tags && !self.tag.is_empty() {
            keys.push(keyed(tag_key_hash(topic.hash, self.tag.as_bytes())?));
        }
        Some(())
    }

    /// Bytes of this message's part of the answer.
    fn answer_entry(&self, policy: &Policy, queue_offset: i64) -> usize {
        let id = self.id.len();
        let offset = if queue_offset > 0 { 1 + varint_len(queue_offset as u64) } else { 0 };
        policy.ok.len() + 1 + varint_len(id as u64) + id + offset
    }
}

/// Bytes of the answer to a request whose messages have queue offsets from `first` on.
pub fn answer_size(policy: &Policy, messages: &[Message<'_>], first: i64) -> usize {
    let each = messages.iter().zip(first..).map(|(message, offset)| message.answer_entry(policy, offset));
    policy.ok.len() + each.map(|size| 1 + varint_len(size as u64) + size).sum::<usize>()
}

/// Append the answer to `out`: its status, and status, id and offset of each message.
pub fn put_answer(policy: &Policy, messages: &[Message<'_>], first: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&policy.ok);
    for (message, offset) in messages.iter().zip(first..) {
        out.push(0x12);
        put_varint(out, message.answer_entry(policy, offset) as u64);
        out.extend_from_slice(&policy.ok);
        out.push(0x12);
        put_varint(out, message.id.len() as u64);
        out.extend_from_slice(message.id.as_bytes());
        if offset > 0 {
            out.push(0x20);
            put_varint(out, offset as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Next, next};

    fn policy() -> Policy {
        Policy {
            after_id: b"\x02CLUSTER\x01c\x02BORN_TIMESTAMP\x01".to_vec(),
            store_host: vec![127, 0, 0, 1, 0, 0, 0, 1],
            reserved: [b"KEYS".to_vec()].into(),
            fallback: b"traceparent".to_vec(),
            tracing: false,
            ok: b"\x0a\x01o".to_vec(),
            body_max: 100,
            properties_max: 3,
            weight_max: 50,
            text_max: 1000,
            time_max_ms: 1 << 45,
            messages_max: 2,
            entries_max: 10,
            index_tags: false,
        }
    }
    fn part(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[tag, bytes.len() as u8][..], bytes].concat()
    }
    fn request(system: &[u8], users: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut message = part(0x0a, &part(0x12, b"topic"));
        for (key, value) in users {
            message.extend(part(0x12, &[part(0x0a, key), part(0x12, value)].concat()));
        }
        message.extend(part(0x1a, &[part(0x1a, b"id"), system.to_vec()].concat()));
        message.extend(part(0x22, b"body"));
        part(0x0a, &message)
    }
    fn is_plain(bytes: &[u8]) -> bool {
        read(bytes, &policy(), &mut vec![]).is_some()
    }

    #[test]
    fn a_record_has_the_size_that_was_counted_and_its_fields() {
        let bytes = request(&[part(0x0a, b"tag"), part(0x12, b"k")].concat(), &[(b"b", b"2"), (b"a", b"1")]);
        let (policy, mut messages) = (policy(), vec![]);
        read(&bytes, &policy, &mut messages).unwrap();
        let topic = Topic { field: b"\x05topic".to_vec(), hash: 1 };
        let size = messages[0].record_size(&policy, &topic, &[0; 8], 5).unwrap();
        let place =
            Place { physical_offset: 0, size, queue_id: 3, queue_offset: 7, now_ms: 5, born_default_ms: 5 };
        let mut record = vec![];
        messages[0].put_record(&policy, &topic, &[0; 8], place, &mut record).unwrap();
        let Next::Record(found) = next(&record) else { panic!() };
        assert_eq!((found.queue_id, found.queue_offset, found.topic), (3, 7, &b"topic"[..]));
        let text = b"a\x011\x02b\x012\x02UNIQ_KEY\x01id\x02CLUSTER\x01c\x02BORN_TIMESTAMP\x015\x02TAGS\x01tag\x02KEYS\x01k\x02";
        assert_eq!(found.properties, text);
    }

    #[test]
    fn an_answer_has_the_size_that_was_counted() {
        let (policy, mut messages, mut out) = (policy(), vec![], vec![]);
        let bytes = request(b"", &[]);
        read(&bytes, &policy, &mut messages).unwrap();
        for first in [0, 1, 127, 128, 1 << 40] {
            out.clear();
            put_answer(&policy, &messages, first, &mut out);
            assert_eq!(out.len(), answer_size(&policy, &messages, first));
        }
    }

    #[test]
    fn what_is_unusual_is_not_plain() {
        assert!(is_plain(&request(b"", &[])));
        for system in [
            &part(0x0a, b"a|b")[..],
            &part(0x0a, b" "),
            &part(0x12, b"a b"),
            b"\x30\x02",
            &part(0x8a, b"g"),
            &part(0x1a, b"twice"),
        ] {
            assert!(!is_plain(&request(system, &[])));
        }
        for users in [
            &[(&b"KEYS"[..], &b"x"[..])][..],
            &[(b"a", b"\x01")],
            &[(b"a", b"1"), (b"a", b"2")],
            &[(b"", b"1")],
        ] {
            assert!(!is_plain(&request(b"", users)));
        }
        let one = request(b"", &[]);
        assert!(is_plain(&[&one[..], &one].concat()));
        assert!(!is_plain(&[&one[..], &one, &one].concat()));
        assert!(!is_plain(b""));
    }

    #[test]
    fn no_single_wrong_byte_makes_it_panic() {
        let bytes = request(&part(0x0a, b"tag"), &[(b"a", b"1")]);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                is_plain(&wrong);
            }
        }
    }
}
