//! The only unsafe code: memory that Python owns, and its descriptors.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicI64;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// Run `work` with the memory of a writable object, a mapped file for instance.
///
/// # Errors
/// `BufferError`: it is no contiguous piece of writable bytes.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, work: impl FnOnce(&mut [u8]) -> T) -> PyResult<T> {
    let held = Held::of(object)?;
    // SAFETY: the buffer is held until `work` is done, so its owner neither frees nor unmaps it. `object` proves that
    // this thread is attached to the interpreter: no other Python code runs, and `work` calls none; it may let others
    // run, or call some, only where no other thread has the object, and what it calls does not, as the buffer of
    // `replica::follow`. The files that are mapped
    // have one writer, this process; other processes read them, which a write of ours may disturb for them, not
    // for us. A file that somebody truncates raises SIGBUS, as it does for Python's own writes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(held.pointer, held.size) };
    let result = work(bytes);
    drop(held);
    Ok(result)
}

/// Writable memory of a Python object, which is kept from freeing it.
pub struct Held {
    pointer: *mut u8,
    size: usize,
    _buffer: PyBuffer<u8>,
}

impl Held {
    /// # Errors
    /// `BufferError`: it is no contiguous piece of writable bytes.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the lane needs writable bytes in one piece"));
        }
        Ok(Self { pointer: buffer.buf_ptr().cast::<u8>(), size: buffer.len_bytes(), _buffer: buffer })
    }

    /// Use the memory from a thread that may not be attached to the interpreter.
    pub fn memory(&self) -> Memory<'_> {
        Memory { pointer: self.pointer, size: self.size, held: PhantomData }
    }
}

/// Memory that other threads and processes may read and write meanwhile: only raw copies and atomics touch it.
pub struct Memory<'a> {
    pointer: *mut u8,
    size: usize,
    held: PhantomData<&'a Held>,
}

// SAFETY: the pointer is valid for as long as the `Held` that it borrows from, on whatever thread.
unsafe impl Send for Memory<'_> {}

impl Memory<'_> {
    /// Copy bytes to a place; whether they have room there.
    pub fn put(&self, at: usize, data: &[u8]) -> bool {
        let fits = at.checked_add(data.len()).is_some_and(|end| end <= self.size);
        if fits {
            // SAFETY: both ends were compared, and no slice of Rust's is ever made of this memory.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.pointer.add(at), data.len()) };
        }
        fits
    }

    /// A cell of 8 bytes.
    ///
    /// # Errors
    /// `ValueError`: it is not within, or not aligned.
    pub fn cell(&self, at: usize) -> PyResult<&AtomicI64> {
        let within = at.checked_add(8).is_some_and(|end| end <= self.size);
        if !within || !(self.pointer as usize + at).is_multiple_of(8) {
            return Err(PyValueError::new_err(format!("there is no cell at {at}")));
        }
        // SAFETY: it is within and aligned, and all other accesses are atomic for the machine: Python's are single
        // moves of 8 aligned bytes (`store/shared_page.py`).
        #[allow(clippy::cast_ptr_alignment)]
        Ok(unsafe { AtomicI64::from_ptr(self.pointer.add(at).cast::<i64>()) })
    }
}

/// A descriptor of an object that the caller keeps open.
///
/// # Errors
/// `ValueError`: it is closed.
pub fn descriptor<'a>(fd: RawFd) -> PyResult<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(PyValueError::new_err("a descriptor is closed"));
    }
    // SAFETY: it is not -1. Its owner is an object of Python's that is open during the call; were it closed, system
    // calls would fail, or reach another file of this process, as they would from Python.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
