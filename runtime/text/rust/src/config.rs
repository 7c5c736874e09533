//! tokenizer_config.json and special_tokens_map.json, read as Transformers reads them.

use crate::border::{Failure, Text};
use serde_json::{Map, Value as Json};

/// The files' objects; one that is missing is empty.
pub struct Config {
    pub fields: Map<String, Json>,
    pub special_tokens: Map<String, Json>,
}

fn object(bytes: &[u8], what: &str) -> Result<Map<String, Json>, Failure> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Json::Object(fields)) => Ok(fields),
        Ok(_) => Err(Failure::invalid(format!("{what}: not an object"))),
        Err(error) => Err(Failure::invalid(format!("{what}: {error}"))),
    }
}

/// The text of a token: a string, or an object with `content`.
fn token_text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

fn add_special_tokens(from: &Map<String, Json>, replace: bool, tokens: &mut Map<String, Json>) {
    for (key, value) in from {
        let text: Json = if key == "additional_special_tokens" {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(token_text).collect::<Vec<_>>().into()
        } else if let (true, Some(text)) = (key.ends_with("_token"), token_text(value)) {
            text.into()
        } else {
            continue;
        };
        if replace || !tokens.contains_key(key) {
            tokens.insert(key.clone(), text);
        }
    }
}

impl Config {
    /// # Safety
    /// As for `Text::bytes`.
    pub unsafe fn parse(config: Text, special_tokens_map: Text) -> Result<Config, Failure> {
        let fields = object(unsafe { config.bytes() }, "tokenizer_config.json")?;
        let map = object(unsafe { special_tokens_map.bytes() }, "special_tokens_map.json")?;
        let mut special_tokens = Map::new();
        add_special_tokens(&fields, true, &mut special_tokens);
        // The map is the older of the two files: where the newer one lists its tokens, it only
        // fills gaps.
        add_special_tokens(&map, !fields.contains_key("added_tokens_decoder"), &mut special_tokens);
        Ok(Config { fields, special_tokens })
    }
}
