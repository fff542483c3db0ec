// Conversations in the browser's IndexedDB. They never leave the browser except as prompts.

import type { Conversation } from "./conversation";

const NAME = "indrik";
const TABLE = "conversations";

export class Store {
  private constructor(private readonly database: IDBDatabase | null) {}

  /** Opens the database. Where the browser refuses it, conversations last as long as the page. */
  static async open(): Promise<Store> {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
      return new Store(await done(request));
    } catch {
      return new Store(null);
    }
  }

  /** Whether conversations survive a reload. */
  get isPersistent(): boolean {
    return this.database !== null;
  }

  async all(): Promise<Conversation[]> {
    return this.database ? done(this.table("readonly").getAll() as IDBRequest<Conversation[]>) : [];
  }

  async save(conversation: Conversation): Promise<void> {
    if (this.database) await done(this.table("readwrite").put(conversation));
  }

  async remove(id: string): Promise<void> {
    if (this.database) await done(this.table("readwrite").delete(id));
  }

  private table(mode: IDBTransactionMode): IDBObjectStore {
    return this.database!.transaction(TABLE, mode).objectStore(TABLE);
  }
}

const UNSAVED = "indrik.unsaved";

/** Keeps conversations while the page is being closed: a write to the database might not finish then. */
export function setUnsaved(conversations: Conversation[]): void {
  try {
    if (conversations.length) sessionStorage.setItem(UNSAVED, JSON.stringify(conversations));
  } catch {
    // Too large, or forbidden. The database has what was there a second ago.
  }
}

/** What the page kept when it was closed. */
export function takeUnsaved(): Conversation[] {
  try {
    const text = sessionStorage.getItem(UNSAVED);
    sessionStorage.removeItem(UNSAVED);
    return text ? (JSON.parse(text) as Conversation[]) : [];
  } catch {
    return [];
  }
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
