"""LangChain: an agent with a tool, through langchain-openai and langchain-anthropic, whole and streamed."""

from typing import Literal

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from shared import ANSWER, KEY, MODEL, QUESTION, QUESTION_TWICE, URL, Weather

weather = Weather()


@tool
def get_weather(city: Literal["lima", "oslo"], unit: Literal["celsius", "fahrenheit"], days: int) -> dict:
    """The weather in a city, for some days."""
    return weather.get(city, unit, days)


class Sky(BaseModel):
    """How the sky is."""

    colour: Literal["blue", "grey"]
    clouds: bool


MODELS = [
    ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_retries=0, timeout=60, max_tokens=400, stream_usage=True),
    ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_retries=0, timeout=60, max_tokens=400),
]


def check_conversation(messages, calls):
    """Question, message with all calls, one result per call, answer."""
    human, call, *results, answer = messages
    assert isinstance(human, HumanMessage) and isinstance(call, AIMessage) and isinstance(answer, AIMessage)
    assert len(call.tool_calls) == len(results) == calls and not call.invalid_tool_calls, call
    assert all(isinstance(result, ToolMessage) and result.status == "success" for result in results), results
    assert [result.tool_call_id for result in results] == [called["id"] for called in call.tool_calls]
    assert answer.text == ANSWER and not answer.tool_calls, answer
    assert call.usage_metadata["output_tokens"] > 0 < answer.usage_metadata["input_tokens"]


for model in MODELS:
    agent = create_agent(model, [get_weather], system_prompt="You know the weather.")
    for question, calls in [(QUESTION, 1), (QUESTION_TWICE, 2)]:
        asked = {"messages": [{"role": "user", "content": question}]}
        check_conversation(agent.invoke(asked)["messages"], calls)
        assert len(weather.calls) == calls
        weather.calls.clear()

        pieces, text, states = 0, "", []
        for mode, part in agent.stream(asked, stream_mode=["messages", "values"]):
            if mode == "values":
                states.append(part)
            elif isinstance(part[0], AIMessageChunk):
                pieces += len(part[0].tool_call_chunks)
                text += part[0].text
        check_conversation(states[-1]["messages"], calls)
        assert text == ANSWER and pieces > 3 * calls, (text, pieces)
        weather.calls.clear()

    # Without an agent: a forced call, and structured output.
    forced = model.bind_tools([get_weather], tool_choice="get_weather").invoke("Hello")
    assert [call["name"] for call in forced.tool_calls] == ["get_weather"]
    sky = model.with_structured_output(Sky, method="json_schema").invoke("How is the sky?")
    assert isinstance(sky, Sky), sky
    sky = model.with_structured_output(Sky, method="function_calling").invoke("How is the sky?")
    assert isinstance(sky, Sky), sky
