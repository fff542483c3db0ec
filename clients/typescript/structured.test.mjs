// response_format: answers that are JSON of one's own types

import assert from "node:assert/strict";
import { test } from "node:test";

import { LengthFinishReasonError } from "openai/core/error";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { client, model, say } from "./client.mjs";

const City = z.object({
  name: z.enum(["Paris", "Rome", "Oslo"]),
  old: z.boolean(),
  districts: z.array(z.enum(["north", "south"])),
});
const asked = {
  model,
  messages: say("Describe Paris as JSON."),
  temperature: 1,
  seed: 1,
  max_tokens: 60,
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
