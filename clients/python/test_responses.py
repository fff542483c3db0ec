"""client.responses: objects, streams, structured output, conversations and stored responses"""

import base64
import json
import os

import openai
import pytest
from conftest import MODEL, TIMEOUT_SECONDS, URL, VISION_URL, options
from pydantic import BaseModel
from test_docs import examples, run_example
from test_images import RED, png

TOOLS_URL = os.environ.get("CLIENTS_TOOLS_URL")
TOOLS_MODEL = os.environ.get("CLIENTS_TOOLS_MODEL")

QUESTION = "What is the capital of France?"
GREEDY = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 10}

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    old: bool


@pytest.fixture
def respond(client):
    """Response at temperature 0."""
    return lambda **more: client.responses.create(**{**GREEDY, **more})


def test_response_has_text_and_usage(respond):
    response = respond(metadata={"a": "b"}, instructions="Answer briefly.")
    assert response.id.startswith("resp_")
    assert (response.object, response.model, response.error) == ("response", MODEL, None)
    (message,) = response.output
    assert (message.type, message.role) == ("message", "assistant")
    assert response.output_text == message.content[0].text
    assert response.status in ("completed", "incomplete")
    assert 1 <= response.usage.output_tokens <= 10
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.metadata == {"a": "b"}


def test_events_add_up_to_the_response(client, respond):
    whole = respond()
    with client.responses.stream(**GREEDY) as stream:
        events = list(stream)
        final = stream.get_final_response() if events[-1].type == "response.completed" else events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text


def test_raw_stream_ends_with_the_response(client):
    *_, last = client.responses.create(**GREEDY, stream=True)
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text


def test_a_response_continues_the_previous_one(respond):
    first = respond()
    second = respond(input="And of Italy?", previous_response_id=first.id)
    sent_back = respond(input=[{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And of Italy?"}])
    assert second.output_text == sent_back.output_text
    assert second.usage.input_tokens == sent_back.usage.input_tokens > first.usage.input_tokens


def test_stored_responses_are_retrieved_listed_and_deleted(client, respond):
    response = respond(input=[{"role": "user", "content": str(number)} for number in range(5)])
    assert client.responses.retrieve(response.id) == response
    # The iterator fetches one page after the other.
    items = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == ["0", "1", "2", "3", "4"]
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError) as error:
        respond(previous_response_id=response.id)
    assert error.value.code == "previous_response_not_found"


def test_responses_in_the_background_are_polled_and_cancelled(client, respond):
    response = respond(background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert response.output_text == respond().output_text
    cancelled = client.responses.cancel(respond(background=True, max_output_tokens=400).id)
    assert cancelled.status in ("cancelled", "completed", "incomplete")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(respond().id)


def test_pydantic_parses_a_response(client):
    request = {**GREEDY, "max_output_tokens": 100, "text_format": City}
    response = client.responses.parse(**request)
    assert response.output_parsed == City.model_validate_json(response.output_text)
    with client.responses.stream(**request) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed


def test_log_probabilities(respond):
    response = respond(include=["message.output_text.logprobs"], top_logprobs=2)
    content = response.output[0].content[0]
    assert bytes(byte for token in content.logprobs for byte in token.bytes).decode() == content.text
    assert all(len(token.top_logprobs) == 2 for token in content.logprobs)


def test_errors_name_the_field(respond):
    for more, field in (
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            respond(**more)
        assert error.value.param == field


def test_images():
    url = f"data:image/png;base64,{base64.b64encode(png(30, 20, RED)).decode()}"
    content = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "?"}]
    with openai.OpenAI(**options(VISION_URL)) as client:
        message = {"role": "user", "content": content}
        response = client.responses.create(model="vision", input=[message], max_output_tokens=2)
        text = client.responses.create(model="vision", input="?", max_output_tokens=2)
    assert response.usage.input_tokens > text.usage.input_tokens


@pytest.mark.skipif(not TOOLS_URL, reason="no model with tool support: set INDRIK_TEST_QWEN to a GGUF file of Qwen 2.5")
@pytest.mark.parametrize("streamed", [False, True])
def test_tool_loop(streamed):
    request = {"model": TOOLS_MODEL, "tools": [WEATHER], "temperature": 0, "max_output_tokens": 80}
    with openai.OpenAI(**{**options(TOOLS_URL), "timeout": 900}) as client:
        asked = {**request, "input": "What is the weather in Paris?", "tool_choice": "required"}
        asked["parallel_tool_calls"] = False
        if streamed:
            with client.responses.stream(**asked) as stream:
                first = stream.get_final_response()
        else:
            first = client.responses.create(**asked)
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert call.name == "get_weather" and set(json.loads(call.arguments)) == {"city"}
        result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"degrees": 21}'}
        second = client.responses.create(**request, input=[result], previous_response_id=first.id, tool_choice="none")
        assert second.output_text


@pytest.mark.parametrize(("language", "code", "prints"), list(examples("OpenAI's Responses API")))
def test_example_runs(language, code, prints, tmp_path):
    run_example(language, code, prints, tmp_path, {"http://127.0.0.1:8006": URL, "gemma-3-4b-it": MODEL}, TIMEOUT_SECONDS)
