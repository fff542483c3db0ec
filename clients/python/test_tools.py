"""Tool calls: a real model calls a weather tool and uses its result. Skipped if scripts/clients.sh has no such model."""

import json
import os

import openai
import pytest
from conftest import options, say
from test_docs import examples, run_example

URL = os.environ.get("CLIENTS_TOOLS_URL")
MODEL = os.environ.get("CLIENTS_TOOLS_MODEL")

pytestmark = pytest.mark.skipif(not URL, reason="no model with tool support: set INDRIK_TEST_QWEN to a GGUF file of Qwen 2.5")

# A 1.5B model prefills some hundred tokens, on the CPU if there is no GPU.
TIMEOUT = 900

QUESTION = say("What is the weather in Paris, in celsius? Use the tool.")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
REQUEST = {"tools": [WEATHER], "temperature": 0, "max_tokens": 80}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client():
    with openai.OpenAI(**{**options(URL), "timeout": TIMEOUT}) as client:
        yield client


def check(call):
    assert call.id.startswith("call_")
    assert (call.type, call.function.name) == ("function", "get_weather")
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert "Paris" in arguments["city"]
    assert arguments["unit"] in ("celsius", "fahrenheit")


def test_tool_is_called_and_its_result_used(client):
    reply = client.chat.completions.create(model=MODEL, messages=QUESTION, tool_choice="required", parallel_tool_calls=False, **REQUEST)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    check(call)

    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 21, "sky": "clear"})}
    turns = [*QUESTION, choice.message, result]
    reply = client.chat.completions.create(model=MODEL, messages=turns, **{**REQUEST, "tool_choice": "none"})
    answer = reply.choices[0].message
    assert not answer.tool_calls
    assert "21" in answer.content


def test_stream_carries_tool_calls_in_deltas(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, tool_choice=NAMED, parallel_tool_calls=False, **REQUEST) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        choice = stream.get_final_completion().choices[0]
    assert len(pieces) > 3
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    (call,) = choice.message.tool_calls
    check(call)
    assert "".join(piece.arguments_delta for piece in pieces) == call.function.arguments


def test_auto_may_or_may_not_call_a_tool(client):
    reply = client.chat.completions.create(model=MODEL, messages=QUESTION, **REQUEST)
    choice = reply.choices[0]
    if choice.message.tool_calls:
        assert choice.finish_reason == "tool_calls"
        check(choice.message.tool_calls[0])
    else:
        assert choice.message.content


def test_invalid_schema_is_named(client):
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "word"}}}}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=QUESTION, **{**REQUEST, "tools": [WEATHER, wrong]})
    assert error.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize(("language", "code", "prints"), [*examples("Tools"), *examples("Fill in the middle")])
def test_example_runs(language, code, prints, tmp_path):
    run_example(language, code, prints, tmp_path, {"http://127.0.0.1:8006": URL, "qwen2.5-coder:1.5b": MODEL}, TIMEOUT)
