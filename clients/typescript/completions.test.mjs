// client.models, client.chat.completions and client.completions

import assert from "node:assert/strict";
import { test } from "node:test";

import { client, greedy, metric, model, say, until } from "./client.mjs";

test("lists the model and retrieves it by name", async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map((model) => model.id), [model]);
  const names = [];
  for await (const { id } of client.models.list()) names.push(id);
  assert.deepEqual(names, [model]);
  assert.deepEqual({ ...(await client.models.retrieve(model)) }, models.data[0]);
});

test("a stream equals the whole response", async () => {
  const whole = await client.chat.completions.create(greedy);
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.choices[0].message.role, "assistant");
  assert.match(whole.choices[0].message.content, / capital of $/);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  assert.equal(whole.id, `chatcmpl-${whole._request_id}`);

  const stream = await client.chat.completions.create({
    ...greedy,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const last = chunks.pop();
  assert.equal(
    chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""),
    whole.choices[0].message.content,
  );
  assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
  assert.ok(chunks.every((chunk) => chunk.usage === null));
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper assembles the response", async () => {
  const runner = client.chat.completions.stream(greedy);
  let text = "";
  runner.on("content", (piece) => (text += piece));
  const { choices } = await runner.finalChatCompletion();
  assert.equal(choices[0].message.content, text);
  assert.match(text, / capital of $/);
});

test("completes a text, whole and as a stream", async () => {
  const request = { model, prompt: "One, two, three, four,", temperature: 0, max_tokens: 4 };
  const whole = await client.completions.create(request);
  assert.match(whole.choices[0].text, /^ five/);
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 4);
  let text = "";
  for await (const chunk of await client.completions.create({ ...request, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
  const echo = await client.completions.create({ ...request, echo: true });
  assert.equal(echo.choices[0].text, request.prompt + whole.choices[0].text);
});

test("stop, max_completion_tokens, n, seed, penalties and biases take effect", async () => {
  const count = { ...greedy, messages: say("Count from one to ten in words.") };
  const ask = async (more) => await client.chat.completions.create({ ...count, ...more });
  const whole = (await ask({})).choices[0].message.content;
  const stop = whole.trim().split(/\s+/)[1];
  const stopped = (await ask({ stop: [stop] })).choices[0];
  assert.equal(stopped.message.content, whole.slice(0, whole.indexOf(stop)));
  assert.equal(stopped.finish_reason, "stop");

  assert.equal((await ask({ max_completion_tokens: 2 })).usage.completion_tokens, 2);
  const tale = { messages: say("Tell me a tale."), temperature: 1.5, seed: 1, n: 2, max_tokens: 4 };
  const [first, again] = [await ask(tale), await ask(tale)];
  assert.equal(first.choices.length, 2);
  assert.deepEqual(again.choices, first.choices);

  const forced = await ask({ logit_bias: { 5000: 100 }, max_tokens: 2 });
  const twice = forced.choices[0].message.content;
  assert.equal(twice, twice.slice(0, twice.length / 2).repeat(2));
  const list = { model, prompt: "Red, green, red,", temperature: 0, max_tokens: 8 };
  const green = async (more) => (await client.completions.create({ ...list, ...more })).choices[0].text.split("green").length;
  assert.ok((await green({ presence_penalty: 2, frequency_penalty: 2 })) < (await green({})));
});

test("requests run concurrently", async () => {
  const answers = await Promise.all([1, 2, 3].map(() => client.chat.completions.create(greedy)));
  for (const answer of answers) assert.match(answer.choices[0].message.content, / capital of $/);
});

test("a closed stream frees its pages", async () => {
  const story = { model, messages: say("Write a long story."), max_tokens: 200, stream: true };
  for await (const chunk of await client.chat.completions.create(story)) {
    assert.ok(chunk.choices.length);
    await until(async () => (await metric("kv_cache_pages_used")) > 0);
    break;
  }
  await until(async () => (await metric("kv_cache_pages_used")) === 0);

  const stream = await client.chat.completions.create(story);
  const pieces = stream[Symbol.asyncIterator]();
  await pieces.next();
  stream.controller.abort();
  await until(async () => (await metric("kv_cache_pages_used")) === 0);
});
