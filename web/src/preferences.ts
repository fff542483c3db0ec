// Small settings in localStorage, and the API key.

import type { Sampling } from "./conversation";

export type Theme = "auto" | "light" | "dark";

export interface Preferences {
  theme: Theme;
  /** System prompt and sampling of new conversations. */
  system: string;
  sampling: Sampling;
  /** The conversation that was shown last. */
  shown: string | null;
}

const PREFERENCES = "indrik.preferences";
const KEY = "indrik.key";

const defaults: Preferences = { theme: "auto", system: "", sampling: {}, shown: null };

export const preferences: Preferences = { ...defaults, ...read() };

function read(): Partial<Preferences> {
  try {
    return JSON.parse(localStorage.getItem(PREFERENCES) ?? "{}") as Partial<Preferences>;
  } catch {
    return {};
  }
}

export function savePreferences(): void {
  try {
    localStorage.setItem(PREFERENCES, JSON.stringify(preferences));
  } catch {
    // Storage is full or forbidden: settings then last as long as the page.
  }
}

let memory: string | null = null;

/** The API key that the user entered. */
export function apiKey(): string | null {
  try {
    return memory ?? sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
  } catch {
    return memory;
  }
}

/** Keeps the key for this tab, or until it is forgotten. Null forgets it. */
export function setApiKey(key: string | null, remember: boolean): void {
  memory = key;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (key !== null) (remember ? localStorage : sessionStorage).setItem(KEY, key);
  } catch {
    // It stays in memory.
  }
}
