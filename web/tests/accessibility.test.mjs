// What a screen reader, a keyboard and a phone need, against a mock of the server.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { answer, close, executablePath, idle, launch, see, send, start } from "./browser.mjs";
import { snapshot } from "./mock.mjs";

const skip = executablePath ? false : "no Chromium";
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const ANSWER = "# Title\n\nText with `code`, **bold** and a [link](https://a.example/x).\n\n- a\n- b\n\n1. c\n\n> quote\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nlet x = 1; // comment\n```\n";

before(() => (skip ? undefined : launch()));
after(close);

/** Serious and critical findings of axe-core. */
async function findings(page) {
  await page.evaluate(AXE);
  const { violations, passes } = await page.evaluate(() => axe.run());
  assert.ok(passes.some(({ id }) => id === "color-contrast"), "axe-core looked at the page");
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target}: ${failureSummary}`));
}

for (const colorScheme of ["light", "dark"]) {
  test(`axe-core finds nothing serious in the ${colorScheme} theme`, { skip }, async (t) => {
    const { page, server } = await start(t, (server) => server.stats(snapshot()), { colorScheme, expected: [/Failed to load/] });
    await see(page.locator("#model-name"), "gemma3:27b");
    assert.deepEqual(await findings(page), [], "empty chat");
    await send(page, "Show me everything.");
    const exchange = await server.chat();
    exchange.delta({ reasoning_content: "thinking" });
    exchange.text(ANSWER);
    exchange.delta({ tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: "{}" } }] });
    await see(answer(page), "Tool call");
    assert.deepEqual(await findings(page), [], "streaming");
    exchange.failInStream("device_lost", "the GPU was lost");
    await idle(page);
    await page.locator("details.fold").first().locator("summary").click();
    await page.locator("#messages > li").first().hover();
    assert.deepEqual(await findings(page), [], "chat with a failure");
    await page.getByRole("button", { name: "Settings", exact: true }).click();
    await page.getByText("Tools", { exact: true }).click();
    assert.deepEqual(await findings(page), [], "settings");
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: "Dashboard", exact: true }).click();
    await see(page.locator("#dashboard"), "38.2 W");
    assert.deepEqual(await findings(page), [], "dashboard");
    server.key = "right";
    await page.reload();
    await page.getByLabel("API key", { exact: true }).fill("wrong");
    await page.keyboard.press("Enter");
    await see(page.locator("#key-message"), "invalid or missing");
    assert.deepEqual(await findings(page), [], "key");
  });
}

test("the switch overrides the system's theme", { skip }, async (t) => {
  const { page } = await start(t);
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Theme: as the system" }).click();
  assert.equal(await background(), light);
  await page.getByRole("button", { name: "Theme: light" }).click();
  const dark = await background();
  assert.notEqual(dark, light);
  await page.reload();
  await page.getByRole("button", { name: "Theme: dark" }).waitFor();
  assert.equal(await background(), dark);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.getByRole("button", { name: "Theme: dark" }).click();
  assert.equal(await background(), dark);
});

const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true };

test("a phone's width needs no horizontal scrolling", { skip }, async (t) => {
  const { page, server } = await start(t, (server) => server.stats(snapshot()), PHONE);
  const fits = async (what) => {
    const { page: width, scroller, parts } = await page.evaluate(() => ({
      page: document.documentElement.scrollWidth,
      scroller: document.querySelector("#scroller").scrollWidth - document.querySelector("#scroller").clientWidth,
      parts: [...document.querySelectorAll("header *, #composer *, .card")].filter((element) => element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80)),
    }));
    assert.equal(width, 360, what);
    assert.equal(scroller, 0, what);
    assert.deepEqual(parts, [], what);
  };
  await see(page.locator("#empty"), "What do you want to know?");
  await fits("empty chat");
  const wide = `${ANSWER}\n\n${"long".repeat(100)}\n\n\`\`\`\n${"code ".repeat(100)}\n\`\`\`\n\n|${" column |".repeat(12)}\n|${"---|".repeat(12)}\n|${" value |".repeat(12)}\n\nhttps://a.example/${"x".repeat(300)}`;
  await send(page, "word".repeat(100));
  (await server.chat()).answer(wide);
  await idle(page);
  await fits("chat");
  await page.getByRole("button", { name: "Conversations", exact: true }).click();
  await page.locator("#conversations .title").click();
  await page.locator("body:not(.drawer)").waitFor();
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  const dialog = await page.locator("#settings-dialog").evaluate((dialog) => dialog.scrollWidth - dialog.clientWidth);
  assert.equal(dialog, 0);
  await page.getByRole("button", { name: "Close settings" }).click();
  await page.getByRole("link", { name: "Dashboard", exact: true }).click();
  await see(page.locator("#dashboard"), "38.2 W");
  await fits("dashboard");
});

test("the keyboard reaches everything in order", { skip }, async (t) => {
  const { page, server } = await start(t);
  await see(page.locator("#model-name"), "gemma3:27b");
  await send(page, "a\nb");
  (await server.chat()).answer("an answer");
  await idle(page);
  // Shift+Enter starts a line instead of sending.
  await page.keyboard.type("one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("two");
  assert.equal(await page.locator("#composer-text").inputValue(), "one\ntwo");
  const names = [];
  for (let i = 0; i < 18; i++) {
    await page.keyboard.press("Tab");
    names.push(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent));
  }
  const order = ["Send", "Skip to the message box", "Theme: as the system", "New chat", "Search conversations", "a", "Rename a", "Delete a", "Chat", "Dashboard", "Export this chat", "Settings", "Copy message", "Edit message", "Copy message", "Regenerate answer", "Message"];
  assert.deepEqual(names.filter((name) => order.includes(name)), order);
});

test("the drawer of a phone takes the focus, and gives it back", { skip }, async (t) => {
  const { page } = await start(t, undefined, PHONE);
  const menu = page.getByRole("button", { name: "Conversations", exact: true });
  await menu.click();
  assert.equal(await menu.getAttribute("aria-expanded"), "true");
  assert.equal(await page.evaluate(() => document.activeElement.id), "new-chat");
  assert.ok(await page.evaluate(() => document.querySelector("#main").inert));
  await page.keyboard.press("Escape");
  assert.equal(await menu.getAttribute("aria-expanded"), "false");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Conversations");
});
