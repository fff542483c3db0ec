// response_format: answers that are JSON of one's own types

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
// Shown how, the model writes without spaces, which are tokens.
const shown = '{"name":"Rome","old":true,"place":{"country":"Italy"}}';
const asked = {
  model,
  messages: [...say("Rome"), { role: "assistant", content: shown }, ...say("Paris")],
  temperature: 1,
  seed: 1,
  max_tokens: 100,
  response_format: zodResponseFormat(City, "city"),
};

test("zod reads an answer", async () => {
  const { choices } = await client.chat.completions.parse(asked);
  assert.equal(choices[0].finish_reason, "stop");
  assert.deepEqual(choices[0].message.parsed, City.parse(JSON.parse(choices[0].message.content)));
});

test("zod reads a stream", async () => {
  const { choices } = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(choices[0].message.parsed, City.parse(JSON.parse(choices[0].message.content)));
});

test("an answer without room is no half of one", async () => {
  await assert.rejects(client.chat.completions.parse({ ...asked, max_tokens: 2 }), LengthFinishReasonError);
});
