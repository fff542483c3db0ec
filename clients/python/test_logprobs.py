"""logprobs: how probable tokens were"""

import math

import openai
import pytest
from conftest import MODEL, QUESTION


def test_chat_tells_the_probabilities_of_its_tokens(greedy):
    reply = greedy(logprobs=True, top_logprobs=3, max_tokens=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    text = b"".join(bytes(token.bytes) for token in tokens if token.bytes)
    assert text.decode().startswith(reply.choices[0].message.content)
    for token in tokens:
        # Greedy: the token is the first of the most probable ones, which come by their order.
        assert [token.token, token.logprob] == [token.top_logprobs[0].token, token.top_logprobs[0].logprob]
        logs = [top.logprob for top in token.top_logprobs]
        assert len(logs) == 3 and logs == sorted(logs, reverse=True)
        assert all(log <= 0 for log in logs) and sum(map(math.exp, logs)) <= 1.001


def test_chat_tells_none_where_nobody_asks(greedy):
    assert greedy(max_tokens=1).choices[0].logprobs is None


def test_chat_without_others_has_only_the_token(greedy):
    tokens = greedy(logprobs=True, max_tokens=2).choices[0].logprobs.content
    assert len(tokens) == 2
    assert all(token.logprob <= 0 and token.top_logprobs == [] for token in tokens)


def test_a_stream_tells_the_same(client, greedy):
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    whole = greedy(**asked).choices[0].logprobs.content
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True, **asked)
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


def test_completions_tell_theirs(go_on):
    reply = go_on("One, two, three,", logprobs=2, max_tokens=3)
    told = reply.choices[0].logprobs
    assert "".join(told.tokens) == reply.choices[0].text
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 3
    assert all(log <= 0 for log in told.token_logprobs)
    for token, log, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert len(top) >= 2
        assert top[token] == log == max(top.values())
    assert told.text_offset[0] == 0 or told.text_offset[0] == len("One, two, three,")
    assert [b - a for a, b in zip(told.text_offset, told.text_offset[1:])] == [len(t) for t in told.tokens[:-1]]


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
def test_a_wrong_number_is_named(greedy, wrong, field):
    with pytest.raises(openai.BadRequestError) as error:
        greedy(**wrong)
    assert error.value.param == field
