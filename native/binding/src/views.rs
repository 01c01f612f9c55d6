//! The only unsafe code: memory that Python owns, as a slice.

#![allow(unsafe_code)]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Run `work` with the memory of a writable object, a mapped file for instance.
///
/// # Errors
/// `BufferError`: it is no contiguous piece of writable bytes.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, work: impl FnOnce(&mut [u8]) -> T) -> PyResult<T> {
    let buffer = PyBuffer::<u8>::get(object)?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the lane needs writable bytes in one piece"));
    }
    // SAFETY: the buffer is held until `work` is done, so its owner neither frees nor unmaps it. `object` proves that
    // this thread is attached to the interpreter: no other Python code runs, and `work` calls none. The files that
    // are mapped have one writer, this process; other processes read them, which a write of ours may disturb
    // for them, not for us. A file that somebody truncates raises SIGBUS, as it does for Python's own writes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    let result = work(bytes);
    drop(buffer);
    Ok(result)
}
