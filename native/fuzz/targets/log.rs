//! Any bytes as a piece of the log: queue entries, keys, an index file, and messages for consumers.
//!
//! The CRC of the first body is put right, else no change would be seen as plain.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use whimbrel_core::deliver::{Responses, Words, plain};
use whimbrel_core::record::{Next, next};
use whimbrel_core::{dispatch, index};

fuzz_target!(|data: &[u8]| {
    let found = dispatch::entries(data, 0);
    assert!(found.bytes <= data.len());
    let keys = dispatch::keys(data, 0);
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
        hidden: HashSet::from([b"CLUSTER".to_vec()]),
        rare: HashSet::from([b"__SHARDINGKEY".to_vec()]),
        time_max_ms: 253_402_300_799_999,
    };
    if let Some(record) = plain(&data[..size], place, &words) {
        let mut out = vec![];
        Responses::default().put(&record, "n", "W1:handle", 3, &words, &mut out).expect("a message");
        let length = u32::from_be_bytes([out[1], out[2], out[3], out[4]]);
        assert_eq!(out.len(), 5 + length as usize);
    }
});

fn crc32(bytes: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    };
    !bytes.iter().fold(!0, byte) & 0x7fff_ffff
}
