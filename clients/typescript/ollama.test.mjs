// Ollama's API: a chat, a stream, a prompt, a schema, the models and errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Ollama } from "ollama";

import { greedy, model, strictUrl, url } from "./client.mjs";

const client = new Ollama({ host: url });
const { messages } = greedy;
const options = { temperature: 0, num_predict: 10 };

test("a stream is the message in parts", async () => {
  const whole = await client.chat({ model, messages, options });
  assert.equal(whole.message.role, "assistant");
  assert.ok(whole.done && whole.eval_count <= 10 && whole.total_duration > 0);
  const parts = [];
  for await (const part of await client.chat({ model, messages, options, stream: true })) parts.push(part);
  assert.equal(parts.map((part) => part.message.content).join(""), whole.message.content);
  assert.equal(parts.at(-1).eval_count, whole.eval_count);
});

test("a prompt is completed", async () => {
  const { response } = await client.generate({ model, prompt: "The capital of France", raw: true, options });
  assert.ok(response);
});

test("a schema is followed", async () => {
  const format = { type: "object", properties: { n: { enum: [1, 2] } }, required: ["n"], additionalProperties: false };
  const { message } = await client.chat({ model, messages, format, options: { temperature: 0 } });
  assert.ok([1, 2].includes(JSON.parse(message.content).n), message.content);
});

test("the models are listed and described", async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((found) => found.name), [model]);
  assert.ok((await client.show({ model })).capabilities.includes("completion"));
  assert.deepEqual((await client.ps()).models.map((found) => found.model), [model]);
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
});

test("errors have a status", async () => {
  await assert.rejects(client.chat({ model: "none", messages }), (error) => {
    assert.equal(error.status_code, 404);
    assert.ok(error.message.includes("not found"), error.message);
    return true;
  });
  await assert.rejects(new Ollama({ host: strictUrl }).list(), (error) => error.status_code === 401);
});
