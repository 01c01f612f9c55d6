//! The answer to a pull: queue entries, and what they name of the log, become responses with messages.
//!
//! What is here does what `store/scan.py` does for a filter that admits everything, or tags: it goes from entry to
//! entry, passes over those that do not match, and takes messages as long as they fit. It ends before the first record
//! that is not plain, or not there: Python goes on with that entry, and with what is left of the budgets.
//!
//! The log is read by the caller: `next_read` says what, `take` gets it, piece after piece.

use std::ops::Range;

use crate::deliver::{Message, Words, pairs, plain, put_responses};
use crate::record::{Next, field, next};

const UNIT: usize = 20; // bytes of an entry: physical offset, size, tags code
const READ_MAX: i64 = 1 << 20; // bytes of the log at once; a record may have more, and is read alone
const GAP_MAX: i64 = 4096; // bytes between two records up to which both are read at once

/// The tags that are wanted.
pub struct Tags {
    /// The low 32 bits of their codes.
    pub codes: Vec<u32>,
    pub texts: Vec<Vec<u8>>,
}

impl Tags {
    fn admit_text(&self, properties: &[u8]) -> bool {
        let tag = pairs(properties).find(|(name, _)| *name == b"TAGS");
        tag.is_some_and(|(_, tag)| self.texts.iter().any(|text| text == tag))
    }
}

/// What still fits into the answer.
pub struct Budget {
    /// Messages.
    pub room: usize,
    /// The size up to which the next message fits, and the bytes of it and all that follow.
    pub first_max: i64,
    pub bytes_left: i64,
}

/// An entry whose record may get into the answer.
struct Wanted {
    number: usize,
    place: i64,
    size: i64,
}

/// A piece of the log with the records of some entries.
struct Piece {
    begin: i64,
    size: i64,
    wanted: Vec<Wanted>,
}

/// A message that is in the answer: which piece it is in, and where.
struct Taken {
    piece: usize,
    range: Range<usize>,
}

/// A pull under way.
pub struct Pull {
    tags: Option<Tags>,
    pieces: Vec<Piece>,
    read: usize,
    taken: Vec<Taken>,
    /// Entries that are done: their messages are taken, or filtered out.
    pub entries: usize,
    /// Bytes of the records taken, and where the last one stands.
    pub bytes: i64,
    pub last_place: i64,
    /// Entries that are done when all records are plain.
    end: usize,
    ended: bool,
}

impl Pull {
    /// Begin with packed entries.
    pub fn new(units: &[u8], budget: &Budget, tags: Option<Tags>) -> Self {
        let (mut pieces, mut end, mut chosen): (Vec<Piece>, _, _) = (vec![], 0, 0);
        let (mut limit, mut left) = (budget.first_max, budget.bytes_left);
        for (number, unit) in units.chunks_exact(UNIT).enumerate() {
            let entry = field(unit, 0).zip(field(unit, 8)).zip(field(unit, 12));
            let Some(((place, size), code)) = entry else { break };
            let (place, size) = (i64::from_be_bytes(place), i64::from(i32::from_be_bytes(size)));
            let code = i64::from_be_bytes(code) as u32;
            if size > limit || chosen >= budget.room {
                break;
            }
            end = number + 1;
            if tags.as_ref().is_some_and(|tags| !tags.codes.contains(&code)) {
                continue;
            }
            if place < 0 || size <= 0 || place.checked_add(size).is_none() {
                end = number; // no record; what there is to say about that, Python does
                break;
            }
            chosen += 1;
            left -= size;
            limit = left;
            let one = Wanted { number, place, size };
            match pieces.last_mut() {
                Some(piece) if piece.takes(&one) => {
                    piece.size = place + size - piece.begin;
                    piece.wanted.push(one);
                }
                _ => pieces.push(Piece { begin: place, size, wanted: vec![one] }),
            }
        }
        Self { tags, pieces, read: 0, taken: vec![], entries: 0, bytes: 0, last_place: -1, end, ended: false }
    }

    /// What to read of the log for the next `take`: its begin and its size in bytes.
    pub fn next_read(&self) -> Option<(i64, i64)> {
        let piece = if self.ended { None } else { self.pieces.get(self.read) };
        piece.map(|piece| (piece.begin, piece.size))
    }

    /// Take the plain records of a piece that was read; it may be shorter than it should.
    pub fn take(&mut self, bytes: &[u8], words: &Words) {
        let Some(piece) = self.pieces.get(self.read) else { return };
        for one in &piece.wanted {
            let begin = (one.place - piece.begin) as usize;
            let range = begin..begin + one.size as usize;
            let record = bytes.get(range.clone()).and_then(|bytes| plain(bytes, one.place, words));
            let Some(record) = record else {
                self.ended = true;
                self.entries = one.number;
                return;
            };
            if self.tags.as_ref().is_none_or(|tags| tags.admit_text(record.properties)) {
                self.taken.push(Taken { piece: self.read, range });
                self.bytes += one.size;
                self.last_place = one.place;
            }
        }
        self.read += 1;
    }

    /// Append the responses, each behind gRPC's prefix, and return how many they are.
    ///
    /// `pieces` are those that `take` got, in their order. `None`: a response is too large.
    pub fn finish(
        &mut self,
        pieces: &[&[u8]],
        namespace: &str,
        words: &Words,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        if !self.ended {
            self.entries = self.end;
        }
        let mut messages = Vec::with_capacity(self.taken.len());
        for Taken { piece, range } in &self.taken {
            let Next::Record(record) = next(pieces.get(*piece)?.get(range.clone())?) else { return None };
            let attempt = u64::from(record.reconsume_times.max(0).unsigned_abs()) + 1;
            messages.push(Message { record, handle: "", attempt: attempt.min(words.attempt_max) });
        }
        out.reserve(self.bytes as usize + 512 * messages.len());
        put_responses(&messages, namespace, words, out)?;
        Some(messages.len())
    }
}

impl Piece {
    /// Whether a record is read together with those that are here.
    fn takes(&self, one: &Wanted) -> bool {
        let end = self.begin + self.size;
        (end..=end.saturating_add(GAP_MAX)).contains(&one.place)
            && one.place + one.size - self.begin <= READ_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliver::Names;
    use crate::record::tests::record;

    const TOPIC: &[u8] = b"topic";

    fn words() -> Words {
        Words {
            hidden: Names::from_iter([]),
            rare: Names::from_iter([b"rare".to_vec()]),
            time_max_ms: 1 << 50,
            attempt_max: 9,
        }
    }
    /// A log of records with these properties, and their entries; the code of each is the property's first byte.
    fn log(properties: &[&[u8]], gap: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut bytes, mut units) = (vec![], vec![]);
        for text in properties {
            let place = bytes.len() as i64;
            let mut one = record(TOPIC, (0, 1), place, 0, text);
            one[8..12].copy_from_slice(&crc32fast::hash(b"body").to_be_bytes());
            units.extend(place.to_be_bytes());
            units.extend((one.len() as i32).to_be_bytes());
            units.extend((-1_i64 << 32 | i64::from(*text.last().unwrap_or(&0))).to_be_bytes());
            bytes.extend(one);
            bytes.resize(bytes.len() + gap, 0xEE);
        }
        (bytes, units)
    }
    fn all() -> Budget {
        Budget { room: 32, first_max: i64::MAX, bytes_left: 1 << 20 }
    }
    /// Entries done, messages taken, their bytes, reads.
    fn run(log: &[u8], units: &[u8], budget: &Budget, tags: Option<Tags>) -> (usize, usize, i64, usize) {
        let (mut pull, mut pieces, mut out) = (Pull::new(units, budget, tags), vec![], vec![]);
        while let Some((begin, size)) = pull.next_read() {
            let begin = begin as usize;
            let piece = log.get(begin..log.len().min(begin + size as usize)).unwrap_or_default();
            pull.take(piece, &words());
            pieces.push(piece);
        }
        let count = pull.finish(&pieces, "", &words(), &mut out).unwrap();
        (pull.entries, count, pull.bytes, pieces.len())
    }

    #[test]
    fn plain_neighbours_are_read_at_once_and_all_taken() {
        let (bytes, units) = log(&[&b""[..]; 5], 0);
        assert_eq!(run(&bytes, &units, &all(), None), (5, 5, bytes.len() as i64, 1));
        let (bytes, units) = log(&[&b""[..]; 5], GAP_MAX as usize);
        assert_eq!(run(&bytes, &units, &all(), None).3, 1);
        let (bytes, units) = log(&[&b""[..]; 5], GAP_MAX as usize + 1);
        assert_eq!(run(&bytes, &units, &all(), None).3, 5);
        assert_eq!(run(&[], &[], &all(), None), (0, 0, 0, 0));
    }

    #[test]
    fn it_ends_before_what_is_not_plain_or_does_not_fit() {
        let (mut bytes, units) = log(&[b"", b"", b"rare\x01x", b""], 0);
        assert_eq!(run(&bytes, &units, &all(), None).0, 2);
        let size = (bytes.len() as i64 - 6) / 4;
        let left = |bytes_left| Budget { bytes_left, ..all() };
        assert_eq!(run(&bytes, &units, &left(2 * size), None).1, 2);
        assert_eq!(run(&bytes, &units, &left(2 * size - 1), None).1, 1);
        assert_eq!(run(&bytes, &units, &left(1), None).1, 1, "the first one always fits");
        assert_eq!(run(&bytes, &units, &Budget { first_max: size - 1, ..all() }, None).0, 0);
        assert_eq!(run(&bytes, &units, &Budget { room: 1, ..all() }, None).0, 1);
        assert_eq!(run(&bytes, &units, &Budget { room: 0, ..all() }, None).0, 0);
        bytes.truncate(bytes.len() / 4);
        assert_eq!(run(&bytes, &units, &all(), None).0, 1, "a piece may be short");
    }

    #[test]
    fn tags_are_compared_by_code_and_text() {
        let (bytes, units) = log(&[b"TAGS\x01a", b"TAGS\x01b", b"TAGS\x01xa", b"TAGS\x01a", b"b"], 0);
        let tags = |code: u8| Tags { codes: vec![code.into()], texts: vec![b"a".to_vec()] };
        let (entries, count, ..) = run(&bytes, &units, &all(), Some(tags(b'a')));
        assert_eq!((entries, count), (5, 2));
        let (entries, count, ..) = run(&bytes, &units, &Budget { room: 1, ..all() }, Some(tags(b'a')));
        assert_eq!((entries, count), (1, 1), "what follows the last message is not passed over");
        let (entries, count, ..) = run(&bytes, &units, &all(), Some(tags(b'b')));
        assert_eq!((entries, count), (5, 0));
    }

    #[test]
    fn entries_may_be_any_bytes() {
        let (bytes, units) = log(&[b"", b"TAGS\x01a", b""], 3);
        for at in 0..units.len() {
            for bit in 0..8 {
                let mut wrong = units.clone();
                wrong[at] ^= 1 << bit;
                run(&bytes, &wrong, &all(), None);
            }
        }
        for place in [i64::MIN, -1, i64::MAX - 100, i64::MAX] {
            let unit = [&place.to_be_bytes()[..], &i32::MAX.to_be_bytes(), &[0; 8]].concat();
            assert_eq!(run(&bytes, &unit, &all(), None).0, 0);
        }
    }
}
