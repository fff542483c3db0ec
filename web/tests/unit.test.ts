// Unit tests of what needs no browser. Bundled by scripts/webui_test.sh, since Node 20 reads no TypeScript.
import assert from "node:assert/strict";
import { test } from "node:test";
import { addMessage, contains, newConversation, path, showVersion, titleOf, versions } from "../src/conversation";
import { fileName, fromJson, toJson, toMarkdown } from "../src/export";
import { bytes, number, percent, seconds } from "../src/format";
import { highlight } from "../src/highlight";
import { parse, parseSpans, safeHref, type Block, type Span } from "../src/markdown";
import { runs } from "../src/plot";
import { chatRequest, parseTools } from "../src/request";
import { SseParser } from "../src/sse";
import { splitThinking } from "../src/thinking";

const text = (text: string): Span => ({ kind: "text", text });
const blocks = (source: string): Block[] => parse(source).map(({ block }) => block);
/** A tree as short text, for comparison. */
function show(spans: Span[]): string {
  const marks = { bold: "b", italic: "i", struck: "s" };
  return spans
    .map((span) => {
      if (span.kind === "text") return span.text;
      if (span.kind === "code") return `{${span.text}}`;
      if (span.kind === "break") return "/";
      if (span.kind === "link") return `<${show(span.spans)}|${span.href}>`;
      return `${marks[span.kind]}(${show(span.spans)})`;
    })
    .join("");
}

test("events are found wherever the stream is cut", () => {
  const stream = ': comment\n\ndata: {"a": 1}\n\ndata:b\r\n\r\nevent: x\ndata: c\ndata: d\n\r\nid: 7\n\ndata: [DONE]\n\n';
  const expected = ['{"a": 1}', "b", "c\nd", "[DONE]"];
  for (let size = 1; size <= stream.length; size++) {
    const parser = new SseParser();
    const found = [];
    for (let i = 0; i < stream.length; i += size) found.push(...parser.push(stream.slice(i, i + size)));
    assert.deepEqual(found, expected, `pieces of ${size}`);
  }
  // An event without its empty line is not complete.
  assert.deepEqual(new SseParser().push("data: cut"), []);
  assert.deepEqual(new SseParser().push("data: cut\n"), []);
});

test("spans", () => {
  for (const [source, expected] of [
    ["plain", "plain"],
    ["a **b** c", "a b(b) c"],
    ["*a* _b_ __c__ ~~d~~", "i(a) i(b) b(c) s(d)"],
    ["***both***", "i(b(both))"],
    ["**a *b* c**", "b(a i(b) c)"],
    ["**a *b***", "b(a i(b))"],
    ["snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"],
    ["**open", "**open"],
    ["`code` and ``a`b`` and `open", "{code} and {a`b} and `open"],
    ["`**no**`", "{**no**}"],
    ["**`*`**", "b({*})"],
    ["\\*no\\*", "*no*"],
    ["one\ntwo  \nthree", "one/two/three"],
    ["[t](https://a.example/x \"title\")", "<t|https://a.example/x>"],
    ["[**t**](<https://a.example/x>)", "<b(t)|https://a.example/x>"],
    ["[t](https://a.example/x_(y))", "<t|https://a.example/x_(y)>"],
    ["![alt](https://a.example/p.png)", "<alt|https://a.example/p.png>"],
    ["see https://a.example/x, or (https://b.example).", "see <https://a.example/x|https://a.example/x>, or (<https://b.example|https://b.example/>)."],
    ["<https://a.example> <b>x</b>", "<https://a.example|https://a.example/> <b>x</b>"],
    ["[a](javascript:alert(1))", "[a](javascript:alert(1))"],
    ["[a](data:text/html,x)", "[a](data:text/html,x)"],
    ["[a] and [b](", "[a] and [b]("],
    ["[[a](https://x.example)](https://y.example)", "<a|https://y.example/>"],
  ] as const) {
    assert.equal(show(parseSpans(source)), expected, source);
  }
});

test("only http, https and mail addresses are links", () => {
  for (const good of ["https://a.example", "HTTP://a.example/b", "mailto:a@b.example"]) assert.ok(safeHref(good), good);
  const bad = ["javascript:alert(1)", "JAVASCRIPT:1", " javascript:1", "java\tscript:1", "data:text/html,x", "vbscript:x", "file:///x", "blob:x", "//a.example", "/v1", "#x", "", "https://", "\u0000https://a.example"];
  for (const address of bad) assert.equal(safeHref(address), null, address);
});

test("blocks", () => {
  assert.deepEqual(blocks("# One\n\ntwo\nthree\n\n---\n"), [
    { kind: "heading", level: 1, spans: [text("One")] },
    { kind: "paragraph", spans: [text("two"), { kind: "break" }, text("three")] },
    { kind: "rule" },
  ]);
  assert.deepEqual(blocks("text\n```js\nlet a;\n\n```\nmore"), [
    { kind: "paragraph", spans: [text("text")] },
    { kind: "code", language: "js", text: "let a;\n", closed: true },
    { kind: "paragraph", spans: [text("more")] },
  ]);
  // Still being generated.
  assert.deepEqual(blocks("```py\nx = 1"), [{ kind: "code", language: "py", text: "x = 1", closed: false }]);
  // A longer fence holds a shorter one.
  assert.deepEqual(blocks("````\n```\n````"), [{ kind: "code", language: "", text: "```", closed: true }]);
  assert.deepEqual(blocks("> a\nb\n>\n> - c"), [
    {
      kind: "quote",
      blocks: [
        { kind: "paragraph", spans: [text("a"), { kind: "break" }, text("b")] },
        { kind: "list", start: null, items: [{ checked: null, blocks: [{ kind: "paragraph", spans: [text("c")] }] }] },
      ],
    },
  ]);
  assert.deepEqual(blocks("<div>\n<script>x</script>"), [{ kind: "paragraph", spans: [text("<div>"), { kind: "break" }, text("<script>x</script>")] }]);
});

test("lists nest, hold code and check boxes, and end", () => {
  const outline = (blocks: Block[]): unknown =>
    blocks.map((block) => {
      if (block.kind === "list") return { [block.start ?? "-"]: block.items.map(({ blocks }) => outline(blocks)) };
      if (block.kind === "paragraph") return show(block.spans);
      return block.kind === "code" ? `[${block.text}]` : block.kind;
    });
  for (const [source, expected] of [
    ["- a\n- b", [{ "-": [["a"], ["b"]] }]],
    ["1. a\n2. b", [{ 1: [["a"], ["b"]] }]],
    ["3) a\n4) b", [{ 3: [["a"], ["b"]] }]],
    ["- a\n  - b\n    - c\n- d", [{ "-": [["a", { "-": [["b", { "-": [["c"]] }]] }], ["d"]] }]],
    ["1. a\n   - b\n2. c", [{ 1: [["a", { "-": [["b"]] }], ["c"]] }]],
    // Indented by less than the item's text, as models often do.
    ["1. a\n  - b\n2. c", [{ 1: [["a", { "-": [["b"]] }], ["c"]] }]],
    ["1. a\n\n   ```\n   x\n   ```\n\n2. b", [{ 1: [["a", "[x]"], ["b"]] }]],
    ["* a\n\n* b\n\ntext", [{ "-": [["a"], ["b"]] }, "text"]],
    ["text\n- a", ["text", { "-": [["a"]] }]],
    ["in the year\n1984. Not a list", ["in the year/1984. Not a list"]],
    ["- a\n1. b", [{ "-": [["a"]] }, { 1: [["b"]] }]],
    ["-", [{ "-": [[]] }]],
  ] as const) {
    assert.deepEqual(outline(blocks(source)), expected, source);
  }
  const [list] = blocks("- [ ] a\n- [x] b\n- c");
  assert.deepEqual(list?.kind === "list" && list.items.map(({ checked }) => checked), [false, true, null]);
});

test("tables", () => {
  const [table, after] = blocks("| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 \\| 3 |\n\nend");
  assert.ok(table?.kind === "table");
  assert.deepEqual(table.align, ["left", "right"]);
  assert.deepEqual(table.head.map(show), ["a", "b"]);
  assert.deepEqual(table.rows.map((row) => row.map(show)), [["1", "{x|y}"], ["2 | 3", ""]]);
  assert.equal(after?.kind, "paragraph");
  assert.equal(blocks("a | b\nc | d")[0]?.kind, "paragraph");
});

test("appended text changes the last two blocks only", () => {
  const source = "# T\n\npara **one**\n\n- a\n  - b\n\n- c\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n```js\nlet x;\n\n\n```\n1. x\n\n2. y\n\nend";
  for (let end = 1; end < source.length; end++) {
    const before = parse(source.slice(0, end));
    const after = parse(source.slice(0, end + 1));
    // As the view does it: keep all but the last two, parse from where those start.
    const kept = Math.max(before.length - 2, 0);
    const from = before[kept]?.at ?? 0;
    const again = [...before.slice(0, kept), ...parse(source.slice(from, end + 1)).map(({ at, block }) => ({ at: at + from, block }))];
    assert.deepEqual(again, after, JSON.stringify(source.slice(0, end + 1)));
  }
});

test("hostile texts take no long time and no deep stack", () => {
  const size = 20_000;
  for (const piece of ["*a ", "[", "](", "`", "> ", "- ", "**a", "_a_ *", "| ", "<", "![", "~~a", "(((", "http://"]) {
    parse(piece.repeat(size / piece.length));
  }
  parse(Array.from({ length: 200 }, (_, depth) => `${" ".repeat(depth * 2)}- x`).join("\n"));
  parse(`${"> ".repeat(500)}x`);
});

test("thinking is split from the answer", () => {
  assert.deepEqual(splitThinking("hello"), { thinking: "", answer: "hello", open: false });
  assert.deepEqual(splitThinking("<thi"), { thinking: "", answer: "", open: true });
  assert.deepEqual(splitThinking("<think>so"), { thinking: "so", answer: "", open: true });
  assert.deepEqual(splitThinking("\n<think>\nso\n</think>\n\nyes"), { thinking: "so", answer: "yes", open: false });
  // The prompt ended with the opening tag.
  assert.deepEqual(splitThinking("so\n</think>\nyes"), { thinking: "so", answer: "yes", open: false });
  const about = "Write `<think>` and `</think>`.";
  assert.deepEqual(splitThinking(about), { thinking: "", answer: about, open: false });
});

test("code is coloured without losing a character", () => {
  const samples = { python: 'def f(x):  # c\n    return "a\\"b" + \'\'\'t\n', rust: "fn f<'a>(x: &'a str) -> char { 'x' } // 0x1f", sql: "SELECT 1 -- c", bash: 'echo "$x" # c', json: '{"a": [1, true]}', other: "plain text", c: "/* open" };
  for (const [language, code] of Object.entries(samples)) {
    assert.equal(highlight(code, language).map(({ text }) => text).join(""), code, language);
  }
  const kinds = (code: string, language: string) => highlight(code, language).filter(({ kind }) => kind).map(({ kind, text }) => `${kind}:${text}`);
  assert.deepEqual(kinds('let x = "a"; // b 1', "js"), ["keyword:let", 'string:"a"', "comment:// b 1"]);
  assert.deepEqual(kinds("SELECT 1", "sql"), ["keyword:SELECT", "number:1"]);
  assert.deepEqual(kinds("let x", "unknown-language"), []);
});

test("a conversation is a tree; one branch is shown", () => {
  const chat = newConversation({ system: "", sampling: {} });
  const question = addMessage(chat, null, { role: "user", content: "q" });
  const first = addMessage(chat, question.id, { role: "assistant", content: "a1" });
  const follow = addMessage(chat, first.id, { role: "user", content: "q2" });
  const second = addMessage(chat, question.id, { role: "assistant", content: "a2" });
  assert.deepEqual(path(chat), [question, second]);
  assert.deepEqual(versions(chat, second), [first, second]);
  showVersion(chat, first);
  assert.deepEqual(path(chat), [question, first, follow]);
  assert.ok(contains(chat, "A2 q"));
  assert.ok(!contains(chat, "a2 nowhere"));
  // A damaged import must not hang the page.
  question.parent = follow.id;
  assert.equal(path(chat).length, 3);
});

test("requests have what is set, and no thinking of earlier turns", () => {
  const chat = newConversation({ system: " Be brief. ", sampling: { temperature: 0, seed: undefined } });
  const question = addMessage(chat, null, { role: "user", content: "q", images: ["data:image/png;base64,x"] });
  addMessage(chat, question.id, { role: "assistant", content: "<think>t</think>a", reasoning: "r" });
  assert.deepEqual(chatRequest(chat, path(chat), "m", false), {
    model: "m",
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,x" } }, { type: "text", text: "q" }] },
      { role: "assistant", content: "a" },
    ],
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    temperature: 0,
  });
  assert.throws(() => parseTools("{}"), /list/);
  assert.throws(() => parseTools("[")); 
});

test("exports", () => {
  const chat = newConversation({ system: "s", sampling: {} });
  chat.title = "A: title / 1";
  const question = addMessage(chat, null, { role: "user", content: "q" });
  addMessage(chat, question.id, { role: "assistant", content: "<think>t</think>a", model: "m", toolCalls: [{ id: "1", name: "f", arguments: "```" }] });
  assert.deepEqual(fromJson(toJson([chat]))[0]!.messages, chat.messages);
  for (const wrong of ["{}", "[]", "null", '{"format": "indrik-conversations", "conversations": [{"id": 1}]}']) assert.throws(() => fromJson(wrong), wrong);
  assert.equal(
    toMarkdown(chat),
    "# A: title / 1\n\n## System\n\ns\n\n## You\n\nq\n\n## m\n\n<details><summary>Thinking</summary>\n\nt\n\n</details>\n\na\n\nCall of `f`:\n\n````json\n```\n````\n",
  );
  assert.equal(fileName(chat.title, "md"), "a-title-1.md");
  assert.equal(fileName("???", "json"), "chat.json");
  assert.equal(titleOf("x".repeat(100)).length, 58);
});

test("figures", () => {
  for (const unknown of [number(null, "W"), number(undefined), percent(null), bytes(null), seconds(undefined), number(NaN)]) assert.equal(unknown, "unknown");
  assert.equal(number(0, "W"), "0 W");
  assert.equal(number(41.52, "tok/s"), "41.5 tok/s");
  assert.equal(number(12345.6), "12,346");
  assert.equal(percent(0.256), "26%");
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(15.2e9), "14.2 GiB");
  assert.deepEqual([0.0041, 0.12, 2.1, 42, 812, 9000].map(seconds), ["4.1 ms", "120 ms", "2.10 s", "42 s", "13 min", "2 h 30 min"]);
});

test("unknown samples leave gaps in a plot", () => {
  assert.deepEqual(runs([null, null], 1), []);
  assert.deepEqual(runs([1, null, 0.5, 0], 1).map((run) => run.map(([x]) => x)), [[116], [118, 119]]);
  assert.deepEqual(runs([0], 4)[0]![0]![1], 39);
});
