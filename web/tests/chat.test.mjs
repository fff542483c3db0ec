// The chat in a browser, against a mock of the server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answer, close, executablePath, idle, launch, see, send, start } from "./browser.mjs";

const skip = executablePath ? false : "no Chromium";

before(() => (skip ? undefined : launch()));
after(close);

const messages = (page) => page.locator("#messages > li");
const button = (page, name) => page.getByRole("button", { name, exact: true });

test("an answer streams, with its figures", { skip }, async (t) => {
  const { server, page } = await start(t);
  await see(page.locator("#model-name"), "gemma3:27b");
  await send(page, "Why is the sky blue?");
  const exchange = await server.chat();
  assert.deepEqual(exchange.texts, ["Why is the sky blue?"]);
  const { model, stream, messages: _, ...rest } = exchange.body;
  assert.deepEqual({ model, stream }, { model: "gemma3:27b", stream: true });
  // Nothing is set that the user did not set.
  assert.deepEqual(rest, { stream_options: { include_usage: true }, timings_per_token: true });
  exchange.text("Because of **Rayleigh");
  await see(answer(page), "Because of **Rayleigh");
  exchange.text(" scattering**.");
  await see(answer(page).locator("strong"), "Rayleigh scattering");
  exchange.finish();
  await idle(page);
  await see(answer(page).locator(".figures"), /41.5 tok\/s.*2 tokens.*first token.*prompt 34 tokens, 12 cached.*prefill 512 tok\/s/);
  await see(page.locator("#announcer"), "Answer complete. Because of **Rayleigh scattering**.");
  await see(page.locator("#conversations .title"), "Why is the sky blue?");
  assert.match(await page.title(), /Why is the sky blue/);
});

test("pieces of the stream may be cut anywhere", { skip }, async (t) => {
  const { server, page } = await start(t);
  await send(page, "x");
  const exchange = await server.chat();
  const data = `: keep-alive\r\n\r\ndata: ${JSON.stringify({ choices: [{ delta: { content: "žluťoučký 🦄 kůň" } }] })}\r\n\r\n`;
  const bytes = Buffer.from(data);
  for (let i = 0; i < bytes.length; i += 7) exchange.raw(bytes.subarray(i, i + 7));
  exchange.finish();
  await see(answer(page), "žluťoučký 🦄 kůň");
  await idle(page);
});

test("Escape and the button stop an answer; its text stays", { skip }, async (t) => {
  const { server, page } = await start(t);
  for (const stop of [() => page.keyboard.press("Escape"), () => button(page, "Stop").click()]) {
    await send(page, "Count.");
    const exchange = await server.chat();
    exchange.text("one two");
    await see(answer(page), "one two");
    await stop();
    // The server sees that the client is gone.
    await exchange.closed;
    await idle(page);
    await see(answer(page), "Stopped.");
    await see(answer(page), "one two");
  }
});

test("a stopped answer continues", { skip }, async (t) => {
  const { server, page } = await start(t);
  await send(page, "Count.");
  (await server.chat()).answer("one", " two");
  await idle(page);
  await button(page, "Regenerate answer").click();
  const cut = await server.chat();
  cut.text("one");
  await see(answer(page), "one");
  cut.finish("length");
  await see(answer(page), "The answer reached the token limit.");
  await button(page, "Continue").click();
  const rest = await server.chat();
  assert.deepEqual(rest.texts, ["Count.", "one"]);
  assert.equal(rest.body.continue_final_message, true);
  assert.equal(rest.body.add_generation_prompt, false);
  rest.answer(" and two");
  await see(answer(page), "one and two");
  await idle(page);
});

test("answers are regenerated as versions", { skip }, async (t) => {
  const { server, page } = await start(t);
  await send(page, "A number?");
  (await server.chat()).answer("seven");
  await idle(page);
  await button(page, "Regenerate answer").click();
  const again = await server.chat();
  assert.deepEqual(again.texts, ["A number?"]);
  again.answer("eight");
  await idle(page);
  await see(answer(page), "eight");
  await see(answer(page), "2 / 2");
  await button(page, "Version before").click();
  await see(answer(page), "seven");
  assert.equal(await messages(page).count(), 2);
  // What follows is an answer to the version that is shown.
  await send(page, "Why?");
  const why = await server.chat();
  assert.deepEqual(why.texts, ["A number?", "seven", "Why?"]);
  why.answer("Because.");
  await idle(page);
});

test("a message is edited and answered anew", { skip }, async (t) => {
  const { server, page } = await start(t);
  await send(page, "first");
  (await server.chat()).answer("to the first");
  await idle(page);
  await send(page, "second");
  (await server.chat()).answer("to the second");
  await idle(page);
  await messages(page).first().hover();
  await button(page, "Edit message").first().click();
  await page.getByRole("textbox", { name: "Edited message" }).fill("changed");
  await page.keyboard.press("Enter");
  const exchange = await server.chat();
  assert.deepEqual(exchange.texts, ["changed"]);
  exchange.answer("to the change");
  await idle(page);
  assert.equal(await messages(page).count(), 2);
  await button(page, "Version before").click();
  await see(answer(page), "to the second");
  assert.equal(await messages(page).count(), 4);
  // Escape leaves the message as it was.
  await messages(page).first().hover();
  await button(page, "Edit message").first().click();
  await page.keyboard.press("Escape");
  await see(messages(page).first(), "first");
});

test("a reload keeps history, and what was being generated", { skip }, async (t) => {
  const { server, page } = await start(t);
  await send(page, "one");
  (await server.chat()).answer("answer one");
  await idle(page);
  await button(page, "New chat").click();
  await send(page, "two");
  const cut = await server.chat();
  cut.text("half of");
  await see(answer(page), "half of");
  await page.reload();
  await see(answer(page), "half of");
  await see(answer(page), "The page was closed before the answer was complete.");
  assert.equal(await page.locator("#conversations .title").count(), 2);
  await page.locator("#conversations .title", { hasText: "one" }).click();
  await see(answer(page), "answer one");
  await page.reload();
  await see(answer(page), "answer one");
});

test("conversations are renamed, searched, deleted and restored", { skip }, async (t) => {
  const { server, page } = await start(t);
  for (const [text, reply] of [["apples", "fruit"], ["carrots", "vegetable"]]) {
    await button(page, "New chat").click();
    await send(page, text);
    (await server.chat()).answer(reply);
    await idle(page);
  }
  const titles = page.locator("#conversations .title");
  await page.locator("#conversations li", { hasText: "apples" }).hover();
  await button(page, "Rename apples").click();
  await page.getByRole("textbox", { name: "Title" }).fill("Orchard");
  await page.keyboard.press("Enter");
  await see(titles, "Orchard");
  const search = page.getByRole("searchbox", { name: "Search conversations" });
  await search.fill("vegetable");
  await page.locator("#conversations li", { hasText: "Orchard" }).waitFor({ state: "detached" });
  assert.deepEqual(await titles.allTextContents(), ["carrots"]);
  await search.fill("");
  await page.locator("#conversations li", { hasText: "Orchard" }).hover();
  await button(page, "Delete Orchard").click();
  await page.locator("#conversations li", { hasText: "Orchard" }).waitFor({ state: "detached" });
  await button(page, "Undo").click();
  await see(titles, "Orchard");
  await see(answer(page), "fruit");
  await page.reload();
  await see(titles, "Orchard");
});

test("system prompt and sampling are sent, and only what is set", { skip }, async (t) => {
  const { server, page } = await start(t);
  await button(page, "Settings").click();
  await page.getByLabel("System prompt").fill("Answer in Latin.");
  await page.getByLabel("Temperature", { exact: true }).fill("0.7");
  await page.getByLabel("Top k").fill("20");
  await page.getByLabel("Seed").fill("7");
  await page.getByLabel("Top p").fill("3");
  assert.equal(await page.getByLabel("Top p").getAttribute("aria-invalid"), "true");
  await button(page, "Use for new chats").click();
  await button(page, "Close settings").click();
  await send(page, "hello");
  const exchange = await server.chat();
  assert.deepEqual(exchange.body.messages[0], { role: "system", content: "Answer in Latin." });
  const { temperature, top_k, seed, top_p } = exchange.body;
  assert.deepEqual({ temperature, top_k, seed, top_p }, { temperature: 0.7, top_k: 20, seed: 7, top_p: undefined });
  exchange.answer("salve");
  await idle(page);
  await page.reload();
  await button(page, "New chat").click();
  await send(page, "again");
  const next = await server.chat();
  assert.equal(next.body.messages[0].content, "Answer in Latin.");
  assert.equal(next.body.temperature, 0.7);
  next.answer("iterum");
  await idle(page);
});

test("thinking and tool calls are folded", { skip }, async (t) => {
  const { server, page } = await start(t);
  await button(page, "Settings").click();
  await page.getByText("Tools", { exact: true }).click();
  await page.getByLabel("Functions").fill('[{"name": "get_weather", "parameters": {"type": "object"}}]');
  await button(page, "Close settings").click();
  await send(page, "The weather?");
  const exchange = await server.chat();
  assert.deepEqual(exchange.body.tools, [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }]);
  exchange.delta({ reasoning_content: "They want " });
  await see(answer(page), "Thinking…");
  exchange.delta({ reasoning_content: "the weather." });
  exchange.delta({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"ci' } }] });
  exchange.delta({ tool_calls: [{ index: 0, function: { arguments: 'ty": "Paris"}' } }] });
  exchange.finish("tool_calls");
  const thought = answer(page).locator("details", { hasText: "They want the weather." });
  assert.equal(await thought.getAttribute("open"), null);
  const call = answer(page).locator("details", { hasText: "Tool call get_weather" });
  assert.equal(await call.getAttribute("open"), null);
  assert.match(await call.textContent(), /"city": "Paris"/);
  await page.getByLabel("Result of get_weather").fill('{"degrees": 21}');
  await button(page, "Send result").click();
  const result = await server.chat();
  assert.deepEqual(result.body.messages.slice(1), [
    { role: "assistant", content: null, tool_calls: [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Paris"}' } }] },
    { role: "tool", tool_call_id: "call_1", content: '{"degrees": 21}' },
  ]);
  // Thinking within the text.
  result.text("<think>So it is ");
  await see(answer(page), "Thinking…");
  result.text("warm.</think>\n\nIt is 21 degrees.");
  result.finish();
  await idle(page);
  await see(answer(page).locator(".markdown"), "It is 21 degrees.");
  assert.equal(await answer(page).locator("details", { hasText: "So it is warm." }).getAttribute("open"), null);
  await send(page, "Thanks.");
  const last = await server.chat();
  assert.equal(last.texts.at(-2), "It is 21 degrees.", "the thinking of earlier turns is not sent");
  last.answer("Welcome.");
  await idle(page);
});

const FAILED = [/Failed to load resource/, /net::ERR/];

test("a wrong key shows the server's message; the right one opens the page", { skip }, async (t) => {
  const { page, server } = await start(t, (server) => (server.key = "right"), { expected: FAILED });
  const key = page.getByLabel("API key", { exact: true });
  await key.fill("wrong");
  await page.keyboard.press("Enter");
  await see(page.locator("#key-message"), "invalid or missing API key");
  await key.fill("right");
  await page.keyboard.press("Enter");
  await see(page.locator("#model-name"), "gemma3:27b");
  await send(page, "hello");
  (await server.chat()).answer("hello");
  await idle(page);
  // Kept for this tab.
  assert.equal(await page.evaluate(() => localStorage.getItem("indrik.key")), null);
  await page.reload();
  await see(page.locator("#model-name"), "gemma3:27b");
  assert.equal(await page.locator("dialog[open]").count(), 0);
  // The key was changed while the page is open.
  server.key = "other";
  await send(page, "hello again");
  await see(page.locator("#key-message"), "invalid or missing API key");
  await key.fill("other");
  await page.getByLabel("Remember it").check();
  await page.keyboard.press("Enter");
  await page.locator("dialog[open]").waitFor({ state: "detached" });
  await button(page, "Try again").click();
  (await server.chat()).answer("hello again");
  await idle(page);
  assert.equal(await page.evaluate(() => localStorage.getItem("indrik.key")), "other");
});

test("the loading stage is shown until the server is ready", { skip }, async (t) => {
  const setUp = (server) => (server.notReady = "weights are being read, 40%");
  const { page, server } = await start(t, setUp, { expected: FAILED });
  await see(page.locator("#banner"), "weights are being read, 40%");
  server.notReady = "programs are being recorded";
  await see(page.locator("#banner"), "programs are being recorded");
  server.notReady = null;
  await page.locator("#banner").waitFor({ state: "hidden" });
});

test("a cut connection keeps the text and offers another try", { skip }, async (t) => {
  const { page, server } = await start(t, undefined, { expected: FAILED });
  await send(page, "Tell me.");
  const exchange = await server.chat();
  exchange.text("Once upon");
  await see(answer(page), "Once upon");
  exchange.cut();
  await see(answer(page).getByRole("alert"), "The connection was cut");
  await see(answer(page), "Once upon");
  await button(page, "Try again").click();
  (await server.chat()).answer("a time");
  await idle(page);
  await see(answer(page), "a time");
});

test("errors of the server are shown in its words", { skip }, async (t) => {
  const { page, server } = await start(t, undefined, { expected: FAILED });
  const refusals = [
    [400, "context_length_exceeded", "This model's maximum context length is 8192 tokens. However, the prompt has 9000 tokens: shorten it"],
    [429, "queue_full", "the queue is full: try again in 3 s"],
    [503, "not_ready", "the server is not ready: the device was lost"],
  ];
  for (const [status, code, message] of refusals) {
    await send(page, "hello");
    (await server.chat()).refuse(status, code, message);
    await see(answer(page).getByRole("alert"), message);
    await idle(page);
  }
  await send(page, "hello");
  const exchange = await server.chat();
  exchange.text("half");
  exchange.failInStream("device_lost", "the GPU was lost and could not be recovered: try again later");
  await see(answer(page).getByRole("alert"), "the GPU was lost");
  await see(answer(page), "half");
});

test("the page follows the answer until the user scrolls up", { skip }, async (t) => {
  const { page, server } = await start(t);
  await send(page, "Write.");
  const exchange = await server.chat();
  const lines = (from) => Array.from({ length: 60 }, (_, i) => `${from} ${i}\n\n`).join("");
  exchange.text(lines("first"));
  await see(answer(page), "first 59");
  const box = page.locator("#scroller");
  const fromEnd = () => box.evaluate((box) => box.scrollHeight - box.clientHeight - box.scrollTop);
  const until = (condition) => page.waitForFunction(condition);
  await until(() => { const b = document.querySelector("#scroller"); return b.scrollTop > 0 && b.scrollHeight - b.clientHeight - b.scrollTop < 2; });
  await box.hover();
  await page.mouse.wheel(0, -600);
  await button(page, "Scroll to the end").waitFor();
  const top = await box.evaluate((box) => box.scrollTop);
  exchange.text(lines("second"));
  await see(answer(page), "second 59");
  assert.equal(await box.evaluate((box) => box.scrollTop), top);
  assert.ok((await fromEnd()) > 600);
  await button(page, "Scroll to the end").click();
  await until(() => { const b = document.querySelector("#scroller"); return b.scrollHeight - b.clientHeight - b.scrollTop < 2; });
  exchange.finish();
  await idle(page);
});

test("a chat is exported, and imported again", { skip }, async (t) => {
  const { page, server } = await start(t);
  await send(page, "Apples?");
  (await server.chat()).answer("**Fruit.**");
  await idle(page);
  const saved = async (name) => {
    await page.locator("#export summary").click();
    const [file] = await Promise.all([page.waitForEvent("download"), button(page, name).click()]);
    return file;
  };
  const markdown = await saved("Markdown");
  assert.equal(markdown.suggestedFilename(), "apples.md");
  const { readFile } = await import("node:fs/promises");
  assert.equal(await readFile(await markdown.path(), "utf8"), "# Apples?\n\n## You\n\nApples?\n\n## gemma3:27b\n\n**Fruit.**\n");
  const json = await saved("JSON");
  const content = await readFile(await json.path(), "utf8");
  assert.equal(JSON.parse(content).conversations[0].messages.length, 2);
  await button(page, "Settings").click();
  const all = button(page, "Delete all conversations");
  await all.click();
  await button(page, "Delete them all: click again").click();
  await see(page.locator("#conversations"), "No conversations yet.");
  await button(page, "Settings").click();
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), button(page, "Import").click()]);
  await chooser.setFiles({ name: "apples.json", mimeType: "application/json", buffer: Buffer.from(content) });
  await see(answer(page), "Fruit.");
});

/** Pastes an image into the message box. */
function pasteImage(page) {
  return page.evaluate(async () => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 8;
    const blob = await new Promise((resolve) => canvas.toBlob(resolve));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([blob], "x.png", { type: "image/png" }));
    document.querySelector("#composer-text").dispatchEvent(new ClipboardEvent("paste", { clipboardData, cancelable: true }));
  });
}

test("images are refused for a model that does not accept them", { skip }, async (t) => {
  const { page } = await start(t);
  await see(page.locator("#model-name"), "gemma3:27b");
  await pasteImage(page);
  await see(page.locator("#toast"), "This model does not accept images.");
  assert.equal(await page.locator("#attachments img").count(), 0);
});

test("images are sent to a model that accepts them", { skip }, async (t) => {
  const setUp = (server) => (server.model = { id: "seer", input_modalities: ["text", "image"] });
  const { page, server } = await start(t, setUp);
  await see(page.locator("#model-name"), "seer");
  await pasteImage(page);
  await page.locator("#attachments img").waitFor();
  await send(page, "What is it?");
  const exchange = await server.chat();
  const [picture, text] = exchange.body.messages[0].content;
  assert.match(picture.image_url.url, /^data:image\/jpeg;base64,/);
  assert.deepEqual(text, { type: "text", text: "What is it?" });
  exchange.answer("Black.");
  await idle(page);
  await page.locator("#messages > li.user img").waitFor();
});

test("a server that was restarted with another model is asked again", { skip }, async (t) => {
  const { page, server } = await start(t, undefined, { expected: [/404/] });
  await see(page.locator("#model-name"), "gemma3:27b");
  server.model = { id: "qwen3:8b" };
  await send(page, "hello");
  (await server.chat()).refuse(404, "model_not_found", "model 'gemma3:27b' not found; GET /v1/models lists the available models");
  await see(page.locator("#model-name"), "qwen3:8b");
  await button(page, "Try again").click();
  const again = await server.chat();
  assert.equal(again.body.model, "qwen3:8b");
  again.answer("hello");
  await idle(page);
});

test("what a model writes stays text", { skip }, async (t) => {
  const { page, server } = await start(t);
  const hostile = [
    "<script>window.pwned = 1</script>",
    '<img src=x onerror="window.pwned = 1">',
    "[a](javascript:window.pwned=1)",
    "[b](data:text/html,<script>parent.pwned=1</script>)",
    "[c](JaVaScRiPt:alert(1))",
    "[d](java\nscript:alert(1))",
    "[e](vbscript:x) [f](file:///etc/passwd) [g](/v1/models) [h](//evil.example)",
    "<javascript:alert(1)>",
    "![x](https://evil.example/pixel.png)",
    '<iframe srcdoc="<script>parent.pwned=1</script>"></iframe><svg onload="window.pwned=1">',
    "[i](https://ok.example/\"onmouseover=\"window.pwned=1)",
    "```<img src=x onerror=window.pwned=1>\n<script>window.pwned=1</script>\n```",
    "| <b onclick=window.pwned=1>x</b> | `</code><script>window.pwned=1</script>` |\n|---|---|\n| <a href=javascript:1>y</a> | z |",
    "[https://bank.example](https://evil.example/)",
  ].join("\n\n");
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  await send(page, hostile);
  const exchange = await server.chat();
  // As a stream cuts it.
  for (let i = 0; i < hostile.length; i += 5) exchange.text(hostile.slice(i, i + 5));
  exchange.finish();
  await idle(page);
  const found = await page.locator("#messages").evaluate((list) => ({
    elements: [...new Set([...list.querySelectorAll("*")].map((element) => element.localName))],
    links: [...list.querySelectorAll("a")].map((link) => link.href),
    handlers: [...list.querySelectorAll("*")].flatMap((element) => element.getAttributeNames().filter((name) => name.startsWith("on"))),
  }));
  for (const name of ["script", "img", "iframe", "b"]) assert.ok(!found.elements.includes(name), name);
  assert.deepEqual(found.handlers, []);
  assert.ok(found.links.every((link) => link.startsWith("https://")), found.links.join());
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  // The picture is a link that nothing loads; a false name has its host beside it.
  assert.ok(requests.every((url) => url.startsWith(server.url)), requests.join());
  await see(answer(page), "https://bank.example (evil.example)");
  await see(answer(page), "<script>window.pwned = 1</script>");
});

test("code has its language and a copy button", { skip }, async (t) => {
  const { page, server } = await start(t, undefined, { permissions: ["clipboard-read", "clipboard-write"] });
  await send(page, "Code?");
  (await server.chat()).answer("```python\ndef f():\n    return 1\n```\n");
  await idle(page);
  await see(answer(page).locator("figcaption"), "python");
  await button(page, "Copy code").click();
  await see(page.locator("#announcer"), "Copied");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "def f():\n    return 1");
});
