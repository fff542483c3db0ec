// Markdown as models write it, parsed to a tree. Everything that is not in this file is text: HTML above all.
//
// Blocks: paragraphs, ATX headings, fenced code, lists (nested, with check boxes), tables, quotes, rules.
// Spans: code, bold, italic, strikethrough, links, bare addresses, line breaks, backslash escapes.

export type Span =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "bold" | "italic" | "struck"; spans: Span[] }
  | { kind: "link"; href: string; spans: Span[] }
  | { kind: "break" };

export type Align = "left" | "center" | "right" | null;

export type Block =
  | { kind: "paragraph"; spans: Span[] }
  | { kind: "heading"; level: number; spans: Span[] }
  | { kind: "code"; language: string; text: string; closed: boolean }
  | { kind: "list"; start: number | null; items: Item[] }
  | { kind: "table"; align: Align[]; head: Span[][]; rows: Span[][][] }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "rule" };

export interface Item {
  /** State of its check box, if it has one. */
  checked: boolean | null;
  blocks: Block[];
}

/** A block and where its source starts. */
export interface Placed {
  at: number;
  block: Block;
}

// Deeper nesting stays text, so that no input exhausts the stack.
const MAX_DEPTH = 12;
// Longer texts of links are not links. Keeps the time of a hostile text linear.
const MAX_LABEL = 500;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(?=\S)|[ \t]*$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const BLANK = /^[ \t]*$/;

/**
 * The blocks of a text. Text that is appended later changes no block but the last two: `2` below a list is a paragraph
 * until `2.` makes it an item of the list.
 */
export function parse(text: string, depth = 0): Placed[] {
  const lines = text.split("\n").map((line) => line.replace(/\r$/, "").replace(/\t/g, "    "));
  // Where each line starts in the text.
  const starts: number[] = [];
  let length = 0;
  for (const line of text.split("\n")) {
    starts.push(length);
    length += line.length + 1;
  }
  const placed: Placed[] = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i]!;
    if (BLANK.test(line)) {
      i++;
      continue;
    }
    const [block, next] = parseBlock(lines, i, depth);
    placed.push({ at: starts[i]!, block });
    i = next;
  }
  return placed;
}

function parseBlock(lines: string[], i: number, depth: number): [Block, number] {
  const line = lines[i]!;
  const fence = FENCE.exec(line);
  if (fence) return parseFence(lines, i, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1]!.length, spans: parseSpans(heading[2] ?? "") }, i + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, i + 1];
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return parseQuote(lines, i, depth);
    if (MARKER.test(line)) return parseList(lines, i, depth);
  }
  if (isTable(lines, i)) return parseTable(lines, i);
  let end = i + 1;
  while (end < lines.length && !endsParagraph(lines, end)) end++;
  return [{ kind: "paragraph", spans: parseSpans(lines.slice(i, end).map((part) => part.trimStart()).join("\n")) }, end];
}

function endsParagraph(lines: string[], i: number): boolean {
  const line = lines[i]!;
  const marker = MARKER.exec(line);
  return (
    BLANK.test(line) ||
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    // A number at the start of a line is more often a number than a list, unless it is the first one.
    (marker !== null && marker[3] !== undefined && (/[-*+]/.test(marker[2]!) || parseInt(marker[2]!) === 1)) ||
    isTable(lines, i)
  );
}

function parseFence(lines: string[], i: number, fence: RegExpExecArray): [Block, number] {
  const mark = fence[1]!;
  const close = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  const indent = /^ */.exec(lines[i]!)![0].length;
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end]!)) end++;
  const closed = end < lines.length;
  const outdented = lines.slice(i + 1, end).map((line) => line.replace(new RegExp(`^ {0,${indent}}`), ""));
  const language = fence[2]!.trim().split(/\s/)[0] ?? "";
  return [{ kind: "code", language, text: outdented.join("\n"), closed }, closed ? end + 1 : end];
}

function parseQuote(lines: string[], i: number, depth: number): [Block, number] {
  const inner: string[] = [];
  let end = i;
  for (; end < lines.length; end++) {
    const line = lines[end]!;
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    // A paragraph may go on without its mark.
    else if (!endsParagraph(lines, end) && !BLANK.test(inner[inner.length - 1]!)) inner.push(line);
    else break;
  }
  return [{ kind: "quote", blocks: parse(inner.join("\n"), depth + 1).map(({ block }) => block) }, end];
}

function parseList(lines: string[], i: number, depth: number): [Block, number] {
  const first = MARKER.exec(lines[i]!)!;
  const kind = (marker: string) => marker[marker.length - 1]!;
  const items: Item[] = [];
  let item: string[] = [];
  let content = 0;
  const finish = () => {
    if (item.length === 0) return;
    const box = /^\[([ xX])\] +/.exec(item[0]!);
    if (box) item[0] = item[0]!.slice(box[0].length);
    const blocks = parse(item.join("\n"), depth + 1).map(({ block }) => block);
    items.push({ checked: box ? box[1] !== " " : null, blocks });
    item = [];
  };
  let end = i;
  for (; end < lines.length; end++) {
    const line = lines[end]!;
    if (BLANK.test(line)) {
      const next = lines.slice(end).find((later) => !BLANK.test(later));
      // Two blank lines, or a paragraph at the margin, end the list.
      if (next === undefined) break;
      const marker = MARKER.exec(next);
      const goesOn = indentOf(next) >= content || (marker && kind(marker[2]!) === kind(first[2]!));
      if (!goesOn) break;
      item.push("");
      continue;
    }
    const marker = MARKER.exec(line);
    const isItem = marker && indentOf(line) < content && kind(marker[2]!) === kind(first[2]!) && !RULE.test(line);
    if (end === i || isItem) {
      finish();
      const spaces = marker![3]?.length ?? 1;
      // Five spaces and more would be code in CommonMark; models mean one.
      content = marker![1]!.length + marker![2]!.length + (spaces > 4 ? 1 : spaces);
      item.push(line.slice(content).trimStart());
    } else if (indentOf(line) >= content) {
      item.push(line.slice(content));
    } else if (indentOf(line) >= 2 && indentOf(line) > first[1]!.length) {
      // Less than the item's own indent, but some: it belongs to the item all the same.
      item.push(line.trimStart());
    } else if (!endsParagraph(lines, end) && !BLANK.test(lines[end - 1]!)) {
      item.push(line);
    } else {
      break;
    }
  }
  finish();
  const start = /\d/.test(first[2]!) ? parseInt(first[2]!) : null;
  return [{ kind: "list", start, items }, end];
}

function indentOf(line: string): number {
  return /^ */.exec(line)![0].length;
}

function isTable(lines: string[], i: number): boolean {
  const next = lines[i + 1];
  if (next === undefined || !lines[i]!.includes("|") || !DELIMITERS.test(next)) return false;
  return cells(lines[i]!).length === cells(next).length;
}

function parseTable(lines: string[], i: number): [Block, number] {
  const head = cells(lines[i]!);
  const align = cells(lines[i + 1]!).map((cell): Align => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : null;
  });
  const rows: Span[][][] = [];
  let end = i + 2;
  for (; end < lines.length && lines[end]!.includes("|") && !BLANK.test(lines[end]!); end++) {
    const row = cells(lines[end]!);
    rows.push(head.map((_, column) => parseSpans(row[column] ?? "")));
  }
  return [{ kind: "table", align, head: head.map((cell) => parseSpans(cell)), rows }, end];
}

/** Cells of a table row. A bar in code or behind a backslash is text. */
function cells(line: string): string[] {
  const found: string[] = [];
  let cell = "";
  let ticks = 0;
  const row = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1");
  for (let i = 0; i < row.length; i++) {
    const char = row[i]!;
    if (char === "\\" && row[i + 1] === "|") {
      cell += "|";
      i++;
    } else if (char === "|" && ticks % 2 === 0) {
      found.push(cell.trim());
      cell = "";
    } else {
      if (char === "`") ticks++;
      cell += char;
    }
  }
  found.push(cell.trim());
  return found;
}

// --- spans --------------------------------------------------------------------------------------------------------------

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE = /^https?:\/\/[^\s<>"'`]+/i;

/** The spans of a line or a paragraph. */
export function parseSpans(text: string, depth = 0): Span[] {
  const spans: Span[] = [];
  let plain = "";
  const flush = () => {
    if (plain) spans.push({ kind: "text", text: plain });
    plain = "";
  };
  // Marks that nothing closes up to the end of the text: later ones need no search.
  const unclosed = new Set<string>();
  const push = (span: Span) => {
    flush();
    spans.push(span);
  };
  let i = 0;
  while (i < text.length) {
    const char = text[i]!;
    const rest = text.slice(i, i + 2048);
    if (char === "\\" && ESCAPABLE.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
    } else if (char === "\n") {
      plain = plain.replace(/[ \\]+$/, "");
      push({ kind: "break" });
      i++;
    } else if (char === "`") {
      const ticks = /^`+/.exec(rest)![0];
      const end = codeEnd(text, i + ticks.length, ticks.length);
      if (end < 0) {
        plain += ticks;
        i += ticks.length;
      } else {
        const code = text.slice(i + ticks.length, end).replace(/\n/g, " ");
        push({ kind: "code", text: /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code });
        i = end + ticks.length;
      }
    } else if ((char === "[" || (char === "!" && text[i + 1] === "[")) && depth < MAX_DEPTH) {
      const link = parseLink(text, char === "!" ? i + 1 : i, depth);
      if (link) {
        push(link.span);
        i = link.end;
      } else {
        plain += char;
        i++;
      }
    } else if (char === "<") {
      const address = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(rest);
      const href = address && safeHref(address[1]!);
      if (address && href) {
        push({ kind: "link", href, spans: [{ kind: "text", text: address[1]! }] });
        i += address[0].length;
      } else {
        plain += char;
        i++;
      }
    } else if ((char === "*" || char === "_" || char === "~") && depth < MAX_DEPTH) {
      const run = new RegExp(`^\\${char}+`).exec(rest)![0];
      const emphasis = parseEmphasis(text, i, run, depth, unclosed);
      if (emphasis) {
        push(emphasis.span);
        i = emphasis.end;
      } else {
        plain += run;
        i += run.length;
      }
    } else if ((char === "h" || char === "H") && BARE.test(rest) && !/\w$/.test(plain)) {
      const bare = trimAddress(BARE.exec(rest)![0]);
      const href = safeHref(bare);
      if (href) push({ kind: "link", href, spans: [{ kind: "text", text: bare }] });
      else plain += bare;
      i += bare.length;
    } else {
      plain += char;
      i++;
    }
  }
  flush();
  return spans;
}

/** End of a code span that starts with this number of backticks; -1 if it is not closed. */
function codeEnd(text: string, from: number, ticks: number): number {
  const run = /`+/g;
  run.lastIndex = from;
  for (let match = run.exec(text); match; match = run.exec(text)) {
    if (match[0].length === ticks) return match.index;
  }
  return -1;
}

interface Found {
  span: Span;
  end: number;
}

function parseLink(text: string, at: number, depth: number): Found | null {
  let open = 0;
  let close = at;
  const most = Math.min(text.length, at + MAX_LABEL);
  for (; close < most; close++) {
    if (text[close] === "\\") close++;
    else if (text[close] === "[") open++;
    else if (text[close] === "]" && --open === 0) break;
  }
  if (text[close] !== "]" || text[close + 1] !== "(") return null;
  const target = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(
    text.slice(close + 1, close + 1 + 4096),
  );
  if (!target) return null;
  const address = (target[1] ?? target[2] ?? "").replace(/\\([!-/:-@[-`{-~])/g, "$1");
  const href = safeHref(address);
  // Anything else stays visible as it was written.
  if (!href) return null;
  const label = text.slice(at + 1, close);
  const spans = parseSpans(label, depth + 1).flatMap(unlink);
  return { span: { kind: "link", href, spans: spans.length ? spans : [{ kind: "text", text: address }] }, end: close + 1 + target[0].length };
}

/** A link in a link's text is text. */
function unlink(span: Span): Span[] {
  return span.kind === "link" ? span.spans : [span];
}

/** A normalised address that a click may open: http, https or mail. Null for all else, such as javascript: and data:. */
export function safeHref(address: string): string | null {
  // Without a scheme it would be relative to this server.
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** A bare address without the punctuation that belongs to the sentence. */
function trimAddress(address: string): string {
  let end = address.replace(/[*_~]+$/, "").length;
  for (;;) {
    const last = address[end - 1]!;
    const unopened = last === ")" && !address.slice(0, end).includes("(");
    if (!/[.,:;!?]/.test(last) && !unopened) return address.slice(0, end);
    end--;
  }
}

function parseEmphasis(text: string, at: number, run: string, depth: number, unclosed: Set<string>): Found | null {
  const mark = run[0]!;
  if (mark === "~" && run.length !== 2) return null;
  if (run.length > 3 || unclosed.has(run)) return null;
  const before = text[at - 1] ?? " ";
  const after = text[at + run.length] ?? " ";
  // It must touch what it opens; an underscore within a word is a letter.
  if (/\s/.test(after) || (mark === "_" && /[\p{L}\p{N}]/u.test(before))) return null;
  const end = emphasisEnd(text, at + run.length, mark, run.length);
  if (end < 0) {
    unclosed.add(run);
    return null;
  }
  const spans = parseSpans(text.slice(at + run.length, end), depth + 1);
  const bold: Span = { kind: "bold", spans };
  const span: Span =
    mark === "~"
      ? { kind: "struck", spans }
      : run.length === 1
        ? { kind: "italic", spans }
        : run.length === 2
          ? bold
          : { kind: "italic", spans: [bold] };
  return { span, end: end + run.length };
}

/** Where the run that closes an emphasis starts; -1 if there is none. Marks in code and behind backslashes do not count. */
function emphasisEnd(text: string, from: number, mark: string, length: number): number {
  for (let i = from; i < text.length; i++) {
    const char = text[i]!;
    if (char === "\\") {
      i++;
    } else if (char === "`") {
      const ticks = /^`+/.exec(text.slice(i, i + 64))![0].length;
      const end = codeEnd(text, i + ticks, ticks);
      i = end < 0 ? i + ticks - 1 : end + ticks - 1;
    } else if (char === mark) {
      let end = i;
      while (text[end] === mark) end++;
      const run = end - i;
      const touches = !/\s/.test(text[i - 1] ?? " ");
      const within = mark === "_" && /[\p{L}\p{N}]/u.test(text[end] ?? " ");
      // A longer run closes this one with its last marks: `**a *b***`.
      if (touches && !within && (run === length || (run > length && run !== 2))) return end - length;
      i = end - 1;
    }
  }
  return -1;
}
