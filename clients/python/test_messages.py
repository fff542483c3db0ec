"""client.messages of Anthropic's package"""

import base64
import json
import os

import anthropic
import pytest
from conftest import (
    END,
    MODEL,
    QUESTION,
    STRICT_KEY,
    STRICT_URL,
    TIMEOUT_SECONDS,
    URL,
    VISION_URL,
    metric,
    say,
    until,
)
from test_docs import examples, run_example
from test_images import BLUE, RED, png

TOOLS_URL = os.environ.get("CLIENTS_TOOLS_URL")
TOOLS_MODEL = os.environ.get("CLIENTS_TOOLS_MODEL")


def connect(url=URL, key="none", timeout=TIMEOUT_SECONDS):
    """Without retries, which would hide the first response."""
    return anthropic.Anthropic(base_url=url, api_key=key, timeout=timeout, max_retries=0)


@pytest.fixture
def claude():
    with connect() as client:
        yield client


@pytest.fixture
def guarded():
    with connect(STRICT_URL, STRICT_KEY) as client:
        yield client


# The package has no parameters for sampling; the API does.
GREEDY = {"model": MODEL, "messages": QUESTION, "max_tokens": 10, "extra_body": {"temperature": 0}}


def test_message_has_text_and_usage(claude):
    message = claude.messages.create(**GREEDY)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens <= 10
    assert message._request_id and message.id.endswith(message._request_id)


def test_usage_adds_up_to_the_counted_tokens(claude):
    request = {"model": MODEL, "messages": QUESTION, "system": "Answer in one word."}
    count = claude.messages.count_tokens(**request).input_tokens
    assert count > claude.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    for _ in range(2):
        usage = claude.messages.create(**request, max_tokens=1).usage
        assert usage.input_tokens + usage.cache_read_input_tokens == count
        assert usage.cache_creation_input_tokens == 0


def test_stop_sequence_is_reported(claude):
    message = claude.messages.create(**GREEDY, stop_sequences=["never written", END])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", END)
    assert END not in message.content[0].text


def test_stream_equals_the_whole_message(claude):
    whole = claude.messages.create(**GREEDY, stop_sequences=[END])
    with claude.messages.stream(**GREEDY, stop_sequences=[END]) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_events_come_in_order(claude):
    events = [event.type for event in claude.messages.create(**GREEDY, stream=True)]
    deltas = events[2:-3]
    assert events[:2] == ["message_start", "content_block_start"]
    assert set(deltas) == {"content_block_delta"}
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_prefill_is_continued(claude):
    messages = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    message = claude.messages.create(**{**GREEDY, "messages": messages})
    assert not message.content[0].text.startswith("The capital")


def test_thinking_and_effort_are_accepted(claude):
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        request = {**GREEDY, "max_tokens": 1, "thinking": thinking, "output_config": {"effort": "low"}}
        assert claude.messages.create(**request).usage.output_tokens == 1


def test_output_matches_a_schema(claude):
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "red"]}}, "required": ["sky"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = claude.messages.create(**{**GREEDY, "max_tokens": 60}, output_config=config)
    assert json.loads(message.content[0].text)["sky"] in ("blue", "red")


def test_models_are_listed(claude):
    (model,) = claude.models.list()
    assert (model.type, model.id, model.display_name) == ("model", MODEL, MODEL)
    assert model.created_at.year >= 1970
    assert claude.models.retrieve(MODEL) == model


def picture(colour):
    data = base64.b64encode(png(8, 8, colour)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_images_are_counted_and_seen():
    def request(*blocks):
        content = [*blocks, {"type": "text", "text": "a"}]
        return {"model": "vision", "messages": [{"role": "user", "content": content}]}

    with connect(VISION_URL) as client:
        counts = [client.messages.count_tokens(**request(*pictures)).input_tokens for pictures in ([], [picture(RED)])]
        assert counts[1] - counts[0] > 4
        message = client.messages.create(**request(picture(RED), picture(BLUE)), max_tokens=4)
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens - counts[1] == counts[1] - counts[0]
        broken = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "####"}}
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.source"):
            client.messages.create(**request(broken), max_tokens=4)


WRONG = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"temperature": 1.5}}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "assistant", "content": "Hello"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "roll", "input_schema": {"type": "object"}}]}, "tools"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG, ids=lambda value: str(value))
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_field_is_named(claude, wrong, field, stream):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(**{**GREEDY, **wrong}, stream=stream)
    assert error.value.type == "invalid_request_error"
    assert error.value.api_message.startswith(f"'{field}': ")
    assert error.value.request_id == error.value.body["request_id"]


def test_errors_have_their_own_classes(claude):
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.messages.create(**{**GREEDY, "model": "claude-opus"})
    assert error.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("claude-opus")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.list()
    with connect(STRICT_URL, "wrong") as stranger, pytest.raises(anthropic.AuthenticationError) as error:
        stranger.messages.create(**GREEDY)
    assert error.value.type == "authentication_error"


def test_key_is_accepted_as_a_token_too(guarded):
    request = {"model": MODEL, "messages": say("One"), "max_tokens": 1}
    assert guarded.messages.create(**request).usage.output_tokens == 1
    with anthropic.Anthropic(base_url=STRICT_URL, auth_token=STRICT_KEY, timeout=TIMEOUT_SECONDS) as bearer:
        assert bearer.messages.create(**request).usage.output_tokens == 1


def test_full_queue_is_a_rate_limit_error(guarded):
    story = guarded.messages.create(model=MODEL, messages=say("One"), max_tokens=400, stream=True)
    assert next(story).type == "message_start"
    with pytest.raises(anthropic.RateLimitError) as error:
        guarded.messages.create(model=MODEL, messages=say("Two"), max_tokens=1)
    assert error.value.type == "rate_limit_error"
    assert int(error.value.response.headers["retry-after"]) >= 1
    story.close()
    until(lambda: metric("kv_cache_pages_used", STRICT_URL) == 0)


WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.skipif(not TOOLS_URL, reason="no model with tool support: set INDRIK_TEST_QWEN to a GGUF file of Qwen 2.5")
def test_tool_is_called_and_its_result_used():
    question = say("What is the weather in Paris? Use the tool.")
    request = {"model": TOOLS_MODEL, "tools": [WEATHER], "max_tokens": 80, "extra_body": {"temperature": 0}}
    # A 1.5B model prefills some hundred tokens, on the CPU if there is no GPU.
    with connect(TOOLS_URL, timeout=900) as client:
        choice = {"type": "any", "disable_parallel_tool_use": True}
        with client.messages.stream(**request, messages=question, tool_choice=choice) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        (call,) = message.content
        assert (call.type, call.name) == ("tool_use", "get_weather")
        assert call.id.startswith("toolu_") and "Paris" in call.input["city"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees, clear"}
        turns = [*question, message.to_param(), {"role": "user", "content": [result]}]
        answer = client.messages.create(**request, messages=turns, tool_choice={"type": "none"})
        assert "21" in answer.content[0].text


@pytest.mark.parametrize(("language", "code", "prints"), list(examples("Anthropic's Messages API")))
def test_example_runs(language, code, prints, tmp_path):
    names = {"http://127.0.0.1:8006": URL, "gemma-3-4b-it": MODEL}
    run_example(language, code, prints, tmp_path, names, TIMEOUT_SECONDS)
