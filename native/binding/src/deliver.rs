//! Records of the log as messages for consumers, for Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use whimbrel_core::deliver::{Message, Words, pairs, plain, put_responses};
use whimbrel_core::pull::{Budget, Pull, Tags};
use whimbrel_core::record::{Next, next};

use crate::calls::wanted;
use crate::guarded;

/// A plain record, and where it is in what was read of the log.
#[pyclass(frozen, module = "whimbrel_lane")]
pub struct PlainRecord {
    read: Py<PyBytes>,
    begin: usize,
    end: usize,
    #[pyo3(get)]
    reconsume_times: i32,
}

#[pymethods]
impl PlainRecord {
    /// The record itself.
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes(py))
    }

    /// Its properties by their names.
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        if let Next::Record(record) = next(self.bytes(py)) {
            for (name, value) in pairs(record.properties) {
                found.set_item(String::from_utf8_lossy(name), String::from_utf8_lossy(value))?;
            }
        }
        Ok(found)
    }
}

impl PlainRecord {
    fn bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        &self.read.as_bytes(py)[self.begin..self.end]
    }
}

/// Makes responses with messages of records.
#[pyclass(frozen, module = "whimbrel_lane")]
pub struct Deliveries {
    words: Words,
}

/// Entries, messages, bytes of their records, where the last one stands, responses.
type Pulled<'py> = (usize, usize, i64, i64, Bound<'py, PyBytes>);
type Unit<'py> = (i64, i64, Bound<'py, PyAny>);
type Wanted<'py> = (Bound<'py, PlainRecord>, Bound<'py, pyo3::types::PyString>, u64);

#[pymethods]
impl Deliveries {
    #[new]
    #[pyo3(signature = (**values))]
    fn new(values: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let none = || pyo3::exceptions::PyTypeError::new_err("Deliveries needs its values");
        let values = values.ok_or_else(none)?;
        let (hidden, rare): (Vec<Vec<u8>>, Vec<Vec<u8>>) =
            (wanted(values, "hidden")?, wanted(values, "rare")?);
        let (hidden, rare) = (hidden.into_iter().collect(), rare.into_iter().collect());
        let (time_max_ms, attempt_max) = (wanted(values, "time_max_ms")?, wanted(values, "attempt_max")?);
        Ok(Self { words: Words { hidden, rare, time_max_ms, attempt_max } })
    }

    fn records<'py>(
        &self,
        py: Python<'py>,
        read: &Bound<'py, PyBytes>,
        base: i64,
        units: Vec<Unit<'py>>,
        found: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let data = read.as_bytes();
        for (place, size, _) in units {
            let begin = place.checked_sub(base).and_then(|begin| usize::try_from(begin).ok());
            let range =
                begin.zip(usize::try_from(size).ok()).map(|(begin, size)| begin..begin.saturating_add(size));
            let bytes = range.clone().and_then(|range| data.get(range));
            let record = guarded(|| bytes.and_then(|bytes| plain(bytes, place, &self.words)))?;
            match record.zip(range) {
                None => found.append(py.None())?,
                Some((record, range)) => found.append(Bound::new(
                    py,
                    PlainRecord {
                        read: read.clone().unbind(),
                        begin: range.start,
                        end: range.end,
                        reconsume_times: record.reconsume_times,
                    },
                )?)?,
            }
        }
        Ok(())
    }

    #[allow(clippy::needless_pass_by_value)] // as Python calls it
    fn responses<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<Wanted<'py>>,
        namespace: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = messages.iter().map(|(one, ..)| one.get().end - one.get().begin + 512).sum();
        let handles = messages.iter().map(|(_, handle, _)| handle.to_cow()).collect::<PyResult<Vec<_>>>()?;
        let mut out = Vec::with_capacity(size);
        let done = guarded(|| {
            let mut found = Vec::with_capacity(messages.len());
            for ((one, _, attempt), handle) in messages.iter().zip(&handles) {
                let Next::Record(record) = next(one.get().bytes(py)) else { return None };
                found.push(Message { record, handle, attempt: *attempt });
            }
            put_responses(&found, namespace, &self.words, &mut out)
        })?;
        done.ok_or_else(|| pyo3::exceptions::PyValueError::new_err("a record is not plain"))?;
        Ok(PyBytes::new(py, &out))
    }

    #[allow(clippy::needless_pass_by_value)] // as Python calls it
    fn pull<'py>(
        &self,
        py: Python<'py>,
        units: &[u8],
        budget: (usize, i64, i64),
        tags: Option<(Vec<u32>, Vec<Vec<u8>>)>,
        namespace: &str,
        read: Bound<'py, PyAny>,
    ) -> PyResult<Pulled<'py>> {
        let (room, first_max, bytes_left) = budget;
        let tags = tags.map(|(codes, texts)| Tags { codes, texts });
        let mut pull = guarded(|| Pull::new(units, &Budget { room, first_max, bytes_left }, tags))?;
        let mut pieces: Vec<Bound<'py, PyBytes>> = vec![];
        while let Some(range) = pull.next_read() {
            let piece = read.call1(range)?.cast_into::<PyBytes>()?;
            guarded(|| pull.take(piece.as_bytes(), &self.words))?;
            pieces.push(piece);
        }
        let mut out = vec![];
        let pieces: Vec<&[u8]> = pieces.iter().map(PyBytesMethods::as_bytes).collect();
        let done = guarded(|| pull.finish(&pieces, namespace, &self.words, &mut out))?;
        let count = done.ok_or_else(|| pyo3::exceptions::PyValueError::new_err("a record is not plain"))?;
        Ok((pull.entries, count, pull.bytes, pull.last_place, PyBytes::new(py, &out)))
    }
}
