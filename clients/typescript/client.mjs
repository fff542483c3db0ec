// Shared by the tests: clients of the servers that scripts/clients.sh starts.

import OpenAI from "openai";

const setting = (name) => {
  if (!process.env[name]) throw new Error(`${name} is not set: run scripts/clients.sh, which starts the servers`);
  return process.env[name];
};

/** The real model and its name in requests. */
export const url = setting("CLIENTS_URL");
export const model = setting("CLIENTS_MODEL");
/** A tiny model of the same name, with one sequence, no queue and an API key. */
export const strictUrl = setting("CLIENTS_STRICT_URL");

/** Upper bound for any request of these tests on a busy machine, in milliseconds. */
const timeout = 60_000;

/** Without retries, which would hide the first response. */
export const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", timeout, maxRetries: 0 });
export const strict = client.withOptions({ baseURL: `${strictUrl}/v1`, apiKey: setting("CLIENTS_STRICT_KEY") });

/** A conversation with one user message. */
export const say = (content) => [{ role: "user", content }];

/**
 * A request at temperature 0. The base model repeats the question, an assistant answers it; both mention France, so that this
 * stop string ends either completion after a few tokens.
 */
export const greedy = {
  model,
  messages: say("What is the capital of France?"),
  temperature: 0,
  max_tokens: 10,
  stop: "France",
};

export async function metric(name, at = url) {
  const page = await (await fetch(`${at}/metrics`)).text();
  const line = page.split("\n").find((line) => line.startsWith(`indrik_${name} `));
  if (!line) throw new Error(`no ${name} in:\n${page}`);
  return Number(line.split(" ")[1]);
}

/** Waits until a condition holds. */
export async function until(condition) {
  const end = Date.now() + timeout;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error("timed out");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
