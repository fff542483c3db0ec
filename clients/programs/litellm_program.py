"""LiteLLM: its library with a tool, and its proxy in front of the server, in OpenAI's and Anthropic's protocol."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import litellm
from shared import ANSWER, CITIES, KEY, MODEL, QUESTION, QUESTION_TWICE, UNITS, URL, Weather

PROXY_KEY = "sk-of-this-test"
START_SECONDS = 120
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": [*CITIES]},
        "unit": {"type": "string", "enum": [*UNITS]},
        "days": {"type": "integer"},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}
weather = Weather()


def whole(**request):
    return litellm.completion(**request).choices[0]


def streamed(**request):
    return litellm.stream_chunk_builder([*litellm.completion(**request, stream=True)]).choices[0]


def converse(complete, question, calls, **where):
    """Question, calls, results, answer."""
    messages = [{"role": "user", "content": question}]
    request = dict(**where, tools=[TOOL], max_tokens=400, timeout=60, num_retries=0)
    choice = complete(**request, messages=messages)
    called = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and len({call.id for call in called}) == calls, choice
    messages.append(choice.message.model_dump())
    for call in called:
        assert call.function.name == "get_weather", call
        result = json.dumps(weather.get(**json.loads(call.function.arguments)))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    choice = complete(**request, messages=messages)
    assert (choice.finish_reason, choice.message.content) == ("stop", ANSWER), choice


def converse_both_ways(**where):
    for complete in (whole, streamed):
        for question, calls in [(QUESTION, 1), (QUESTION_TWICE, 2)]:
            converse(complete, question, calls, **where)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(url, process, log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.5)
    raise AssertionError(f"the proxy did not start within {START_SECONDS} s:\n{log.read_text()}")


def message(url, key, **body):
    """A request to the proxy's Messages API, which it translates to chat completions."""
    headers = {"Content-Type": "application/json", "x-api-key": key, "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def converse_in_messages(url, key, model):
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
    request = {"model": model, "max_tokens": 400, "tools": [tool]}
    messages = [{"role": "user", "content": QUESTION}]
    reply = message(url, key, **request, messages=messages)
    (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
    assert reply["stop_reason"] == "tool_use", reply
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps(weather.get(**call["input"]))}
    messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    reply = message(url, key, **request, messages=messages)
    texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
    assert (reply["stop_reason"], texts) == ("end_turn", [ANSWER]), reply


def proxy():
    with tempfile.TemporaryDirectory() as folder:
        config, log, port = Path(folder) / "config.yaml", Path(folder) / "log", free_port()
        upstream = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
        settings = {
            "model_list": [{"model_name": "weather", "litellm_params": upstream}],
            "general_settings": {"master_key": PROXY_KEY},
        }
        config.write_text(json.dumps(settings))  # JSON is YAML
        command = [Path(sys.executable).with_name("litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/health/liveliness", process, log)
            converse_both_ways(model="openai/weather", api_base=f"{url}/v1", api_key=PROXY_KEY)
            converse_in_messages(url, PROXY_KEY, "weather")
        finally:
            process.kill()
            process.wait()


converse_both_ways(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key=KEY)
converse_both_ways(model=f"hosted_vllm/{MODEL}", api_base=f"{URL}/v1", api_key=KEY)
converse_both_ways(model=f"anthropic/{MODEL}", api_base=URL, api_key=KEY)
proxy()
