// The dashboard in a browser, against a mock of the server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { close, executablePath, launch, see, start as startAt } from "./browser.mjs";
import { snapshot, unknownSnapshot } from "./mock.mjs";

const skip = executablePath ? false : "no Chromium";

before(() => (skip ? undefined : launch()));
after(close);

const start = (t, setUp, options) => startAt(t, setUp, { hash: "#dashboard", ...options });

const card = (page, title) => page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });

test("figures are shown and follow the server", { skip }, async (t) => {
  const { server, page } = await start(t, (server) => server.stats(snapshot()));
  await see(card(page, "Generation throughput"), "41.5 tok/s");
  await see(card(page, "Generation throughput"), "1.9 J per token");
  await see(card(page, "Prompt throughput"), "128 tok/s");
  await see(card(page, "Requests"), /2 running.*1 waiting, up to 8 at a time/);
  await see(card(page, "KV cache"), "25%");
  await see(card(page, "GPU busy"), "97%");
  await see(card(page, "Memory bandwidth"), "71%");
  await see(card(page, "Power"), "38.2 W");
  await see(card(page, "Power"), "throttled by: power");
  await see(card(page, "Temperature"), "71 °C");
  await see(card(page, "Memory"), /weights 14.2 GiB.*KV cache 3.7 GiB.*scratch.*other processes.*free/);
  await see(card(page, "Memory"), "other processes unknown");
  await see(card(page, "Latency, requests of the last minute"), /Time to first token120 ms200 ms300 ms/);
  await see(card(page, "Requests in flight"), /89242d17decoding3411 \/ 51238/);
  await see(card(page, "Requests in flight"), /1f00e2b3prefilling 5122,0480 \/ unknownunknown/);
  await see(card(page, "More"), "Prefix cache hits12 of 30 (40%)");
  await see(card(page, "More"), "Energy1,235 J (hwmon)");
  await see(card(page, "More"), "RyzenAI-npu1 busyunknown");
  const points = () => card(page, "GPU busy").locator("polyline").getAttribute("points");
  // A single sample is drawn as a line of two points.
  const first = (await points()).split(" ").length;
  assert.equal(first, 2);
  server.stats(snapshot({ tokens: { ...snapshot().tokens, generated_per_second: 17 } }));
  await see(card(page, "Generation throughput"), "17 tok/s");
  server.stats(snapshot());
  await see(card(page, "Generation throughput"), "41.5 tok/s");
  assert.equal((await points()).split(" ").length, 3);
});

test("what is not known is said to be unknown, never 0", { skip }, async (t) => {
  const { page } = await start(t, (server) => server.stats(unknownSnapshot()));
  for (const title of ["GPU busy", "Power", "Temperature", "KV cache", "Memory bandwidth"]) {
    await card(page, title).locator(".value", { hasText: /^unknown$/ }).waitFor();
    assert.equal(await card(page, title).locator("polyline").count(), 0, title);
  }
  await see(card(page, "Memory"), "weights unknown");
  await see(card(page, "More"), "Prefix cache hitsunknown of unknown");
  await see(card(page, "Latency, requests of the last minute"), "Time to first tokenunknownunknownunknown");
});

test("figures are streamed only while they are seen", { skip }, async (t) => {
  const { server, page } = await start(t, (server) => server.stats(snapshot()));
  await see(card(page, "Power"), "38.2 W");
  assert.equal(server.watchers, 1);
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  while (server.watchers > 0) await new Promise((resolve) => setImmediate(resolve));
  await page.getByRole("link", { name: "Dashboard", exact: true }).click();
  while (server.watchers === 0) await new Promise((resolve) => setImmediate(resolve));
});

test("a lost connection is taken up again", { skip }, async (t) => {
  const { server, page } = await start(t, (server) => server.stats(snapshot()), { expected: [/net::ERR/] });
  await see(card(page, "Power"), "38.2 W");
  server.cutStats();
  await see(page.locator(".dash-head"), /Connecting again/i);
  server.stats(snapshot({ state: "device_lost", detail: "the device is being reopened" }));
  await see(page.locator(".dash-head"), "device lost: the device is being reopened");
});

test("the figures need the key too", { skip }, async (t) => {
  const setUp = (server) => {
    server.key = "right";
    server.stats(snapshot());
  };
  const { page } = await start(t, setUp, { expected: [/401/] });
  await page.getByLabel("API key", { exact: true }).fill("right");
  await page.keyboard.press("Enter");
  await see(card(page, "Power"), "38.2 W");
});

test("a server without figures says so", { skip }, async (t) => {
  const { page } = await start(t, (server) => (server.hasStats = false), { expected: [/404/] });
  await see(page.locator(".dash-head"), "This server has no figures");
});
