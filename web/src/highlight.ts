// Colours for code: comments, strings, numbers and keywords, by families of languages. A guess, never a parser.

export interface Token {
  kind: "comment" | "string" | "number" | "keyword" | null;
  text: string;
}

const WORDS = {
  c: "abstract as async await bool boolean break case catch char class const constexpr continue def default defer delete do double dyn else enum explicit export extends extern false final finally float fn for friend from func function go if impl implements import in inline instanceof int interface is let long loop match mod module move mut namespace new nil null nullptr operator override package private protected pub public readonly ref register return self short signed sizeof static struct super switch template this throw throws trait true try type typedef typename typeof undefined union unsafe unsigned use using val var virtual void volatile where while yield chan range select map string u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 usize isize str",
  python: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return self True try while with yield match case",
  shell: "if then else elif fi for while until do done case esac in function return export local set unset source echo cd exit sudo true false",
  sql: "select from where insert into values update set delete create table drop alter add primary key foreign references join inner left right outer full on group by order having limit offset as and or not null is in exists between like union all distinct case when then else end index view with count sum avg min max desc asc default unique int integer text varchar boolean date timestamp",
  data: "true false null yes no",
} as const;

type Family = keyof typeof WORDS;

const FAMILIES: Record<string, Family> = {};
for (const [family, names] of Object.entries({
  c: "c h cpp c++ cc cs csharp java js javascript jsx ts typescript tsx mjs rust rs go golang kotlin kt swift scala dart php glsl hlsl wgsl cuda zig objc groovy",
  python: "python py python3 ruby rb elixir julia r perl nim gdscript",
  shell: "sh bash shell zsh fish console terminal dockerfile makefile make cmake powershell",
  sql: "sql mysql postgresql postgres sqlite plsql",
  data: "json json5 jsonc yaml yml toml ini css scss",
})) {
  for (const name of names.split(" ")) FAMILIES[name] = family as Family;
}

const STRINGS = `"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?`;
const PATTERNS: Record<Family, string> = {
  // A quote that opens no short literal is a lifetime (Rust) or an apostrophe.
  c: `(\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$))|("(?:[^"\\\\]|\\\\.)*"?|\`(?:[^\`\\\\]|\\\\.)*\`?|'(?:[^'\\\\\\n]|\\\\.)*')`,
  python: `(#[^\\n]*)|("""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|${STRINGS})`,
  shell: `((?:^|(?<=\\s))#[^\\n]*)|(${STRINGS})`,
  sql: `(--[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$))|(${STRINGS})`,
  data: `((?:^|(?<=\\s))#[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)|\\/\\/[^\\n]*)|(${STRINGS})`,
};

/** Longer code is shown in one colour: it would be coloured anew with each token. */
const MAX_LENGTH = 20_000;

/** The tokens of a code block; a single one of no kind if the language is not known. */
export function highlight(code: string, language: string): Token[] {
  const family = FAMILIES[language.toLowerCase()];
  if (!family || code.length > MAX_LENGTH) return [{ kind: null, text: code }];
  const words = new Set(WORDS[family].split(" "));
  const pattern = new RegExp(`${PATTERNS[family]}|(\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*)|([A-Za-z_]\\w*)`, "gm");
  const tokens: Token[] = [];
  let end = 0;
  const push = (kind: Token["kind"], text: string) => {
    const last = tokens[tokens.length - 1];
    if (last && last.kind === kind) last.text += text;
    else if (text) tokens.push({ kind, text });
  };
  for (const match of code.matchAll(pattern)) {
    push(null, code.slice(end, match.index));
    const [text, comment, string, number] = match;
    const word = family === "sql" ? text.toLowerCase() : text;
    push(comment ? "comment" : string ? "string" : number ? "number" : words.has(word) ? "keyword" : null, text);
    end = match.index + text.length;
  }
  push(null, code.slice(end));
  return tokens;
}
