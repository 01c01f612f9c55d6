//! `AckMessage`: a request's bytes become what is done of which queue, and the bytes of the answer.
//!
//! A request is plain if it names a group and a topic, and its handles are deliveries of both that this broker made and
//! that are current (`Leases::holds`). What a handle looks like: `broker/consume/receipts.py`. All else, and each rule
//! that is broken, is Python's: `read` returns `None`.

use crate::proto::{Reader, put_varint, varint_len};
use crate::send::{once, resource};

const NUMBERS: usize = 7; // queue id, epoch, offset, physical offset, size, serial, attempt
const DIGITS_MAX: usize = 16; // of a number

/// What a broker takes.
pub struct AckPolicy {
    /// `W1:`, the broker's name and a colon: how handles begin.
    pub handle_begin: Vec<u8>,
    /// The status of a success as the first field of an answer, and as the third one of an entry.
    pub ok: Vec<u8>,
    pub ok_3: Vec<u8>,
    pub entries_max: usize,
    pub handle_max: usize,
    pub offset_max: i64,
    pub queue_id_max: i64,
    pub attempt_max: i64,
}

/// What groups hold.
pub trait Leases {
    /// The number of the state of a group's queue by which a delivery is held; `None` where it is not current.
    fn holds(&mut self, group: &str, topic: &str, delivery: &Delivery) -> Option<usize>;
}

/// An entry of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    id: &'a str,
    handle: &'a str,
}

/// A delivery that is acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery {
    pub queue_id: i64,
    pub epoch: i64,
    pub offset: i64,
    pub serial: i64,
}

/// A plain request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub entries: Vec<Entry<'a>>,
    pub deliveries: Vec<Delivery>,
}

/// Digits as a number that is not negative.
fn number(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > DIGITS_MAX {
        return None;
    }
    let value = text.iter().try_fold(0_u64, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })?;
    i64::try_from(value).ok()
}

/// Read a handle of a group and a topic.
fn delivery(handle: &str, group: &str, topic: &str, policy: &AckPolicy) -> Option<Delivery> {
    if handle.len() > policy.handle_max || handle.contains('%') || !handle.is_ascii() {
        return None;
    }
    let rest = handle.as_bytes().strip_prefix(&policy.handle_begin[..])?;
    let rest = rest.strip_prefix(group.as_bytes())?.strip_prefix(b":")?;
    let rest = rest.strip_prefix(topic.as_bytes())?.strip_prefix(b":")?;
    let (mut values, mut found) = ([0; NUMBERS], 0);
    for text in rest.split(|byte| *byte == b':') {
        *values.get_mut(found)? = number(text)?;
        found += 1;
    }
    let [queue_id, epoch, offset, _, _, serial, attempt] = values;
    let allowed = found == NUMBERS
        && offset < policy.offset_max
        && queue_id <= policy.queue_id_max
        && (1..=policy.attempt_max).contains(&attempt);
    allowed.then_some(Delivery { queue_id, epoch, offset, serial })
}

/// Read a request; `None` where it is not plain.
pub fn read<'a>(request: &'a [u8], policy: &AckPolicy) -> Option<Request<'a>> {
    let (mut seen, mut group, mut topic, mut entries) = (0, "", "", vec![]);
    let mut reader = Reader::new(request);
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                group = resource(Reader::new(reader.bytes()?))?;
            }
            0x12 => {
                once(&mut seen, 2)?;
                topic = resource(Reader::new(reader.bytes()?))?;
            }
            0x1a if entries.len() < policy.entries_max => entries.push(entry(Reader::new(reader.bytes()?))?),
            _ => return None,
        }
    }
    if entries.is_empty() || group.contains(':') || topic.contains(':') {
        return None;
    }
    let deliveries = entries.iter().map(|entry| delivery(entry.handle, group, topic, policy));
    let deliveries = deliveries.collect::<Option<Vec<_>>>()?;
    Some(Request { group, topic, entries, deliveries })
}

fn entry(mut reader: Reader<'_>) -> Option<Entry<'_>> {
    let (mut seen, mut found) = (0, Entry { id: "", handle: "" });
    while !reader.is_done() {
        match reader.varint()? {
            0x0a => {
                once(&mut seen, 1)?;
                found.id = reader.text()?;
            }
            0x12 => {
                once(&mut seen, 2)?;
                found.handle = reader.text()?;
            }
            _ => return None, // a lite topic
        }
    }
    Some(found)
}

impl Entry<'_> {
    /// Bytes of its entry in the answer.
    fn answer(&self, policy: &AckPolicy) -> usize {
        let field = |size: usize| if size == 0 { 0 } else { 1 + varint_len(size as u64) + size };
        field(self.id.len()) + field(self.handle.len()) + policy.ok_3.len()
    }
}

impl Request<'_> {
    /// Bytes of the answer.
    pub fn answer_size(&self, policy: &AckPolicy) -> usize {
        let each = self.entries.iter().map(|entry| entry.answer(policy));
        policy.ok.len() + each.map(|size| 1 + varint_len(size as u64) + size).sum::<usize>()
    }

    /// Append the answer: its status, and id, handle and status of each entry.
    pub fn put_answer(&self, policy: &AckPolicy, out: &mut Vec<u8>) {
        out.extend_from_slice(&policy.ok);
        for entry in &self.entries {
            out.push(0x12);
            put_varint(out, entry.answer(policy) as u64);
            for (tag, text) in [(0x0a, entry.id), (0x12, entry.handle)] {
                if !text.is_empty() {
                    out.push(tag);
                    put_varint(out, text.len() as u64);
                    out.extend_from_slice(text.as_bytes());
                }
            }
            out.extend_from_slice(&policy.ok_3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> AckPolicy {
        AckPolicy {
            handle_begin: b"W1:b:".to_vec(),
            ok: b"\x0a\x01o".to_vec(),
            ok_3: b"\x1a\x01o".to_vec(),
            entries_max: 2,
            handle_max: 100,
            offset_max: 1 << 56,
            queue_id_max: 0xffff,
            attempt_max: 1 << 30,
        }
    }
    fn part(tag: u8, bytes: &[u8]) -> Vec<u8> {
        [&[tag, bytes.len() as u8][..], bytes].concat()
    }
    fn request(handles: &[&str]) -> Vec<u8> {
        let mut out = [part(0x0a, &part(0x12, b"g")), part(0x12, &part(0x12, b"t"))].concat();
        for handle in handles {
            out.extend(part(0x1a, &[part(0x0a, b"id"), part(0x12, handle.as_bytes())].concat()));
        }
        out
    }
    const HANDLE: &str = "W1:b:g:t:3:0:1f:a:5c:7fffffffffffffff:1";

    #[test]
    fn a_request_is_read_and_its_answer_has_the_size_that_was_counted() {
        let (bytes, policy) = (request(&[HANDLE, HANDLE]), policy());
        let found = read(&bytes, &policy).unwrap();
        let delivery = Delivery { queue_id: 3, epoch: 0, offset: 0x1f, serial: i64::MAX };
        assert_eq!((found.group, found.topic, found.deliveries.len()), ("g", "t", 2));
        assert_eq!(found.deliveries[0], delivery);
        let mut out = vec![];
        found.put_answer(&policy, &mut out);
        assert_eq!(out.len(), found.answer_size(&policy));
        assert!(out.starts_with(b"\x0a\x01o\x12\x30\x0a\x02id\x12\x27W1:"));
    }

    #[test]
    fn what_is_unusual_is_not_plain() {
        let is_plain = |bytes: &[u8]| read(bytes, &policy()).is_some();
        assert!(is_plain(&request(&[HANDLE])));
        for wrong in [
            "W2:b:g:t:3:0:1f:a:5c:1:1",
            "W1:c:g:t:3:0:1f:a:5c:1:1",
            "W1:b:h:t:3:0:1f:a:5c:1:1",
            "W1:b:g:u:3:0:1f:a:5c:1:1",
            "W1:b:g:t:3:0:1f:a:5c:1",
            "W1:b:g:t:3:0:1f:a:5c:1:1:1",
            "W1:b:g:t:3:0:1f:a:5c:1:0",
            "W1:b:g:t:3:0:1f:a:5c:1:40000001",
            "W1:b:g:t:10000:0:1f:a:5c:1:1",
            "W1:b:g:t:3:0:100000000000000:a:5c:1:1",
            "W1:b:g:t:3:0:1f:a:5c:8000000000000000:1",
            "W1:b:g:t:3:0:1F:a:5c:1:1",
            "W1:b:g:t:3:0: 1:a:5c:1:1",
            "W1:b:g:t:3:0::a:5c:1:1",
            "W1:b:g:t:3:0:00000000000000001:a:5c:1:1",
            "W1:b:%67:t:3:0:1f:a:5c:1:1",
            "",
        ] {
            assert!(!is_plain(&request(&[wrong])), "{wrong}");
        }
        assert!(!is_plain(&request(&[])));
        assert!(!is_plain(&request(&[HANDLE; 3])));
        assert!(!is_plain(&[request(&[HANDLE]), part(0x0a, b"")].concat()));
        let lite = part(0x1a, &[part(0x12, HANDLE.as_bytes()), part(0x1a, b"l")].concat());
        assert!(!is_plain(&[request(&[HANDLE]), lite].concat()));
    }

    #[test]
    fn no_single_wrong_byte_makes_it_panic() {
        let bytes = request(&[HANDLE]);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                let _ = read(&wrong, &policy());
            }
        }
    }
}
