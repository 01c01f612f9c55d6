//! The Python module `whimbrel_lane`: `whimbrel_core` for Python's types. `whimbrel_lane.pyi` describes it.
//!
//! Nothing is decided here. What panics becomes `Broken`; the caller then goes on without the lane.
#![deny(unsafe_code)]

mod bulk;
mod calls;
mod deliver;
mod load;
mod remote;
mod replica;
mod views;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use whimbrel_core::dispatch;
use whimbrel_core::hash::{key_hash, topic_hash};
use whimbrel_core::index::{Header, Keyed, put};
use whimbrel_core::record;

create_exception!(whimbrel_lane, Broken, PyRuntimeError, "The lane has a fault: a panic was caught.");

/// Run what must not panic.
fn guarded<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string));
        Broken::new_err(text.unwrap_or_default())
    })
}

/// Hashed keys of records, in the order of the log.
#[pyclass(frozen, module = "whimbrel_lane")]
struct Keys {
    keys: Vec<Keyed>,
}

#[pymethods]
impl Keys {
    fn __len__(&self) -> usize {
        self.keys.len()
    }
    /// The physical offset of the first key's record; -1 without any.
    #[getter]
    fn first_offset(&self) -> i64 {
        self.keys.first().map_or(-1, |keyed| keyed.physical_offset)
    }
}

type Fields = (i64, i64, i64, i64, i32, i32);
type Entries<'py> = (usize, bool, i64, Bound<'py, PyList>);

#[pyfunction]
fn entries<'py>(py: Python<'py>, data: &[u8], base: i64) -> PyResult<Entries<'py>> {
    let found = guarded(|| dispatch::entries(data, base))?;
    let runs = PyList::empty(py);
    for run in &found.runs {
        let mut field = vec![run.topic.len().min(255) as u8];
        field.extend_from_slice(run.topic);
        runs.append((PyBytes::new(py, &field), run.queue_id, run.first, PyBytes::new(py, &run.entries)))?;
    }
    Ok((found.bytes, found.foreign, found.store_time_ms, runs))
}

#[pyfunction]
fn keys(data: &[u8], base: i64, tags: bool) -> PyResult<(usize, bool, Keys)> {
    let found = guarded(|| dispatch::keys(data, base, tags))?;
    Ok((found.bytes, found.foreign, Keys { keys: found.keys }))
}

#[pyfunction]
fn kept(data: &[u8], base: i64) -> PyResult<(usize, i64)> {
    let (bytes, last) = guarded(|| record::kept(data, base))?;
    Ok((bytes, last.unwrap_or(-1)))
}

#[pyfunction]
fn hashed(records: &Bound<'_, PyList>) -> PyResult<Keys> {
    let not_text = || PyValueError::new_err("a key is no text");
    let mut found = Vec::with_capacity(2 * records.len());
    for record in records.iter() {
        let (topic, keys, physical_offset, store_time_ms): (
            Bound<'_, PyString>,
            Bound<'_, PyTuple>,
            i64,
            i64,
        ) = record.extract()?;
        let topic = topic_hash(topic.to_cow()?.as_bytes()).ok_or_else(not_text)?;
        for key in keys.iter() {
            let key = key.cast_into::<PyString>()?;
            let hash = key_hash(topic, key.to_cow()?.as_bytes()).ok_or_else(not_text)?;
            found.push(Keyed { hash, physical_offset, store_time_ms });
        }
    }
    Ok(Keys { keys: found })
}

#[pyfunction]
fn joined(several: &Bound<'_, PyList>) -> PyResult<Keys> {
    let mut keys = vec![];
    for each in several.iter() {
        keys.extend_from_slice(&each.cast_into::<Keys>()?.get().keys);
    }
    Ok(Keys { keys })
}

#[pyfunction]
fn put_keys(
    file: &Bound<'_, PyAny>,
    slots: u32,
    header: Fields,
    keys: &Keys,
    first: usize,
    count: usize,
) -> PyResult<Fields> {
    let (begin_ms, end_ms, begin_offset, end_offset, slots_used, number) = header;
    let header = Header { begin_ms, end_ms, begin_offset, end_offset, slots_used, count: number };
    let group = first.checked_add(count).and_then(|end| keys.keys.get(first..end));
    let group = group.ok_or_else(|| PyValueError::new_err("there are not so many keys"))?;
    let done = views::with_bytes(file, |bytes| guarded(|| put(bytes, slots, header, group)))??;
    let done = done.ok_or_else(|| PyValueError::new_err("the file has no room for these keys"))?;
    Ok((done.begin_ms, done.end_ms, done.begin_offset, done.end_offset, done.slots_used, done.count))
}

#[pyfunction]
fn panic(text: &str) -> PyResult<()> {
    guarded(|| panic!("{text}"))
}

#[pymodule(gil_used = true)]
fn whimbrel_lane(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", env!("WHIMBREL_SOURCES"))?;
    module.add("Broken", module.py().get_type::<Broken>())?;
    module.add_class::<Keys>()?;
    module.add_class::<bulk::BulkPlan>()?;
    module.add_class::<calls::HeaderDecoder>()?;
    module.add_class::<calls::PlainCalls>()?;
    module.add_class::<calls::Answers>()?;
    module.add_class::<calls::ParkedAnswers>()?;
    module.add_class::<remote::RemoteSends>()?;
    module.add_class::<deliver::Deliveries>()?;
    module.add_class::<deliver::PlainRecord>()?;
    module.add_class::<load::SendLoad>()?;
    module.add_class::<replica::Feeding>()?;
    module.add_class::<replica::Following>()?;
    module.add_function(wrap_pyfunction!(entries, module)?)?;
    module.add_function(wrap_pyfunction!(keys, module)?)?;
    module.add_function(wrap_pyfunction!(kept, module)?)?;
    module.add_function(wrap_pyfunction!(hashed, module)?)?;
    module.add_function(wrap_pyfunction!(joined, module)?)?;
    module.add_function(wrap_pyfunction!(put_keys, module)?)?;
    module.add_function(wrap_pyfunction!(panic, module)?)?;
    module.add_function(wrap_pyfunction!(bulk::plan_pull, module)?)?;
    module.add_function(wrap_pyfunction!(remote::decoded, module)?)?;
    module.add_function(wrap_pyfunction!(remote::pull_of, module)?)?;
    module.add_function(wrap_pyfunction!(replica::feed, module)?)?;
    module.add_function(wrap_pyfunction!(replica::follow, module)?)?;
    Ok(())
}
