// Colours code: comments, strings, numbers and keywords of Python, shell, R and JavaScript. A language that is not
// known is plain text.

export type TokenKind = "plain" | "comment" | "string" | "number" | "keyword" | "name";

export interface Token {
  kind: TokenKind;
  text: string;
}

/** Code that is coloured; the rest of longer code stays plain. */
const CODE_MAX = 64 * 1024;

const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?)[jnL]?\b`;

interface Language {
  rule: RegExp;
  keywords: Set<string>;
}

function language(comment: string, strings: string[], words: string): Language {
  const rule = `(${comment})|(${strings.join("|")})|(${NUMBER})|([A-Za-z_$][\\w$]*)`;
  return { rule: new RegExp(rule, "gs"), keywords: new Set(words.split(" ")) };
}

const DOUBLE = String.raw`"(?:\\.|[^"\\\n])*"?`;
const SINGLE = String.raw`'(?:\\.|[^'\\\n])*'?`;

const PYTHON = language(
  "#[^\\n]*",
  [String.raw`[rRbBfFuUtT]{0,2}(?:"""(?:\\.|(?!""").)*(?:""")?|'''(?:\\.|(?!''').)*(?:''')?)`, `[rRbBfFuUtT]{0,2}${DOUBLE}`, `[rRbBfFuUtT]{0,2}${SINGLE}`],
  "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield",
);
const SHELL = language(
  "(?<![^\\s;(])#[^\\n]*",
  [String.raw`"(?:\\.|[^"\\])*"?`, "'[^']*'?"],
  "if then else elif fi for while until do done case esac in function select time return exit export local readonly declare set unset shift source trap break continue",
);
const R = language(
  "#[^\\n]*",
  [DOUBLE.replace("\\n", ""), SINGLE.replace("\\n", ""), "`[^`\\n]*`?"],
  "if else repeat while function for next break TRUE FALSE NULL Inf NaN NA in return library require",
);
const JAVASCRIPT = language(
  String.raw`//[^\n]*|/\*.*?(?:\*/|$)`,
  [DOUBLE, SINGLE, String.raw`${"`"}(?:\\.|[^${"`"}\\])*${"`"}?`],
  "abstract any as async await break case catch class const continue debugger default delete do else enum export extends false finally for from function get if implements import in instanceof interface let new null of private protected public readonly return set static super switch this throw true try type typeof undefined var void while with yield",
);

const BY_KIND: Record<string, Language> = {
  python: PYTHON,
  pyodide: PYTHON,
  shell: SHELL,
  r: R,
  node: JAVASCRIPT,
};

/** The language of a kind of worker; kernels of Jupyter are mostly Python. */
function languageOf(kind: string): Language | undefined {
  if (kind.startsWith("jupyter")) return /ir\b|:r$/i.test(kind) ? R : PYTHON;
  return BY_KIND[kind];
}

export function highlight(code: string, kind: string): Token[] {
  const known = languageOf(kind);
  if (known === undefined) return [{ kind: "plain", text: code }];
  const tokens: Token[] = [];
  const read = code.slice(0, CODE_MAX);
  let done = 0;
  known.rule.lastIndex = 0;
  for (const found of read.matchAll(known.rule)) {
    const [text, comment, string, number] = found;
    if (text === "") continue;
    const what: TokenKind = comment !== undefined ? "comment" : string !== undefined ? "string" : number !== undefined ? "number" : known.keywords.has(text) ? "keyword" : "name";
    if (found.index > done) put(tokens, "plain", read.slice(done, found.index));
    // A name that is called is told apart; other names are plain.
    put(tokens, what === "name" && read[found.index + text.length] !== "(" ? "plain" : what, text);
    done = found.index + text.length;
  }
  if (done < code.length) put(tokens, "plain", code.slice(done));
  return tokens;
}

function put(tokens: Token[], kind: TokenKind, text: string): void {
  const last = tokens.at(-1);
  if (last !== undefined && last.kind === kind) last.text += text;
  else tokens.push({ kind, text });
}
