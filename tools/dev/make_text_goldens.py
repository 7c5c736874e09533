#!/usr/bin/env python3
"""Writes tests/data/text: small tokenizers, and what Python's tokenizers and transformers make of
them and of the demo model's. Run from the repository's root; needs `pip install transformers
jinja2` (tokenizers comes with it). Training breaks ties at random, so a tokenizer that is there is
kept; then a second run changes nothing.

usage: make_text_goldens.py
"""

import datetime
import json
import pathlib
import random
import shutil
import tempfile

import usage

if __name__ == "__main__":
    usage.read(__doc__)  # Without transformers, too.

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Regex, __version__ as tokenizers_version
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from template_expressions import EXPRESSIONS, STATEMENTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/text"
DEMO = ROOT / "tests/data/demo_model"

TEXTS = [
    "",
    " ",
    "  two  spaces  ",
    "\n\n\ttabs and\r\nlines \n",
    "In the beginning God created the heaven and the earth.",
    "It's we'll I'd they've can't DON'T",
    "1 22 333 4444 55555 3.14159 1,000,000",
    "def f(x):\n    return x ** 2  # squared\n",
    "{\"key\": [1, 2.5, null, true]}",
    "https://example.org/a?b=c&d=%20#e",
    "Ünïcödé ÀÉÎÕÜ ß ﬁ",
    "e\u0301 combining, \u00e9 composed",
    "Русский текст: съешь ещё этих мягких булок.",
    "Ελληνικά: η γλώσσα μας.",
    "中文：今天天气很好。",
    "日本語：カタカナとひらがな。",
    "한국어: 안녕하세요 여러분.",
    "العربية: مرحبا بالعالم",
    "עברית: שלום עולם",
    "हिन्दी: नमस्ते दुनिया",
    "ไทย: สวัสดีชาวโลก",
    "தமிழ்: வணக்கம் உலகம்",
    "አማርኛ: ሰላም ለዓለም",
    "emoji 😀 👩‍👩‍👧‍👦 🇨🇭 👍🏽 ❤️ end",
    "𝔐𝔞𝔱𝔥 ∑∫√∞ ≠ ≤",
    "zero\u200bwidth\u200djoin\ufeffbom\u00a0nbsp",
    "control \u0000\u0001\u0007\u001b\u007f chars",
    "replacement \ufffd itself",
    "<|begin|>special<|end|> inside <|user|>text<|assistant|>",
    "<s>special</s> inside <unk> <0x0A> text",
    "▁lower one eighth block▁",
    "a" * 300,
    "word " * 60,
]


def random_texts(seed, count):
    rng = random.Random(seed)
    ranges = [(0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0xDFF),
              (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF)]
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 40)):
            low, high = rng.choice(ranges)
            text += chr(rng.randint(low, high))
        yield text


def train(model, trainer, pre_tokenizer):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    # The last texts are for tests alone.
    tokenizer.train_from_iterator(TEXTS[3:24] * 4, trainer)
    return json.loads(tokenizer.to_str())


def template_processing(begin, begin_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": begin, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": begin, "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [begin_id], "tokens": [begin]}}}


def sentence_piece():
    """As Llama 2's: SentencePiece BPE with byte fallback."""
    named = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=named + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=90, show_progress=False)
    raw = train(models.BPE(), trainer, pre_tokenizers.Metaspace())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] in named]
    raw["pre_tokenizer"] = None
    raw["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    raw["post_processor"] = template_processing("<s>", 1)
    raw["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    raw["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return raw


def split_bytes():
    """As Llama 3's: byte-level BPE behind a regular expression, a begin token, truncation set."""
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
               r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    raw = train(models.BPE(ignore_merges=True), trainer, pre)
    size = len(raw["model"]["vocab"])
    raw["added_tokens"] = [
        {"id": size + i, "content": content, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": special}
        for i, (content, special) in enumerate(
            [("<|begin|>", True), ("<|end|>", True), ("two words", False), ("é tool", False)])]
    raw["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        template_processing("<|begin|>", size)]}
    raw["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                      "use_regex": True}
    # What a saved training run leaves behind; prompts must not be cut by it.
    raw["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None,
                      "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    return raw


def word_piece():
    """As BERT's: a decoder that looks at neighbours."""
    trainer = trainers.WordPieceTrainer(vocab_size=400, show_progress=False,
                                        special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    raw = train(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer())
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.decoder = decoders.WordPiece()
    return json.loads(tokenizer.to_str())


def golden(path, seed):
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size = max(tokenizer.get_vocab().values()) + 1
    rng = random.Random(seed)
    texts = []
    for text in TEXTS + list(random_texts(seed, 40)):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        texts.append({"text": text, "ids": ids, "ids_with_special": special,
                      "decoded": tokenizer.decode(special, skip_special_tokens=True),
                      "decoded_with_special": tokenizer.decode(special, skip_special_tokens=False)})
    # Any ids, as a model may draw them: half characters, byte runs, special tokens.
    bytes_ids = sorted(id for token, id in tokenizer.get_vocab().items()
                       if len(token) == 6 and token.startswith("<0x"))
    draws = []
    for i in range(60):
        ids = [rng.randrange(size) for _ in range(rng.randint(1, 24))]
        if i % 2 and bytes_ids:
            ids = [rng.choice(bytes_ids) if rng.random() < 0.6 else id for id in ids]
        draws.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                      "decoded_with_special": tokenizer.decode(ids, skip_special_tokens=False)})
    return {"vocab_size": size, "texts": texts, "draws": draws}


USER = {"role": "user", "content": "Hello there"}
TALK = [{"role": "system", "content": "Be brief.\n"}, USER,
        {"role": "assistant", "content": " Hi! "}, {"role": "user", "content": "Größe? 😀 <b>&'\""}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Says it's <fine> & \"dry\" in Zürich",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {
        "type": "integer", "default": 3, "minimum": -1.5, "maximum": 1e30, "step": 1e-7}},
                   "required": ["place"], "empty": {}, "none": None, "list": []}}}]
TOKENS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>",
                                            "lstrip": False, "normalized": False,
                                            "rstrip": False, "single_word": False, "special": True}}

# A conversation with a tool call.
CALLS = [
    {"role": "system", "content": "Sys"},
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": "<plan>\nhm\n</plan>\n\nasking", "tool_calls": [
        {"id": "abcdef123", "type": "function",
         "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2}}}]},
    {"role": "tool", "content": "sun & rain", "tool_call_id": "abcdef123"},
    {"role": "assistant", "content": "fine"},
    {"role": "user", "content": "thanks "},
]

# What templates with tools do: search backwards, keep state over loops, cut texts, refuse, nest
# macros, and print JSON.
AGENT = """{%- set found = namespace(user=-1, calls=0) -%}
{%- for m in messages[::-1] if found.user < 0 and m.role == 'user' -%}
  {%- set found.user = messages | length - loop.index -%}
{%- endfor -%}
{%- macro tagged(name, text) -%}
  [{{ name }}]{{ text | trim }}[/{{ name }}]
{%- endmacro -%}
{%- if tools is iterable and tools | length > 0 -%}
  {{- tagged('tools', strftime_now('%Y/%m/%d')) }}
  {%- for tool in tools | map(attribute='function') %}
{{ tool | tojson(indent=2) }}
    {%- for key, value in tool.parameters.properties.items() | sort %}
- {{ key }}: {{ value.type | default('any') | upper }}
    {%- endfor %}
  {%- endfor %}
{%- elif tools is defined and tools is not none -%}
  {{- raise_exception('an empty list of tools') }}
{%- endif -%}
{%- for m in messages -%}
  {%- set text = m.content if m.content is string else m.content | map(attribute='text') | join(' ') -%}
  {%- if m.role == 'assistant' and '</plan>' in text -%}
    {%- set plan = text.split('</plan>')[0].split('<plan>')[-1].strip() -%}
    {%- set text = text.split('</plan>')[-1].lstrip('\\n') -%}
    {%- if loop.index0 > found.user -%}{{ tagged('plan', plan) }}{%- endif -%}
  {%- endif -%}
  {%- if m.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{ '\\n' }}{%- endif -%}
    {{- tagged('result ' ~ m.tool_call_id[:6], text) -}}
  {%- else -%}
    {{- tagged(m['role'], text) -}}
  {%- endif -%}
  {%- for call in m.tool_calls | default([]) -%}
    {%- set call = call.function if call.function is defined else call -%}
    {%- set found.calls = found.calls + 1 -%}
    {{- tagged('call', call.name ~ ' ' ~ (call.arguments if call.arguments is string else call.arguments | tojson)) -}}
  {%- endfor -%}
{%- endfor -%}
{{- bos_token if not found.calls else eos_token * found.calls }}"""

CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""
INST = """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = '<<SYS>>\\n' ~ messages[0]['content'] ~ '\\n<</SYS>>\\n\\n' -%}
    {%- set messages = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Roles must alternate: user, assistant, "user" …') -}}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' -}}
    {%- else -%}
        {{- ' ' + message['content'].strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}"""
TOOLED = """{%- if tools is not none and tools %}
{{- 'tools: ' + tools | tojson }}
{%- for tool in tools %}
{{ tool.function | tojson(indent=2) }}
{{ tool.function.parameters | tojson(separators=(',', ':'), sort_keys=True, ensure_ascii=True) }}
{%- endfor %}
{%- else %}
{{- 'no tools' }}
{%- endif %}"""
FEATURES = """{%- set ns = namespace(count=0, text='') -%}
{%- macro box(text, edge='|') -%}{{ edge ~ text ~ edge }}{%- endmacro -%}
{%- for message in messages if message.role != 'system' -%}
    {%- if loop.index > 2 -%}{%- break -%}{%- endif -%}
    {%- if message.content is string and message.content.startswith('skip') -%}{%- continue -%}{%- endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {%- set ns.text = ns.text + box(message['role'].upper()) -%}
{%- endfor -%}
{{ ns.count }}{{ ns.text }} {{ messages | length }} {{ messages[-1].content.split(' ')[-1] }}
{{ missing }}|{{ missing is defined }}|{{ none }}|{{ true }}|{{ 7 // 2 }}|{{ 7 / 2 }}|{{ 2 ** 5 }}|{{ 1.0 }}
{% for key, value in {'a': 1, 'b': [1, 'x', none]}.items() %}{{ key }}={{ value }};{% endfor %}
{{ ['a', 'b'] | join(', ') }} {{ 'x' if 'a' in ['a'] else 'y' }} {{ messages | map(attribute='role') | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 'a,b'.replace(',', ';') | upper }}
{{- "  trimmed" | trim }} {{ messages[0].get('name', 'unnamed') }} {{ messages[1:] | length }} {{ messages[::-1][0].role }}
{%- generation %}
 marked {%- endgeneration %}

last line
"""
DATE = "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}|{{ strftime_now('%A %B %j %%') }}"
PARTED = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}[{{ part['text'] }}]{% endif %}{% endfor %}{% endif %}{% endfor %}"""
KWARGS = "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}{{ extra['deep'][0] }}"


# In the manner of Mistral: tools before the last question, calls with ids of nine characters, roles
# that alternate once tools have had their say.
MISTRAL = """{%- set first = messages[0] -%}
{%- set system = first.content if first.role == 'system' else none -%}
{%- set turns = messages[1:] if first.role == 'system' else messages -%}
{%- set asked = turns | selectattr('role', 'equalto', 'user') | list -%}
{%- set ns = namespace(turn=0) -%}
{%- for m in turns if m.role in ['user', 'assistant'] and not m.tool_calls -%}
  {%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}
    {{- raise_exception('user and assistant must take turns') -}}
  {%- endif -%}
  {%- set ns.turn = ns.turn + 1 -%}
{%- endfor -%}
{{- bos_token -}}
{%- for m in turns -%}
  {%- if m.role == 'user' -%}
    {%- if tools and m == asked[-1] -%}
      {{- '[AVAILABLE_TOOLS] [' -}}
      {%- for tool in tools -%}
        {{- '{"type": "function", "function": {' -}}
        {%- for key, value in tool.function.items() if key != 'return' -%}
          {{- '"' + key + '": ' + (value | tojson) + ('' if loop.last else ', ') -}}
        {%- endfor -%}
        {{- '}}' + ('' if loop.last else ', ') -}}
      {%- endfor -%}
      {{- '][/AVAILABLE_TOOLS]' -}}
    {%- endif -%}
    {{- '[INST] ' + (system + '\\n\\n' if loop.last and system else '') + m.content + '[/INST]' -}}
  {%- elif m.tool_calls is defined and m.tool_calls -%}
    {{- '[TOOL_CALLS] [' -}}
    {%- for call in m.tool_calls -%}
      {%- if call.id | length != 9 -%}{{- raise_exception('ids have nine characters') -}}{%- endif -%}
      {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') -}}
    {%- endfor -%}
    {{- ']' + eos_token -}}
  {%- elif m.role == 'tool' -%}
    {{- '[TOOL_RESULTS] {"content": ' + (m.content | string) + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' -}}
  {%- else -%}
    {{- ' ' + m.content | trim + eos_token -}}
  {%- endif -%}
{%- endfor -%}"""

# In the manner of Qwen2: a system of its own where none is given, tools in it, results of tools as a user's.
QWEN2 = """{%- set given = messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + (messages[0].content if given else 'A helper of few words.') -}}
{%- if tools -%}
  {{- '\\n\\n# Tools\\n<tools>' -}}
  {%- for tool in tools %}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
  {{- '\\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for m in messages -%}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) -%}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
  {%- elif m.role == 'assistant' -%}
    {{- '<|im_start|>' + m.role -}}
    {%- if m.content -%}{{- '\\n' + m.content -}}{%- endif -%}
    {%- for call in m.tool_calls -%}
      {%- if call.function is defined -%}{%- set call = call.function -%}{%- endif -%}
      {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments | tojson + '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- elif m.role == 'tool' -%}
    {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

# In the manner of Qwen3: thoughts only of the answers since the last question, an empty one where none is wanted.
QWEN3 = """{%- set ns = namespace(searching=true, question=messages | length - 1) -%}
{%- for m in messages[::-1] -%}
  {%- set index = messages | length - 1 - loop.index0 -%}
  {%- if ns.searching and m.role == 'user' and m.content is string and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
    {%- set ns.searching = false -%}{%- set ns.question = index -%}
  {%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  {%- set content = m.content if m.content is string else '' -%}
  {%- set thought = '' -%}
  {%- if m.role == 'assistant' -%}
    {%- if m.reasoning_content is string -%}
      {%- set thought = m.reasoning_content -%}
    {%- elif '</think>' in content -%}
      {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
      {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- endif -%}
    {%- if loop.index0 > ns.question and (loop.last or thought) -%}
      {%- set content = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -%}
    {%- endif -%}
  {%- endif -%}
  {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}"""

# In the manner of Gemma: turns of a user and of the model, whose text is trimmed; no system.
GEMMA = """{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- raise_exception('a system is not understood') -}}{%- endif -%}
{%- for m in messages -%}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant must take turns') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}
  {{- m.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""

THOUGHTS = [
    USER,
    {"role": "assistant", "content": "<think>\nold\n</think>\n\nanswer"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "<think>\n\nnew </think>\n\nlooking", "reasoning_content": None},
    {"role": "user", "content": "<tool_response>\nsun\n</tool_response>"},
    {"role": "assistant", "content": "dry", "reasoning_content": "so it is\n"},
]


def family_cases(case):
    short = [call | {"id": "short"} for call in CALLS[2]["tool_calls"]]
    return [
        case("Mistral's manner", MISTRAL, TALK),
        case("Mistral's manner without a system", MISTRAL, TALK[1:]),
        case("Mistral's manner, tools", MISTRAL, CALLS, tools=TOOLS),
        case("Mistral's manner, turns out of order", MISTRAL, [USER, USER]),
        case("Mistral's manner, ids too short", MISTRAL, CALLS[:2] + [CALLS[2] | {"tool_calls": short}]),
        case("Qwen2's manner", QWEN2, TALK),
        case("Qwen2's manner without a system", QWEN2, TALK[1:], generate=False),
        case("Qwen2's manner, tools", QWEN2, CALLS, tools=TOOLS),
        case("Qwen2's manner, two results", QWEN2, CALLS[:4] + [CALLS[3] | {"content": "wind"}] + CALLS[4:]),
        case("Qwen3's manner", QWEN3, THOUGHTS, generate=False),
        case("Qwen3's manner, to be continued", QWEN3, THOUGHTS[:3]),
        case("Qwen3's manner without thoughts", QWEN3, THOUGHTS[:3], variables={"enable_thinking": False}),
        case("Qwen3's manner with thoughts", QWEN3, TALK, variables={"enable_thinking": True}),
        case("Gemma's manner", GEMMA, TALK[1:]),
        case("Gemma's manner, ended", GEMMA, TALK[1:], generate=False),
        case("Gemma's manner, a system", GEMMA, TALK),
        case("Gemma's manner, turns out of order", GEMMA, [USER, USER]),
    ]


def chat_cases():
    demo = (DEMO / "chat_template.jinja").read_text()
    def case(name, template, messages, tokens=TOKENS, generate=True, tools=None, variables=None):
        return {"name": name, "template": template, "config": tokens, "messages": messages,
                "add_generation_prompt": generate, "tools": tools, "variables": variables}
    cases = []
    for generate in (False, True):
        suffix = ", to be continued" if generate else ""
        cases += [case(f"demo model{suffix}", demo, TALK, generate=generate),
                  case(f"tagged roles{suffix}", CHATML, TALK, generate=generate),
                  case(f"instructions{suffix}", INST, TALK, generate=generate)]
    cases += [
        case("instructions without system", INST, TALK[1:]),
        case("roles out of order", INST, [USER, USER]),
        case("no messages for an index", INST, []),
        case("no tools", TOOLED, [USER]),
        case("tools", TOOLED, [USER], tools=TOOLS),
        case("language features", FEATURES, TALK),
        case("content parts", PARTED, PARTS),
        case("dates", DATE, [USER]),
        case("variables", KWARGS, [USER], variables={"enable_thinking": False, "extra": {"deep": ["x"]}}),
        case("plain text without a last line end", "text\n", [USER]),
        case("tokens that are not set", "[{{ bos_token }}]", [USER], tokens={"bos_token": None}),
        case("tool_use of a list", None, [USER], tools=TOOLS, tokens={"chat_template": [
            {"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"}]}),
        case("default of a list", None, [USER], tokens={"chat_template": [
            {"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"}]}),
        case("template of the configuration", None, [USER],
             tokens={"chat_template": "{{ messages[0].content }}", "bos_token": "<s>"}),
    ]
    for name, messages in {"calls": CALLS, "talk": TALK, "talk without a system": TALK[1:]}.items():
        cases += [case(name, AGENT, messages), case(f"{name}, tools", AGENT, messages, tools=TOOLS)]
    expressions = EXPRESSIONS.strip("\n").split("\n")
    cases += [case("expressions", "".join("{{ %s }}\n" % line for line in expressions), TALK),
              case("no tools to count", "{% if tools is iterable and tools | length > 0 %}a{% endif %}",
                   [USER])]
    cases += [case(name, template, TALK) for name, template in STATEMENTS.items()]
    return cases + family_cases(case)


NOW_S = 1_709_210_096  # 2024-02-29 12:34:56 UTC


def add_expected(case):
    class FixedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(NOW_S, datetime.timezone.utc)
    chat_template_utils.datetime = FixedDatetime
    config = dict(case["config"])
    template = case["template"]
    named = config.pop("chat_template", None)
    if template is None:
        template = {entry["name"]: entry["template"] for entry in named} if isinstance(named, list) else named
    tokens = {key: value["content"] if isinstance(value, dict) else value
              for key, value in config.items() if value is not None}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)
    tokenizer.chat_template = template
    try:
        case["expected"] = tokenizer.apply_chat_template(
            case["messages"], tools=case["tools"], tokenize=False,
            add_generation_prompt=case["add_generation_prompt"], **(case["variables"] or {}))
    except Exception as error:  # Whatever a template may raise is what is recorded.
        case["error"] = f"{type(error).__name__}: {error}"


def configured_cases():
    """What tokenizer_config.json and special_tokens_map.json change."""
    def added(content, **flags):
        return {"content": content, "lstrip": False, "normalized": False, "rstrip": False,
                "single_word": False, "special": False, **flags}
    size = max(Tokenizer.from_file(str(OUT / "split_bytes/tokenizer.json")).get_vocab().values()) + 1
    both = {"bos_token": "<s>", "eos_token": "</s>"}
    return [
        {"name": name, "tokenizer": tokenizer, "config": config, "special_tokens_map": special}
        for name, tokenizer, config, special in [
            ("named tokens alone", "sentence_piece", both, {}),
            ("no begin token, which does not count", "sentence_piece", {**both, "add_bos_token": False}, {}),
            ("an end token, which does not count", "sentence_piece", {**both, "add_bos_token": True, "add_eos_token": True}, {}),
            ("tokens of the map", "sentence_piece", {}, both),
            ("a token of the map that becomes special", "split_bytes", {}, {"bos_token": "two words"}),
            ("further tokens", "split_bytes", {"added_tokens_decoder": {
                str(size): added("<|new|>", special=True), str(size + 1): added("brand new")}}, {}),
            ("a token that becomes special", "split_bytes", {"eos_token": "two words"}, {}),
        ]]


def add_configured_ids(case):
    texts = ["In the beginning", "a<|new|>b brand new two words </s> end", ""]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(OUT / case["tokenizer"] / "tokenizer.json", folder)
        for file, fields in [("tokenizer_config", case["config"]),
                             ("special_tokens_map", case["special_tokens_map"])]:
            if fields:
                (pathlib.Path(folder) / f"{file}.json").write_text(json.dumps(fields))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    case["texts"] = []
    for text in texts:
        ids = tokenizer.backend_tokenizer.encode(text).ids
        case["texts"].append({"text": text, "ids": ids, "decoded": tokenizer.backend_tokenizer.decode(ids)})


def write(path, value, indent=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def main():
    made = f"tokenizers {tokenizers_version}, transformers {transformers.__version__}"
    makers = {"sentence_piece": sentence_piece, "split_bytes": split_bytes, "word_piece": word_piece}
    for name, make in makers.items():
        if not (OUT / name / "tokenizer.json").exists():
            write(OUT / name / "tokenizer.json", make())
    for seed, name in enumerate(["demo_model", *makers]):
        folder = DEMO if name == "demo_model" else OUT / name
        write(OUT / f"{name}_golden.json",
              {"made_with": made, **golden(folder / "tokenizer.json", seed)})
    configured = configured_cases()
    for case in configured:
        add_configured_ids(case)
    write(OUT / "configured_golden.json", {"made_with": made, "cases": configured}, indent=1)
    cases = chat_cases()
    for case in cases:
        add_expected(case)
        print(case["name"], "->", repr(case.get("expected", case.get("error"))))
    write(OUT / "chat_templates.json", {"made_with": made, "now_s": NOW_S, "cases": cases}, indent=1)


if __name__ == "__main__":
    main()
