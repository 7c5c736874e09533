"""The openai package for Python, unmodified, against a disaggregated server."""

import openai
import pytest


@pytest.fixture
def client(disaggregated):
    with openai.OpenAI(base_url=f"{disaggregated.url}/v1", api_key="none", max_retries=0) as client:
        yield client


USER = [{"role": "user", "content": "And God said, Let there be"}]


def test_models_lists_the_served_name(client):
    cards = client.models.list().data
    assert [card.id for card in cards][:1] == ["demo_model"]
    assert client.models.retrieve("demo_model").id == "demo_model"


def test_chat_answers_and_counts_tokens(client):
    answer = client.chat.completions.create(model="default", messages=USER, max_tokens=20, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert len(answer.system_fingerprint) >= 16


def test_streamed_chat_equals_the_whole_answer(client):
    parameters = dict(model="default", messages=USER, max_tokens=40, seed=11, temperature=1.0)
    whole = client.chat.completions.create(**parameters)
    chunks = list(client.chat.completions.create(**parameters, stream=True,
                                                 stream_options={"include_usage": True}))
    first = chunks[0].choices[0].delta
    assert first.role == "assistant" and first.content, "the role travels with the first token"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details})


def test_logprobs_of_generated_tokens_equal_prompt_logprobs_of_the_same_text(disaggregated):
    prompt = [11, 300, 42, 900, 77, 1500, 8, 19]
    generated = disaggregated.post("/v1/completions", {
        "model": "default", "prompt": prompt, "max_tokens": 24, "temperature": 1.0, "seed": 3,
        "logprobs": 0, "return_token_ids": True, "ignore_eos": True}).json()["choices"][0]
    ids, logprobs = generated["token_ids"], generated["logprobs"]["token_logprobs"]
    again = disaggregated.post("/v1/completions", {
        "model": "default", "prompt": prompt + ids, "max_tokens": 1, "temperature": 0,
        "prompt_logprobs": 0}).json()["choices"][0]
    scored = again["prompt_logprobs"][len(prompt):]
    assert [entry[str(token)]["logprob"] for entry, token in zip(scored, ids)] == logprobs


def test_n_choices_are_distinct_seeded_streams(client):
    def texts():
        answer = client.completions.create(model="default", prompt="The king said", n=4, seed=5,
                                           temperature=1.0, max_tokens=16)
        return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]
    first = texts()
    assert len(set(first)) > 1 and first == texts()


def test_a_bias_bans_and_forces_tokens_in_both_apis(client, disaggregated):
    prompt = [11, 300, 42, 900, 77]
    greedy = dict(model="default", prompt=prompt, temperature=0, max_tokens=12,
                  extra_body={"return_token_ids": True, "ignore_eos": True})
    free = client.completions.create(**greedy, logprobs=1).choices[0]
    banned = free.token_ids[0]
    without = client.completions.create(**greedy, logprobs=1, logit_bias={str(banned): -100}).choices[0]
    assert banned not in without.token_ids
    # Log-probabilities are those of the model: what was banned is still the likeliest.
    assert without.logprobs.top_logprobs[0] == free.logprobs.top_logprobs[0] | {
        without.logprobs.tokens[0]: without.logprobs.token_logprobs[0]}
    forced = client.completions.create(**greedy, logit_bias={"50": 100}).choices[0]
    assert forced.token_ids == [50] * 12
    chat = dict(model="default", messages=USER, max_tokens=12, seed=4, temperature=1.0, n=3,
                logit_bias={"50": 60, "51": 60}, extra_body={"return_token_ids": True, "ignore_eos": True})
    whole = client.chat.completions.create(**chat)
    assert {token for choice in whole.choices for token in choice.token_ids} == {50, 51}
    assert len({tuple(choice.token_ids) for choice in whole.choices}) == 3, "each choice draws for itself"
    streamed = {0: [], 1: [], 2: []}
    for chunk in client.chat.completions.create(**chat, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.token_ids
    assert streamed == {choice.index: choice.token_ids for choice in whole.choices}
    with pytest.raises(openai.BadRequestError, match="logit_bias has token id 4096, must be from 0 to 4095"):
        client.completions.create(**greedy, logit_bias={"4096": 1})


def test_stop_string_ends_the_text_before_it(client):
    parameters = dict(model="default", prompt="And it came to pass", temperature=0, max_tokens=60)
    free = client.completions.create(**parameters).choices[0].text
    stop = free[20:24]
    cut = client.completions.create(**parameters, stop=[stop]).choices[0]
    assert cut.text == free[:free.index(stop)] and cut.finish_reason == "stop"


def test_several_prompts_give_choices_in_order(client):
    answer = client.completions.create(model="default", prompt=["In the", "And the"], n=2,
                                       temperature=0, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text


@pytest.mark.parametrize("change, error, parameter", [
    ({"temperature": 3}, openai.BadRequestError, "temperature"),
    ({"top_p": 0}, openai.BadRequestError, "top_p"),
    ({"n": 129}, openai.BadRequestError, "n"),
    ({"max_tokens": 100000}, openai.BadRequestError, None),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
    ({"model": "nobody"}, openai.NotFoundError, "model"),
])
def test_bad_requests_raise_the_typed_error(client, change, error, parameter):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**({"model": "default", "messages": USER} | change))
    if parameter:
        assert caught.value.param == parameter
