//! Where minijinja differs from Jinja in what published templates use: none is not iterable, what is
//! undefined is empty, texts and dicts are sequences, and Python's strings have more methods.

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{filters, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

pub fn is_sequence(value: &Value) -> bool {
    value.is_undefined()
        || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

pub fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    filters::length(value)
}

pub fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    filters::first(value)
}

pub fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    filters::items(value)
}

pub fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if matches!(method, "removeprefix" | "removesuffix" | "rsplit") => {
            text_method(text, method, args)
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn text_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "rsplit" {
        let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
        return rsplit(text, separator, limit.unwrap_or(-1));
    }
    let (part,): (&str,) = from_args(args)?;
    let rest = if method == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
    Ok(rest.unwrap_or(text).into())
}

/// At most `limit` cuts from the right; any number if it is negative.
fn rsplit(text: &str, separator: Option<&str>, limit: i64) -> Result<Value, Error> {
    let mut parts = Vec::new();
    let mut rest = if separator.is_none() { text.trim_end() } else { text };
    while limit < 0 || (parts.len() as i64) < limit {
        let cut = match separator {
            Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
            Some(separator) => rest.rsplit_once(separator),
            None => rest
                .rfind(char::is_whitespace)
                .map(|at| (rest[..at].trim_end(), rest[at..].trim_start())),
        };
        let Some((before, part)) = cut else { break };
        parts.push(Value::from(part));
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(Value::from(rest));
    }
    parts.reverse();
    Ok(Value::from(parts))
}
