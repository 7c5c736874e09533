//! Chat templates as Transformers runs them: trim_blocks, lstrip_blocks, loop controls, Python's
//! methods on strings and dicts, `tojson`, `raise_exception`, `strftime_now`, `{% generation %}`.

use crate::border::{guarded, Failure, Text, TextSink, Warnings};
use crate::config::Config;
use crate::jinja;
use crate::python_json::tojson;
use chrono::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value as Json};
use std::fmt::Write as _;
use std::io;

/// Instructions a rendering may take; a conversation of a thousand messages takes about 1e5.
const FUEL: u64 = 10_000_000;
const RECURSION_LIMIT: usize = 300;
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

pub struct TandemChatTemplate {
    environment: Environment<'static>,
    has_tool_use: bool,
    special_tokens: Map<String, Json>,
}

#[repr(C)]
pub struct RenderArgs {
    messages: Text,
    tools: Text,
    variables: Text,
    add_generation_prompt: i32,
    now_s: i64,
    max_output_bytes: usize,
}

/// The error of raise_exception, whose message is the template's own.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn strftime(now_s: i64, format: &str) -> Result<String, Error> {
    let now = DateTime::from_timestamp(now_s, 0).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: no date is {now_s} s"))
    })?;
    let mut text = String::new();
    write!(text, "{}", now.format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format {format:?}"))
    })?;
    Ok(text)
}

/// Jinja reads every line end as one.
fn with_unix_lines(template: &str) -> String {
    template.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks what an assistant wrote, for training; it changes no text.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some((inside, after)) = tag[2..].split_once("%}") else {
            rest = tag;
            break;
        };
        let opening = if inside.starts_with(['-', '+']) { &inside[..1] } else { "" };
        let body = &inside[opening.len()..];
        let closing = if body.ends_with(['-', '+']) { &body[body.len() - 1..] } else { "" };
        let replacement = match body[..body.len() - closing.len()].trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match replacement {
            Some(words) => {
                write!(out, "{{%{opening} {words} {closing}%}}").expect("a String takes everything");
                rest = after;
            }
            None => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The templates by name: `default`, and perhaps `tool_use`. None if there is no default.
fn templates(
    text: &str,
    config: &Map<String, Json>,
    warnings: &mut Warnings,
) -> Result<Vec<(String, String)>, Failure> {
    if !text.is_empty() {
        return Ok(vec![("default".to_string(), text.to_string())]);
    }
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(template)) => Ok(vec![("default".to_string(), template.clone())]),
        Some(Json::Array(list)) => {
            let mut named = Vec::new();
            for entry in list {
                match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some(name @ ("default" | "tool_use")), Some(template)) => {
                        named.push((name.to_string(), template.to_string()))
                    }
                    (Some(_), Some(_)) => {}
                    _ => {
                        return Err(Failure::invalid(
                            "chat_template: an entry lacks a name or a template",
                        ))
                    }
                }
            }
            if !named.iter().any(|(name, _)| name == "default") {
                warnings.add("chat_template: no entry is named default, so there is none");
                named.clear();
            }
            Ok(named)
        }
        Some(_) => Err(Failure::invalid("chat_template: neither a string nor a list")),
    }
}

fn environment() -> Result<Environment<'static>, Failure> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| Failure::invalid(format!("syntax: {error}")))?;
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(jinja::unknown_method);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.add_filter("tojson", tojson);
    environment.add_filter("length", jinja::length);
    environment.add_filter("count", jinja::length);
    environment.add_filter("first", jinja::first);
    environment.add_filter("items", jinja::items);
    environment.add_test("iterable", jinja::is_iterable);
    environment.add_test("sequence", jinja::is_sequence);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

fn describe(error: &Error, what: &str) -> Failure {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return Failure::invalid(raised.0.clone());
        }
        source = current.source();
    }
    let message = format!("{what}: {error}");
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => Failure::exhausted(message),
        _ => Failure::invalid(message),
    }
}

fn parse_json(bytes: &[u8], what: &str) -> Result<Json, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::invalid(format!("{what}: {error}")))
}

/// The parser bounds the depth of `json`.
fn template_value(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.into_iter().map(template_value).collect(),
        Json::Object(pairs) => {
            Value::from_pairs(pairs.into_iter().map(|(key, value)| (key, template_value(value))))
        }
    }
}

struct Limited {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max_bytes - self.bytes.len() {
            let message = format!("more than {} bytes written", self.max_bytes);
            return Err(io::Error::new(io::ErrorKind::Other, message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TandemChatTemplate {
    fn parse(text: &str, config: Config, warnings: &mut Warnings) -> Result<Option<Self>, Failure> {
        let templates = templates(text, &config.fields, warnings)?;
        if templates.is_empty() {
            return Ok(None);
        }
        let mut environment = environment()?;
        let mut has_tool_use = false;
        for (name, template) in templates {
            if template.len() > MAX_TEMPLATE_BYTES {
                return Err(Failure::invalid(format!(
                    "chat template of {} bytes, at most {MAX_TEMPLATE_BYTES} allowed",
                    template.len()
                )));
            }
            has_tool_use |= name == "tool_use";
            environment
                .add_template_owned(name, without_generation_tags(&with_unix_lines(&template)))
                .map_err(|error| describe(&error, "chat template"))?;
        }
        let special_tokens = config.special_tokens;
        Ok(Some(TandemChatTemplate { environment, has_tool_use, special_tokens }))
    }

    fn render(&self, args: &RenderArgs) -> Result<String, Failure> {
        let messages = match parse_json(unsafe { args.messages.bytes() }, "messages")? {
            Json::Array(messages) if messages.is_empty() => {
                return Err(Failure::invalid("messages: the list is empty"))
            }
            Json::Array(messages) => Json::Array(messages),
            _ => return Err(Failure::invalid("messages: not a list")),
        };
        let tools = match unsafe { args.tools.bytes() } {
            [] => Json::Null,
            bytes => parse_json(bytes, "tools")?,
        };
        let mut context = self.special_tokens.clone();
        match unsafe { args.variables.bytes() } {
            [] => {}
            bytes => match parse_json(bytes, "template variables")? {
                Json::Object(variables) => context.extend(variables),
                _ => return Err(Failure::invalid("template variables: not an object")),
            },
        }
        let name = if self.has_tool_use && !tools.is_null() { "tool_use" } else { "default" };
        context.insert("messages".to_string(), messages);
        context.insert("tools".to_string(), tools);
        context.insert("documents".to_string(), Json::Null);
        context.insert("add_generation_prompt".to_string(), (args.add_generation_prompt != 0).into());

        let now_s = args.now_s;
        let mut values: Vec<(String, Value)> = context
            .into_iter()
            .map(|(key, value)| (key, template_value(value)))
            .collect();
        values.push((
            "strftime_now".to_string(),
            Value::from_function(move |format: &str| strftime(now_s, format)),
        ));
        let mut output = Limited { bytes: Vec::new(), max_bytes: args.max_output_bytes };
        self.environment
            .get_template(name)
            .and_then(|template| {
                template.render_captured_to(Value::from_pairs(values), &mut output).map(|_| ())
            })
            .map_err(|error| describe(&error, "chat template"))?;
        String::from_utf8(output.bytes)
            .map_err(|_| Failure::invalid("chat template: the output is not UTF-8"))
    }
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_chat_template_create(
    template_text: Text,
    config: Text,
    special_tokens_map: Text,
    bos: Text,
    eos: Text,
    chat_template: *mut *mut TandemChatTemplate,
    warning: TextSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let text = unsafe { template_text.utf8("chat_template.jinja") }?;
        let mut config = unsafe { Config::parse(config, special_tokens_map) }?;
        for (key, token) in [("bos_token", bos), ("eos_token", eos)] {
            let token = unsafe { token.utf8(key) }?;
            if !token.is_empty() && !config.special_tokens.contains_key(key) {
                config.special_tokens.insert(key.to_string(), token.into());
            }
        }
        let mut warnings = Warnings::default();
        let made = TandemChatTemplate::parse(text, config, &mut warnings)?;
        warnings.give(warning);
        let pointer = made.map_or(std::ptr::null_mut(), |made| Box::into_raw(Box::new(made)));
        unsafe { chat_template.write(pointer) };
        Ok(())
    })
}

/// # Safety
/// `chat_template` came from tandem_chat_template_create, is not null and not used again.
#[no_mangle]
pub unsafe extern "C" fn tandem_chat_template_destroy(chat_template: *mut TandemChatTemplate) {
    drop(unsafe { Box::from_raw(chat_template) });
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_chat_template_render(
    chat_template: *const TandemChatTemplate,
    args: *const RenderArgs,
    text: TextSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        text.write(&unsafe { &*chat_template }.render(unsafe { &*args })?);
        Ok(())
    })
}
