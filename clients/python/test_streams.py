"""client.chat.completions, streams, and asynchronous clients"""

import asyncio

import openai
import pytest
from conftest import END, MODEL, QUESTION, metric, options, say, until


def test_a_stream_says_what_the_whole_answer_says(client, greedy):
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


def test_the_stream_helper_puts_it_together(client, greedy):
    asked = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 10, "stop": END}
    with client.chat.completions.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    whole = greedy(stop=END).choices[0]
    assert "".join(pieces) == final.choices[0].message.content == whole.message.content
    assert final.choices[0].finish_reason == whole.finish_reason


def test_several_answers_come_in_one_stream(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=say("Tell me a tale."), max_tokens=4, n=2, seed=1, temperature=1.5, stream=True
    )
    ends = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]


def test_async_requests_run_beside_each_other(greedy):
    async def ask(client):
        return await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=4)

    async def listen(client):
        stream = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def write(client):
        return await client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=2)

    async def all_at_once():
        async with openai.AsyncOpenAI(**options()) as client:
            return await asyncio.gather(ask(client), listen(client), write(client))

    answer, stream, text = asyncio.run(all_at_once())
    assert answer.choices[0].message.content == stream == greedy(max_tokens=4).choices[0].message.content
    assert text.choices[0].text.startswith(" four")


def begin(client):
    """A stream that would go on for long, after its first chunk."""
    stream = client.chat.completions.create(
        model=MODEL, messages=say("Write a long story."), max_tokens=200, temperature=1, stream=True
    )
    assert next(stream).choices
    return stream


def test_a_stream_that_is_left_gives_its_pages_back(client):
    stream = begin(client)
    until(lambda: metric("kv_pages_taken") > 0)
    stream.close()
    until(lambda: metric("kv_pages_taken") == 0)
    assert metric("writing_requests") == 0


def test_a_request_that_is_given_up_gives_its_pages_back(client):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(model=MODEL, prompt="Once upon a time", max_tokens=200)
    until(lambda: metric("kv_pages_taken") == 0)


def test_a_task_that_is_cancelled_gives_its_pages_back():
    async def leave():
        async with openai.AsyncOpenAI(**options()) as client:
            work = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=200)
            task = asyncio.create_task(work)
            while metric("kv_pages_taken") == 0:
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(leave(), 60))
    until(lambda: metric("kv_pages_taken") == 0)
