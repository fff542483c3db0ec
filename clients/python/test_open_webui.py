"""The requests of Open WebUI: list models, then stream a chat, read line by line."""

import json
import urllib.request

import pytest
from conftest import TIMEOUT_SECONDS, MODEL, QUESTION, STRICT_KEY, STRICT_URL, URL


@pytest.mark.parametrize(("url", "key"), [(URL, ""), (STRICT_URL, STRICT_KEY)], ids=["open", "with-a-key"])
def test_lists_models_and_chats(url, key):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/models", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        models = json.load(response)
    assert [model["id"] for model in models["data"]] == [MODEL]

    chat = {"stream": True, "model": MODEL, "messages": QUESTION, "stream_options": {"include_usage": True}}
    body = json.dumps({**chat, "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        assert response.headers.get_content_type() == "text/event-stream"
        lines = [line.decode().rstrip("\n") for line in response]
    *events, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert all(set(line) <= {""} or line.startswith(("data: ", ":")) for line in lines)
    assert any(choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] <= 4
