//! Hugging Face `tokenizers` and `minijinja` behind the C ABI of `tandem_text.h`.

#![deny(unsafe_op_in_unsafe_fn)]

mod border;
mod byte_level;
mod chat_template;
mod config;
mod jinja;
mod pieces;
mod python_json;
mod tokenizer;
