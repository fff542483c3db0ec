"""logprobs"""

import math

import openai
import pytest
from conftest import MODEL, QUESTION


def test_chat_returns_logprobs_of_its_tokens(greedy):
    reply = greedy(logprobs=True, top_logprobs=3, max_tokens=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    text = b"".join(bytes(token.bytes) for token in tokens if token.bytes)
    assert text.decode().startswith(reply.choices[0].message.content)
    for token in tokens:
        # Greedy: the token is the first of the most probable ones, which are sorted.
        assert [token.token, token.logprob] == [token.top_logprobs[0].token, token.top_logprobs[0].logprob]
        logs = [top.logprob for top in token.top_logprobs]
        assert len(logs) == 3 and logs == sorted(logs, reverse=True)
        assert all(log <= 0 for log in logs) and sum(map(math.exp, logs)) <= 1.001


def test_chat_has_no_logprobs_by_default(greedy):
    assert greedy(max_tokens=1).choices[0].logprobs is None


def test_chat_without_top_logprobs_has_only_the_token(greedy):
    tokens = greedy(logprobs=True, max_tokens=2).choices[0].logprobs.content
    assert len(tokens) == 2
    assert all(token.logprob <= 0 and token.top_logprobs == [] for token in tokens)


def test_stream_has_the_same_logprobs(client, greedy):
    request_body = {"logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    whole = greedy(**request_body).choices[0].logprobs.content
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True, **request_body)
    tokens = [
        token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    assert [token.token for token in tokens] == [token.token for token in whole]
    for streamed, token in zip(tokens, whole, strict=True):
        assert streamed.logprob == pytest.approx(token.logprob, abs=0.05)


def test_completions_return_logprobs(complete):
    reply = complete("One, two, three,", logprobs=2, max_tokens=3)
    logprobs = reply.choices[0].logprobs
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 3
    assert all(log <= 0 for log in logprobs.token_logprobs)
    for token, log, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) >= 2
        assert top[token] == log == max(top.values())
    assert logprobs.text_offset[0] == 0 or logprobs.text_offset[0] == len("One, two, three,")
    assert [b - a for a, b in zip(logprobs.text_offset, logprobs.text_offset[1:])] == [len(t) for t in logprobs.tokens[:-1]]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": "yes"}, "logprobs"),
    ],
    ids=str,
)
def test_invalid_value_is_named(greedy, wrong, field):
    with pytest.raises(openai.BadRequestError) as error:
        greedy(**wrong)
    assert error.value.param == field
