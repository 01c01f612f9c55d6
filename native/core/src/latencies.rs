//! Latencies in a fixed number of counters, however many there are: those of `cli/latencies.py`, number by number.
//!
//! A value of up to `SMALL` nanoseconds has a counter of its own; above, each power of two has `SMALL / 2` of them.

const BITS: u32 = 8;
const SMALL: u64 = 1 << BITS;
const HALF: u64 = SMALL >> 1;
const VALUE_BITS_MAX: u32 = 43; // 2.4 hours; longer ones count as that
const COUNTERS: usize = (SMALL + HALF * (VALUE_BITS_MAX - BITS) as u64) as usize;

/// Counts of latencies.
pub struct Latencies {
    counters: Vec<u64>,
    pub count: u64,
    pub greatest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counters: vec![0; COUNTERS], count: 0, greatest_ns: 0 }
    }
}

impl Latencies {
    /// Count one latency.
    pub fn add(&mut self, value_ns: u64) {
        self.count += 1;
        self.greatest_ns = self.greatest_ns.max(value_ns);
        self.counters[counter_of(value_ns)] += 1;
    }
    /// The counters that are not 0, by their numbers.
    pub fn counters(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counters.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }
}

fn counter_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS_MAX) - 1);
    if value < SMALL {
        return value as usize;
    }
    let shift = u64::BITS - value.leading_zeros() - BITS;
    (SMALL + HALF * u64::from(shift - 1) + (value >> shift) - HALF) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_are_those_of_python() {
        for (value, counter) in
            [(0, 0), (255, 255), (256, 256), (511, 383), (512, 384), (1_000_000, 1780), (u64::MAX, 4735)]
        {
            assert_eq!(counter_of(value), counter, "{value}");
        }
    }

    #[test]
    fn every_latency_is_counted() {
        let mut found = Latencies::default();
        for value in [3, 3, 700, u64::MAX] {
            found.add(value);
        }
        let numbers: Vec<_> = found.counters().collect();
        assert_eq!(numbers, [(3, 2), (counter_of(700), 1), (COUNTERS - 1, 1)]);
        assert_eq!((found.count, found.greatest_ns), (4, u64::MAX));
    }
}
