// Lets a library that makes style elements work under the Content-Security-Policy, which lets no style element and no
// style attribute take effect. Sheets and properties that a script sets are allowed.

let done = false;

/** Elements that are made from now on have the same effect by sheets and properties. */
export function allowLibraryStyle(): void {
  if (done) return;
  done = true;
  const create = document.createElement.bind(document);
  const made = (name: string, options?: ElementCreationOptions) => {
    // The policy refuses a style element even while it is empty.
    const element = create(name === "style" ? "template" : name, options);
    if (name === "style") useSheet(element);
    if (name === "span") element.setAttribute = setAttribute;
    return element;
  };
  document.createElement = made as typeof document.createElement;
}

function setAttribute(this: HTMLElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}

function useSheet(element: HTMLElement): void {
  const sheet = new CSSStyleSheet();
  let text = "";
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", {
    get: () => text,
    set: (value: string) => {
      text = value;
      sheet.replaceSync(value);
    },
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(element);
  };
}
