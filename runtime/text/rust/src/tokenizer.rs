//! Tokenizers of `tokenizer.json`.

use crate::border::{guarded, Failure, IdSink, Text, TextSink, TokenSink, Warnings};
use crate::byte_level::bytes_of_char;
use crate::config::Config;
use crate::pieces::Cutter;
use serde_json::Value as Json;
use std::collections::{BTreeSet, HashMap};
use tokenizers::{AddedToken, Tokenizer};

pub struct TandemTokenizer {
    tokenizer: Tokenizer,
    cutter: Option<Cutter>,
    kind: DecoderKind,
    vocab: Vec<(u32, String)>,
    bytes_of_char: HashMap<char, u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum DecoderKind {
    Bytes,
    SentencePiece { stripped_spaces: u32 },
    Other,
}

#[repr(C)]
pub struct TokenizerInfo {
    decoder_kind: u32,
    num_stripped_spaces: u32,
    vocab_size: u32,
}

const TOKEN_SPECIAL: u32 = 1;
const TOKEN_BYTE: u32 = 2;

/// The steps of a decoder that we can follow token by token; anything else is Other.
fn decoder_kind(decoder: &Json) -> DecoderKind {
    let steps = match decoder["type"].as_str() {
        Some("Sequence") => decoder["decoders"].as_array().cloned().unwrap_or_default(),
        Some(_) => vec![decoder.clone()],
        None => return DecoderKind::Other,
    };
    let names: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
    if names == ["ByteLevel"] {
        return DecoderKind::Bytes;
    }
    let replaces_spaces = |step: &Json| {
        step["pattern"]["String"].as_str() == Some("\u{2581}") && step["content"].as_str() == Some(" ")
    };
    match names[..] {
        ["Replace", "ByteFallback", "Fuse"] if replaces_spaces(&steps[0]) => {
            DecoderKind::SentencePiece { stripped_spaces: 0 }
        }
        ["Replace", "ByteFallback", "Fuse", "Strip"]
            if replaces_spaces(&steps[0])
                && steps[3]["content"].as_str() == Some(" ")
                && steps[3]["stop"].as_u64() == Some(0) =>
        {
            match steps[3]["start"].as_u64().and_then(|start| u32::try_from(start).ok()) {
                Some(stripped_spaces) => DecoderKind::SentencePiece { stripped_spaces },
                None => DecoderKind::Other,
            }
        }
        _ => DecoderKind::Other,
    }
}

/// The byte of a piece such as <0x0A>, read as the library's ByteFallback reads it.
fn fallback_byte(piece: &str) -> Option<u8> {
    if piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>') {
        return u8::from_str_radix(&piece[3..5], 16).ok();
    }
    None
}

/// Tokens of the configuration that tokenizer.json lacks, or does not know as special. (Its
/// add_bos_token and add_eos_token count for nothing beside a tokenizer.json, as in Transformers: the
/// post-processor decides.)
fn add_tokens(
    tokenizer: &mut Tokenizer,
    config: &Config,
    warnings: &mut Warnings,
) -> Result<(), Failure> {
    let mut listed: Vec<(u32, &Json)> = match config.fields.get("added_tokens_decoder") {
        Some(Json::Object(tokens)) => tokens
            .iter()
            .filter_map(|(id, token)| id.parse().ok().map(|id| (id, token)))
            .collect(),
        _ => Vec::new(),
    };
    listed.sort_by_key(|(id, _)| *id);
    let mut added = Vec::new();
    let mut next_id = tokenizer.get_vocab_size(true) as u32;
    for (id, token) in listed {
        let flag = |name: &str| token[name].as_bool().unwrap_or(false);
        let Some(content) = token["content"].as_str() else { continue };
        let token = AddedToken::from(content, flag("special"))
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized"));
        if tokenizer.token_to_id(content).unwrap_or(next_id) != id {
            warnings.add(format!(
                "tokenizer_config.json: added_tokens_decoder has a token {id} that tokenizer.json lacks"
            ));
        } else if tokenizer.get_added_vocabulary().get_added_tokens_decoder().get(&id) != Some(&token) {
            next_id = next_id.max(id + 1);
            added.push(token);
        }
    }
    for token in config.special_tokens.values() {
        let names: Vec<&str> = match token {
            Json::Array(list) => list.iter().filter_map(Json::as_str).collect(),
            token => token.as_str().into_iter().collect(),
        };
        for name in names {
            let known = tokenizer.get_added_vocabulary().is_special_token(name)
                || added.iter().any(|token| token.special && token.content == name);
            // One that has no id cannot be given to the model.
            if !known && tokenizer.token_to_id(name).is_some() {
                added.push(AddedToken::from(name, true));
            }
        }
    }
    tokenizer
        .add_tokens(added)
        .map(|_| ())
        .map_err(|error| Failure::invalid(format!("added_tokens_decoder: {error}")))
}

impl TandemTokenizer {
    fn parse(
        json: &[u8],
        config: &Config,
        max_ids: u32,
        piece_bytes: usize,
        warnings: &mut Warnings,
    ) -> Result<TandemTokenizer, Failure> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|error| Failure::invalid(format!("not a tokenizer.json: {error}")))?;
        add_tokens(&mut tokenizer, config, warnings)?;
        // A prompt is never shortened or filled up behind the caller's back.
        tokenizer
            .with_truncation(None)
            .map_err(|error| Failure::invalid(format!("truncation: {error}")))?;
        tokenizer.with_padding(None);
        let decoder = serde_json::to_value(tokenizer.get_decoder())
            .map_err(|error| Failure::invalid(format!("decoder: {error}")))?;
        // A broken file may give one id to two tokens: the library then decodes it to one of them.
        let tokens = tokenizer.get_vocab(true);
        let ids: BTreeSet<u32> = tokens.values().copied().collect();
        let vocab: Vec<(u32, String)> = ids
            .into_iter()
            .filter_map(|id| tokenizer.id_to_token(id).map(|token| (id, token)))
            .collect();
        match vocab.last() {
            None => return Err(Failure::invalid("the vocabulary is empty")),
            Some((id, _)) if *id >= max_ids => {
                return Err(Failure::invalid(format!("token id {id}, at most {} allowed", max_ids - 1)))
            }
            Some(_) => {}
        }
        let cutter = Cutter::of(&tokenizer, &tokens, piece_bytes);
        Ok(TandemTokenizer {
            tokenizer,
            cutter,
            kind: decoder_kind(&decoder),
            vocab,
            bytes_of_char: bytes_of_char(),
        })
    }

    fn info(&self) -> TokenizerInfo {
        let (decoder_kind, num_stripped_spaces) = match self.kind {
            DecoderKind::Bytes => (0, 0),
            DecoderKind::SentencePiece { stripped_spaces } => (1, stripped_spaces),
            DecoderKind::Other => (2, 0),
        };
        let vocab_size = self.vocab.last().map_or(0, |(id, _)| id + 1);
        TokenizerInfo { decoder_kind, num_stripped_spaces, vocab_size }
    }

    fn token(&self, id: u32, name: &str) -> Result<(Vec<u8>, u32), Failure> {
        let special = self.tokenizer.get_added_vocabulary().is_special_token(name);
        let mut flags = if special { TOKEN_SPECIAL } else { 0 };
        let bytes = match self.kind {
            DecoderKind::Bytes => name
                .chars()
                .map(|c| self.bytes_of_char.get(&c).copied())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| name.as_bytes().to_vec()),
            DecoderKind::SentencePiece { .. } => {
                let piece = name.replace('\u{2581}', " ");
                match fallback_byte(&piece) {
                    Some(byte) => {
                        flags |= TOKEN_BYTE;
                        vec![byte]
                    }
                    None => piece.into_bytes(),
                }
            }
            DecoderKind::Other => self.decode(&[id], false)?.into_bytes(),
        };
        Ok((bytes, flags))
    }

    fn encode_whole(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Failure> {
        self.tokenizer
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| Failure::invalid(format!("cannot encode {} bytes: {error}", text.len())))
    }

    /// The ids of a text: where it is cut, those of its pieces between what the post-processor puts around them.
    fn encode(&self, text: &str, add_special_tokens: bool, max_tokens: usize) -> Result<Vec<u32>, Failure> {
        let Some(cutter) = self.cutter.as_ref().filter(|cutter| cutter.pieces(text).nth(1).is_some()) else {
            return self.encode_whole(text, add_special_tokens);
        };
        let (before, after) = cutter.around(add_special_tokens);
        let mut ids = before.to_vec();
        for (at, piece) in cutter.pieces(text) {
            if ids.len() > max_tokens {
                return Err(Failure::out_of_range(format!(
                    "the first {at} of its {} bytes have {} tokens",
                    text.len(),
                    ids.len()
                )));
            }
            ids.extend(self.encode_whole(piece, false)?);
        }
        ids.extend(after);
        Ok(ids)
    }

    fn largest_piece(&self, text: &str, max_tokens: usize) -> Result<usize, Failure> {
        let Some(cutter) = &self.cutter else { return Ok(text.len()) };
        let least = text.len().div_ceil(cutter.max_token_bytes());
        if least > max_tokens {
            let bytes = text.len();
            return Err(Failure::out_of_range(format!("its {bytes} bytes have at least {least} tokens")));
        }
        Ok(cutter.pieces(text).map(|(_, piece)| piece.len()).max().unwrap_or(0))
    }

    fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, Failure> {
        self.tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(|error| Failure::invalid(format!("cannot decode {} ids: {error}", ids.len())))
    }
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_create(
    json: Text,
    config: Text,
    special_tokens_map: Text,
    max_ids: u32,
    piece_bytes: usize,
    tokenizer: *mut *mut TandemTokenizer,
    info: *mut TokenizerInfo,
    warning: TextSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let config = unsafe { Config::parse(config, special_tokens_map) }?;
        let mut warnings = Warnings::default();
        let made =
            TandemTokenizer::parse(unsafe { json.bytes() }, &config, max_ids, piece_bytes, &mut warnings)?;
        warnings.give(warning);
        unsafe {
            info.write(made.info());
            tokenizer.write(Box::into_raw(Box::new(made)));
        }
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from tandem_tokenizer_create and is not used again.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_destroy(tokenizer: *mut TandemTokenizer) {
    drop(unsafe { Box::from_raw(tokenizer) });
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_tokens(
    tokenizer: *const TandemTokenizer,
    tokens: TokenSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let tokenizer = unsafe { &*tokenizer };
        for (id, name) in &tokenizer.vocab {
            let (bytes, flags) = tokenizer.token(*id, name)?;
            tokens.write(*id, &bytes, flags);
        }
        Ok(())
    })
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_encode(
    tokenizer: *const TandemTokenizer,
    text: Text,
    add_special_tokens: i32,
    max_tokens: usize,
    ids: IdSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let text = unsafe { text.utf8("text") }?;
        ids.write(&unsafe { &*tokenizer }.encode(text, add_special_tokens != 0, max_tokens)?);
        Ok(())
    })
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_largest_piece(
    tokenizer: *const TandemTokenizer,
    text: Text,
    max_tokens: usize,
    bytes: *mut usize,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let text = unsafe { text.utf8("text") }?;
        unsafe { bytes.write((&*tokenizer).largest_piece(text, max_tokens)?) };
        Ok(())
    })
}

/// # Safety
/// Pointers as tandem_text.h says.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_decode(
    tokenizer: *const TandemTokenizer,
    ids: *const u32,
    num_ids: usize,
    skip_special_tokens: i32,
    text: TextSink,
    error: TextSink,
) -> i32 {
    guarded(error, || {
        let ids = if num_ids == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ids, num_ids) } };
        text.write(&unsafe { &*tokenizer }.decode(ids, skip_special_tokens != 0)?);
        Ok(())
    })
}
