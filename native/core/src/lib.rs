//! What of whimbrel's hot path is bytes to bytes.
//!
//! Everything here is a function of its arguments: no Python, no files, no clock, no unsafe. What it does not do
//! it says before anything is written (`Foreign`, `None`), and Python does it: Python's code is complete, the
//! reference, and what this is compared with (`tests/unit/lane`, `tests/property/test_lane_*.py`).
//!
//! ```text
//! record    one record of the log
//! dispatch  records of the log -> entries of the consume queues, and keys for the index
//! index     keys -> an index file
//! hash      Java's hash of a text, and that of a key in the index
//! calls     bytes of a connection -> calls of one method, and frames of their answers; hpack: their header blocks
//! send      a request's messages (proto) -> records, entries and keys; pass: reads of connections
//! command   frames of the remoting protocol and their headers; remote: its sends, as send and pass do; remote_pull: what its pulls ask for
//! bulk      queue entries and pieces of the log -> frames of a bulk reader
//! deliver   records of the log -> messages for consumers, with digests of their bodies; pull: all of a pull's; ack: acknowledgements -> what is done, and their answers
//! replica   what the loops of both replicators do next
//! load      what `whimbrel bench send` sends, and its tally; client: its connections; latencies: counters of them
//! ```
#![forbid(unsafe_code)]

pub mod ack;
pub mod bulk;
pub mod calls;
pub mod client;
pub mod command;
pub mod deliver;
pub mod digest;
pub mod dispatch;
pub mod hash;
pub mod hpack;
pub mod index;
pub mod latencies;
pub mod load;
pub mod members;
pub mod pass;
pub mod proto;
pub mod pull;
pub mod record;
pub mod remote;
pub mod remote_pull;
pub mod replica;
pub mod send;
