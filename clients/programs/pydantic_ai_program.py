"""Pydantic AI: an agent with a tool and one with a typed result, with OpenAI's and Anthropic's models."""

import asyncio
from typing import Literal

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from shared import ANSWER, KEY, MODEL, QUESTION, QUESTION_TWICE, URL, Weather

weather = Weather()


class Sky(BaseModel):
    """How the sky is."""

    colour: Literal["blue", "grey"]
    clouds: bool


def get_weather(city: Literal["lima", "oslo"], unit: Literal["celsius", "fahrenheit"], days: int) -> dict:
    """The weather in a city, for some days."""
    return weather.get(city, unit, days)


def check_history(messages, calls):
    parts = [part for message in messages for part in message.parts]
    called = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    returned = [part.tool_call_id for part in parts if isinstance(part, ToolReturnPart)]
    assert len(set(called)) == calls and called == returned, parts
    assert len(weather.calls) == calls
    weather.calls.clear()


async def converse(model):
    settings = {"max_tokens": 400, "timeout": 60}
    agent = Agent(model, tools=[get_weather], system_prompt="You know the weather.", model_settings=settings)
    for question, calls in [(QUESTION, 1), (QUESTION_TWICE, 2)]:
        result = await agent.run(question)
        assert result.output == ANSWER, result.output
        check_history(result.all_messages(), calls)
        # A second turn with the first one as its history.
        again = await agent.run("Thank you.", message_history=result.all_messages())
        assert again.output == ANSWER, again.output

        async with agent.run_stream(question) as stream:
            assert await stream.get_output() == ANSWER
        check_history(stream.all_messages(), calls)

    # One call of the output tool, forced by `tool_choice`; then the same type by a schema of the response, which the
    # package sends to Anthropic's own models only.
    for output in (ToolOutput(Sky), *([NativeOutput(Sky)] if isinstance(model, OpenAIChatModel) else [])):
        typed = Agent(model, output_type=output, model_settings=settings)
        result = await typed.run("How is the sky?")
        assert isinstance(result.output, Sky), result.output


async def main():
    openai = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    anthropic = AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0)
    await converse(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=openai)))
    await converse(AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=anthropic)))


asyncio.run(main())
