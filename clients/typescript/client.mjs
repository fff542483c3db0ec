// What the tests share: clients of the servers that scripts/clients.sh starts.

import OpenAI from "openai";

const setting = (name) => {
  if (!process.env[name]) throw new Error(`${name} is not set: run scripts/clients.sh, which starts the servers`);
  return process.env[name];
};

/** The real model, and how requests call it. */
export const url = setting("CLIENTS_URL");
export const model = setting("CLIENTS_MODEL");
/** A tiny model of the same name that answers one request at a time, none of which may wait, and asks for a key. */
export const strictUrl = setting("CLIENTS_STRICT_URL");

/** Whatever these tests ask for takes less on a busy machine. */
const long = 60_000;

/** A retry would hide what the first answer was. */
export const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", timeout: long, maxRetries: 0 });
export const strict = client.withOptions({ baseURL: `${strictUrl}/v1`, apiKey: setting("CLIENTS_STRICT_KEY") });

/** A conversation of one message. */
export const say = (content) => [{ role: "user", content }];

/**
 * What the most probable answer is asked for with. The smallest Gemma is no assistant: it says the question again. An assistant
 * says the name, too, so that the answers of both end there, after some tokens.
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

/** Waits until something is true. */
export async function until(holds) {
  const end = Date.now() + long;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error("it does not come true");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
