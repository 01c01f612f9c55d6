//! Records of the log become entries of the consume queues, and keys for the index.
//!
//! Both stop at the first record that is not plain, or not whole; what stands there is for Python to say.

use std::collections::HashMap;

use crate::hash::{key_hash, tag_key_hash, tags_code, topic_hash};
use crate::index::Keyed;
use crate::record::{Next, Record, next, property};

pub const UNIT_SIZE: usize = 20;

const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX"; // its entries hold times that depend on the broker's table

/// Entries of one queue that follow each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Run<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    /// The number of the first entry.
    pub first: i64,
    /// Packed: i64 physical offset, i32 size, i64 tags code.
    pub entries: Vec<u8>,
}

/// What became of the begin of a piece of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dispatched<'a> {
    /// Bytes that were understood.
    pub bytes: usize,
    /// What stands behind them is not plain; else it is not whole, or there is nothing.
    pub foreign: bool,
    /// Of the last record.
    pub store_time_ms: i64,
    pub runs: Vec<Run<'a>>,
}

/// Reads record after record.
struct Records<'a> {
    data: &'a [u8],
    base: i64,
    at: usize,
    foreign: bool,
}

impl<'a> Records<'a> {
    /// Begin with `data`, which stands at `base`.
    fn new(data: &'a [u8], base: i64) -> Self {
        Self { data, base, at: 0, foreign: false }
    }
    /// The place of the next record, and the record.
    fn next(&mut self) -> Option<(i64, Record<'a>)> {
        match next(&self.data[self.at..]) {
            Next::Record(record) => Some((self.base.checked_add(self.at as i64)?, record)),
            Next::Partial => None,
            Next::Foreign => {
                self.foreign = true;
                None
            }
        }
    }
}

/// Make the queue entries of the records at the begin of `data`.
pub fn entries(data: &[u8], base: i64) -> Dispatched<'_> {
    let mut found = Dispatched::default();
    let mut by_queue: HashMap<(&[u8], i32), usize> = HashMap::new();
    let mut records = Records::new(data, base);
    while let Some((place, record)) = records.next() {
        if add_entry(&record, place, &mut by_queue, &mut found.runs).is_none() {
            records.foreign = true;
            break;
        }
        found.store_time_ms = record.store_time_ms;
        records.at += record.size;
    }
    (found.bytes, found.foreign) = (records.at, records.foreign);
    found
}

/// Add the entry of a record to the run of its queue.
fn add_entry<'a>(
    record: &Record<'a>,
    place: i64,
    by_queue: &mut HashMap<(&'a [u8], i32), usize>,
    runs: &mut Vec<Run<'a>>,
) -> Option<()> {
    if record.physical_offset != place {
        return None;
    }
    if !record.has_entry() {
        return Some(());
    }
    if record.topic == SCHEDULE_TOPIC {
        return None;
    }
    let tags = tags_code(property(record.properties, b"TAGS"))?;
    let key = (record.topic, record.queue_id);
    let number = if let Some(number) = by_queue.get(&key) {
        *number
    } else {
        let (topic, queue_id, first) = (record.topic, record.queue_id, record.queue_offset);
        runs.push(Run { topic, queue_id, first, entries: vec![] });
        *by_queue.entry(key).or_insert(runs.len() - 1)
    };
    let run = &mut runs[number];
    if run.first.checked_add((run.entries.len() / UNIT_SIZE) as i64) != Some(record.queue_offset) {
        return None;
    }
    run.entries.extend_from_slice(&place.to_be_bytes());
    run.entries.extend_from_slice(&(record.size as i32).to_be_bytes());
    run.entries.extend_from_slice(&tags.to_be_bytes());
    Some(())
}

/// The hashed keys of the records at the begin of a piece of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    /// Bytes that were understood.
    pub bytes: usize,
    /// As in `Dispatched`.
    pub foreign: bool,
    pub keys: Vec<Keyed>,
}

/// Hash the keys of the records at the begin of `data`; tags are keys as well where the index has them.
pub fn keys(data: &[u8], base: i64, tags: bool) -> Hashed {
    let mut topics: HashMap<&[u8], u32> = HashMap::new();
    let mut found = Hashed::default();
    let mut records = Records::new(data, base);
    while let Some((place, record)) = records.next() {
        let before = found.keys.len();
        if add_keys(&record, place, tags, &mut topics, &mut found.keys).is_none() {
            found.keys.truncate(before);
            records.foreign = true;
            break;
        }
        records.at += record.size;
    }
    (found.bytes, found.foreign) = (records.at, records.foreign);
    found
}

/// Add the keys of a record: its id, then every word of KEYS, then its tag where it is one.
fn add_keys<'a>(
    record: &Record<'a>,
    place: i64,
    tags: bool,
    topics: &mut HashMap<&'a [u8], u32>,
    keys: &mut Vec<Keyed>,
) -> Option<()> {
    if !record.has_keys() {
        return Some(());
    }
    let unique = property(record.properties, b"UNIQ_KEY");
    let words = property(record.properties, b"KEYS");
    let tag = if tags { property(record.properties, b"TAGS") } else { b"" };
    if unique.is_empty() && words.is_empty() && tag.is_empty() {
        return Some(());
    }
    let topic = match topics.get(record.topic) {
        Some(hash) => *hash,
        None => *topics.entry(record.topic).or_insert(topic_hash(record.topic)?),
    };
    let keyed = |hash| Keyed { hash, physical_offset: place, store_time_ms: record.store_time_ms };
    for key in std::iter::once(unique).chain(words.split(|byte| *byte == b' ')) {
        if !key.is_empty() {
            keys.push(keyed(key_hash(topic, key)?));
        }
    }
    if !tag.is_empty() {
        keys.push(keyed(tag_key_hash(topic, tag)?));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    /// Topic, queue id and offset, system flag, properties.
    type Fields<'a> = (&'a [u8], (i32, i64), i32, &'a [u8]);

    fn log(records: &[Fields]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (topic, queue, flag, properties) in records {
            bytes.extend(record(topic, *queue, 1000 + bytes.len() as i64, *flag, properties));
        }
        bytes
    }

    #[test]
    fn records_become_runs_by_queue() {
        let bytes = log(&[
            (b"a", (0, 5), 0, b"TAGS\x01x\x02"),
            (b"a", (1, 9), 0, b""),
            (b"a", (0, 6), 0, b""),
            (b"b", (0, 0), 0x04, b""), // prepared
        ]);
        let found = entries(&bytes, 1000);
        assert_eq!(found.bytes, bytes.len());
        let runs: Vec<_> =
            found.runs.iter().map(|run| (run.topic, run.queue_id, run.first, run.entries.len())).collect();
        assert_eq!(runs, [(&b"a"[..], 0, 5, 40), (&b"a"[..], 1, 9, 20)]);
        assert_eq!(&found.runs[0].entries[12..20], &120_i64.to_be_bytes());
    }

    #[test]
    fn what_is_not_plain_ends_them_before_it() {
        let plain: Fields = (b"a", (0, 5), 0, b"");
        for odd in [
            (&b"SCHEDULE_TOPIC_XXXX"[..], (0, 0), 0, &b""[..]),
            (b"a", (0, 7), 0, b""), // one is missing in between
            (b"a", (0, 6), 0, b"TAGS\x01\xff\x02"),
        ] {
            let bytes = log(&[plain, odd, plain]);
            let found = entries(&bytes, 1000);
            assert_eq!((found.bytes, found.foreign), (log(&[plain]).len(), true), "{odd:?}");
            assert_eq!(found.runs.len(), 1);
        }
        let bytes = log(&[plain]);
        assert_eq!(entries(&bytes, 999), Dispatched { foreign: true, ..Dispatched::default() });
        assert_eq!(entries(&bytes[..95], 1000), Dispatched::default());
    }

    #[test]
    fn keys_are_the_id_and_each_word() {
        let bytes = log(&[
            (b"a", (0, 0), 0, b"UNIQ_KEY\x01id\x02KEYS\x01k  l\x02"),
            (b"a", (0, 1), 0x0C, b"UNIQ_KEY\x01no\x02"),
            (b"a", (0, 1), 0, b"KEYS\x01ok \xff\x02"),
        ]);
        let found = keys(&bytes, 1000, false);
        assert!(found.foreign);
        assert_eq!(
            found.bytes,
            log(&[
                (b"a", (0, 0), 0, b"UNIQ_KEY\x01id\x02KEYS\x01k  l\x02"),
                (b"a", (0, 1), 0x0C, b"UNIQ_KEY\x01no\x02")
            ])
            .len()
        );
        let topic = topic_hash(b"a").unwrap();
        let hashes: Vec<_> = found.keys.iter().map(|keyed| keyed.hash).collect();
        assert_eq!(hashes, [b"id".as_slice(), b"k", b"l"].map(|key| key_hash(topic, key).unwrap()));
    }

    #[test]
    fn a_tag_is_a_key_where_the_index_has_them() {
        let bytes =
            log(&[(b"a", (0, 0), 0, b"KEYS\x01k\x02TAGS\x01t\x02"), (b"a", (0, 1), 0, b"TAGS\x01t\x02")]);
        let topic = topic_hash(b"a").unwrap();
        let hashes = |tags| keys(&bytes, 1000, tags).keys.iter().map(|keyed| keyed.hash).collect::<Vec<_>>();
        assert_eq!(hashes(false), [key_hash(topic, b"k").unwrap()]);
        assert_eq!(hashes(true), [b"k".as_slice(), b"T#t", b"T#t"].map(|key| key_hash(topic, key).unwrap()));
    }
}
