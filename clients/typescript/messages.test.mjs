// Anthropic's Messages API: a message, a stream, token counts and errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import { greedy, model, strictUrl, url } from "./client.mjs";

const claude = new Anthropic({ baseURL: url, apiKey: "none", timeout: 60_000, maxRetries: 0 });
const { messages, temperature, max_tokens, stop } = greedy;
const request = { model, messages, temperature, max_tokens, stop_sequences: ["never written", stop] };

test("a stream is the message in parts", async () => {
  const whole = await claude.messages.create(request);
  assert.equal(whole.content[0].type, "text");
  assert.deepEqual([whole.stop_reason, whole.stop_sequence], ["stop_sequence", stop]);
  const pieces = [];
  const stream = claude.messages.stream(request).on("text", (text) => pieces.push(text));
  const final = await stream.finalMessage();
  assert.equal(pieces.join(""), whole.content[0].text);
  assert.deepEqual([final.content[0].text, final.stop_sequence], [whole.content[0].text, stop]);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("usage adds up to the counted tokens", async () => {
  const { input_tokens } = await claude.messages.countTokens({ model, messages });
  const { usage } = await claude.messages.create(request);
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, input_tokens);
});

test("errors are of the package's classes", async () => {
  await assert.rejects(claude.messages.create({ ...request, max_tokens: 0 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError, String(error));
    assert.ok(error.message.includes("max_tokens"));
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(claude.messages.create({ ...request, model: "none" }), Anthropic.NotFoundError);
  const stranger = claude.withOptions({ baseURL: strictUrl });
  await assert.rejects(stranger.messages.create(request), Anthropic.AuthenticationError);
});
