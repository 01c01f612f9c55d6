//! Frames of bulk readers, for Python.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use whimbrel_core::bulk::{Bounds, Plan, Pulled};

use crate::guarded;

/// The parts of the log that go into a frame.
#[pyclass(module = "whimbrel_lane")]
pub struct BulkPlan {
    plan: Plan,
}

#[pymethods]
impl BulkPlan {
    #[new]
    fn new(
        file_size: i64,
        gap_max: i64,
        span_max: i64,
        codes: Option<HashSet<u32>>,
        room: i64,
    ) -> PyResult<Self> {
        let plan = guarded(|| Plan::new(Bounds { file_size, gap_max, span_max, codes }, room))?;
        Ok(Self { plan })
    }

    fn take(&mut self, packed: &[u8]) -> PyResult<(usize, i64)> {
        guarded(|| (self.plan.take(packed), self.plan.room()))
    }

    fn spans(&self) -> Vec<(i64, i64)> {
        self.plan.spans().collect()
    }

    #[allow(clippy::needless_pass_by_value)] // as Python calls it
    fn cut<'py>(
        &self,
        py: Python<'py>,
        reads: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let data: Vec<&[u8]> = reads.iter().map(PyBytesMethods::as_bytes).collect();
        let Some(pieces) = guarded(|| self.plan.pieces(&data))? else { return Ok(None) };
        if let ([(0, piece)], [read]) = (&pieces[..], &reads[..]) {
            if *piece == (0..data[0].len()) {
                return Ok(Some(read.clone())); // nothing lies between its records
            }
        }
        let size = pieces.iter().map(|(_, piece)| piece.len()).sum();
        let frame = PyBytes::new_with(py, size, |mut frame| {
            for (read, piece) in pieces {
                let (head, rest) = frame.split_at_mut(piece.len());
                head.copy_from_slice(&data[read][piece]);
                frame = rest;
            }
            Ok(())
        })?;
        Ok(Some(frame))
    }
}

type Planned = (usize, usize, i64, Option<i64>, Vec<(i64, i64)>, BulkPlan);

/// Plan a pull over packed entries; `None` where one of them is not plain.
#[pyfunction]
pub fn plan_pull(
    packed: &[u8],
    bounds: (i64, i64, i64),
    codes: Option<HashSet<u32>>,
    room: i64,
    most: (usize, i64),
    log_begin: i64,
) -> PyResult<Option<Planned>> {
    let (file_size, gap_max, span_max) = bounds;
    let pulled = Pulled { records_max: most.0, record_max: most.1, log_begin };
    guarded(|| {
        let mut plan = Plan::new(Bounds { file_size, gap_max, span_max, codes }, room);
        let done = plan.take_pulled(packed, &pulled)?;
        let spans = plan.spans().collect();
        Some((done, plan.count(), room - plan.room(), plan.last_place(), spans, BulkPlan { plan }))
    })
}
