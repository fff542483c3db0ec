// Vercel's AI SDK: a conversation with a tool and a typed result, whole and streamed, with both kinds of provider.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const { PROGRAMS_URL: url, PROGRAMS_MODEL: name, PROGRAMS_KEY: apiKey } = process.env;
// As in shared.py.
const QUESTIONS = [["What is the weather in Oslo? §", 1], ["What is the weather in Oslo, and in Lima? §§", 2]];
const ANSWER = "This is the answer.";

const providers = [
  createOpenAICompatible({ name: "indrik", baseURL: `${url}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true }),
  createAnthropic({ baseURL: `${url}/v1`, apiKey }),
];
const getWeather = tool({
  description: "The weather in a city, for some days.",
  inputSchema: z.object({ city: z.enum(["lima", "oslo"]), unit: z.enum(["celsius", "fahrenheit"]), days: z.int() }),
  execute: async () => ({ degrees: 21, sky: "clear" }),
});

// Two steps: all calls with their results, then the answer.
function check(steps, text, calls) {
  assert.equal(text, ANSWER);
  assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  const ids = steps[0].toolCalls.map((call) => call.toolCallId);
  assert.equal(new Set(ids).size, calls);
  assert.deepEqual(steps[0].toolResults.map((result) => result.toolCallId), ids);
  assert.ok(steps.every((step) => step.usage.inputTokens > 0 && step.usage.outputTokens > 0), "usage of each step");
}

for (const provider of providers) {
  const options = { model: provider(name), maxOutputTokens: 400, maxRetries: 0, instructions: "You know the weather." };
  const withTools = { ...options, tools: { get_weather: getWeather }, stopWhen: isStepCount(4) };
  for (const [prompt, calls] of QUESTIONS) {
    const result = await generateText({ ...withTools, prompt });
    check(result.steps, result.text, calls);

    let failure;
    const stream = streamText({ ...withTools, prompt, onError: ({ error }) => (failure = error) });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    if (failure) throw failure;
    check(await stream.steps, text, calls);
  }

  const toolChoice = { type: "tool", toolName: "get_weather" };
  const forced = await generateText({ ...options, tools: { get_weather: getWeather }, toolChoice, prompt: "Hello" });
  assert.deepEqual(forced.toolCalls.map((call) => call.toolName), ["get_weather"]);
  const sky = z.object({ colour: z.enum(["blue", "grey"]), clouds: z.boolean() });
  const typed = await generateText({ ...options, output: Output.object({ schema: sky }), prompt: "How is the sky?" });
  sky.parse(typed.output);
}
