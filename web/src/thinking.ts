// Thinking that a model writes into its text.

const OPEN = "<think>";
const CLOSE = "</think>";

export interface Split {
  thinking: string;
  answer: string;
  /** The thinking has not ended yet. */
  open: boolean;
}

/**
 * Splits a text at its `<think>…</think>`. Some templates end the prompt with `<think>`, so that only the closing tag
 * is in the text.
 */
export function splitThinking(text: string): Split {
  const start = text.trimStart();
  const close = text.indexOf(CLOSE);
  if (start.startsWith(OPEN)) {
    const from = text.indexOf(OPEN) + OPEN.length;
    if (close < 0) return { thinking: text.slice(from).trim(), answer: "", open: true };
    return { thinking: text.slice(from, close).trim(), answer: text.slice(close + CLOSE.length).trimStart(), open: false };
  }
  // A tag that is still arriving.
  if (start !== "" && OPEN.startsWith(start)) return { thinking: "", answer: "", open: true };
  // At the start of a line only: elsewhere a text is about the tag.
  const end = text.indexOf("\n" + CLOSE);
  if (end >= 0 && !text.slice(0, end).includes(OPEN)) {
    const answer = text.slice(end + 1 + CLOSE.length).trimStart();
    return { thinking: text.slice(0, end).trim(), answer, open: false };
  }
  return { thinking: "", answer: text, open: false };
}
