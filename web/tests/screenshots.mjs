// Writes the pictures of the page in docs/, with the answers and figures of the mock.
//
//   node tests/screenshots.mjs FOLDER
import { join } from "node:path";
import { chromium } from "playwright-core";
import { executablePath, idle, see, send } from "./browser.mjs";
import { Mock, snapshot } from "./mock.mjs";

const folder = process.argv[2] ?? "../docs";

const ANSWER = `The sky is blue because air scatters **blue light** far more than red light. This is *Rayleigh scattering*: its strength grows with the fourth power of the frequency.

| colour | wavelength | scattering, relative to red |
|---|---:|---:|
| red | 700 nm | 1.0 |
| green | 530 nm | 3.0 |
| blue | 450 nm | 5.9 |

The factor in Python:

\`\`\`python
def scattering(wavelength: float, reference: float = 700) -> float:
    # Rayleigh: proportional to 1 / wavelength^4
    return (reference / wavelength) ** 4

print(f"{scattering(450):.1f}")  # 5.9
\`\`\`

At sunset, light crosses more air:

1. Most of the blue is scattered out of its path.
2. What is left is orange and red.
`;

const browser = await chromium.launch({ executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
const server = await Mock.start();

async function withPage(options, hash, draw) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  await page.goto(server.url + hash);
  await draw(page);
  await context.close();
}

async function reply(page, question, text) {
  await send(page, question);
  const exchange = await server.chat();
  for (const piece of text.match(/\s*\S+\s*/g)) exchange.text(piece);
  exchange.finish();
  await idle(page);
}

async function chat(page) {
  await reply(page, "Name three moons of Jupiter.", "Io, Europa and Ganymede.");
  await page.keyboard.press("Control+Home");
  await page.locator("#new-chat").evaluate((button) => button.click());
  await reply(page, "Why is the sky blue?", ANSWER);
  await page.locator("#scroller").evaluate((box) => (box.scrollTop = 0));
  await page.mouse.move(640, 20);
}

const shoot = (page, name) => page.screenshot({ path: join(folder, name) });

await withPage({ colorScheme: "light" }, "", async (page) => {
  await chat(page);
  await shoot(page, "webui-light.png");
});
await withPage({ colorScheme: "dark" }, "", async (page) => {
  await chat(page);
  await shoot(page, "webui-dark.png");
});
await withPage({ colorScheme: "light", viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true }, "", async (page) => {
  await chat(page);
  await shoot(page, "webui-phone.png");
});
await withPage({ colorScheme: "dark", viewport: { width: 1240, height: 900 } }, "#dashboard", async (page) => {
  while (server.watchers === 0) await new Promise((resolve) => setImmediate(resolve));
  const wave = (i, period, low, high) => low + ((high - low) * (1 + Math.sin((2 * Math.PI * i) / period))) / 2;
  for (let i = 0; i <= 119; i++) {
    const base = snapshot();
    const busy = i % 60 < 45;
    server.stats(
      snapshot({
        tokens: { ...base.tokens, generated_per_second: busy ? wave(i, 23, 34, 41.5) : wave(i, 9, 5, 9), prompt_per_second: i % 40 < 6 ? 380 + i : 0 },
        requests: { ...base.requests, running: busy ? (i % 30 < 12 ? 3 : 2) : 1, waiting: i % 30 < 6 ? 1 : 0 },
        kv_cache: { ...base.kv_cache, used: Math.round(wave(i, 90, 180, 420)), cached: 100 + i },
        bandwidth: { ...base.bandwidth, utilization: busy ? wave(i, 17, 0.66, 0.74) : 0.2 },
        machine: {
          ...base.machine,
          gpus: [{ ...base.machine.gpus[0], busy: busy ? wave(i, 7, 0.94, 0.99) : 0.3, power_watts: busy ? wave(i, 31, 36, 41) : 14, temperature_celsius: wave(i, 200, 58, 71) }],
        },
      }),
    );
  }
  await see(page.locator(".dash-head"), "ready");
  await page.waitForFunction(() => document.querySelector(".plot polyline")?.getAttribute("points").split(" ").length === 120);
  await shoot(page, "webui-dashboard.png");
});
await browser.close();
await server.stop();
