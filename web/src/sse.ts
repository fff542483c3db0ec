// Server-sent events of a fetched stream. EventSource cannot send an API key.

/** Splits a stream into the data of its events, wherever the network cut it. */
export class SseParser {
  private buffer = "";
  private data: string[] = [];

  /** The data of the events that end in this piece. */
  push(piece: string): string[] {
    this.buffer += piece;
    const events: string[] = [];
    for (;;) {
      const end = /\r\n|\n|\r/.exec(this.buffer);
      // A carriage return at the end may be half of a line break.
      if (!end || (end[0] === "\r" && end.index === this.buffer.length - 1)) return events;
      const line = this.buffer.slice(0, end.index);
      this.buffer = this.buffer.slice(end.index + end[0].length);
      if (line === "") {
        if (this.data.length > 0) events.push(this.data.join("\n"));
        this.data = [];
      } else if (line.startsWith("data:")) {
        this.data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/** The data of each event of a response's body. Ends when the body does; throws when the connection is cut. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // The reader left early: the server frees the request at once.
    reader.cancel().catch(() => {});
  }
}
