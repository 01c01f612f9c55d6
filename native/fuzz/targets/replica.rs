//! Any events for the loops of both replicators: each byte of the input is one, or a part of one.
//!
//! A slave's log grows by what its frames hold and by nothing else, no step reaches beyond its file, and a run ends
//! once the time has come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_core::replica::{Feed, Feeding, Follow, Following, Limits, Link, Marks, Room};

const STEPS_MAX: usize = 10_000;
const FILE: i64 = 4096;
const LIMITS: Limits = Limits { heartbeat_ns: 50, silence_ns: 200, until_ns: 100_000 };

struct Events<'a>(&'a [u8]);

impl Events<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}

fn feed(mut events: Events<'_>) {
    let mut marks = Marks { epoch: 1, begin: 0, written: 100, replaced: 0 };
    let mut core = Feeding::new(marks, 1000, 0..FILE, LIMITS, true);
    for slot in 0..usize::from(events.byte() % 4) {
        core.links.push(Link { slot, next: 50, acknowledged: 50, ..Link::default() });
    }
    let mut now = 0;
    for _ in 0..STEPS_MAX {
        match core.next(marks, now) {
            Feed::Leave => return,
            Feed::Send { link, at, size } => {
                assert!(size > 0 && at >= 0 && at + size <= marks.written.min(FILE), "beyond the log");
                let whole = 12 + size;
                let count = if events.byte() % 8 == 0 { i64::from(events.byte()).min(whole) } else { whole };
                core.sent(link, size, count, now);
            }
            Feed::Wait { until_ns } => {
                if events.0.is_empty() {
                    now = until_ns.max(now + 1);
                }
                core.waited(events.byte() % 32 != 31);
                for number in 0..core.links.len() {
                    let count = usize::from(events.byte() % 20).min(events.0.len());
                    let (data, rest) = events.0.split_at(count);
                    events.0 = rest;
                    core.received(number, data, marks.written, now);
                }
                if core.moved {
                    core.rang(events.byte() % 16 != 15);
                }
                now += i64::from(events.byte() % 16);
                match events.byte() {
                    255 => marks.epoch += 1,
                    254 => marks.replaced += 1,
                    253 => marks.begin += 10,
                    grown => marks.written += i64::from(grown),
                }
            }
        }
    }
    panic!("a run that does not end");
}

fn follow(mut events: Events<'_>) {
    let mut core = Following::new(100, 100, Room { limit: FILE, wake_at: 3000 }, LIMITS, 10);
    let mut buffer = vec![0; 300];
    let (mut now, mut end) = (0, 100);
    for _ in 0..STEPS_MAX {
        match core.next(&buffer, now) {
            Follow::Leave => return,
            Follow::Append { from, size, at } => {
                assert!(
                    at == end && at + size as i64 <= FILE && from + size <= buffer.len(),
                    "beyond the log"
                );
                let done = events.byte() % 32 != 31;
                core.appended(size, done);
                end += if done { size as i64 } else { 0 };
            }
            Follow::Publish { end: shown } => assert_eq!(shown, end),
            Follow::Report { offset } => {
                assert!(offset <= end);
                let count = if events.byte() % 16 == 15 { usize::from(events.byte() % 9) } else { 8 };
                core.reported(count, now);
            }
            Follow::Ring => core.rang(events.byte() % 16 != 15, now),
            Follow::Wait { until_ns } => {
                if events.0.is_empty() {
                    now = until_ns.max(now + 1);
                }
                core.waited(events.byte() % 32 != 31);
                let at = core.make_room(&mut buffer);
                let room = buffer.len() - at;
                match events.byte() {
                    0 => core.received(0, now),
                    kind => {
                        // The head of a frame that fits, else whatever comes.
                        let mut data = vec![];
                        if kind % 4 != 0 {
                            let size = i32::from(events.byte());
                            data.extend_from_slice(&end.to_be_bytes());
                            data.extend_from_slice(&size.to_be_bytes());
                        }
                        let count = usize::from(kind).min(events.0.len());
                        let (more, rest) = events.0.split_at(count);
                        events.0 = rest;
                        data.extend_from_slice(more);
                        data.truncate(room);
                        if !data.is_empty() {
                            buffer[at..at + data.len()].copy_from_slice(&data);
                            core.received(data.len(), now);
                        }
                    }
                }
                now += i64::from(events.byte() % 16);
            }
        }
        assert_eq!(core.end, end);
    }
    panic!("a run that does not end");
}

fuzz_target!(|data: &[u8]| {
    if let Some((kind, rest)) = data.split_first() {
        if kind % 2 == 0 { feed(Events(rest)) } else { follow(Events(rest)) }
    }
});
