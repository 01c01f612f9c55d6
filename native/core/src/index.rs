//! Entries of an index file, as `store/index.py` describes it.

use crate::record::field;

pub const HEADER_SIZE: usize = 40;
const SLOT_SIZE: usize = 4;
const ENTRY_SIZE: usize = 20;

/// A key of a record, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    pub hash: u32,
    pub physical_offset: i64,
    pub store_time_ms: i64,
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub begin_offset: i64,
    pub end_offset: i64,
    pub slots_used: i32,
    /// The number of the next entry; the first is 1.
    pub count: i32,
}

/// Add entries to a file with so many slots, then write its header; `None`, and nothing written, without room.
pub fn put(file: &mut [u8], slots: u32, mut header: Header, group: &[Keyed]) -> Option<Header> {
    let entries_at = (slots as usize).checked_mul(SLOT_SIZE)?.checked_add(HEADER_SIZE)?;
    let first = usize::try_from(header.count).ok().filter(|count| *count > 0)?;
    let end = entries_at.checked_add(ENTRY_SIZE.checked_mul(first.checked_add(group.len())?)?)?;
    let Some(last) = group.last() else { return Some(header) };
    if slots == 0 || end > file.len() || i32::try_from(first + group.len()).is_err() {
        return None;
    }
    for keyed in group {
        let slot_at = HEADER_SIZE + SLOT_SIZE * (keyed.hash % slots) as usize;
        let mut before = field(file, slot_at).map_or(0, i32::from_be_bytes);
        if !(0 < before && before < header.count) {
            before = 0;
            header.slots_used = header.slots_used.saturating_add(1);
        }
        let seconds = if header.begin_ms > 0 {
            keyed.store_time_ms.saturating_sub(header.begin_ms).div_euclid(1000).clamp(0, i64::from(i32::MAX))
        } else {
            0
        };
        let at = entries_at + ENTRY_SIZE * header.count as usize;
        file[at..at + 4].copy_from_slice(&keyed.hash.to_be_bytes());
        file[at + 4..at + 12].copy_from_slice(&keyed.physical_offset.to_be_bytes());
        file[at + 12..at + 16].copy_from_slice(&(seconds as i32).to_be_bytes());
        file[at + 16..at + 20].copy_from_slice(&before.to_be_bytes());
        file[slot_at..slot_at + 4].copy_from_slice(&header.count.to_be_bytes());
        if header.count == 1 {
            // Its seconds count from the end of the file before.
            (header.begin_ms, header.begin_offset) = (keyed.store_time_ms, keyed.physical_offset);
        }
        header.count += 1;
    }
    (header.end_ms, header.end_offset) = (last.store_time_ms, last.physical_offset);
    file[..8].copy_from_slice(&header.begin_ms.to_be_bytes());
    file[8..16].copy_from_slice(&header.end_ms.to_be_bytes());
    file[16..24].copy_from_slice(&header.begin_offset.to_be_bytes());
    file[24..32].copy_from_slice(&header.end_offset.to_be_bytes());
    file[32..36].copy_from_slice(&header.slots_used.to_be_bytes());
    file[36..40].copy_from_slice(&header.count.to_be_bytes());
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Header =
        Header { begin_ms: 0, end_ms: 0, begin_offset: 0, end_offset: 0, slots_used: 0, count: 1 };

    fn keyed(hash: u32, physical_offset: i64) -> Keyed {
        Keyed { hash, physical_offset, store_time_ms: 5000 + physical_offset }
    }

    #[test]
    fn entries_of_a_slot_are_chained() {
        let mut file = vec![0; HEADER_SIZE + 4 * 3 + 20 * 5];
        let found = put(&mut file, 3, EMPTY, &[keyed(1, 100), keyed(4, 2200), keyed(2, 300)]).unwrap();
        assert_eq!((found.count, found.slots_used, found.begin_ms, found.end_offset), (4, 2, 5100, 300));
        let entry = &file[HEADER_SIZE + 12 + 40..][..20];
        assert_eq!(entry[12..16], 2_i32.to_be_bytes()); // seconds since the first
        assert_eq!(entry[16..20], 1_i32.to_be_bytes()); // the entry before
        assert_eq!(file[36..40], 4_i32.to_be_bytes());
    }

    #[test]
    fn without_room_nothing_is_written() {
        let mut file = vec![0; HEADER_SIZE + 4 * 3 + 20 * 3];
        let before = file.clone();
        assert_eq!(put(&mut file, 3, EMPTY, &[keyed(1, 1), keyed(2, 2), keyed(3, 3)]), None);
        assert_eq!(put(&mut file, 0, EMPTY, &[keyed(1, 1)]), None);
        assert_eq!(put(&mut file, 3, Header { count: 0, ..EMPTY }, &[keyed(1, 1)]), None);
        assert_eq!(file, before);
        assert!(put(&mut file, 3, EMPTY, &[keyed(1, 1), keyed(2, 2)]).is_some());
    }
}
