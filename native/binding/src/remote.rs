//! Sends of the remoting protocol, and headers of its requests, for Python.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use whimbrel_core::command::{self, Header, Limits, Text};
use whimbrel_core::pass::{Answer, Log};
use whimbrel_core::remote::{Pass, Policy, Read, Stop, Taken};
use whimbrel_core::remote_pull::{self, Bounds};

use crate::calls::{Answers, Known, LogEnd, plan_object, wanted};
use crate::guarded;

/// The plain sends of a broker.
#[pyclass(frozen, module = "whimbrel_lane")]
pub struct RemoteSends {
    policy: Policy,
}

#[pymethods]
impl RemoteSends {
    #[new]
    #[pyo3(signature = (**values))]
    fn new(values: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let none = || pyo3::exceptions::PyTypeError::new_err("RemoteSends needs its values");
        let values = values.ok_or_else(none)?;
        let policy = Policy {
            limits: Limits {
                frame_max: wanted(values, "frame_max")?,
                header_max: wanted(values, "header_max")?,
            },
            cluster: wanted(values, "cluster")?,
            store_host: wanted(values, "store_host")?,
            special: wanted(values, "special")?,
            traced: wanted(values, "traced")?,
            body_max: wanted(values, "body_max")?,
            text_max: wanted(values, "text_max")?,
            time_max_ms: wanted(values, "time_max_ms")?,
            messages_max: wanted(values, "messages_max")?,
            answer: wanted(values, "answer")?,
            indexed: wanted(values, "indexed")?,
            index_tags: wanted(values, "index_tags")?,
            size_bounds: wanted(values, "size_bounds")?,
        };
        Ok(Self { policy })
    }

    fn take<'py>(
        &self,
        py: Python<'py>,
        reads: &Bound<'py, PyList>,
        log: LogEnd,
        topics: &Bound<'py, PyAny>,
        found: &Bound<'py, PyList>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let mut known = Known { topics, queues: vec![] };
        let log = log_of(log);
        let parks = log.parks_left.is_some();
        let mut pass = Pass::new(&self.policy, log, &mut known);
        for read in reads.iter() {
            let (data, born_host): (Bound<'py, PyBytes>, PyBackedBytes) = read.extract()?;
            let taken = guarded(|| pass.take(Read { data: data.as_bytes(), born_host: &born_host }))?;
            found.append(taken_object(py, taken, parks)?)?;
        }
        let plan = pass.plan();
        if plan.messages == 0 { Ok(None) } else { plan_object(py, plan).map(Some) }
    }
}

pub fn log_of(log: LogEnd) -> Log {
    Log {
        end: log.0,
        room: log.1,
        now_ms: log.2,
        born_default_ms: log.3,
        parks_left: log.4,
        unsampled: log.5,
    }
}

/// What became of a read, as a tuple: see `whimbrel_lane.pyi`.
fn taken_object(py: Python<'_>, taken: Taken, parks: bool) -> PyResult<Bound<'_, PyTuple>> {
    let Taken { at, stop, frames, answers } = taken;
    let (partial, stop) = match stop {
        Stop::Partial(needed) => (true, needed),
        Stop::Foreign(end) => (false, end),
        Stop::Other => (false, at),
    };
    let codes = codes(&answers);
    let answers = if answers.is_empty() {
        py.None()
    } else if parks {
        Bound::new(py, Answers { frames, answers })?.into_any().unbind()
    } else {
        PyBytes::new(py, &frames).into_any().unbind()
    };
    (at, partial, stop, codes, answers).into_pyobject(py)
}

/// Which codes the requests of answers had, and how many of each.
pub fn codes(answers: &[Answer]) -> Vec<(i64, usize)> {
    let mut found: Vec<(i64, usize)> = vec![];
    for answer in answers {
        match found.iter_mut().find(|(code, _)| *code == answer.window) {
            Some((_, count)) => *count += 1,
            None => found.push((answer.window, 1)),
        }
    }
    found
}

type Command<'py> =
    (i32, i32, Option<Bound<'py, PyDict>>, Bound<'py, PyBytes>, i32, String, i32, Option<String>);

type Pull<'py> = (
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    i32,
    i64,
    i32,
    i32,
    i32,
    i64,
    Bound<'py, PyString>,
    bool,
    i64,
    i64,
);

type PullCommand<'py> = (i32, i32, i32, i32, String, Pull<'py>);

/// What a whole frame pulls: code, opaque number, flag, version, language, and the rest; `None` where it is not plain.
#[pyfunction]
pub fn pull_of<'py>(
    py: Python<'py>,
    frame: &[u8],
    limits: (usize, usize),
    bounds: (i32, i64, usize),
) -> PyResult<Option<PullCommand<'py>>> {
    let limits = Limits { frame_max: limits.0, header_max: limits.1 };
    let bounds = Bounds { bytes_max: bounds.0, suspend_max_ms: bounds.1, text_max: bounds.2 };
    let mut header = Header::default();
    let found = guarded(|| {
        let (header_text, body) = command::parts(frame, limits)?;
        command::read(header_text, &mut header).filter(|()| body.is_empty())?;
        remote_pull::read(&header, bounds)
    })?;
    let Some(pull) = found else { return Ok(None) };
    let values = (
        text(py, &pull.group),
        text(py, &pull.topic),
        pull.queue_id,
        pull.offset,
        pull.messages,
        pull.bytes,
        pull.flags,
        pull.version,
        text(py, &pull.text),
        pull.sql,
        pull.suspend_ms,
        pull.commit_offset,
    );
    let Header { code, opaque, flag, version, language, .. } = header;
    Ok(Some((code, opaque, flag, version, language.to_owned(), values)))
}

fn text<'py>(py: Python<'py>, text: &Text<'_>) -> Bound<'py, PyString> {
    match text.plain() {
        Some(plain) => PyString::new(py, plain),
        None => PyString::new(py, &string(text)),
    }
}
fn string(text: &Text<'_>) -> String {
    let mut found = String::new();
    text.put(&mut found);
    found
}

/// The command of a whole frame; `None` where its header is not plain.
#[pyfunction]
pub fn decoded<'py>(py: Python<'py>, frame: &[u8], limits: (usize, usize)) -> PyResult<Option<Command<'py>>> {
    let limits = Limits { frame_max: limits.0, header_max: limits.1 };
    let mut found = Header::default();
    let body = guarded(|| {
        let (header, body) = command::parts(frame, limits)?;
        command::read(header, &mut found).map(|()| body)
    })?;
    let Some(body) = body else { return Ok(None) };
    let mut fields = None;
    if found.has_fields {
        let dict = PyDict::new(py);
        for (name, value) in &found.fields {
            dict.set_item(*name, text(py, value))?;
        }
        fields = Some(dict);
    }
    let remark = found.remark.as_ref().map(string);
    let body = PyBytes::new(py, body);
    let Header { code, opaque, flag, version, language, .. } = found;
    Ok(Some((code, opaque, fields, body, flag, language.to_owned(), version, remark)))
}
