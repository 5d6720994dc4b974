'use strict';
// A scanner for JavaScript source: finds the words `import` and `export` outside of strings, templates, comments
// and regular expressions. It does not parse: the engine does, and reports every syntax error itself.

const WORD_START = /[\p{ID_Start}$_\\]/u;
const WORD_PART = /[\p{ID_Continue}$\u200c\u200d\\]/u;
// After these words a slash begins a regular expression.
const BEFORE_REGEX = new Set([
  'return', 'typeof', 'instanceof', 'in', 'of', 'new', 'delete', 'void', 'throw', 'case', 'do', 'else', 'yield', 'await',
]);
// After the closing parenthesis of these words a slash begins a regular expression.
const WITH_CONDITION = new Set(['if', 'while', 'for', 'with']);

/**
 * The tokens of a source: `{type, text, start, end, depth}`. Types: word, string, template, number, regex, sign.
 * `depth` counts the open brackets; a template's inner code has its own tokens.
 */
function tokens(source) {
  const found = [];
  // Open brackets. Each says whether a slash after its end begins a regular expression, and whether a template
  // continues at its end.
  const open = [];
  let at = source.startsWith('#!') ? lineEnd(source, 0) : 0;

  const push = (type, start, end, depth = open.length) => {
    found.push({ type, text: source.slice(start, end), start, end, depth });
    at = end;
  };

  while (at < source.length) {
    const c = source[at];
    const next = source[at + 1];
    if (c <= ' ' || c === '\u00a0' || c === '\ufeff' || c === '\u2028' || c === '\u2029') at += 1;
    else if (c === '/' && next === '/') at = lineEnd(source, at);
    else if (c === '/' && next === '*') {
      const end = source.indexOf('*/', at + 2);
      at = end < 0 ? source.length : end + 2;
    } else if (c === '"' || c === "'") push('string', at, stringEnd(source, at));
    else if (c === '`') template(at);
    else if (c === '/' && regexMayBegin(found)) push('regex', at, regexEnd(source, at));
    else if (c >= '0' && c <= '9') push('number', at, numberEnd(source, at));
    else if (isWordAt(source, at, WORD_START)) push('word', at, wordEnd(source, at));
    else if (c === '(' || c === '[' || c === '{') {
      const before = found[found.length - 1];
      const condition = c === '(' && before && before.type === 'word' && WITH_CONDITION.has(before.text);
      push('sign', at, at + 1);
      open.push({ sign: c, condition, template: false });
    } else if (c === ')' || c === ']' || c === '}') {
      const opened = open.pop();
      if (opened && opened.template) template(at);
      else {
        push('sign', at, at + 1);
        found[found.length - 1].condition = Boolean(opened && opened.condition);
      }
    } else push('sign', at, at + 1);
  }
  return found;

  /** One literal part of a template, from its opening sign to `${` or to the end. */
  function template(start) {
    let end = start + 1;
    for (; end < source.length; end += 1) {
      if (source[end] === '\\') end += 1;
      else if (source[end] === '`') return push('template', start, end + 1);
      else if (source[end] === '$' && source[end + 1] === '{') {
        found.push({ type: 'sign', text: '${', start, end: end + 2, depth: open.length });
        open.push({ sign: '{', condition: false, template: true });
        at = end + 2;
        return undefined;
      }
    }
    at = source.length;
    return undefined;
  }
}

function regexMayBegin(found) {
  const before = found[found.length - 1];
  if (before === undefined) return true;
  if (before.type === 'word') {
    const property = found.length > 1 && found[found.length - 2].text === '.';
    return !property && BEFORE_REGEX.has(before.text);
  }
  if (before.type !== 'sign') return false;
  if (before.text === ')') return before.condition;
  if (before.text === ']') return false;
  // After a block a regular expression begins; after an object a slash divides. Blocks are more frequent.
  if (before.text === '}') return true;
  const postfix = before.text === '+' || before.text === '-' ? found[found.length - 2] : undefined;
  return !(postfix && postfix.text === before.text && postfix.end === before.start);
}

function lineEnd(source, at) {
  const end = source.indexOf('\n', at);
  return end < 0 ? source.length : end;
}

function stringEnd(source, start) {
  const quote = source[start];
  for (let at = start + 1; at < source.length; at += 1) {
    if (source[at] === '\\') at += 1;
    else if (source[at] === quote) return at + 1;
    else if (source[at] === '\n') return at;
  }
  return source.length;
}

function regexEnd(source, start) {
  let inClass = false;
  for (let at = start + 1; at < source.length; at += 1) {
    const c = source[at];
    if (c === '\n') return at;
    if (c === '\\') at += 1;
    else if (c === '[') inClass = true;
    else if (c === ']') inClass = false;
    else if (c === '/' && !inClass) return wordEnd(source, at + 1);
  }
  return source.length;
}

function numberEnd(source, start) {
  let at = start + 1;
  while (at < source.length && /[\w.]/.test(source[at])) at += 1;
  return at;
}

function wordEnd(source, start) {
  let at = start;
  while (at < source.length && isWordAt(source, at, WORD_PART)) at += source.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

function isWordAt(source, at, pattern) {
  const code = source.charCodeAt(at);
  if (code < 128) {
    return (code >= 97 && code <= 122) || (code >= 65 && code <= 90) || code === 95 || code === 36 || code === 92
      || code === 35 || (pattern === WORD_PART && code >= 48 && code <= 57);
  }
  return pattern.test(String.fromCodePoint(source.codePointAt(at)));
}

module.exports = { tokens };
