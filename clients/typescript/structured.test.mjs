// response_format: typed results

import assert from "node:assert/strict";
import { test } from "node:test";

import { LengthFinishReasonError } from "openai/core/error";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { client, model, say } from "./client.mjs";

const City = z.object({
  name: z.enum(["Paris", "Rome"]),
  old: z.boolean(),
  place: z.object({ country: z.enum(["France", "Italy"]) }),
});
// The example makes the model write without spaces, which would cost tokens.
const shown = '{"name":"Rome","old":true,"place":{"country":"Italy"}}';
const request = {
  model,
  messages: [...say("Rome"), { role: "assistant", content: shown }, ...say("Paris")],
  temperature: 1,
  seed: 1,
  max_tokens: 100,
  response_format: zodResponseFormat(City, "city"),
};

test("zod parses a response", async () => {
  const { choices } = await client.chat.completions.parse(request);
  assert.equal(choices[0].finish_reason, "stop");
  assert.deepEqual(choices[0].message.parsed, City.parse(JSON.parse(choices[0].message.content)));
});

test("zod parses a stream", async () => {
  const { choices } = await client.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(choices[0].message.parsed, City.parse(JSON.parse(choices[0].message.content)));
});

test("a truncated response throws", async () => {
  await assert.rejects(client.chat.completions.parse({ ...request, max_tokens: 2 }), LengthFinishReasonError);
});
