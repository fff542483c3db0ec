// Builds the web UI: one HTML file with its script and style inline.
//
//   node build.mjs [FILE]     default: ../crates/server/webui/index.html
import { readFileSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../crates/server/webui/index.html");

const { outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.ts", style: "src/style.css" },
  outdir: "out",
  bundle: true,
  minify: true,
  write: false,
  format: "iife",
  target: ["chrome105", "firefox121", "safari16.4"],
  // Bytes must not depend on the machine.
  charset: "utf8",
  legalComments: "none",
});
const output = (end) => outputFiles.find((file) => file.path.endsWith(end)).text.trim();
const [script, style] = [output("page.js"), output("style.css")];
// Either would end its element early, and the hash of the policy would be of something else.
if (/<\/script|<!--/i.test(script)) throw new Error("the script contains </script or <!--");
if (/<\//.test(style)) throw new Error("the style contains </");

const html = readFileSync(join(here, "src/index.html"), "utf8")
  .replace(/\n\s*/g, "\n")
  // Functions, since `$` has a meaning in replacement strings.
  .replace("<style></style>", () => `<style>${style}</style>`)
  .replace("<script></script>", () => `<script>${script}</script>`);
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, html);
const size = (text) => `${(Buffer.byteLength(text) / 1024).toFixed(1)} KiB`;
console.log(`${target}: ${size(html)}, of which script ${size(script)} and style ${size(style)}`);
