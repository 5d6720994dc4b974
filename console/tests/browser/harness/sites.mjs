// A site of somebody else: a small server at another port, which counts what reaches it.

import http from "node:http";

export class ForeignSite {
  /** The paths that were asked for, with their queries. */
  asked = [];
  #pages = new Map();
  #server;

  static async start() {
    const site = new ForeignSite();
    site.#server = http.createServer((request, reply) => site.#answer(request, reply));
    await new Promise((done) => site.#server.listen(0, "127.0.0.1", done));
    site.port = site.#server.address().port;
    return site;
  }

  /** The address of a page with this document. */
  page(name, html, host = "127.0.0.1") {
    this.#pages.set(`/${name}`, `<!doctype html><meta charset="utf-8"><title>${name}</title>${html}`);
    return `http://${host}:${this.port}/${name}`;
  }

  #answer(request, reply) {
    const page = this.#pages.get(request.url);
    if (page === undefined) this.asked.push(request.url);
    // Other sites may read everything here: nothing but the console's own policy keeps a request away.
    reply.writeHead(page === undefined ? 404 : 200, { "content-type": "text/html", "access-control-allow-origin": "*" });
    reply.end(page);
  }

  /** What reached this site, without the icons that browsers ask for by themselves. */
  leaks() {
    return this.asked.filter((path) => path !== "/favicon.ico");
  }

  async end() {
    this.#server?.closeAllConnections();
    await new Promise((done) => (this.#server === undefined ? done() : this.#server.close(done)));
  }
}
