"""LlamaIndex: an agent with a tool through the openai-like package, and a plain chat."""

import asyncio
from typing import Literal

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from shared import ANSWER, KEY, MODEL, QUESTION, QUESTION_TWICE, URL, Weather

weather = Weather()


def get_weather(city: Literal["lima", "oslo"], unit: Literal["celsius", "fahrenheit"], days: int) -> dict:
    """The weather in a city, for some days."""
    return weather.get(city, unit, days)


llm = OpenAILike(
    api_base=f"{URL}/v1", api_key=KEY, model=MODEL, is_chat_model=True, is_function_calling_model=True,
    context_window=32768, max_tokens=400, max_retries=0, timeout=60,
)


async def ask(agent, question):
    """Results of the calls, and the answer; text and calls are streamed."""
    run = agent.run(question)
    results, text = [], ""
    async for event in run.stream_events():
        if isinstance(event, ToolCallResult):
            results.append(event)
        elif isinstance(event, AgentStream):
            text += event.delta
    reply = str(await run)
    assert reply == ANSWER and text.endswith(ANSWER), (reply, text)
    return results


async def main():
    agent = FunctionAgent(tools=[get_weather], llm=llm, system_prompt="You know the weather.")
    for question, calls in [(QUESTION, 1), (QUESTION_TWICE, 2)]:
        results = await ask(agent, question)
        assert len(results) == len(weather.calls) == calls, (results, weather.calls)
        assert not any(result.tool_output.is_error for result in results), results
        assert len({result.tool_id for result in results}) == calls, results
        weather.calls.clear()


asyncio.run(main())
assert llm.chat([ChatMessage(role="user", content="Hello")]).message.content == ANSWER
assert "".join(part.delta for part in llm.stream_chat([ChatMessage(role="user", content="Hello")])) == ANSWER
reply = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg="Hello", tool_required=True)
(call,) = llm.get_tool_calls_from_response(reply)
weather.get(**call.tool_kwargs)
