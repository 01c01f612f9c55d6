//! A record of the log becomes the message that a consumer gets: a response to a receive or a pull.
//!
//! What is here does what `store/codec.py decode_record` checks and `broker/api/response_bytes.py message_frame`
//! writes. A record is plain if it is whole, its body is as its CRC says, all its text is UTF-8, no property comes twice,
//! and none makes of it more than an ordinary message (`Words::rare`). Sealed records are not plain.

use std::fmt::Write;

use crate::digest::digests;
use crate::proto::{put_varint, varint_len};
use crate::record::{Record, sound};

const COMPRESSED: i32 = 1;
const COMPRESSOR_BITS: i32 = 0x700;
const ZLIB: [i32; 2] = [0, 0x300]; // what a reader of GZIP knows
const FEW: usize = 16; // names that are compared with each other
const DIGEST: &[u8] = b"\x22\x24\x08\x02\x12\x20"; // head of the field: 36 bytes, type MD5, 32 digits

/// Names of properties; few have the same length.
pub struct Names {
    by_length: Vec<Vec<Vec<u8>>>,
}

impl Names {
    pub fn contains(&self, name: &[u8]) -> bool {
        self.by_length.get(name.len()).is_some_and(|alike| alike.iter().any(|one| one == name))
    }
}

impl FromIterator<Vec<u8>> for Names {
    fn from_iter<T: IntoIterator<Item = Vec<u8>>>(names: T) -> Self {
        let mut by_length: Vec<Vec<Vec<u8>>> = vec![];
        for name in names {
            by_length.resize(by_length.len().max(name.len() + 1), vec![]);
            by_length[name.len()].push(name);
        }
        Self { by_length }
    }
}

/// The properties that are not a user's.
pub struct Words {
    /// Names that consumers do not get.
    pub hidden: Names,
    /// Names of which one is enough to make a message more than a plain one.
    pub rare: Names,
    /// The latest time that there is.
    pub time_max_ms: i64,
    /// The greatest number of a delivery.
    pub attempt_max: u64,
}

/// The pairs of a property text that count: those with a name and a value.
pub fn pairs(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    properties.split(|byte| *byte == 2).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == 1)?;
        let (name, value) = (&pair[..at], &pair[at + 1..]);
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// Whether all names differ, and none is rare.
fn ordinary(properties: &[u8], words: &Words) -> bool {
    let (mut few, mut count): ([&[u8]; FEW], _) = ([b""; FEW], 0);
    for (name, _) in pairs(properties) {
        if words.rare.contains(name) || few[..count].contains(&name) {
            return false;
        }
        if count == FEW {
            return many_ordinary(properties, words);
        }
        few[count] = name;
        count += 1;
    }
    true
}

/// `ordinary` for any number of names: sorting costs more than comparing a few.
fn many_ordinary(properties: &[u8], words: &Words) -> bool {
    let mut names: Vec<&[u8]> = pairs(properties).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.windows(2).all(|two| two[0] != two[1]) && !names.iter().any(|name| words.rare.contains(name))
}

/// The record that `bytes` are, all of them, where it stands at `place` of the log and is plain.
pub fn plain<'a>(bytes: &'a [u8], place: i64, words: &Words) -> Option<Record<'a>> {
    let record = sound(bytes, place)?;
    let numbers =
        [record.born_time_ms, record.store_time_ms, record.queue_offset, i64::from(record.queue_id)];
    if record.size != bytes.len() || numbers.iter().any(|number| *number < 0) || record.topic.is_empty() {
        return None;
    }
    if record.sys_flag & COMPRESSED != 0 && !ZLIB.contains(&(record.sys_flag & COMPRESSOR_BITS)) {
        return None;
    }
    let text = std::str::from_utf8(record.topic).and_then(|_| std::str::from_utf8(record.properties));
    (text.is_ok() && ordinary(record.properties, words)).then_some(record)
}

/// A host as text; most messages have that of the one before.
#[derive(Default)]
struct Host {
    host: Vec<u8>,
    text: String,
}

impl Host {
    /// The text of a host; `port` is the same each time.
    fn text(&mut self, host: &[u8], port: bool) -> &str {
        if self.host != host {
            put_host(&mut self.text, host, port);
            self.host.clear();
            self.host.extend_from_slice(host);
        }
        &self.text
    }
}

/// A host as text, as Java writes it; `port` with its port.
fn put_host(out: &mut String, host: &[u8], port: bool) {
    let Some((address, number)) = host.split_last_chunk::<4>() else { return };
    out.clear();
    if address.len() == 4 {
        let _ = write!(out, "{}.{}.{}.{}", address[0], address[1], address[2], address[3]);
    } else {
        let groups = address.chunks(2).map(|two| u16::from(two[0]) << 8 | u16::from(two[1]));
        for (group, before) in groups.zip(std::iter::once('[').chain(std::iter::repeat(':'))) {
            let _ = write!(out, "{before}{group:x}");
        }
        out.push(']');
    }
    if port {
        let _ = write!(out, ":{}", i32::from_be_bytes(*number));
    }
}

/// Append digits of bytes.
fn put_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |digit: u8| b"0123456789ABCDEF"[usize::from(digit)];
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// Append a field that is bytes behind their length.
fn put_field(out: &mut Vec<u8>, tag: &[u8], bytes: &[u8]) {
    out.extend_from_slice(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Append a time behind its length.
fn put_time(out: &mut Vec<u8>, tag: u8, at_ms: i64, words: &Words) {
    let at_ms = at_ms.min(words.time_max_ms) as u64;
    let (seconds, nanos) = (at_ms / 1000, at_ms % 1000 * 1_000_000);
    let size = |value| if value == 0 { 0 } else { 1 + varint_len(value) };
    out.extend([tag, (size(seconds) + size(nanos)) as u8]);
    for (tag, value) in [(0x08, seconds), (0x10, nanos)] {
        if value > 0 {
            out.push(tag);
            put_varint(out, value);
        }
    }
}

/// A record that becomes the message of a response.
pub struct Message<'a> {
    pub record: Record<'a>,
    /// The receipt handle; empty for none.
    pub handle: &'a str,
    /// The number of the delivery.
    pub attempt: u64,
}

/// Append responses with messages, each behind gRPC's prefix; `None`: one is too large for that.
pub fn put_responses(
    messages: &[Message<'_>],
    namespace: &str,
    words: &Words,
    out: &mut Vec<u8>,
) -> Option<()> {
    let bodies: Vec<&[u8]> = messages.iter().map(|message| message.record.body).collect();
    let (mut found, mut responses) = (Vec::with_capacity(bodies.len()), Responses::default());
    digests(&bodies, &mut found);
    for (message, digest) in messages.iter().zip(&found) {
        responses.put(message, digest, namespace, words, out)?;
    }
    Some(())
}

/// Makes responses; it keeps its buffers.
#[derive(Default)]
struct Responses {
    system: Vec<u8>,
    users: Vec<u8>,
    pair: Vec<u8>,
    born: Host,
    store: Host,
}

impl Responses {
    /// Append the response with a message, behind gRPC's prefix; `digest` is that of its body.
    fn put(
        &mut self,
        message: &Message<'_>,
        digest: &[u8],
        namespace: &str,
        words: &Words,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        self.fill(message, digest, words);
        let record = &message.record;
        let resource = |size: usize| if size == 0 { 0 } else { 1 + varint_len(size as u64) + size };
        let topic = resource(namespace.len()) + resource(record.topic.len());
        let (system, body) = (self.system.len(), record.body.len());
        let size = 1
            + varint_len(topic as u64)
            + topic
            + self.users.len()
            + 1
            + varint_len(system as u64)
            + system
            + resource(body);
        out.push(0);
        let framed = u32::try_from(1 + varint_len(size as u64) + size).ok()?;
        out.extend_from_slice(&framed.to_be_bytes());
        out.push(0x12);
        put_varint(out, size as u64);
        out.push(0x0a);
        put_varint(out, topic as u64);
        if !namespace.is_empty() {
            put_field(out, b"\x0a", namespace.as_bytes());
        }
        put_field(out, b"\x12", record.topic);
        out.extend_from_slice(&self.users);
        put_field(out, b"\x1a", &self.system);
        if body > 0 {
            put_field(out, b"\x22", record.body);
        }
        Some(())
    }

    /// Make the properties of a message, the user's and the system's.
    fn fill(&mut self, message: &Message<'_>, digest: &[u8], words: &Words) {
        let Message { record, handle, attempt } = message;
        let Self { system, users, pair, born, store } = self;
        system.clear();
        users.clear();
        let (mut id, mut host, mut trace, mut keys): (&[u8], &[u8], &[u8], &[u8]) = (b"", b"", b"", b"");
        for (name, value) in pairs(record.properties) {
            match name {
                b"UNIQ_KEY" => id = value,
                b"TAGS" => put_field(system, b"\x0a", value),
                b"KEYS" => keys = value,
                b"__BORNHOST" => host = value,
                b"TRACE_CONTEXT" => trace = value,
                _ if words.hidden.contains(name) => {}
                _ => {
                    pair.clear();
                    put_field(pair, b"\x0a", name);
                    put_field(pair, b"\x12", value);
                    put_field(users, b"\x12", pair);
                }
            }
        }
        for key in keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
            put_field(system, b"\x12", key);
        }
        if id.is_empty() {
            pair.clear();
            put_hex(pair, record.store_host);
            put_hex(pair, &record.physical_offset.to_be_bytes());
            id = pair;
        }
        put_field(system, b"\x1a", id);
        system.extend_from_slice(DIGEST);
        put_hex(system, digest);
        let zipped = record.sys_flag & COMPRESSED != 0 && !record.body.is_empty();
        let encoding = if zipped { 2 } else { 1 };
        system.extend([0x28, encoding, 0x30, 1]);
        put_time(system, 0x3a, record.born_time_ms, words);
        if host.is_empty() {
            host = born.text(record.born_host, false).as_bytes();
        }
        put_field(system, b"\x42", host);
        put_time(system, 0x4a, record.store_time_ms, words);
        put_field(system, b"\x52", store.text(record.store_host, true).as_bytes());
        if !handle.is_empty() {
            put_field(system, b"\x62", handle.as_bytes());
        }
        if record.queue_id > 0 {
            system.push(0x68);
            put_varint(system, record.queue_id as u64);
        }
        system.push(0x70);
        put_varint(system, record.queue_offset as u64);
        system.extend(b"\x80\x01");
        put_varint(system, *attempt);
        if !trace.is_empty() {
            put_field(system, b"\x92\x01", trace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    fn words() -> Words {
        Words {
            hidden: Names::from_iter([b"CLUSTER".to_vec()]),
            rare: Names::from_iter([b"__SHARDINGKEY".to_vec()]),
            time_max_ms: 1 << 50,
            attempt_max: 1 << 30,
        }
    }
    /// A record whose body has its CRC.
    fn sound(properties: &[u8]) -> Vec<u8> {
        let mut bytes = record(b"topic", (3, 7), 40, 0, properties);
        bytes[8..12].copy_from_slice(&crc32fast::hash(b"body").to_be_bytes());
        bytes
    }
    fn is_plain(bytes: &[u8]) -> bool {
        plain(bytes, 40, &words()).is_some()
    }

    #[test]
    fn a_message_has_its_fields_and_the_size_that_its_prefix_says() {
        let bytes = sound(b"a\x011\x02UNIQ_KEY\x01id\x02KEYS\x01k  l\x02TAGS\x01t\x02CLUSTER\x01c\x02");
        let record = plain(&bytes, 40, &words()).unwrap();
        let mut out = vec![];
        put_responses(&[Message { record, handle: "handle", attempt: 300 }], "", &words(), &mut out).unwrap();
        assert_eq!(out[..5], [&[0][..], &(out.len() as u32 - 5).to_be_bytes()].concat());
        for part in [
            &b"\x0a\x07\x12\x05topic\x12\x06\x0a\x01a\x12\x011\x1a"[..],
            b"\x0a\x01t\x12\x01k\x12\x01l\x1a\x02id\x22\x24\x08\x02\x12\x20841A2D689AD86BD1611447453C22C6FC",
            b"\x62\x06handle\x68\x03\x70\x07\x80\x01\xac\x02\x22\x04body",
        ] {
            assert!(out.windows(part.len()).any(|some| some == part), "{part:?}");
        }
    }

    #[test]
    fn what_is_unusual_is_not_plain() {
        assert!(is_plain(&sound(b"a\x011\x02b\x01\x02c\x02\x01d\x02")));
        let many = (b'a'..=b'z').flat_map(|name| [name, 1, b'v', 2]).collect::<Vec<_>>();
        assert!(is_plain(&sound(&many)));
        assert!(!is_plain(&record(b"topic", (3, 7), 40, 0, b"")), "another CRC");
        assert!(plain(&sound(b""), 41, &words()).is_none(), "another place");
        for properties in [
            &b"a\x011\x02a\x012"[..],
            &[&many[..], b"a\x011\x02"].concat(),
            &[&many[..], b"__SHARDINGKEY\x01g\x02"].concat(),
            b"__SHARDINGKEY\x01g\x02",
            b"a\x01\xff\x02",
            b"a\x01b\x02__CRC32#\x010123456789\x02",
            b"__CRC32#\x010123456789\x02",
        ] {
            assert!(!is_plain(&sound(properties)), "{properties:?}");
        }
        for (sys_flag, taken) in [(1, true), (0x301, true), (0x101, false), (0x201, false), (0x401, false)] {
            let mut zipped = sound(b"");
            zipped[36..40].copy_from_slice(&i32::to_be_bytes(sys_flag));
            assert_eq!(is_plain(&zipped), taken, "{sys_flag:x}");
        }
        let mut longer = sound(b"a\x011\x02");
        longer[99] ^= 1; // the length of the properties
        assert!(!is_plain(&longer));
        assert!(!is_plain(&[&sound(b"")[..], b"x"].concat()));
    }

    #[test]
    fn hosts_are_written_as_java_does() {
        let mut text = String::new();
        put_host(&mut text, &[127, 0, 0, 1, 0, 0, 0x27, 0x10], true);
        assert_eq!(text, "127.0.0.1:10000");
        let v6 = [&[0; 14][..], &[0x1f, 1, 0, 0, 0, 9]].concat();
        put_host(&mut text, &v6, false);
        assert_eq!(text, "[0:0:0:0:0:0:0:1f01]");
    }

    #[test]
    fn no_single_wrong_byte_makes_it_panic() {
        let bytes = sound(b"TAGS\x01a\x02KEYS\x01k l\x02");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                if let Some(record) = plain(&wrong, 40, &words()) {
                    let message = Message { record, handle: "h", attempt: 1 };
                    put_responses(&[message], "n", &words(), &mut vec![]).unwrap();
                }
            }
        }
    }
}
