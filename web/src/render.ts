// Markdown's tree as DOM nodes.

import { copyButton, h } from "./dom";
import { highlight } from "./highlight";
import { parse, type Block, type Item, type Placed, type Span } from "./markdown";

/** Shows a text that grows. Only its last two blocks are parsed and built anew: no others can change. */
export class MarkdownView {
  readonly element = h("div", { class: "markdown" });
  private text = "";
  private placed: Placed[] = [];

  update(text: string): void {
    if (text === this.text) return;
    const kept = text.startsWith(this.text) ? Math.max(this.placed.length - 2, 0) : 0;
    const from = this.placed[kept] && kept > 0 ? this.placed[kept].at : 0;
    const parsed = parse(text.slice(from)).map(({ at, block }) => ({ at: at + from, block }));
    while (this.element.childNodes.length > kept) this.element.lastChild!.remove();
    for (const { block } of parsed) this.element.append(renderBlock(block));
    this.placed = [...this.placed.slice(0, kept), ...parsed];
    this.text = text;
  }
}

function renderBlock(block: Block): Node {
  switch (block.kind) {
    case "paragraph":
      return h("p", {}, ...renderSpans(block.spans));
    case "heading":
      // Below the headings of the page itself.
      return h(`h${Math.min(block.level + 2, 6)}` as "h3", { class: `level${block.level}` }, ...renderSpans(block.spans));
    case "code":
      return renderCode(block.language, block.text);
    case "list": {
      const items = block.items.map(renderItem);
      const start = block.start === 1 ? null : block.start;
      return block.start === null ? h("ul", {}, ...items) : h("ol", { start }, ...items);
    }
    case "table":
      return renderTable(block);
    case "quote":
      return h("blockquote", {}, ...block.blocks.map(renderBlock));
    case "rule":
      return h("hr");
  }
}

function renderItem({ checked, blocks }: Item): HTMLElement {
  const box = checked === null ? null : h("input", { type: "checkbox", checked, disabled: true, "aria-label": checked ? "done" : "to do" });
  // A single paragraph needs no space around it.
  const children = blocks.map((block, index) =>
    block.kind === "paragraph" && index === 0 ? h("span", {}, ...renderSpans(block.spans)) : renderBlock(block),
  );
  return h("li", { class: checked === null ? null : "task" }, box, ...children);
}

function renderCode(language: string, text: string): HTMLElement {
  const tokens = highlight(text, language).map(({ kind, text }) => (kind ? h("span", { class: `hl-${kind}` }, text) : text));
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copyButton("Copy code", () => text)),
    // Focusable, so that the keyboard can scroll it.
    h("pre", { tabindex: 0, role: "region", "aria-label": `Code, ${language || "text"}` }, h("code", {}, ...tokens)),
  );
}

function renderTable({ align, head, rows }: Extract<Block, { kind: "table" }>): HTMLElement {
  const cell = (name: "th" | "td") => (spans: Span[], column: number) =>
    h(name, { class: align[column] ? `align-${align[column]}` : null, scope: name === "th" ? "col" : null }, ...renderSpans(spans));
  return h(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": "Table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...head.map(cell("th")))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell("td"))))),
    ),
  );
}

function renderSpans(spans: Span[]): Node[] {
  return spans.map((span) => {
    switch (span.kind) {
      case "text":
        return document.createTextNode(span.text);
      case "code":
        return h("code", {}, span.text);
      case "bold":
        return h("strong", {}, ...renderSpans(span.spans));
      case "italic":
        return h("em", {}, ...renderSpans(span.spans));
      case "struck":
        return h("s", {}, ...renderSpans(span.spans));
      case "link":
        return renderLink(span.href, renderSpans(span.spans));
      case "break":
        return h("br");
    }
  });
}

/** A link with its host beside it, unless its text says it: a model may have been talked into a false name. */
function renderLink(href: string, children: Node[]): Node {
  const link = h("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
  const url = new URL(href);
  const host = url.protocol === "mailto:" ? url.pathname : url.host;
  const shown = link.textContent!.toLowerCase().replace(/^(https?:\/\/|mailto:)/, "");
  if (shown === host.toLowerCase() || shown.startsWith(`${host.toLowerCase()}/`)) return link;
  return h("span", {}, link, h("span", { class: "host" }, ` (${host})`));
}
