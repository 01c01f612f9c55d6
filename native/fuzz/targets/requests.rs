//! Any bytes as a request, without a connection around it: sends and acknowledgements that are plain have the answers
//! and records of the sizes that were counted.
#![no_main]

mod broker;

use libfuzzer_sys::fuzz_target;
use whimbrel_core::send::{Place, Topic, answer_size, put_answer};
use whimbrel_core::{ack, dispatch, hash, send};

fuzz_target!(|data: &[u8]| {
    let acks = broker::ack_policy();
    if let Some(request) = ack::read(data, &acks) {
        let mut out = vec![];
        request.put_answer(&acks, &mut out);
        assert_eq!(out.len(), request.answer_size(&acks));
    }
    let (policy, born_host) = (broker::policy(), [127, 0, 0, 1, 0, 0, 0, 1]);
    let mut messages = vec![];
    if send::read(data, &policy, &mut messages).is_none() {
        return;
    }
    let name = messages[0].topic;
    let Some(hash) = hash::topic_hash(name.as_bytes()).filter(|_| name.len() < 128) else { return };
    let topic = Topic { field: [&[name.len() as u8], name.as_bytes()].concat(), hash };
    let (mut records, mut entries, mut keys) = (vec![], vec![], vec![]);
    for (number, message) in messages.iter().enumerate() {
        let Some(size) = message.record_size(&policy, &topic, &born_host, 1) else { return };
        let place = Place {
            physical_offset: 5 + records.len() as i64,
            size,
            queue_id: 1,
            queue_offset: 7 + number as i64,
            now_ms: 2,
            born_default_ms: 1,
        };
        let before = records.len();
        message.put_record(&policy, &topic, &born_host, place, &mut records).expect("it has a size");
        message.put_entry(place, &mut entries).expect("it was read");
        message.put_keys(&policy, &topic, place, &mut keys).expect("it was read");
        assert_eq!(records.len() - before, size);
    }
    let mut out = vec![];
    put_answer(&policy, &messages, 7, &mut out);
    assert_eq!(out.len(), answer_size(&policy, &messages, 7));
    let found = dispatch::entries(&records, 5);
    assert!(found.bytes == records.len() && found.runs[0].entries == entries);
    assert!(dispatch::keys(&records, 5, policy.index_tags).keys == keys);
});
