//! Protobuf's wire format, as far as plain requests use it.
//!
//! What a library would take as well, but no library writes (a tag or a length in more bytes than it needs), is not read
//! here. A value may have more: whoever puts it into a request that is made already keeps its size.

/// Reads fields one after the other.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
    /// A value; 0 bits at its end may be written out.
    pub fn value(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (at, byte) in self.rest.iter().take(9).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Some(value);
            }
        }
        None
    }
    /// A number in as few bytes as it takes.
    pub fn varint(&mut self) -> Option<u64> {
        let before = self.rest.len();
        let value = self.value()?;
        (before - self.rest.len() == varint_len(value)).then_some(value)
    }
    /// Bytes behind their length.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (found, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(found)
    }
    /// A text that is UTF-8.
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

/// How many bytes a number takes.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f | 0x80) as u8);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_and_read_with_as_few_bytes_as_they_take() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), (1 << 63) - 1] {
            let mut bytes = vec![];
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            let mut reader = Reader::new(&bytes);
            assert_eq!((reader.varint(), reader.is_done()), (Some(value), true));
        }
        assert_eq!(Reader::new(b"\x80\x00").varint(), None);
        assert_eq!(Reader::new(b"\xc0\x84\xbd\x80\x00").value(), Some(1_000_000));
        assert_eq!(Reader::new(b"\x80").varint(), None);
        assert_eq!(Reader::new(&[0xff; 10]).varint(), None);
    }

    #[test]
    fn bytes_that_are_not_all_there_are_none() {
        assert_eq!(Reader::new(b"\x02a").bytes(), None);
        assert_eq!(Reader::new(b"\x01a").bytes(), Some(&b"a"[..]));
        assert_eq!(Reader::new(b"\x01\xff").text(), None);
    }
}
