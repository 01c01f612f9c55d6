//! Any bytes as a piece of the log: queue entries, keys, an index file, frames of a bulk reader, and messages for
//! consumers. As queue entries, too.
//!
//! The CRC of the first body is put right, else no change would be seen as plain. A pull gets the entries that dispatch
//! makes of the log, and then the log itself as entries.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_core::bulk::{Bounds, Plan};
use whimbrel_core::deliver::{Message, Names, Words, plain, put_responses};
use whimbrel_core::pull::{Budget, Pull};
use whimbrel_core::record::{Next, kept, next};
use whimbrel_core::{dispatch, index};

fuzz_target!(|data: &[u8]| {
    let found = dispatch::entries(data, 0);
    assert!(found.bytes <= data.len());
    assert!(kept(data, 0).0 <= data.len());
    frame_of(data, data);
    for run in &found.runs {
        frame_of(&run.entries, data);
    }
    let keys = dispatch::keys(data, 0, true);
    let mut file = vec![0; 40 + 4 * 16 + 20 * 64];
    let header =
        index::Header { begin_ms: 0, end_ms: 0, begin_offset: 0, end_offset: 0, slots_used: 0, count: 1 };
    let _ = index::put(&mut file, 16, header, &keys.keys);
    let mut data = data.to_vec();
    let (size, place) = match next(&data) {
        Next::Record(record) => {
            let crc = crc32(record.body);
            let found = (record.size, record.physical_offset);
            data[8..12].copy_from_slice(&crc.to_be_bytes());
            found
        }
        _ => return,
    };
    let words = Words {
        hidden: Names::from_iter([b"CLUSTER".to_vec()]),
        rare: Names::from_iter([b"__SHARDINGKEY".to_vec()]),
        time_max_ms: 253_402_300_799_999,
        attempt_max: 1 << 30,
    };
    if let Some(record) = plain(&data[..size], place, &words) {
        let mut out = vec![];
        let message = Message { record, handle: "W1:handle", attempt: 3 };
        put_responses(&[message], "n", &words, &mut out).expect("a message");
        let length = u32::from_be_bytes([out[1], out[2], out[3], out[4]]);
        assert_eq!(out.len(), 5 + length as usize);
    }
    for run in dispatch::entries(&data, 0).runs {
        pull(&data, &run.entries, &words);
    }
    pull(&data, &data, &words);
});

/// Pull from a log.
fn pull(data: &[u8], units: &[u8], words: &Words) {
    let budget = Budget { room: 32, first_max: i64::MAX, bytes_left: 1 << 22 };
    let (mut pull, mut pieces, mut out) = (Pull::new(units, &budget, None), vec![], vec![]);
    while let Some((begin, size)) = pull.next_read() {
        let end = begin.saturating_add(size).min(data.len() as i64);
        let piece = data.get(begin as usize..end as usize).unwrap_or_default();
        pull.take(piece, words);
        pieces.push(piece);
    }
    let count = pull.finish(&pieces, "n", words, &mut out).expect("messages");
    assert!(count <= pull.entries && pull.entries * 20 <= units.len());
}

/// Plan a frame over some entries, and cut it out.
fn frame_of(entries: &[u8], log: &[u8]) {
    const ROOM: usize = 1 << 14;
    let bounds = Bounds { file_size: 1 << 16, gap_max: 100, span_max: 1 << 12, codes: None };
    let mut plan = Plan::new(bounds, ROOM as i64);
    assert!(plan.take(entries) <= entries.len() / dispatch::UNIT_SIZE);
    let piece = |(begin, end)| log.get(usize::try_from(begin).ok()?..usize::try_from(end).ok()?);
    let reads: Option<Vec<&[u8]>> = plan.spans().map(piece).collect();
    let pieces = reads.and_then(|reads| plan.pieces(&reads)).unwrap_or_default();
    assert!(pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>() <= ROOM);
}

fn crc32(bytes: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    };
    !bytes.iter().fold(!0, byte) & 0x7fff_ffff
}
