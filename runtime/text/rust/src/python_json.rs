//! `tojson` as Transformers defines it for templates: Python's json.dumps, not escaped for HTML.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

const MAX_DEPTH: usize = 128;

struct Dump {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

pub fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(flag) => flag,
        None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    // json.dumps leaves no space at the end of a line.
    let line_end = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        _ => (line_end.to_string(), ": ".to_string()),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut dump =
        Dump { out: String::new(), ensure_ascii, indent, item_separator, key_separator, sort_keys };
    dump.value(value, 0)?;
    Ok(Value::from(dump.out))
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: nested deeper than {MAX_DEPTH}"),
            ));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                write!(self.out, "{value}").expect("a String takes everything")
            }
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                self.out.push_str(&python_float(number));
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(items, '[', ']', depth, |dump, item| dump.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    pairs.push((key_text(&key)?, item));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list(pairs, '{', '}', depth, |dump, (key, item)| {
                    dump.string(&key);
                    let separator = dump.key_separator.clone();
                    dump.out.push_str(&separator);
                    dump.value(&item, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of type {kind} has no JSON form"),
                ))
            }
        }
        Ok(())
    }

    fn list<T>(
        &mut self,
        items: Vec<T>,
        open: char,
        close: char,
        depth: usize,
        mut write_item: impl FnMut(&mut Dump, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let empty = items.is_empty();
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                let separator = self.item_separator.clone();
                self.out.push_str(&separator);
            }
            self.new_line(depth + 1);
            write_item(self, item)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            let margin = indent.repeat(depth);
            self.out.push('\n');
            self.out.push_str(&margin);
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a String takes everything");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None => Ok("null".to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(python_float(f64::try_from(key.clone())?)),
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: a value of type {kind} cannot be a key"),
        )),
    }
}

/// Python's repr of a float: the shortest digits, with an exponent from 1e16 on and below 1e-4.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if number == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
