// client.responses: objects, streams, structured output and stored responses

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { client, model } from "./client.mjs";

const request = { model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 10 };

test("a stream adds up to the response", async () => {
  const whole = await client.responses.create(request);
  assert.match(whole.id, /^resp_/);
  assert.ok(whole.output_text);
  let text = "";
  const numbers = [];
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    numbers.push(event.sequence_number);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
  assert.deepEqual(numbers, [...numbers.keys()]);
});

test("the stream helper returns the final response", async () => {
  const final = await client.responses.stream({ ...request, max_output_tokens: 5 }).finalResponse();
  assert.ok(["completed", "incomplete"].includes(final.status));
  assert.ok(final.output_text);
});

test("zod parses a response", async () => {
  const City = z.object({ old: z.boolean() });
  const format = zodTextFormat(City, "city");
  const response = await client.responses.parse({ ...request, max_output_tokens: 100, text: { format } });
  assert.deepEqual(response.output_parsed, City.parse(JSON.parse(response.output_text)));
});

test("stored responses are continued, retrieved, listed and deleted", async () => {
  const first = await client.responses.create(request);
  const second = await client.responses.create({ ...request, input: "And of Italy?", previous_response_id: first.id });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  assert.deepEqual((await client.responses.retrieve(second.id)).output, second.output);
  const roles = [];
  for await (const item of client.responses.inputItems.list(second.id, { limit: 1, order: "asc" })) roles.push(item.role);
  assert.deepEqual(roles, ["user", "assistant", "user"]);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});
