// Tool calls: a real model calls a weather tool. Skipped if scripts/clients.sh has no such model.

import assert from "node:assert/strict";
import { test } from "node:test";

import { client, say } from "./client.mjs";

const url = process.env.CLIENTS_TOOLS_URL;
const model = process.env.CLIENTS_TOOLS_MODEL;
const skip = url ? false : "no model with tool support: set INDRIK_TEST_QWEN to a GGUF file of Qwen 2.5";

const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city, now.",
    strict: true,
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("a tool is called in a stream and its result used", { skip }, async () => {
  // A 1.5B model prefills some hundred tokens, on the CPU if there is no GPU.
  const patient = client.withOptions({ baseURL: `${url}/v1`, timeout: 900_000 });
  const request = { model, tools: [weather], temperature: 0, max_tokens: 60 };
  const messages = say("What is the weather in Paris? Use the tool.");
  const stream = patient.chat.completions.stream({
    ...request,
    messages,
    tool_choice: "required",
    parallel_tool_calls: false,
  });
  const { choices } = await stream.finalChatCompletion();
  assert.equal(choices[0].finish_reason, "tool_calls");
  const [call] = choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.match(JSON.parse(call.function.arguments).city, /Paris/);

  const result = { role: "tool", tool_call_id: call.id, content: "21 degrees, clear" };
  const turns = [...messages, { role: "assistant", tool_calls: choices[0].message.tool_calls }, result];
  const reply = await patient.chat.completions.create({ ...request, messages: turns, tool_choice: "none" });
  assert.match(reply.choices[0].message.content, /21/);
});
