//! Where a text may be cut so that its pieces, encoded one by one, certainly give the tokens of the
//! whole: what the library takes for each byte that it encodes at once is hundreds of bytes.
//!
//! A cut lies between a letter or digit and one of a few characters that are neither. No added token
//! has that character or ends before it, and none takes the spaces beside it, so that the same are
//! matched at the same places. What is left to show depends on the tokenizer; those for which we cannot
//! are not cut:
//!
//! - Byte-level BPE whose regular expression is GPT-2's or Llama 3's, and no normalizer. No alternative
//!   of either goes from a letter or digit on to one of our characters, so that a match ends there;
//!   none looks behind, so that the next begins as it would at the start of a text; and none that
//!   takes the letter looks further than the run of letters or digits that ends there. The model sees
//!   one match at a time.
//! - SentencePiece's BPE with byte fallback, whose normalizer puts U+2581 before the text and for every
//!   space. The cut takes the one space away, which comes back as what is put before the next piece;
//!   no added token begins there. No token has U+2581 behind anything else, so that nothing is merged
//!   across; merges of other places do not know of each other.
//!
//! In both, every byte of a text is in some token, so that the longest bounds how many bytes a number
//! of tokens can have.

use crate::byte_level::bytes_of_char;
use serde_json::{json, Value as Json};
use std::collections::{HashMap, HashSet};
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Encoding, Model, ModelWrapper, Tokenizer};

/// Neither letters, digits nor marks, nor the apostrophe that contractions begin with.
const CUT_BEFORE: [char; 7] = [' ', '\n', ',', '.', '\u{3001}', '\u{3002}', '\u{ff0c}'];

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SPACE: char = '\u{2581}';

/// Letters and digits of old, by every version of Unicode; of most scripts those that most words
/// end with.
fn is_letter_or_digit(c: char) -> bool {
    matches!(c, '0'..='9' | 'A'..='Z' | 'a'..='z' | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}'
        | '\u{f8}'..='\u{24f}' | '\u{391}'..='\u{3a1}' | '\u{3b1}'..='\u{3c9}' | '\u{400}'..='\u{481}'
        | '\u{5d0}'..='\u{5ea}' | '\u{621}'..='\u{63a}' | '\u{641}'..='\u{64a}' | '\u{904}'..='\u{939}'
        | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fa5}'
        | '\u{ac00}'..='\u{d7a3}')
}

pub struct Cutter {
    piece_bytes: usize,
    takes_space: bool,
    cut_before: Vec<char>,
    first_of_added: HashSet<char>,
    last_of_added: HashSet<char>,
    max_token_bytes: usize,
    /// What is put before and behind a text, without special tokens and with them.
    around: [(Vec<u32>, Vec<u32>); 2],
}

fn is_byte_level(normalizer: &Json, pre_tokenizer: &Json) -> bool {
    let bytes = |step: &Json, use_regex: bool| {
        step["type"] == "ByteLevel" && step["add_prefix_space"] == false && step["use_regex"] == use_regex
    };
    let llama_3 = json!({
        "type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated", "invert": false
    });
    let steps = &pre_tokenizer["pretokenizers"];
    normalizer.is_null()
        && (bytes(pre_tokenizer, true)
            || (pre_tokenizer["type"] == "Sequence"
                && steps.as_array().is_some_and(|list| list.len() == 2)
                && steps[0] == llama_3
                && bytes(&steps[1], false)))
}

fn is_sentence_piece(normalizer: &Json, pre_tokenizer: &Json) -> bool {
    pre_tokenizer.is_null()
        && *normalizer
            == json!({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": SPACE.to_string()},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE.to_string()},
            ]})
}

fn has_all_bytes(bpe: &BPE) -> bool {
    bytes_of_char().keys().all(|c| bpe.token_to_id(&c.to_string()).is_some())
}

/// Whether U+2581 is a token, others have it at their beginning only, and every byte is one.
fn has_words_and_bytes(bpe: &BPE, vocab: &HashMap<String, u32>) -> bool {
    bpe.byte_fallback
        && !bpe.ignore_merges
        && bpe.token_to_id(&SPACE.to_string()).is_some()
        && (0..=255u8).all(|byte| bpe.token_to_id(&format!("<{byte:#04X}>")).is_some())
        && !vocab.keys().any(|token| token.trim_start_matches(SPACE).contains(SPACE))
}

/// None if it does more than put tokens before and behind.
fn around(tokenizer: &Tokenizer, add_special_tokens: bool) -> Option<(Vec<u32>, Vec<u32>)> {
    const INSIDE: u32 = u32::MAX;
    let inside: Encoding = [(INSIDE, String::new(), (0, 0), None, 0)].into_iter().collect();
    let whole = tokenizer.post_process(inside, None, add_special_tokens).ok()?;
    let mut parts = whole.get_ids().split(|id| *id == INSIDE).map(<[u32]>::to_vec);
    let found = (parts.next()?, parts.next()?);
    parts.next().is_none().then_some(found)
}

impl Cutter {
    /// None if a text may not be cut. `vocab`: added tokens included.
    pub fn of(tokenizer: &Tokenizer, vocab: &HashMap<String, u32>, piece_bytes: usize) -> Option<Cutter> {
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
        if bpe.dropout.is_some() || bpe.continuing_subword_prefix.is_some() || bpe.end_of_word_suffix.is_some()
        {
            return None;
        }
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        // These take spaces that are in no token.
        if added.iter().any(|token| token.lstrip || token.rstrip) {
            return None;
        }
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let sentence_piece = is_sentence_piece(&normalizer, &pre_tokenizer)
            && has_words_and_bytes(bpe, vocab)
            && !added.iter().any(|token| token.normalized);
        if !sentence_piece && !(is_byte_level(&normalizer, &pre_tokenizer) && has_all_bytes(bpe)) {
            return None;
        }
        let around = [around(tokenizer, false)?, around(tokenizer, true)?];
        if !around[0].0.is_empty() || !around[0].1.is_empty() {
            return None;
        }
        let cut_before = CUT_BEFORE
            .into_iter()
            .filter(|c| !sentence_piece || *c == ' ')
            .filter(|c| !added.iter().any(|token| token.content.contains(*c)))
            .collect();
        Some(Cutter {
            piece_bytes,
            takes_space: sentence_piece,
            cut_before,
            first_of_added: added.iter().filter_map(|token| token.content.chars().next()).collect(),
            last_of_added: added.iter().filter_map(|token| token.content.chars().last()).collect(),
            max_token_bytes: vocab.keys().map(String::len).max()?,
            around,
        })
    }

    pub fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    pub fn around(&self, add_special_tokens: bool) -> (&[u32], &[u32]) {
        let (before, behind) = &self.around[usize::from(add_special_tokens)];
        (before, behind)
    }

    /// Where each piece begins, and the piece.
    pub fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> + 'a {
        let mut rest = text;
        std::iter::from_fn(move || {
            let at = text.len() - rest.len();
            let (piece, more) = self.next_piece(rest);
            rest = more;
            (!piece.is_empty()).then_some((at, piece))
        })
    }

    /// The piece up to the first cut behind piece_bytes, and what comes after it.
    fn next_piece<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        if text.len() <= self.piece_bytes {
            return (text, "");
        }
        let start = (0..=self.piece_bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let mut previous = None;
        for (at, c) in text[start..].char_indices() {
            if previous.is_some_and(|before| self.may_cut(before, c)) {
                let (piece, more) = text.split_at(start + at);
                if !self.takes_space {
                    return (piece, more);
                }
                let next = &more[1..];
                if next.starts_with(|c: char| !self.first_of_added.contains(&c)) {
                    return (piece, next);
                }
            }
            previous = Some(c);
        }
        (text, "")
    }

    fn may_cut(&self, before: char, next: char) -> bool {
        self.cut_before.contains(&next)
            && is_letter_or_digit(before)
            && !self.last_of_added.contains(&before)
    }
}
