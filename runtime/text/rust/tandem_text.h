/* The C ABI of the Rust crate in this folder. Only runtime/text calls it.
 *
 * Every function may be called from any thread; objects are immutable. Functions return a
 * TandemTextCode and give results to a sink, which is called on the same thread, at most once
 * (tandem_tokenizer_tokens: once an id), before the function returns. When the code is not OK the
 * `error` sink has received a message instead. Sinks must not throw. Text is UTF-8, lengths are
 * in bytes, nothing is zero-terminated. No panic crosses this border.
 */

#ifndef TANDEM_RUNTIME_TEXT_RUST_TANDEM_TEXT_H_
#define TANDEM_RUNTIME_TEXT_RUST_TANDEM_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TandemTokenizer TandemTokenizer;
typedef struct TandemChatTemplate TandemChatTemplate;

enum TandemTextCode {
  TANDEM_TEXT_OK = 0,
  TANDEM_TEXT_INVALID_ARGUMENT = 1,
  TANDEM_TEXT_RESOURCE_EXHAUSTED = 2,
  TANDEM_TEXT_INTERNAL = 3, /* A panic: a bug of a library. */
  TANDEM_TEXT_OUT_OF_RANGE = 4,
};

typedef struct {
  const char* data;
  size_t size;
} TandemText;

typedef struct {
  void (*write)(void* to, const char* data, size_t size);
  void* to;
} TandemTextSink;

typedef struct {
  void (*write)(void* to, const uint32_t* ids, size_t size);
  void* to;
} TandemIdSink;

enum TandemDecoderKind {
  TANDEM_DECODER_BYTES = 0,
  TANDEM_DECODER_SENTENCE_PIECE = 1,
  TANDEM_DECODER_OTHER = 2,
};

typedef struct {
  uint32_t decoder_kind;
  uint32_t num_stripped_spaces; /* At the start of a text, SENTENCE_PIECE only. */
  uint32_t vocab_size;          /* One more than the highest id. */
} TandemTokenizerInfo;

enum TandemTokenFlags {
  TANDEM_TOKEN_SPECIAL = 1,
  TANDEM_TOKEN_BYTE = 2, /* One byte of SENTENCE_PIECE's byte fallback. */
};

typedef struct {
  void (*write)(void* to, uint32_t id, const char* bytes, size_t size, uint32_t flags);
  void* to;
} TandemTokenSink;

/* `json` is a tokenizer.json, `config` a tokenizer_config.json and `special_tokens_map` a
 * special_tokens_map.json; the last two may be empty. No id may be max_ids or more. Texts are cut
 * behind piece_bytes, at the first place where that changes no token. `warning` receives what of
 * the configuration was left out, if anything was. */
int32_t tandem_tokenizer_create(TandemText json, TandemText config, TandemText special_tokens_map,
                                uint32_t max_ids, size_t piece_bytes, TandemTokenizer** tokenizer,
                                TandemTokenizerInfo* info, TandemTextSink warning,
                                TandemTextSink error);
void tandem_tokenizer_destroy(TandemTokenizer* tokenizer);
/* Every id of the vocabulary with the bytes it adds within a text. */
int32_t tandem_tokenizer_tokens(const TandemTokenizer* tokenizer, TandemTokenSink tokens,
                                TandemTextSink error);
/* Where a text is cut, OUT_OF_RANGE once its first pieces have more than max_tokens. */
int32_t tandem_tokenizer_encode(const TandemTokenizer* tokenizer, TandemText text,
                                int32_t add_special_tokens, size_t max_tokens, TandemIdSink ids,
                                TandemTextSink error);
/* The largest that tandem_tokenizer_encode would cut `text` into. OUT_OF_RANGE if it certainly
 * has more than max_tokens, whatever they are. */
int32_t tandem_tokenizer_largest_piece(const TandemTokenizer* tokenizer, TandemText text,
                                       size_t max_tokens, size_t* bytes, TandemTextSink error);
int32_t tandem_tokenizer_decode(const TandemTokenizer* tokenizer, const uint32_t* ids,
                                size_t num_ids, int32_t skip_special_tokens, TandemTextSink text,
                                TandemTextSink error);

/* `template_text` is a chat_template.jinja, the next two as for tandem_tokenizer_create; all may be
 * empty. `bos` and `eos` are bos_token and eos_token where neither file names them. Without any
 * template *chat_template becomes null and the code is OK. `warning` as above. */
int32_t tandem_chat_template_create(TandemText template_text, TandemText config,
                                    TandemText special_tokens_map, TandemText bos, TandemText eos,
                                    TandemChatTemplate** chat_template, TandemTextSink warning,
                                    TandemTextSink error);
void tandem_chat_template_destroy(TandemChatTemplate* chat_template);

typedef struct {
  TandemText messages;  /* JSON list. */
  TandemText tools;     /* JSON list or empty. */
  TandemText variables; /* JSON object or empty. */
  int32_t add_generation_prompt;
  int64_t now_s;
  size_t max_output_bytes;
} TandemRenderArgs;

int32_t tandem_chat_template_render(const TandemChatTemplate* chat_template,
                                    const TandemRenderArgs* args, TandemTextSink text,
                                    TandemTextSink error);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_RUNTIME_TEXT_RUST_TANDEM_TEXT_H_ */
