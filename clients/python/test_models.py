"""client.models"""

import asyncio

import openai
import pytest
from conftest import MODEL, options


def test_lists_the_model(client):
    models = client.models.list()
    assert [model.id for model in models] == [MODEL]
    assert models.data[0].object == "model"
    assert models.data[0].owned_by == "indrik"
    assert models.data[0].created > 0


def test_retrieves_a_model_by_name(client):
    assert client.models.retrieve(MODEL) == client.models.list().data[0]


def test_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4o")
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"
    assert "gpt-4o" in error.value.message


def test_lists_the_model_to_async_clients():
    async def names():
        async with openai.AsyncOpenAI(**options()) as client:
            return [model.id async for model in client.models.list()]

    assert asyncio.run(names()) == [MODEL]
