// logprobs

import assert from "node:assert/strict";
import { test } from "node:test";

import { client, greedy, model } from "./client.mjs";

test("chat returns logprobs, whole and as a stream", async () => {
  const request = { ...greedy, logprobs: true, top_logprobs: 2, max_tokens: 3 };
  const { choices, usage } = await client.chat.completions.create(request);
  const tokens = choices[0].logprobs.content;
  assert.equal(tokens.length, usage.completion_tokens);
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 2);
    assert.equal(token.top_logprobs[0].token, token.token);
    assert.ok(token.logprob <= 0);
  }
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    streamed.push(...(chunk.choices[0]?.logprobs?.content ?? []));
  }
  assert.deepEqual(streamed.map((token) => token.token), tokens.map((token) => token.token));
});

test("completions return logprobs", async () => {
  const request = { model, prompt: "One, two, three,", temperature: 0, max_tokens: 2, logprobs: 2 };
  const { choices } = await client.completions.create(request);
  const { tokens, token_logprobs, top_logprobs } = choices[0].logprobs;
  assert.equal(tokens.join(""), choices[0].text);
  tokens.forEach((token, at) => assert.equal(top_logprobs[at][token], token_logprobs[at]));
});
