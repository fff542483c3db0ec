"""Stream events against their schema in /openapi.json, which schemathesis does not check."""

import json
import urllib.request

import jsonschema_rs
import pytest
from conftest import TIMEOUT_SECONDS, MODEL, QUESTION, URL


@pytest.mark.parametrize(
    ("path", "request_body"),
    [("/v1/chat/completions", {"messages": QUESTION}), ("/v1/completions", {"prompt": "One, two,"})],
)
@pytest.mark.parametrize("usage", [True, False], ids=["with-usage", "without"])
def test_stream_events_match_the_schema(path, request_body, usage):
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=TIMEOUT_SECONDS) as response:
        document = json.load(response)
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    done, chunk = content["text/event-stream"]["itemSchema"]["properties"]["data"]["anyOf"]
    schema = {**chunk["contentSchema"], "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)

    more = {"model": MODEL, "max_tokens": 3, "n": 2, "stream": True, "stream_options": {"include_usage": usage}}
    request = urllib.request.Request(URL + path, json.dumps({**request_body, **more}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        *events, last = [line[6:].decode().strip() for line in response if line.startswith(b"data: ")]
    assert last == done["const"]
    assert len(events) >= 4
    for event in events:
        validator.validate(json.loads(event))


def test_events_of_a_message_match_the_schema():
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=TIMEOUT_SECONDS) as response:
        document = json.load(response)
    content = document["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]
    data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
    validator = jsonschema_rs.Draft202012Validator({**data["contentSchema"], "components": document["components"]})

    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 3, "stream": True}
    request = urllib.request.Request(f"{URL}/v1/messages", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
    assert events[-1] == {"type": "message_stop"}
    assert len(events) >= 6
    for event in events:
        validator.validate(event)
