"""The exception that each error becomes, and its contents."""

import openai
import pytest
from conftest import TIMEOUT_SECONDS, MODEL, QUESTION, STRICT_URL, metric, options, say, until

WRONG = [
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"logit_bias": {"word": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "pirate", "content": "Arr"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"extra_body": {"min_p": 2}}, "min_p"),
    ({"extra_body": {"top_k": -2}}, "top_k"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG, ids=lambda value: str(value))
def test_invalid_field_is_named(client, wrong, field):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **wrong})
    assert error.value.status_code == 400
    assert error.value.type == "invalid_request_error"
    assert error.value.param == field
    assert field in error.value.message
    assert error.value.request_id


def test_missing_field_is_named(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/chat/completions", body={"model": MODEL}, cast_to=object)
    assert error.value.param == "messages"


def test_tools_are_rejected_without_tool_support(client):
    tool = {"type": "function", "function": {"name": "roll", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[tool])
    assert error.value.param == "tools"
    assert error.value.code == "unsupported_parameter"


def test_too_long_prompt_reports_both_lengths(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=MODEL, prompt=[2] * 600, max_tokens=1)
    assert error.value.code == "context_length_exceeded"
    assert "600 tokens" in error.value.message and "512" in error.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model_is_not_found(client, stream):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4o", messages=QUESTION, stream=stream)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4o", prompt="One", stream=stream)


def test_unknown_path_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.moderations.create(model=MODEL, input="One")
    assert error.value.code == "unknown_url"


@pytest.mark.parametrize("key", ["none", "x" * 10_000])
def test_wrong_key_is_an_authentication_error(key):
    with openai.OpenAI(**options(STRICT_URL, key)) as client:
        for ask in (
            client.models.list,
            lambda: client.chat.completions.create(model=MODEL, messages=QUESTION),
            lambda: client.completions.create(model=MODEL, prompt="One", stream=True),
        ):
            with pytest.raises(openai.AuthenticationError) as error:
                ask()
            assert error.value.code == "invalid_api_key"
            assert "Authorization" in error.value.message


def test_right_key_is_accepted(strict):
    assert [model.id for model in strict.models.list()] == [MODEL]
    assert strict.completions.create(model=MODEL, prompt="One", max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("streams", [False, True])
def test_full_queue_is_a_rate_limit_error(strict, streams):
    story = strict.completions.create(model=MODEL, prompt="One", max_tokens=490, logit_bias={"1": -100}, stream=True)
    next(story)
    with pytest.raises(openai.RateLimitError) as error:
        strict.chat.completions.create(model=MODEL, messages=say("Two"), max_tokens=1, stream=streams)
    assert error.value.code == "queue_full"
    assert error.value.type == "rate_limit_error"
    assert 1 <= int(error.value.response.headers["retry-after"]) <= TIMEOUT_SECONDS
    story.close()
    until(lambda: metric("kv_cache_pages_used", STRICT_URL) == 0)


def test_retries_succeed_after_retry_after(strict):
    story = strict.completions.create(model=MODEL, prompt="One", max_tokens=490, logit_bias={"1": -100}, stream=True)
    next(story)
    # The client waits for Retry-After, at least one second, while the story finishes.
    patient = strict.with_options(max_retries=8)
    assert patient.completions.create(model=MODEL, prompt="Two", max_tokens=1).usage.completion_tokens == 1
    story.close()


def test_missing_server_is_a_connection_error():
    # Port 9 is the discard protocol: nothing listens there.
    with openai.OpenAI(**options("http://127.0.0.1:9")) as client, pytest.raises(openai.APIConnectionError):
        client.models.list()
