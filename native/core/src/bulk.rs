//! Queue entries become the plan of a bulk reader's frame, and what was read of the log for it the frame's bytes.
//!
//! What is here does what `store/runs.py` does in `take` and `read`. A plan ends before the
//! first entry whose record has no room left, or that tells of no record; what that means is for Python to say.

use std::collections::HashSet;
use std::ops::Range;

use crate::dispatch::UNIT_SIZE;
use crate::record::{MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, field};

const FILLER_SIZE: i32 = 0x7fff_ffff; // of an entry that stands for a message which this store never had

/// What a plan keeps to.
#[derive(Debug)]
pub struct Bounds {
    /// Of the log's files.
    pub file_size: i64,
    /// Bytes of other records that are read along with those on both sides of them.
    pub gap_max: i64,
    /// Bytes read at once; a larger record makes a larger span.
    pub span_max: i64,
    /// Hashes of the wanted tags; `None` for all.
    pub codes: Option<HashSet<u32>>,
}

/// Place, size and hash of the tags that an entry tells of; the hash is the low half of their code.
fn unit(entry: &[u8]) -> Option<(i64, i32, u32)> {
    let code = i64::from_be_bytes(field(entry, 12)?) as u32;
    Some((i64::from_be_bytes(field(entry, 0)?), i32::from_be_bytes(field(entry, 8)?), code))
}

/// What a pull may have.
#[derive(Debug)]
pub struct Pulled {
    pub records_max: usize,
    /// Bytes of one record.
    pub record_max: i64,
    pub log_begin: i64,
}

/// A piece of the log that is read at once.
#[derive(Debug)]
struct Span {
    begin: i64,
    end: i64,
    /// Its records are those of the plan from this one on.
    first: usize,
}

/// The parts of the log that go into a frame. It grows until its room is used up: its records have that many bytes
/// at most, and each has `RECORD_BYTES_MIN`.
#[derive(Debug)]
pub struct Plan {
    bounds: Bounds,
    room: i64,
    /// Place and size, in the order of the queue.
    records: Vec<(i64, i64)>,
    spans: Vec<Span>,
    /// Of the last record.
    end: i64,
    /// The last span goes no further.
    limit: i64,
}

impl Plan {
    /// Begin without an entry; `room` is how many bytes of records there may be.
    pub fn new(bounds: Bounds, room: i64) -> Self {
        Self { bounds, room, records: vec![], spans: vec![], end: -1, limit: -1 }
    }

    /// Bytes of records that it may still take; below 0 where the only one is larger.
    pub fn room(&self) -> i64 {
        self.room
    }

    /// How many records it has.
    pub fn count(&self) -> usize {
        self.records.len()
    }

    /// Where the last record stands.
    pub fn last_place(&self) -> Option<i64> {
        self.records.last().map(|(place, _)| *place)
    }

    /// Begin and end of each piece of the log that is to be read, in order.
    pub fn spans(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.spans.iter().map(|span| (span.begin, span.end))
    }

    /// Take packed entries that follow those before; return how many are done.
    pub fn take(&mut self, packed: &[u8]) -> usize {
        packed.chunks_exact(UNIT_SIZE).take_while(|entry| self.add(entry).is_some()).count()
    }

    /// Take packed entries for a pull; return how many are done, or `None` where one tells of no record.
    ///
    /// It does what `broker/engine/read_forms.py` does in `whole_records`: of records below the log's begin nothing is there
    /// any more, and the first record may be larger than the room.
    pub fn take_pulled(&mut self, packed: &[u8], pulled: &Pulled) -> Option<usize> {
        let mut done = 0;
        for entry in packed.chunks_exact(UNIT_SIZE) {
            let (place, size, code) = unit(entry)?;
            let wanted = self.bounds.codes.as_ref().is_none_or(|codes| codes.contains(&code));
            if wanted && size != FILLER_SIZE && place >= pulled.log_begin {
                let (some, bytes) = (!self.records.is_empty(), i64::from(size));
                if self.records.len() >= pulled.records_max || (some && bytes > self.room) {
                    break;
                }
                if bytes < RECORD_BYTES_MIN as i64 || bytes > pulled.record_max {
                    return None;
                }
                self.put(place, bytes)?;
            }
            done += 1;
        }
        Some(done)
    }

    /// Take an entry, whose record may be wanted or not; `None` where it is not for this plan.
    fn add(&mut self, entry: &[u8]) -> Option<()> {
        let (place, size, code) = unit(entry)?;
        if self.bounds.codes.as_ref().is_some_and(|codes| !codes.contains(&code)) {
            return Some(());
        }
        let bytes = i64::from(size);
        if bytes > self.room || bytes < RECORD_BYTES_MIN as i64 {
            return (size == FILLER_SIZE).then_some(());
        }
        self.put(place, bytes)
    }

    /// Add a record to the last span, or to one of its own; `None` where it can't stand there.
    fn put(&mut self, place: i64, bytes: i64) -> Option<()> {
        let file_size = self.bounds.file_size;
        if place < 0 || file_size <= 0 {
            return None;
        }
        let end = place.checked_add(bytes)?;
        let near = (0..=self.bounds.gap_max).contains(&(place - self.end));
        if let Some(span) = self.spans.last_mut().filter(|_| near && end <= self.limit) {
            span.end = end;
        } else {
            let file_end = (place - place % file_size).checked_add(file_size)?;
            self.limit = file_end.min(place.checked_add(self.bounds.span_max)?);
            self.spans.push(Span { begin: place, end, first: self.records.len() });
        }
        self.records.push((place, bytes));
        self.end = end;
        self.room -= bytes;
        Some(())
    }

    /// Where the records are in what was read for the spans: the number of a read, and a piece of it.
    ///
    /// Pieces that touch are one. `None`: something is missing, or a record is not as its entry says.
    pub fn pieces(&self, reads: &[&[u8]]) -> Option<Vec<(usize, Range<usize>)>> {
        let mut found: Vec<(usize, Range<usize>)> = vec![];
        for (number, span) in self.spans.iter().enumerate() {
            let read = *reads.get(number)?;
            let last = self.spans.get(number + 1).map_or(self.records.len(), |next| next.first);
            for (place, size) in self.records.get(span.first..last)? {
                let begin = usize::try_from(place - span.begin).ok()?;
                let end = begin.checked_add(usize::try_from(*size).ok()?)?;
                let record = read.get(begin..end)?;
                let magic = u32::from_be_bytes(field(record, 4)?);
                let stored = i64::from(i32::from_be_bytes(field(record, 0)?));
                if stored != *size || (magic != MAGIC_V1 && magic != MAGIC_V2) {
                    return None;
                }
                match found.last_mut().filter(|(read, piece)| *read == number && piece.end == begin) {
                    Some((_, piece)) => piece.end = end,
                    None => found.push((number, begin..end)),
                }
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(some: &[(i64, i32, i64)]) -> Vec<u8> {
        some.iter()
            .flat_map(|(place, size, code)| {
                [&place.to_be_bytes()[..], &size.to_be_bytes(), &code.to_be_bytes()].concat()
            })
            .collect()
    }
    fn plan(room: i64) -> Plan {
        Plan::new(Bounds { file_size: 10_000, gap_max: 50, span_max: 1_000, codes: None }, room)
    }
    fn spans(plan: &Plan) -> Vec<(i64, i64)> {
        plan.spans().collect()
    }
    /// Bytes of a log with a record of 100 bytes at each hundred.
    fn log(begin: usize, end: usize) -> Vec<u8> {
        let mut bytes = vec![0; end];
        for at in (0..end).step_by(100) {
            bytes[at..at + 4].copy_from_slice(&100_i32.to_be_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        }
        bytes.split_off(begin)
    }

    #[test]
    fn records_that_are_near_each_other_are_read_at_once() {
        let mut found = plan(1 << 20);
        let some = [(0, 100, 0), (100, 100, 0), (250, 100, 0), (401, 100, 0), (300, 100, 0)];
        assert_eq!(found.take(&entries(&some)), 5);
        assert_eq!(spans(&found), [(0, 350), (401, 501), (300, 400)]);
    }

    #[test]
    fn spans_end_with_a_file_and_at_their_bound() {
        let mut found = plan(1 << 20);
        found.take(&entries(&[(9_800, 100, 0), (9_900, 100, 0), (10_000, 900, 0), (10_900, 101, 0)]));
        assert_eq!(spans(&found), [(9_800, 10_000), (10_000, 10_900), (10_900, 11_001)]);
    }

    #[test]
    fn a_plan_ends_before_what_is_not_for_it() {
        for odd in [(100, 801, 0), (100, 90, 0), (100, -5, 0), (-1, 100, 0), (i64::MAX - 50, 100, 0)] {
            let mut found = plan(900);
            let some = [(0, 100, 0), (0, FILLER_SIZE, 0), odd, (100, 100, 0)];
            assert_eq!(found.take(&entries(&some)), 2, "{odd:?}");
            assert_eq!((found.room(), spans(&found)), (800, vec![(0, 100)]));
        }
    }

    #[test]
    fn a_pull_has_so_many_records_and_bytes() {
        let some =
            entries(&[(0, 100, 0), (100, 100, 0), (200, FILLER_SIZE, 0), (200, 100, 0), (300, 100, 0)]);
        let taken = |room: i64, records_max: usize, log_begin: i64| {
            let mut found = plan(room);
            let done = found.take_pulled(&some, &Pulled { records_max, record_max: 1000, log_begin });
            (done.unwrap(), found.count(), found.room(), found.last_place())
        };
        assert_eq!(taken(1000, 9, 0), (5, 4, 600, Some(300)));
        assert_eq!(taken(1000, 2, 0), (3, 2, 800, Some(100)));
        assert_eq!(taken(299, 9, 0), (3, 2, 99, Some(100)));
        assert_eq!(taken(99, 9, 0), (1, 1, -1, Some(0)));
        assert_eq!(taken(1000, 1, 150), (4, 1, 900, Some(200)));
        assert_eq!(taken(1000, 9, 400), (5, 0, 1000, None));
        for odd in [90, 1001, -1] {
            let pulled = Pulled { records_max: 9, record_max: 1000, log_begin: 0 };
            assert_eq!(plan(1 << 20).take_pulled(&entries(&[(0, 100, 0), (100, odd, 0)]), &pulled), None);
        }
    }

    #[test]
    fn other_tags_are_passed() {
        let mut found = plan(900);
        found.bounds.codes = Some([5, (-7_i32) as u32].into());
        let some = [(0, 100, 5), (100, 100, 6), (200, -1, 6), (300, 100, -7)];
        assert_eq!(found.take(&entries(&some)), 4);
        assert_eq!(spans(&found), [(0, 100), (300, 400)]);
    }

    #[test]
    fn records_are_cut_out_as_their_entries_say() {
        let mut found = plan(1 << 20);
        found.bounds.gap_max = 100;
        found.take(&entries(&[(0, 100, 0), (100, 100, 0), (300, 100, 0), (600, 100, 0)]));
        let (first, second) = (log(0, 400), log(600, 700));
        let whole = found.pieces(&[&first, &second]).unwrap();
        assert_eq!(whole, [(0, 0..200), (0, 300..400), (1, 0..100)]);
        assert!(found.pieces(&[&first]).is_none(), "a read is missing");
        assert!(found.pieces(&[&first, &second[..99]]).is_none(), "a read is short");
        for at in [103, 107] {
            let mut damaged = first.clone();
            damaged[at] ^= 1;
            assert!(found.pieces(&[&damaged, &second]).is_none(), "{at}");
        }
    }
}
