//! MD5 (RFC 1321) of several bodies at once.
//!
//! A step of MD5 needs the result of the one before, so one body keeps a core at a third of what it can do. Here up to
//! `WIDE` bodies take each step together, as lanes of loops that the compiler makes vectors of; where few are left,
//! `NARROW` of them, in registers. They go as many blocks in step as the shortest one has.

use std::hint::black_box;

use md5::{Digest, Md5};

const WIDE: usize = 32; // as many as an answer has messages
const NARROW: usize = 4;
const WIDE_MIN: usize = 12; // of fewer, groups of `NARROW` are faster
const BLOCK: usize = 64; // bytes
const BEGIN: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

/// A body under way.
struct Stream<'a> {
    number: usize,
    body: &'a [u8],
    /// The blocks behind the body's whole ones: what is left of it, 0x80, zeros, and its size in bits.
    tail: [u8; 2 * BLOCK],
    state: [u32; 4],
    /// Blocks that are done, and all.
    done: usize,
    blocks: usize,
}

impl<'a> Stream<'a> {
    fn new(number: usize, body: &'a [u8]) -> Self {
        let rest = &body[body.len() / BLOCK * BLOCK..];
        let mut tail = [0; 2 * BLOCK];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let size = (rest.len() + 9).div_ceil(BLOCK) * BLOCK;
        tail[size - 8..size].copy_from_slice(&(body.len() as u64 * 8).to_le_bytes());
        let blocks = body.len() / BLOCK + size / BLOCK;
        Self { number, body, tail, state: BEGIN, done: 0, blocks }
    }
    fn left(&self) -> usize {
        self.blocks - self.done
    }
    /// The block `after` those that are done.
    fn block(&self, after: usize) -> &[u8; BLOCK] {
        let (at, whole) = (self.done + after, self.body.len() / BLOCK);
        let bytes = if at < whole { &self.body[at * BLOCK..] } else { &self.tail[(at - whole) * BLOCK..] };
        bytes.first_chunk().expect("a block is whole")
    }
}

/// Append the digests of all bodies, in their order.
pub fn digests(bodies: &[&[u8]], found: &mut Vec<[u8; 16]>) {
    for group in bodies.chunks(WIDE) {
        if let [body] = group {
            found.push(Md5::digest(body).into()); // the fastest for one alone
            continue;
        }
        let begin = found.len();
        found.resize(begin + group.len(), [0; 16]);
        let mut streams: Vec<_> =
            group.iter().enumerate().map(|(number, body)| Stream::new(number, body)).collect();
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.blocks));
        while let Some(shortest) = streams.last() {
            let count = shortest.left();
            // The shortest ones: so they stay in the order of what is left of them.
            match streams.len() {
                1 => in_step::<1>(&mut streams, count, 1),
                some @ 2..WIDE_MIN => {
                    let (_, few) = streams.split_at_mut(some.saturating_sub(NARROW));
                    in_step::<NARROW>(few, count, NARROW);
                }
                // A number that the compiler does not know: it would make no vectors of loops that are that short.
                some => in_step::<WIDE>(&mut streams, count, black_box(some.next_multiple_of(NARROW))),
            }
            while let Some(done) = streams.pop_if(|stream| stream.left() == 0) {
                for (bytes, word) in found[begin + done.number].chunks_mut(4).zip(done.state) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
}

/// Do some blocks of up to `lanes` of `N` streams.
#[inline(never)]
fn in_step<const N: usize>(streams: &mut [Stream<'_>], blocks: usize, lanes: usize) {
    let (mut state, mut words) = (BEGIN.map(|word| [word; N]), [[0; N]; 16]);
    for (lane, stream) in streams.iter().enumerate() {
        for (word, of_stream) in state.iter_mut().zip(stream.state) {
            word[lane] = of_stream;
        }
    }
    for after in 0..blocks {
        for (lane, stream) in streams.iter().enumerate() {
            let block = stream.block(after);
            for (at, word) in words.iter_mut().enumerate() {
                word[lane] = u32::from_le_bytes([0, 1, 2, 3].map(|byte| block[4 * at + byte]));
            }
        }
        let before = state;
        round(&mut state, &words, 0, |i| i % 16, lanes, |b, c, d| d ^ (b & (c ^ d)));
        round(&mut state, &words, 1, |i| (5 * i + 1) % 16, lanes, |b, c, d| (d & b) | (!d & c));
        round(&mut state, &words, 2, |i| (3 * i + 5) % 16, lanes, |b, c, d| b ^ c ^ d);
        round(&mut state, &words, 3, |i| 7 * i % 16, lanes, |b, c, d| c ^ (b | !d));
        for (word, before) in state.iter_mut().zip(before) {
            for lane in 0..lanes {
                word[lane] = word[lane].wrapping_add(before[lane]);
            }
        }
    }
    for (lane, stream) in streams.iter_mut().enumerate() {
        stream.state = state.map(|word| word[lane]);
        stream.done += blocks;
    }
}

/// Do one of the four rounds of 16 steps; `word` says which word of the block a step takes.
#[inline]
fn round<const N: usize>(
    [a, b, c, d]: &mut [[u32; N]; 4],
    words: &[[u32; N]; 16],
    number: usize,
    word: impl Fn(usize) -> usize,
    lanes: usize,
    mix: impl Fn(u32, u32, u32) -> u32 + Copy,
) {
    let turns = TURNS[number];
    for i in [0, 4, 8, 12] {
        let (words, sines) = (|at| &words[word(i + at)], |at| SINES[16 * number + i + at]);
        step(a, [b, c, d], words(0), sines(0), turns[0], lanes, mix);
        step(d, [a, b, c], words(1), sines(1), turns[1], lanes, mix);
        step(c, [d, a, b], words(2), sines(2), turns[2], lanes, mix);
        step(b, [c, d, a], words(3), sines(3), turns[3], lanes, mix);
    }
}

#[inline]
fn step<const N: usize>(
    a: &mut [u32; N],
    [b, c, d]: [&[u32; N]; 3],
    word: &[u32; N],
    sine: u32,
    turn: u32,
    lanes: usize,
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let (a, b, c, d, word) = (&mut a[..lanes], &b[..lanes], &c[..lanes], &d[..lanes], &word[..lanes]);
    for lane in 0..lanes {
        let sum = a[lane].wrapping_add(sine).wrapping_add(word[lane]);
        let sum = sum.wrapping_add(mix(b[lane], c[lane], d[lane]));
        a[lane] = b[lane].wrapping_add(sum.rotate_left(turn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[usize]) {
        let bodies: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(number, size)| (0..*size).map(|at| (at * 7 + number * 31 + at / 251) as u8).collect())
            .collect();
        let mut found = vec![];
        digests(&bodies.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut found);
        let alone: Vec<[u8; 16]> = bodies.iter().map(|body| Md5::digest(body).into()).collect();
        assert_eq!(found, alone, "{sizes:?}");
    }

    #[test]
    fn digests_are_those_of_each_body_alone() {
        for size in [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1024, 70_000] {
            for count in [1, 2, 3, 4, 5, 11, 12, 13, 31, 32, 33, 65] {
                check(&vec![size; count]);
            }
        }
    }

    #[test]
    fn lengths_may_be_mixed() {
        let mut random: u32 = 1;
        let mut below = |end: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as usize % end
        };
        for _ in 0..60 {
            let most = [1, 60, 70, 200, 5000, 100_000][below(6)];
            let sizes: Vec<_> = (0..below(70)).map(|_| below(most + 1)).collect();
            check(&sizes);
        }
        check(&[]);
        check(&[4 << 20, 0, 1024, 3 << 20, 55]);
    }

    #[test]
    #[ignore = "measures: cargo test --release -p whimbrel-core digest -- --ignored --nocapture"]
    fn speed() {
        for count in [1_u8, 2, 4, 8, 11, 12, 16, 24, 32] {
            let bodies = vec![vec![7_u8; 1024]; count.into()];
            let bodies: Vec<_> = bodies.iter().map(Vec::as_slice).collect();
            let mut best = f64::MAX;
            for _ in 0..2000 {
                let (began, mut found) = (std::time::Instant::now(), vec![]);
                digests(black_box(&bodies), &mut found);
                black_box(found);
                best = best.min(began.elapsed().as_secs_f64() / f64::from(count));
            }
            println!("{count} bodies of 1 KiB: {:.0} ns each", best * 1e9);
        }
    }
}
