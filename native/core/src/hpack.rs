//! Header blocks (RFC 7541): the decoder of one direction of a connection, which keeps its table.
//!
//! A block that turns out not to be the lane's was decoded for nothing: `undo` then puts the table back to where it
//! was at a `mark`, so that Python has the same block decoded again. What can't be decoded is an error without a text;
//! Python's own decoder goes on from `table` and says what is wrong.

use std::collections::VecDeque;
use std::sync::OnceLock;

pub const ENTRY_BYTES: usize = 32; // what an entry counts beside its name and value
pub const TABLE_BYTES: usize = 4096; // HTTP/2's default, which our settings leave
const INTEGER_BYTES_MAX: usize = 5;

type Pair = (&'static [u8], &'static [u8]);

pub static STATIC: [Pair; 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Bits of the code of each byte, and of the end of a string (RFC 7541, appendix B).
#[rustfmt::skip]
static CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const ROOT: u8 = 0;
const ACCEPTS: u8 = 1; // a string may end here
const EMITS: u8 = 2;
const FAILS: u8 = 4;

#[derive(Clone, Copy, Default)]
struct Step {
    next: u8,
    flags: u8,
    symbol: u8,
}

/// What follows each node of the code's tree by the next four bits: a node, and the symbol that ended, if one did.
fn steps() -> &'static [[Step; 16]] {
    static STEPS: OnceLock<Vec<[Step; 16]>> = OnceLock::new();
    STEPS.get_or_init(|| {
        let nodes = tree();
        let accepts = accepting(&nodes);
        let walk = |from: usize, bits: usize| {
            let (mut node, mut step) = (from as i32, Step::default());
            for shift in (0..4).rev() {
                node = nodes[node as usize][bits >> shift & 1];
                if node < 0 {
                    if node == -257 {
                        step.flags |= FAILS;
                        return step;
                    }
                    step.flags |= EMITS;
                    step.symbol = (-node - 1) as u8;
                    node = i32::from(ROOT);
                }
            }
            step.next = node as u8;
            if accepts[node as usize] {
                step.flags |= ACCEPTS;
            }
            step
        };
        (0..nodes.len()).map(|from| std::array::from_fn(|bits| walk(from, bits))).collect()
    })
}

/// The inner nodes of the tree: what follows a 0 and a 1, a node or -1 - symbol. The code is canonical.
fn tree() -> Vec<[i32; 2]> {
    let mut nodes = vec![[i32::MIN; 2]];
    let mut code = 0_u32;
    for length in 1..=30 {
        code <<= 1;
        for symbol in (0..257).filter(|symbol| CODE_BITS[*symbol] == length) {
            let mut node = 0;
            for shift in (1..length).rev() {
                let bit = (code >> shift & 1) as usize;
                if nodes[node][bit] == i32::MIN {
                    nodes[node][bit] = nodes.len() as i32;
                    nodes.push([i32::MIN; 2]);
                }
                node = nodes[node][bit] as usize;
            }
            nodes[node][(code & 1) as usize] = -1 - symbol as i32;
            code += 1;
        }
    }
    nodes
}

/// The nodes at which a string may end: with fewer than 8 ones behind its last symbol.
fn accepting(nodes: &[[i32; 2]]) -> Vec<bool> {
    let mut found = vec![false; nodes.len()];
    let mut node = 0;
    for _ in 0..8 {
        found[node] = true;
        node = nodes[node][1] as usize;
    }
    found
}

/// Decode Huffman's code behind `out`.
fn unhuffman(coded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let steps = steps();
    let (mut node, mut accepted) = (ROOT, true);
    for byte in coded {
        for bits in [byte >> 4, byte & 15] {
            let step = steps[usize::from(node)][usize::from(bits)];
            if step.flags & FAILS != 0 {
                return None;
            }
            if step.flags & EMITS != 0 {
                out.push(step.symbol);
            }
            node = step.next;
            accepted = step.flags & ACCEPTS != 0;
        }
    }
    accepted.then_some(())
}

/// The fields of a block, one behind the other in one piece of memory that is used again.
#[derive(Default)]
pub struct Fields {
    bytes: Vec<u8>,
    ends: Vec<(usize, usize)>, // of each name and value
}

impl Fields {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        (0..self.ends.len()).map(|number| {
            let begin = if number == 0 { 0 } else { self.ends[number - 1].1 };
            let (name, value) = self.ends[number];
            (&self.bytes[begin..name], &self.bytes[name..value])
        })
    }
    fn last(&self) -> (&[u8], &[u8]) {
        let (name, value) = self.ends[self.ends.len() - 1];
        let begin = if self.ends.len() == 1 { 0 } else { self.ends[self.ends.len() - 2].1 };
        (&self.bytes[begin..name], &self.bytes[name..value])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
}
impl Entry {
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_BYTES
    }
}

enum Change {
    Inserted,
    Evicted(Entry),
    Resized(usize),
}

/// The table of one direction of a connection.
pub struct Decoder {
    list_max: usize,
    capacity: usize,
    size: usize,
    table: VecDeque<Entry>, // the newest first
    changes: Vec<Change>,
}

/// What is wrong with a block; Python finds the words.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong;

struct Block<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Block<'_> {
    fn byte(&mut self) -> Option<u8> {
        let found = self.bytes.get(self.at).copied()?;
        self.at += 1;
        Some(found)
    }
    /// A number that begins in the low bits of `first`.
    fn number(&mut self, first: u8, mask: u8) -> Option<usize> {
        let mut value = usize::from(first & mask);
        if value < usize::from(mask) {
            return Some(value);
        }
        for shift in 0..INTEGER_BYTES_MAX {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
    /// Append a string to `out`.
    fn string(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let first = self.byte()?;
        let length = self.number(first, 0x7f)?;
        let end = self.at.checked_add(length)?;
        let raw = self.bytes.get(self.at..end)?;
        self.at = end;
        if first & 0x80 != 0 {
            return unhuffman(raw, out);
        }
        out.extend_from_slice(raw);
        Some(())
    }
}

impl Decoder {
    /// Begin with an empty table; a block's list may have `list_max` bytes.
    pub fn new(list_max: usize) -> Self {
        let table = VecDeque::new();
        Self { list_max, capacity: TABLE_BYTES, size: 0, table, changes: vec![] }
    }
    /// The table's capacity, and its entries, the oldest first.
    pub fn table(&self) -> (usize, impl Iterator<Item = (&[u8], &[u8])>) {
        (self.capacity, self.table.iter().rev().map(|entry| (&*entry.name, &*entry.value)))
    }
    /// Go on from a table: its capacity, and its entries, the oldest first.
    pub fn restore(&mut self, capacity: usize, entries: Vec<(Vec<u8>, Vec<u8>)>) {
        self.capacity = capacity.min(TABLE_BYTES);
        for (name, value) in entries {
            self.insert(Entry { name: name.into(), value: value.into() });
        }
        self.keep();
    }
    /// A point to go back to, until `keep`.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }
    /// Keep all that was decoded.
    pub fn keep(&mut self) {
        self.changes.clear();
    }
    /// Put the table back to a mark.
    pub fn undo(&mut self, mark: usize) {
        while self.changes.len() > mark {
            match self.changes.pop() {
                Some(Change::Inserted) => {
                    if let Some(entry) = self.table.pop_front() {
                        self.size -= entry.size();
                    }
                }
                Some(Change::Evicted(entry)) => {
                    self.size += entry.size();
                    self.table.push_back(entry);
                }
                Some(Change::Resized(before)) => self.capacity = before,
                None => {}
            }
        }
    }

    /// Decode a block into `fields`.
    ///
    /// # Errors
    /// It can't be decoded, or its fields have too many bytes; the table is as before.
    pub fn decode(&mut self, block: &[u8], fields: &mut Fields) -> Result<(), Wrong> {
        let mark = self.mark();
        let done = self.decode_fields(Block { bytes: block, at: 0 }, fields);
        if done.is_none() {
            self.undo(mark);
        }
        done.ok_or(Wrong)
    }

    fn decode_fields(&mut self, mut block: Block<'_>, fields: &mut Fields) -> Option<()> {
        fields.clear();
        let mut list = 0;
        while block.at < block.bytes.len() {
            let first = block.byte()?;
            let begin = fields.bytes.len();
            if first & 0x80 != 0 {
                let number = block.number(first, 0x7f)?;
                let (name, value) = self.named(number)?;
                fields.bytes.extend_from_slice(name);
                let name_end = fields.bytes.len();
                fields.bytes.extend_from_slice(value);
                fields.ends.push((name_end, fields.bytes.len()));
            } else if first & 0xe0 == 0x20 {
                let capacity = block.number(first, 0x1f)?;
                if !fields.ends.is_empty() || capacity > TABLE_BYTES {
                    return None;
                }
                self.changes.push(Change::Resized(self.capacity));
                self.capacity = capacity;
                self.evict(0);
                continue;
            } else {
                let kept = first & 0x40 != 0;
                let number = block.number(first, if kept { 0x3f } else { 0x0f })?;
                if number == 0 {
                    block.string(&mut fields.bytes)?;
                } else {
                    fields.bytes.extend_from_slice(self.named(number)?.0);
                }
                let name_end = fields.bytes.len();
                block.string(&mut fields.bytes)?;
                fields.ends.push((name_end, fields.bytes.len()));
                if kept {
                    let (name, value) = fields.last();
                    self.insert(Entry { name: name.into(), value: value.into() });
                }
            }
            list += fields.bytes.len() - begin + ENTRY_BYTES;
            if list > self.list_max {
                return None;
            }
        }
        Some(())
    }

    /// A field of the tables.
    fn named(&self, number: usize) -> Option<(&[u8], &[u8])> {
        let number = number.checked_sub(1)?;
        if let Some(found) = STATIC.get(number) {
            return Some(*found);
        }
        self.table.get(number - STATIC.len()).map(|entry| (&*entry.name, &*entry.value))
    }

    /// Put a field into the table; one that is larger than the table empties it.
    fn insert(&mut self, entry: Entry) {
        let size = entry.size();
        self.evict(size);
        if size <= self.capacity {
            self.size += size;
            self.table.push_front(entry);
            self.changes.push(Change::Inserted);
        }
    }

    /// Drop the oldest fields until `needed` bytes more fit.
    fn evict(&mut self, needed: usize) {
        while self.size + needed > self.capacity {
            let Some(entry) = self.table.pop_back() else { return };
            self.size -= entry.size();
            self.changes.push(Change::Evicted(entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields_of(decoder: &mut Decoder, block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut fields = Fields::default();
        decoder.decode(block, &mut fields).unwrap();
        fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    #[test]
    fn the_examples_of_the_rfc_are_decoded() {
        // RFC 7541, C.4: three requests with Huffman's code.
        let mut decoder = Decoder::new(1 << 14);
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let found = fields_of(&mut decoder, first);
        assert_eq!(found[3], (b":authority".to_vec(), b"www.example.com".to_vec()));
        let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
        let found = fields_of(&mut decoder, second);
        assert_eq!(found[4], (b"cache-control".to_vec(), b"no-cache".to_vec()));
        assert_eq!(decoder.size, 57 + 53);
    }

    #[test]
    fn a_table_is_put_back_to_a_mark() {
        let mut decoder = Decoder::new(1 << 14);
        let literal = |size: u8| [&[0x40, 1, b'n', size][..], &vec![b'v'; usize::from(size)]].concat();
        for _ in 0..40 {
            fields_of(&mut decoder, &literal(100));
        }
        decoder.keep();
        let before: Vec<Entry> = decoder.table.iter().cloned().collect();
        let (size, mark) = (decoder.size, decoder.mark());
        fields_of(&mut decoder, &literal(50)); // evicts one
        fields_of(&mut decoder, b"\x3f\x09\x82"); // a smaller table
        assert_ne!(decoder.size, size);
        decoder.undo(mark);
        assert_eq!((decoder.size, decoder.capacity), (size, TABLE_BYTES));
        assert!(decoder.table.iter().eq(before.iter()));
    }

    #[test]
    fn a_wrong_block_changes_nothing() {
        let mut decoder = Decoder::new(200);
        let mut fields = Fields::default();
        for block in [
            &b"\x40\x01n\x01v\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\xc8",
            b"\x80",
            b"\x00\x81\xff\x00",
            b"\x82\x20",
        ] {
            assert_eq!(decoder.decode(block, &mut fields), Err(Wrong));
            assert_eq!((decoder.size, decoder.table.len()), (0, 0));
        }
        let long = [&b"\x00\x01n\x7f\x50"[..], &[b'v'; 207]].concat();
        assert_eq!(decoder.decode(&long, &mut fields), Err(Wrong));
    }
}
