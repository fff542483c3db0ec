// The page of the real server with a tiny model. Its words are random; what matters is that they arrive.
//
// PAGE_URL: the server; PAGE_KEY: its key. scripts/webui_test.sh starts one.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answer, close, executablePath, idle, launch, open, see, send } from "./browser.mjs";

const { PAGE_URL: url, PAGE_KEY: key } = process.env;
const skip = !executablePath ? "no Chromium" : !url ? "no PAGE_URL" : false;

before(() => (skip ? undefined : launch()));
after(close);

const button = (page, name) => page.getByRole("button", { name, exact: true });

async function limit(page, tokens) {
  await button(page, "Settings").click();
  await page.getByLabel("Max tokens", { exact: true }).fill(String(tokens));
  await page.getByLabel("Seed", { exact: true }).fill("1");
  await button(page, "Close settings").click();
}

async function enter(page, text) {
  await page.getByLabel("API key", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

test("key, chat, stop, regenerate, edit and reload", { skip }, async (t) => {
  const page = await open(t, url, { expected: [/401/] });
  await enter(page, "wrong");
  await see(page.locator("#key-message"), "invalid or missing API key");
  await enter(page, key);
  await see(page.locator("#model-name"), "tiny");
  await page.locator("#banner").waitFor({ state: "hidden" });

  await limit(page, 12);
  await send(page, "the cat sat");
  await answer(page).waitFor();
  await idle(page);
  await see(answer(page).locator(".figures"), /\d+ tokens.*first token.*prompt \d+ tokens/);
  const first = await answer(page).locator(".body").textContent();
  assert.ok(first.length > 0);

  await button(page, "Regenerate answer").click();
  await see(answer(page), "2 / 2");
  await idle(page);
  assert.equal(await answer(page).locator(".body").textContent(), first, "the same seed gives the same answer");

  await page.locator("#messages > li").first().hover();
  await button(page, "Edit message").click();
  await page.getByRole("textbox", { name: "Edited message" }).fill("the dog ran");
  await page.keyboard.press("Enter");
  await see(page.locator("#messages > li.user"), "the dog ran");
  await idle(page);
  assert.equal(await page.locator("#messages > li").count(), 2);

  // Long enough to be stopped before its end on any machine: the context ends it otherwise.
  await limit(page, 100000);
  await send(page, "a long story");
  await see(answer(page).locator(".figures"), "tokens");
  await page.keyboard.press("Escape");
  await idle(page);
  const end = await answer(page).textContent();
  assert.match(end, /Stopped\.|token limit|tok\/s/);

  const before = await page.locator("#messages").textContent();
  await page.reload();
  await see(answer(page).locator(".figures"), "tokens");
  assert.equal(await page.locator("#messages").textContent(), before);
});

test("a prompt that is too long is refused in the server's words", { skip }, async (t) => {
  const page = await open(t, url, { expected: [/401/, /400/] });
  await enter(page, key);
  await see(page.locator("#model-name"), "tiny");
  await send(page, "the cat ".repeat(20000));
  await see(answer(page).getByRole("alert"), "maximum context length");
});

test("the dashboard shows the server's figures, or says that there are none", { skip }, async (t) => {
  const page = await open(t, `${url}/#dashboard`, { expected: [/401/] });
  await enter(page, key);
  await see(page.locator(".dash-head"), /ready, up/);
});

test("the policy of the server is in force", { skip }, async (t) => {
  const page = await open(t, url, { expected: [/401/, /Content Security Policy/, /Trusted(HTML|Script)/] });
  await enter(page, key);
  const blocked = await page.evaluate(async () => {
    const violations = [];
    const connect = new Promise((resolve) => {
      document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
        violations.push(effectiveDirective);
        if (effectiveDirective === "connect-src") resolve();
      });
    });
    const script = document.createElement("script");
    try {
      script.textContent = "window.pwned = 1";
      document.head.append(script);
    } catch (error) {
      violations.push(error.name);
    }
    try {
      document.body.innerHTML = "<img src=x onerror='window.pwned = 1'>";
    } catch (error) {
      violations.push(error.name);
    }
    await fetch("https://evil.example/").catch(() => {});
    await connect;
    return { violations, pwned: window.pwned };
  });
  assert.equal(blocked.pwned, undefined);
  assert.ok(blocked.violations.includes("TypeError"), blocked.violations.join());
  assert.ok(blocked.violations.includes("connect-src"), blocked.violations.join());
});
