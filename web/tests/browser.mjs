// Chromium for the tests. Every test has a profile of its own, and fails if the page logged an error.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";
import { Mock } from "./mock.mjs";

const PATHS = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
export const executablePath = PATHS.find((path) => path && existsSync(path));

/** Generous: the tests wait for states, and a busy machine may take long to reach them. */
const TIMEOUT_MS = 60_000;

let browser;

export async function launch() {
  const flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";
  browser = await chromium.launch({ executablePath, args: ["--headless", ...flags.split(" ")], timeout: TIMEOUT_MS });
}

export async function close() {
  await browser?.close();
}

/**
 * Opens the page for a test. `expected` are patterns of console errors that the test provokes: Chromium logs each
 * response that is an error.
 */
export async function open(t, url, { expected = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: "light", ...options });
  context.setDefaultTimeout(TIMEOUT_MS);
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => {
    const text = `${message.text()} ${message.location().url}`;
    if (message.type() === "error" && !expected.some((pattern) => pattern.test(text))) errors.push(text);
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  t.after(async () => {
    await context.close();
    assert.deepEqual(errors, [], "the page logged errors");
  });
  await page.goto(url);
  return page;
}

/** Starts a mock server and opens its page. */
export async function start(t, setUp = () => {}, { hash = "", ...options } = {}) {
  const server = await Mock.start();
  setUp(server);
  const page = await open(t, server.url + hash, options);
  // Hooks run in this order: the page is closed before its server is.
  t.after(() => server.stop());
  return { server, page };
}

export async function send(page, text) {
  await page.getByRole("textbox", { name: "Message", exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

/** The last answer. */
export function answer(page) {
  return page.locator("#messages > li.assistant").last();
}

/** Waits until a locator's text contains this, or matches it. */
export async function see(locator, text) {
  await locator.filter({ hasText: text }).first().waitFor();
}

/** Waits until the answer is complete. */
export async function idle(page) {
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
}
