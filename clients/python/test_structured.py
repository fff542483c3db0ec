"""response_format: answers that are JSON, and JSON of one's own types"""

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


class City(BaseModel):
    name: Literal["Paris", "Rome", "Oslo"]
    size: Size
    old: bool
    districts: list[Literal["north", "south"]]


ASK = {"model": MODEL, "messages": say("Describe Paris as JSON."), "temperature": 1, "seed": 1, "max_tokens": 60}


def test_pydantic_reads_an_answer(client):
    choice = client.chat.completions.parse(**ASK, response_format=City).choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, City)
    assert City.model_validate_json(choice.message.content) == choice.message.parsed


def test_pydantic_reads_a_stream(client):
    with client.chat.completions.stream(**ASK, response_format=City) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def test_pydantic_reads_for_async_clients():
    async def parse():
        async with openai.AsyncOpenAI(**options()) as client:
            return await client.chat.completions.parse(**ASK, response_format=City)

    assert isinstance(asyncio.run(parse()).choices[0].message.parsed, City)


def test_an_answer_without_room_is_no_half_of_one(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**ASK, "max_tokens": 2}, response_format=City)


def test_a_schema_written_by_hand_holds(client):
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "enum": [1, 2, 3]}},
        "required": ["yes", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    for seed in range(3):
        reply = client.chat.completions.create(**{**ASK, "seed": seed, "response_format": form})
        answer = json.loads(reply.choices[0].message.content)
        assert answer.keys() == {"yes", "n"}
        assert isinstance(answer["yes"], bool) and answer["n"] in (1, 2, 3)


def test_json_object_is_an_object(client):
    reply = client.chat.completions.create(
        **{**ASK, "temperature": 0, "messages": say('Answer with {"colour": "red"} as JSON, and nothing else.')},
        response_format={"type": "json_object"},
    )
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)
    else:
        assert reply.choices[0].message.content.lstrip().startswith("{")


def test_text_is_as_without(greedy):
    assert greedy(response_format={"type": "text"}).choices == greedy().choices


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "yaml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}},
    ],
    ids=str,
)
def test_a_wrong_form_is_named(client, wrong):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**ASK, response_format=wrong)
    assert error.value.param.startswith("response_format")
