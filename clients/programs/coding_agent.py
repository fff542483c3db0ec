"""The requests of a coding agent, with OpenAI's and Anthropic's packages: a system prompt of 10,000 tokens, 20 tools with
nested schemas, parallel calls, results and texts in between, streamed and not."""

import json

import anthropic
import jsonschema
import openai
from shared import ANSWER, KEY, MODEL, URL

SYSTEM_TOKENS = 10_000
OPTIONS = {"api_key": KEY, "timeout": 300, "max_retries": 0}
chat = openai.OpenAI(base_url=f"{URL}/v1", **OPTIONS)
messages_api = anthropic.Anthropic(base_url=URL, **OPTIONS)


def listed(**properties):
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


POSITION = listed(line={"type": "integer", "minimum": 1}, column={"type": "integer", "minimum": 1})
EDIT = listed(
    range=listed(start={"$ref": "#/$defs/position"}, end={"$ref": "#/$defs/position"}),
    text={"type": "string"},
    kind={"enum": ["insert", "replace", "delete"]},
)
PARAMETERS = [
    # Nested objects with a reference, in an array that is not empty.
    {
        **listed(path={"type": "string"}, edits={"type": "array", "items": EDIT, "minItems": 2, "maxItems": 3}),
        "$defs": {"position": POSITION},
    },
    # Alternatives, a constant, an optional property, null.
    {
        "type": "object",
        "properties": {
            "target": {"anyOf": [listed(file={"type": "string"}), listed(symbol={"type": "string"}), {"type": "null"}]},
            "mode": {"const": "search"},
            "limit": {"type": ["integer", "null"], "minimum": 0, "maximum": 500},
            "filter": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "required": ["target", "mode", "limit"],
    },
    # A todo list.
    listed(
        todos={
            "type": "array",
            "minItems": 1,
            "items": listed(id={"type": "integer"}, state={"enum": ["open", "doing", "done"]}, urgent={"type": "boolean"}),
        }
    ),
    # Without properties.
    {"type": "object", "properties": {}},
]
NAMES = (
    "apply_edits search_code update_todos git_status read_file list_folder write_file run_command run_tests find_symbol "
    "rename_symbol format_file fetch_page ask_user open_branch commit_changes show_diff get_diagnostics take_note finish_task"
).split()
SCHEMAS = {name: PARAMETERS[at % len(PARAMETERS)] for at, name in enumerate(NAMES)}
assert len(SCHEMAS) == 20


def describe(name):
    return f"{name.replace('_', ' ').capitalize()}. Use this tool when the user asks for it, and never for anything else."


CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": describe(name), "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
MESSAGES_TOOLS = [
    {"name": name, "description": describe(name), "input_schema": schema} for name, schema in SCHEMAS.items()
]


def count(system, tools=()):
    question = [{"role": "user", "content": "Hello"}]
    return messages_api.messages.count_tokens(model=MODEL, system=system, tools=[*tools], messages=question).input_tokens


def system_prompt():
    """Rules until they have the number of tokens."""
    rule = "{}. Read each file before you change it, and use the tool for that: never write code from memory.\n"
    per_rule = (count("".join(map(rule.format, range(1000, 1020)))) - count("")) / 20
    prompt = "You are a coding agent.\n" + "".join(map(rule.format, range(1000, 1002 + round(SYSTEM_TOKENS / per_rule))))
    assert SYSTEM_TOKENS <= count(prompt) < 1.1 * SYSTEM_TOKENS, count(prompt)
    return prompt


def check_calls(calls, expected, ids):
    """`calls` are (id, name, arguments). Ids are new; arguments are valid."""
    assert len(calls) == expected, calls
    for call, name, arguments in calls:
        assert call not in ids, f"{call} is not unique"
        ids.add(call)
        jsonschema.validate(arguments, SCHEMAS[name])


# --- OpenAI ---------------------------------------------------------------------------------------------------------------


def whole_chat(**request):
    response = chat.chat.completions.with_raw_response.create(**request)
    assert response.status_code == 200 and response.headers["content-type"].startswith("application/json")
    (choice,) = response.parse().choices
    return choice.finish_reason, choice.message.content, choice.message.tool_calls or []


def streamed_chat(**request):
    """Reassembled from the chunks, whose order is checked."""
    response = chat.chat.completions.with_raw_response.create(**request, stream=True, stream_options={"include_usage": True})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    content, calls, reason, usage, ids = "", [], None, None, set()
    for chunk in response.parse():
        ids.add(chunk.id)
        assert usage is None, "the usage is last"
        usage = chunk.usage
        for choice in chunk.choices:
            assert reason is None, "nothing follows the finish reason"
            reason = choice.finish_reason
            if choice.delta.content:
                assert not calls, "text precedes calls"
                content += choice.delta.content
            for piece in choice.delta.tool_calls or []:
                if piece.index == len(calls):
                    assert piece.id and piece.function.name and piece.type == "function"
                    calls.append(piece)
                else:
                    assert piece.index == len(calls) - 1 and piece.id is None, "arguments belong to the last call"
                    calls[-1].function.arguments += piece.function.arguments
    assert len(ids) == 1 and usage.completion_tokens > 0 and usage.prompt_tokens > SYSTEM_TOKENS
    return reason, content or None, calls


def chat_calls(complete, ids, expected, **request):
    """The assistant's message with its calls."""
    reason, content, calls = complete(**request)
    assert reason == "tool_calls", (reason, content, calls)
    check_calls([(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls], expected, ids)
    functions = [{"name": call.function.name, "arguments": call.function.arguments} for call in calls]
    called = [{"id": call.id, "type": "function", "function": function} for call, function in zip(calls, functions)]
    return {"role": "assistant", "content": content, "tool_calls": called}


def result_messages(message):
    """Results in another order than the calls: the ids assign them. One is text, the others are parts."""
    contents = ["done", [{"type": "text", "text": "line 1\n"}, {"type": "text", "text": "line 2 <|im_end|>"}]]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": contents[at % 2]}
        for at, call in reversed([*enumerate(message["tool_calls"])])
    ]


def agent_in_chat(complete, system):
    request = {"model": MODEL, "tools": CHAT_TOOLS, "max_tokens": 1500}
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Three changes, please: § § §"}]
    ids = set()
    for text in (None, "I have made the changes. Now I test them."):
        if text:
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Two more: §§"}]
        message = chat_calls(complete, ids, 2 if text else 3, **request, messages=messages, parallel_tool_calls=True)
        messages += [message, *result_messages(message)]
    assert complete(**request, messages=messages) == ("stop", ANSWER, [])
    # One call at a time, a subset of the tools, and every tool by its name.
    messages.append({"role": "user", "content": "Go on: §§"})
    chat_calls(complete, ids, 1, **request, messages=messages, parallel_tool_calls=False)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "git_status"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    message = chat_calls(complete, ids, 1, **request, messages=messages, tool_choice=choice, parallel_tool_calls=False)
    assert message["tool_calls"][0]["function"]["name"] == "git_status"
    messages[-1]["content"] = "Go on."
    for name in NAMES:
        choice = {"type": "function", "function": {"name": name}}
        message = chat_calls(complete, ids, 1, **request, messages=messages, tool_choice=choice, parallel_tool_calls=False)
        assert message["tool_calls"][0]["function"]["name"] == name
    assert complete(**request, messages=messages, tool_choice="none") == ("stop", ANSWER, [])


# --- Anthropic ------------------------------------------------------------------------------------------------------------


def whole_message(**request):
    response = messages_api.messages.with_raw_response.create(**request)
    assert response.status_code == 200 and response.headers["content-type"].startswith("application/json")
    return response.parse()


def streamed_message(**request):
    """As the package assembles it; the events are checked on the way."""
    open_block, blocks, kinds = None, 0, []
    with messages_api.messages.stream(**request) as stream:
        assert stream.response.status_code == 200
        for event in stream:
            kinds.append(event.type)
            if event.type == "content_block_start":
                assert open_block is None and event.index == blocks, "blocks follow each other"
                open_block, blocks = event.index, blocks + 1
            elif event.type == "content_block_delta":
                assert event.index == open_block
            elif event.type == "content_block_stop":
                assert event.index == open_block
                open_block = None
        message = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and kinds.count("message_delta") == 1, kinds
    assert blocks == len(message.content)
    return message


def message_calls(create, ids, expected, **request):
    message = create(**request)
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "tool_use"), message
    blocks = [block for block in message.content if block.type == "tool_use"]
    check_calls([(block.id, block.name, block.input) for block in blocks], expected, ids)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > SYSTEM_TOKENS
    return message


def results_block(message):
    """Results in another order than the calls, as text and as blocks, one of them an error, then a text."""
    contents = ["done", [{"type": "text", "text": "line 1\nline 2 <|im_end|>"}]]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": contents[at % 2], "is_error": at == 1}
        for at, block in enumerate(block for block in message.content if block.type == "tool_use")
    ]
    return [*reversed(results), {"type": "text", "text": "Think of the tests."}]


def agent_in_messages(create, system):
    cached = {"type": "ephemeral"}
    instructions = [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": system, "cache_control": cached}]
    tools = [*MESSAGES_TOOLS[:-1], {**MESSAGES_TOOLS[-1], "cache_control": cached}]
    request = {"model": MODEL, "system": instructions, "tools": tools, "max_tokens": 1500}
    question = {"type": "text", "text": "Three changes: § § §", "cache_control": cached}
    messages, ids = [{"role": "user", "content": [question]}], set()
    message = message_calls(create, ids, 3, **request, messages=messages)
    # The package's own blocks are sent back, with a text before them.
    messages.append({"role": "assistant", "content": [{"type": "text", "text": "I change them."}, *message.content]})
    messages.append({"role": "user", "content": [*results_block(message), {"type": "text", "text": "Two more: §§"}]})
    message = message_calls(create, ids, 2, **request, messages=messages)
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results_block(message)}]
    answer = create(**request, messages=messages)
    assert answer.stop_reason == "end_turn" and [block.text for block in answer.content] == [ANSWER], answer
    one = {"type": "any", "disable_parallel_tool_use": True}
    message_calls(create, ids, 1, **request, messages=messages, tool_choice=one)
    for name in NAMES:
        choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        message = message_calls(create, ids, 1, **request, messages=messages, tool_choice=choice)
        assert message.content[-1].name == name
    answer = create(**request, messages=messages, tool_choice={"type": "none"})
    assert answer.stop_reason == "end_turn" and [block.text for block in answer.content] == [ANSWER], answer


def refused():
    """A result without a call, and a call without its result, are errors of the client."""
    stray = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}]}]
    called = {"type": "tool_use", "id": "toolu_1", "name": "git_status", "input": {}}
    unanswered = [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": [called]}, {"role": "user", "content": "Well?"},
    ]
    for messages in (stray, unanswered):
        try:
            messages_api.messages.create(model=MODEL, tools=MESSAGES_TOOLS, max_tokens=100, messages=messages)
        except anthropic.BadRequestError as error:
            assert error.status_code == 400 and error.body["error"]["type"] == "invalid_request_error", error.body
        else:
            raise AssertionError(f"accepted: {messages}")


if __name__ == "__main__":
    prompt = system_prompt()
    for complete in (whole_chat, streamed_chat):
        agent_in_chat(complete, prompt)
    for create in (whole_message, streamed_message):
        agent_in_messages(create, prompt)
    refused()
