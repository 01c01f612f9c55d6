//! One record of the log, as `store/codec.py` describes it.
//!
//! All integers are big-endian. B and S are the lengths of the hosts, 8 for IPv4 and 20 for IPv6.
//!
//! ```text
//! 0   i32 size        20  i64 queue offset      40    i64 born timestamp, host   60+B+S  i64 prepared offset
//! 4   u32 magic       28  i64 physical offset   48+B  i64 store timestamp, host  68+B+S  i32 body length, then the
//! 8   u32 body CRC    36  i32 system flag       56+B+S  i32 reconsume times      body, u8 (V2: u16) and topic,
//! 12  i32 queue id                                                               u16 and properties
//! ```

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB; // topics of more than 127 bytes
pub const RECORD_BYTES_MIN: usize = 91;

const CRC_MASK: u32 = 0x7fff_ffff;
const SEAL_SIZE: usize = 20; // `__CRC32#`, 0x01, ten digits and 0x02 at the end of the properties; see `seal` in codec.py
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const TRANSACTION_MASK: i32 = 0x0C;
const TRANSACTION_PREPARED: i32 = 0x04;
const TRANSACTION_ROLLBACK: i32 = 0x0C;

/// A whole record. Its properties are all that follows the topic, whatever their length field says.
#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub size: usize,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_time_ms: i64,
    /// Address and port, 8 or 20 bytes.
    pub born_host: &'a [u8],
    pub store_time_ms: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub body_crc: u32,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
    /// What the length field says.
    pub properties_length: usize,
}

impl Record<'_> {
    /// Whether it has an entry in a consume queue.
    pub fn has_entry(&self) -> bool {
        let kind = self.sys_flag & TRANSACTION_MASK;
        kind != TRANSACTION_PREPARED && kind != TRANSACTION_ROLLBACK
    }
    /// Whether its keys are in the index.
    pub fn has_keys(&self) -> bool {
        self.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
    }
}

/// What stands at the begin of some bytes of the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    Record(Record<'a>),
    /// Too few bytes for a record, or for the whole of one.
    Partial,
    /// Not plain, or no record: Python's.
    Foreign,
}

/// The `N` bytes at a place.
pub(crate) fn field<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk::<N>().copied()
}
fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    field(data, at).map(i32::from_be_bytes)
}
fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    field(data, at).map(i64::from_be_bytes)
}

/// Read what stands at the begin of `data`.
pub fn next(data: &[u8]) -> Next<'_> {
    let (Some(size), Some(magic)) = (i32_at(data, 0), field(data, 4).map(u32::from_be_bytes)) else {
        return Next::Partial;
    };
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Next::Foreign;
    }
    let Ok(size) = usize::try_from(size) else { return Next::Foreign };
    if size < RECORD_BYTES_MIN {
        return Next::Foreign;
    }
    match data.get(..size) {
        None => Next::Partial,
        Some(record) => whole(record, magic).map_or(Next::Foreign, Next::Record),
    }
}

/// Read a whole record; `None` where its lengths do not fit.
fn whole(record: &[u8], magic: u32) -> Option<Record<'_>> {
    let sys_flag = i32_at(record, 36)?;
    let born = if sys_flag & BORN_V6 == 0 { 8 } else { 20 };
    let store = if sys_flag & STORE_V6 == 0 { 8 } else { 20 };
    let body = usize::try_from(i32_at(record, 68 + born + store)?).ok()?;
    let (body, rest) = record.get(72 + born + store..)?.split_at_checked(body)?;
    let (topic, rest) = if magic == MAGIC_V1 {
        let (length, rest) = rest.split_first()?;
        rest.split_at_checked(usize::from(*length))?
    } else {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?
    };
    let (length, properties) = rest.split_first_chunk::<2>()?;
    Some(Record {
        size: record.len(),
        queue_id: i32_at(record, 12)?,
        queue_offset: i64_at(record, 20)?,
        physical_offset: i64_at(record, 28)?,
        sys_flag,
        born_time_ms: i64_at(record, 40)?,
        born_host: record.get(48..48 + born)?,
        store_time_ms: i64_at(record, 48 + born)?,
        store_host: record.get(56 + born..56 + born + store)?,
        reconsume_times: i32_at(record, 56 + born + store)?,
        body_crc: field(record, 8).map(u32::from_be_bytes)?,
        body,
        topic,
        properties,
        properties_length: usize::from(u16::from_be_bytes(*length)),
    })
}

/// The record that `bytes` begin with, where it is sound: whole, where it says, its body as its CRC says, not sealed.
pub fn sound(bytes: &[u8], place: i64) -> Option<Record<'_>> {
    let Next::Record(record) = next(bytes) else { return None };
    if record.properties_length != record.properties.len() || record.physical_offset != place {
        return None;
    }
    if crc32fast::hash(record.body) & CRC_MASK != record.body_crc & CRC_MASK {
        return None;
    }
    let seal =
        record.properties.len().checked_sub(SEAL_SIZE).and_then(|at| record.properties.get(at..at + 8));
    let sealed = seal.is_some_and(|text| text.starts_with(b"__CR") || text.ends_with(b"C32#"));
    (!sealed).then_some(record)
}

/// Walk over the records at the begin of a piece of the log: bytes of those that recovery keeps, and the place of the
/// last one.
///
/// It ends at the first record whose topic or properties may be unusual: Python looks at it. Of others it says the same
/// as `store/codec.py record_fault`.
pub fn kept(data: &[u8], base: i64) -> (usize, Option<i64>) {
    let (mut at, mut last) = (0, None);
    while let Some(record) = base.checked_add(at as i64).and_then(|place| sound(&data[at..], place)) {
        let printable = |byte: &u8| (b' '..=b'~').contains(byte);
        if !record.topic.iter().all(printable) || record.properties.contains(&0) {
            break;
        }
        last = Some(record.physical_offset);
        at += record.size;
    }
    (at, last)
}

/// The value of a property, empty without one. The last of several counts, and empty ones do not.
pub fn property<'a>(properties: &'a [u8], name: &[u8]) -> &'a [u8] {
    properties
        .split(|byte| *byte == 2)
        .filter_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"\x01"))
        .rfind(|value| !value.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record with IPv4 hosts.
    pub(crate) fn record(
        topic: &[u8],
        queue: (i32, i64),
        place: i64,
        flag: i32,
        properties: &[u8],
    ) -> Vec<u8> {
        let mut bytes = vec![0; 88];
        bytes[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        bytes[12..16].copy_from_slice(&queue.0.to_be_bytes());
        bytes[20..28].copy_from_slice(&queue.1.to_be_bytes());
        bytes[28..36].copy_from_slice(&place.to_be_bytes());
        bytes[36..40].copy_from_slice(&flag.to_be_bytes());
        bytes[56..64].copy_from_slice(&1_700_000_000_000_i64.to_be_bytes());
        bytes[84..88].copy_from_slice(&4_i32.to_be_bytes());
        bytes.extend_from_slice(b"body");
        bytes.push(topic.len() as u8);
        bytes.extend_from_slice(topic);
        bytes.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        bytes.extend_from_slice(properties);
        let size = bytes.len() as i32;
        bytes[..4].copy_from_slice(&size.to_be_bytes());
        bytes
    }

    #[test]
    fn a_record_is_read_and_each_of_its_begins_is_partial() {
        let bytes = record(b"t", (3, 7), 0, 0, b"TAGS\x01a\x02");
        let Next::Record(found) = next(&bytes) else { panic!() };
        assert_eq!((found.queue_id, found.queue_offset, found.topic), (3, 7, &b"t"[..]));
        assert_eq!(found.store_time_ms, 1_700_000_000_000);
        for end in 0..bytes.len() {
            assert_eq!(next(&bytes[..end]), Next::Partial, "{end}");
        }
    }

    #[test]
    fn no_single_wrong_byte_makes_it_panic() {
        let bytes = record(b"topic", (3, 7), 0, 0, b"TAGS\x01a\x02KEYS\x01k l\x02");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                let _ = next(&wrong);
            }
        }
    }

    #[test]
    fn the_last_value_of_a_property_counts() {
        let text = b"A\x01KEYS\x01no\x02KEYS\x01first\x02XKEYS\x01no\x02KEYS\x01\x02KEYS\x01last";
        assert_eq!(property(text, b"KEYS"), b"last");
        assert_eq!(property(text, b"TAGS"), b"");
    }
}
