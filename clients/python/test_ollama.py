"""Ollama's own package: chats, prompts, tools, formats, and the models"""

import os

import ollama
import pydantic
import pytest
from conftest import MODEL, QUESTION, STRICT_KEY, STRICT_URL, TIMEOUT_SECONDS, URL, VISION_URL
from test_images import RED, png

TOOLS_URL = os.environ.get("CLIENTS_TOOLS_URL")
TOOLS_MODEL = os.environ.get("CLIENTS_TOOLS_MODEL")
# A server of a whole store, whose only model is Gemma 3 270M.
STORE_URL = os.environ.get("CLIENTS_STORE_URL")
STORE_MODEL = "gemma3:270m"

GREEDY = {"temperature": 0, "num_predict": 10}


def connect(url=URL, **headers):
    return ollama.Client(host=url, timeout=TIMEOUT_SECONDS, headers=headers)


@pytest.fixture
def client():
    return connect()


def test_chat_is_the_same_streamed_or_not(client):
    whole = client.chat(MODEL, QUESTION, options=GREEDY)
    assert whole.done and whole.done_reason in ("stop", "length")
    assert whole.message.role == "assistant" and whole.message.content
    assert whole.eval_count <= 10 and whole.prompt_eval_count > 0
    assert min(whole.total_duration, whole.eval_duration, whole.prompt_eval_duration) > 0
    parts = list(client.chat(MODEL, QUESTION, options=GREEDY, stream=True))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count


def test_generate_is_the_same_streamed_or_not(client):
    whole = client.generate(MODEL, "The capital of France", options=GREEDY, raw=True)
    parts = list(client.generate(MODEL, "The capital of France", options=GREEDY, raw=True, stream=True))
    assert "".join(part.response for part in parts) == whole.response


def test_format_is_a_schema(client):
    # Otherwise the model may add fields of its own, without end.
    class Answer(pydantic.BaseModel, extra="forbid"):
        city: str = pydantic.Field(max_length=12)
        capital: bool

    options = {"temperature": 0, "num_predict": 100}
    response = client.chat(MODEL, QUESTION, format=Answer.model_json_schema(), options=options)
    Answer.model_validate_json(response.message.content)
    response = client.generate(MODEL, "Reply with JSON", format="json", options=GREEDY)
    assert response.response.lstrip().startswith("{")


def test_images_are_files(client):
    vision = connect(VISION_URL)
    message = {"role": "user", "content": "What is it?", "images": [png(8, 8, RED)]}
    assert vision.chat("vision", [message], options={"num_predict": 2}).eval_count <= 2


@pytest.mark.skipif(not TOOLS_URL, reason="no model that calls tools")
def test_tools_are_functions():
    def get_weather(city: str) -> str:
        """Get the weather.

        Args:
            city: the city
        """
        return f"22 degrees in {city}"

    client = connect(TOOLS_URL)
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"temperature": 0, "num_predict": 60}
    message = client.chat(TOOLS_MODEL, messages, tools=[get_weather], options=options).message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather" and "Paris" in call.function.arguments["city"]
    result = get_weather(**call.function.arguments)
    messages += [message, {"role": "tool", "content": result, "tool_name": call.function.name}]
    assert "22" in client.chat(TOOLS_MODEL, messages, tools=[get_weather], options=options).message.content


def test_models_are_listed_and_described(client):
    (listed,) = client.list().models
    assert listed.model == MODEL and listed.size > 0 and listed.details.family == "gemma3"
    shown = client.show(f"{MODEL}:latest")
    assert shown.modelinfo["gemma3.context_length"] == 512
    assert "completion" in shown.capabilities
    (running,) = client.ps().models
    assert running.model == MODEL and running.context_length == 512 and running.size_vram > 0


def test_errors_are_of_the_packages_class(client):
    with pytest.raises(ollama.ResponseError) as error:
        client.chat("none", QUESTION)
    assert error.value.status_code == 404 and "not found" in error.value.error
    with pytest.raises(ollama.ResponseError) as error:
        client.chat(MODEL, QUESTION, options={"temperature": -1})
    assert error.value.status_code == 400 and "options.temperature" in error.value.error
    with pytest.raises(ollama.ResponseError) as error:
        client.pull("gemma3:270m")
    assert error.value.status_code == 403
    with pytest.raises(ollama.ResponseError) as error:
        connect(STRICT_URL).list()
    assert error.value.status_code == 401
    assert connect(STRICT_URL, Authorization=f"Bearer {STRICT_KEY}").list().models


@pytest.mark.skipif(not STORE_URL, reason="no server of a store")
def test_a_model_of_the_store_is_pulled_loaded_and_unloaded():
    client = connect(STORE_URL)
    statuses = [progress.status for progress in client.pull(STORE_MODEL, stream=True)]
    assert (statuses[0], statuses[-1]) == ("pulling manifest", "success")
    assert client.pull(STORE_MODEL).status == "success"
    assert client.generate(STORE_MODEL, keep_alive="5m").done_reason == "load"
    assert [model.model for model in client.ps().models] == [STORE_MODEL]
    assert client.generate(STORE_MODEL, keep_alive=0).done_reason == "unload"
    with pytest.raises(ollama.ResponseError) as error:
        client.pull("no-such-model")
    assert error.value.status_code == 404
