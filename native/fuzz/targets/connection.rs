//! Any bytes on a connection, in reads of any size: passes take sends and acknowledgements, or leave them.
//!
//! What a pass leaves is dropped as if Python had taken it, up to where the pass says. Of what it takes, the records
//! are read again: they are records of the log, and give the queue entries and the keys that the pass has made.
#![no_main]

mod broker;

use libfuzzer_sys::fuzz_target;
use whimbrel_core::calls::{State, Stop};
use whimbrel_core::dispatch;
use whimbrel_core::hpack::Decoder;
use whimbrel_core::pass::{Pass, Plan, Read, Reply, Taken};

fn check(plan: &Plan<()>, reply: &Reply, begin: i64) {
    let found = dispatch::entries(&plan.records, begin);
    assert!(found.bytes == plan.records.len() && !found.foreign, "records that can't be read");
    assert_eq!(
        found.runs.iter().map(|run| run.entries.len()).sum::<usize>(),
        plan.runs.iter().map(|run| run.entries.len()).sum::<usize>()
    );
    for run in &found.runs {
        let same = |one: &&whimbrel_core::pass::Run<()>| {
            plan.topics[one.topic].name.as_bytes() == run.topic && one.queue_id as i32 == run.queue_id
        };
        let made = plan.runs.iter().find(same).expect("a run");
        assert_eq!((made.first, &made.entries), (run.first, &run.entries));
    }
    let keys = dispatch::keys(&plan.records, begin, true);
    assert!(!keys.foreign && keys.keys == plan.keys, "other keys");
    let mut end = 0; // of the message before
    assert!(reply.fitting <= reply.answers.len());
    for answer in &reply.answers {
        assert!(end <= answer.begin && answer.begin < answer.message, "answers one behind the other");
        end = answer.message + answer.message_size;
    }
    assert!(end <= reply.frames.len());
}

fuzz_target!(|data: &[u8]| {
    let Some(([flags, step], mut rest)) = data.split_first_chunk::<2>() else { return };
    let (methods, parks) = (broker::methods(), flags & 1 != 0);
    let mut topics = broker::Broker { ends: [0, 7, 1 << 40, i64::MAX - 3] };
    let mut decoder = Decoder::new(16 << 10);
    let mut state = State {
        last_id: 0,
        streams_left: 100,
        send_window: if flags & 2 != 0 { 300 } else { 65_535 },
        receive_window: 1 << 20,
        peer_window: if flags & 4 != 0 { 40 } else { 65_535 },
        stream_window: 1 << 20,
        peer_frame: 16_384,
        frame_max: 1 << 20,
        block_max: 1 << 15,
        blocked: false,
    };
    let (mut end, mut kept) = (1000_i64, Vec::new());
    let step = if flags & 8 != 0 { usize::MAX } else { usize::from(*step) + 1 };
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(step.min(rest.len()));
        rest = more;
        kept.extend_from_slice(piece);
        loop {
            let log = (flags & 16 == 0).then(|| broker::log(end, parks));
            let born_host = &[127, 0, 0, 1, 0, 0, 0, 1];
            let read = Read { data: &kept, state, client: b"CLIENT", approved: None, born_host };
            let mut held = broker::Held;
            let mut pass = Pass::new(&methods, log, parks.then_some(100), &mut topics, &mut held);
            let Taken { reply, scan, stop } = pass.take(read, &mut decoder);
            let plan = pass.plan();
            check(&plan, &reply, end);
            let (taken, after) = (scan.at, scan.state);
            assert!(taken <= kept.len() && after.send_window <= i64::from(i32::MAX));
            // What is dropped comes again with the next read, or is Python's.
            if flags & 32 != 0 && taken % 2 == 1 {
                decoder.undo(0);
            } else {
                decoder.keep();
                state = after;
                end += plan.records.len() as i64;
            }
            let (done, again) = match stop {
                Stop::Partial(needed) => {
                    assert!(needed > kept.len() - taken, "nothing is missing");
                    (taken, false)
                }
                Stop::Foreign(until, _) => {
                    assert!(until > taken && until <= kept.len(), "Python has something to do");
                    (until, true)
                }
                Stop::Other => {
                    assert!(taken > 0, "another pass has to begin elsewhere");
                    (taken, true)
                }
            };
            kept.drain(..done);
            if !again || kept.is_empty() {
                break;
            }
        }
    }
});
