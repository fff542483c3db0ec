"""client.chat.completions with streaming, and asynchronous clients"""

import asyncio

import openai
import pytest
from conftest import END, MODEL, QUESTION, metric, options, say, until


def test_stream_equals_the_whole_response(client, greedy):
    whole = greedy(stop=END)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=10,
        stop=END,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_stream_helper_assembles_the_response(client, greedy):
    request_body = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 10, "stop": END}
    with client.chat.completions.stream(**request_body) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    whole = greedy(stop=END).choices[0]
    assert "".join(pieces) == final.choices[0].message.content == whole.message.content
    assert final.choices[0].finish_reason == whole.finish_reason


def test_one_stream_carries_several_choices(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=say("Tell me a tale."), max_tokens=4, n=2, seed=1, temperature=1.5, stream=True
    )
    ends = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]


def test_async_requests_run_concurrently(greedy):
    async def ask(client):
        return await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=4)

    async def stream_chat(client):
        stream = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def complete_text(client):
        return await client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=2)

    async def all_at_once():
        async with openai.AsyncOpenAI(**options()) as client:
            return await asyncio.gather(ask(client), stream_chat(client), complete_text(client))

    answer, stream, text = asyncio.run(all_at_once())
    assert answer.choices[0].message.content == stream == greedy(max_tokens=4).choices[0].message.content
    assert text.choices[0].text.startswith(" four")


def start_long_stream(client):
    """A long stream, after its first chunk."""
    stream = client.chat.completions.create(
        model=MODEL, messages=say("Write a long story."), max_tokens=200, temperature=1, stream=True
    )
    assert next(stream).choices
    return stream


def test_closed_stream_frees_its_pages(client):
    stream = start_long_stream(client)
    until(lambda: metric("kv_cache_pages_used") > 0)
    stream.close()
    until(lambda: metric("kv_cache_pages_used") == 0)
    assert metric("requests_decoding") == 0


def test_timed_out_request_frees_its_pages(client):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(model=MODEL, prompt="Once upon a time", max_tokens=200)
    until(lambda: metric("kv_cache_pages_used") == 0)


def test_cancelled_task_frees_its_pages():
    async def cancel():
        async with openai.AsyncOpenAI(**options()) as client:
            work = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=200)
            task = asyncio.create_task(work)
            while metric("kv_cache_pages_used") == 0:
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(cancel(), 60))
    until(lambda: metric("kv_cache_pages_used") == 0)
