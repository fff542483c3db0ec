"""response_format: JSON objects, schemas and typed results"""

import asyncio
import json
from enum import Enum
from typing import Literal

import openai
import pytest
from conftest import MODEL, options, say
from pydantic import BaseModel


class Size(str, Enum):
    small = "small"
    large = "large"


class Place(BaseModel):
    country: Literal["France", "Italy"]


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    size: Size
    old: bool
    place: Place


# The example makes the model write without spaces, which would cost tokens.
SHOWN = '{"name":"Rome","size":"large","old":true,"place":{"country":"Italy"}}'
TURNS = [*say("Rome"), {"role": "assistant", "content": SHOWN}, *say("Paris")]
REQUEST = {"model": MODEL, "messages": TURNS, "temperature": 1, "seed": 1, "max_tokens": 100}


def test_pydantic_parses_a_response(client):
    choice = client.chat.completions.parse(**REQUEST, response_format=City).choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)
    assert City.model_validate_json(choice.message.content) == choice.message.parsed


def test_pydantic_parses_a_stream(client):
    with client.chat.completions.stream(**REQUEST, response_format=City) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def test_pydantic_parses_for_async_clients():
    async def parse():
        async with openai.AsyncOpenAI(**options()) as client:
            return await client.chat.completions.parse(**REQUEST, response_format=City)

    assert isinstance(asyncio.run(parse()).choices[0].message.parsed, City)


def test_truncated_response_raises(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**REQUEST, "max_tokens": 2}, response_format=City)


def test_plain_json_schema_is_enforced(client):
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "enum": [1, 2, 3]}},
        "required": ["yes", "n"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    turns = [*say("One?"), {"role": "assistant", "content": '{"yes":true,"n":1}'}, *say("No.")]
    for seed in range(2):
        reply = client.chat.completions.create(
            **{**REQUEST, "messages": turns, "seed": seed, "response_format": response_format}
        )
        answer = json.loads(reply.choices[0].message.content)
        assert answer.keys() == {"yes", "n"}
        assert isinstance(answer["yes"], bool) and answer["n"] in (1, 2, 3)


def test_json_object_returns_an_object(client):
    turns = [*say("cat"), {"role": "assistant", "content": '{"word": "cat"}'}, *say("dog")]
    reply = client.chat.completions.create(**{**REQUEST, "messages": turns, "response_format": {"type": "json_object"}})
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_text_completion_can_be_json(complete):
    response_format = {"response_format": {"type": "json_object"}}
    reply = complete('{"a": 1}\n{"a": 2}\n', max_tokens=60, extra_body=response_format)
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(reply.choices[0].text), dict)


def test_text_format_changes_nothing(greedy):
    assert greedy(response_format={"type": "text"}, max_tokens=3).choices == greedy(max_tokens=3).choices


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "yaml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}},
    ],
    ids=str,
)
def test_invalid_format_is_named(client, wrong):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**REQUEST, response_format=wrong)
    assert error.value.param.startswith("response_format")
