// The exception that each error becomes, and its contents.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { client, greedy, metric, model, strict, strictUrl, until } from "./client.mjs";

const chat = (more, from = client) => from.chat.completions.create({ ...greedy, ...more });

test("an invalid field is a BadRequestError that names it", async () => {
  for (const [wrong, param] of [
    [{ temperature: 3 }, "temperature"],
    [{ n: "many" }, "n"],
    [{ max_tokens: 0 }, "max_tokens"],
    [{ logit_bias: { word: 1 } }, "logit_bias"],
    [{ messages: [{ role: "user" }] }, "messages[0].content"],
    [{ stream_options: { include_usage: true } }, "stream_options"],
  ]) {
    await assert.rejects(chat(wrong), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, String(error));
      assert.equal(error.status, 400);
      assert.equal(error.param, param);
      assert.equal(error.type, "invalid_request_error");
      assert.ok(error.message.includes(param));
      assert.ok(error.requestID);
      return true;
    });
  }
});

test("an unknown model or path is a NotFoundError", async () => {
  for (const ask of [
    () => chat({ model: "gpt-4o" }),
    () => chat({ model: "gpt-4o", stream: true }),
    () => client.completions.create({ model: "gpt-4o", prompt: "One" }),
    () => client.models.retrieve("gpt-4o"),
  ]) {
    await assert.rejects(ask(), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError, String(error));
      assert.equal(error.code, "model_not_found");
      return true;
    });
  }
  await assert.rejects(client.moderations.create({ model, input: "One" }), OpenAI.NotFoundError);
});

test("a wrong key is an AuthenticationError", async () => {
  const stranger = strict.withOptions({ apiKey: "none" });
  for (const ask of [() => stranger.models.list(), () => chat({}, stranger), () => chat({ stream: true }, stranger)]) {
    await assert.rejects(ask(), (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError, String(error));
      assert.equal(error.code, "invalid_api_key");
      return true;
    });
  }
  assert.equal((await strict.models.list()).data[0].id, model);
});

test("a full queue is a RateLimitError with Retry-After", async () => {
  const story = { model, prompt: "One", max_tokens: 490, logit_bias: { 1: -100 }, stream: true };
  const stream = await strict.completions.create(story);
  const pieces = stream[Symbol.asyncIterator]();
  await pieces.next();
  await assert.rejects(chat({ max_tokens: 1 }, strict), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError, String(error));
    assert.equal(error.code, "queue_full");
    assert.ok(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  stream.controller.abort();
  await until(async () => (await metric("kv_cache_pages_used", strictUrl)) === 0);
});

test("a client timeout is an APIConnectionTimeoutError and frees the pages", async () => {
  const story = { model, prompt: "Once upon a time", max_tokens: 200 };
  await assert.rejects(client.completions.create(story, { timeout: 500 }), OpenAI.APIConnectionTimeoutError);
  await until(async () => (await metric("kv_cache_pages_used")) === 0);
});

test("an abort is an APIUserAbortError and frees the pages", async () => {
  const abort = new AbortController();
  const story = { model, prompt: "Once upon a time", max_tokens: 200 };
  const answer = client.completions.create(story, { signal: abort.signal });
  const rejected = assert.rejects(answer, OpenAI.APIUserAbortError);
  await until(async () => (await metric("kv_cache_pages_used")) > 0);
  abort.abort();
  await rejected;
  await until(async () => (await metric("kv_cache_pages_used")) === 0);
});
